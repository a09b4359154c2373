//! What Open MPI asks its launcher about the job and its ranks, answered without the agent. To the
//! library each rank is alone on its node, wherever it runs, so it does not look for shared memory.

use crate::abi::{RANK, RANK_WILDCARD, UINT16, UINT32};
use crate::value::Value;
use std::os::unix::ffi::OsStringExt;

/// The name of the job in PMIx.
pub const NSPACE: &str = "eyrie";

/// What a rank knows from its environment.
#[derive(Clone, Debug)]
pub struct Job {
    pub rank: u32,
    pub size: u32,
    /// The job's directory.
    pub dir: String,
}

impl Job {
    /// From the environment that the agent sets; `None` outside of a job.
    pub fn of_environment() -> Option<Job> {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        Some(Job {
            rank: number(eyrie_wire::agent::ENV_RANK)?,
            size: number(eyrie_wire::agent::ENV_SIZE)?,
            dir: std::env::var("FI_PROVIDER_PATH").ok()?,
        })
    }

    /// The value of a PMIx key for a rank, or for the job as this rank sees it. `None`: the value
    /// is one that the rank may have put.
    pub fn value(&self, rank: u32, key: &str) -> Option<Value> {
        let rank = if rank == RANK_WILDCARD { self.rank } else { rank };
        let text = |text: String| Some(Value::Text(text.into_bytes()));
        let short = |number: u16| Some(Value::Number(UINT16, number.into()));
        let number = |number: u32| Some(Value::Number(UINT32, number.into()));
        match key {
            "pmix.job.size" | "pmix.univ.size" | "pmix.max.size" => number(self.size),
            "pmix.num.nodes" => number(self.size),
            "pmix.local.size" | "pmix.node.size" | "pmix.job.napps" => number(1),
            "pmix.appnum" | "pmix.reinc" => number(0),
            "pmix.nodeid" => number(rank),
            "pmix.lrank" | "pmix.nrank" => short(0),
            "pmix.grank" | "pmix.apprank" => Some(Value::Number(RANK, rank.into())),
            "pmix.lpeers" => text(rank.to_string()),
            "pmix.hname" if rank == self.rank => text(host_name()),
            "pmix.hname" => text(format!("rank-{rank}")),
            "pmix.tmpdir" | "pmix.nsdir" => text(self.dir.clone()),
            "pmix.pdir" => text(format!("{}/rank-{rank}", self.dir)),
            "pmix.wdir" => std::env::current_dir().ok().map(|dir| Value::Text(dir_bytes(dir))),
            "pmix.app.argv" => std::fs::read("/proc/self/cmdline").ok().map(command_line),
            _ => None,
        }
    }
}

fn dir_bytes(dir: std::path::PathBuf) -> Vec<u8> {
    dir.into_os_string().into_vec()
}

/// The words of a command line as one text.
fn command_line(words: Vec<u8>) -> Value {
    let words: Vec<&[u8]> = words.split(|b| *b == 0).filter(|word| !word.is_empty()).collect();
    Value::Text(words.join(&b' '))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_alone_on_its_node() {
        let job = Job { rank: 1, size: 4, dir: "/jobs/j".into() };
        for rank in 0..4 {
            let of = |key: &str| job.value(rank, key).unwrap();
            assert_eq!(of("pmix.lpeers"), Value::Text(rank.to_string().into_bytes()));
            assert_eq!(of("pmix.local.size"), Value::Number(UINT32, 1));
            assert_eq!(of("pmix.lrank"), Value::Number(UINT16, 0));
            assert_eq!(of("pmix.job.size"), Value::Number(UINT32, 4));
        }
        let names: std::collections::BTreeSet<_> =
            (0..4).map(|rank| format!("{:?}", job.value(rank, "pmix.hname"))).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(job.value(2, "mtl.ofi.5.0"), None);
        let neighbours = job.value(RANK_WILDCARD, "pmix.lpeers");
        assert_eq!(neighbours, Some(Value::Text(b"1".to_vec())));
    }
}
