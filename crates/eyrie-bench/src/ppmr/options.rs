//! The options of PPMR's experiments, and the tasks that follow from them.

use anyhow::{bail, Context};
use std::path::Path;

use crate::ppmr::kinds::Kind;
use crate::ppmr::network::ADDRESSES;
use crate::ppmr::task::{Feed, Rdma, Sink, Task, Way, Work};
use crate::Setup;

/// The experiments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Images gathered in the pool, by number of writers and size of chunks.
    Aggregation,
    /// Chunks pulled, by their size.
    Network,
    /// Images gathered and pulled, by size of the pool.
    Pipeline,
    /// All ranks of a node moved, by way, kind of program and memory.
    Ways,
    /// Programs whose ranks move never, once and three times, by way.
    Runs,
}

impl Experiment {
    pub const ALL: [Experiment; 5] = [
        Experiment::Aggregation,
        Experiment::Network,
        Experiment::Pipeline,
        Experiment::Ways,
        Experiment::Runs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Experiment::Aggregation => "aggregation",
            Experiment::Network => "network",
            Experiment::Pipeline => "pipeline",
            Experiment::Ways => "ways",
            Experiment::Runs => "runs",
        }
    }
}

/// What is varied, and what is common to all tasks.
#[derive(Clone, Debug)]
pub struct Options {
    pub ways: Vec<Way>,
    pub kinds: Vec<Kind>,
    pub ranks: u32,
    /// Memory of a rank.
    pub mib: Vec<u64>,
    pub pool: usize,
    pub chunk: usize,
    pub streams: usize,
    /// Of the jobs whose ranks move live. Its `dir` is also where files are (`None`: where
    /// temporary files are).
    pub setup: Setup,
    pub rdma: Rdma,
    /// The address of both nodes, if they have no network of their own with a `rate`.
    pub address: String,
    pub rate: Option<String>,
}

impl Options {
    /// # Errors
    /// Impossible options, in words for the user.
    pub fn check(&self, what: &[Experiment]) -> anyhow::Result<()> {
        if self.rate.is_some() && what.contains(&Experiment::Runs) {
            bail!(
                "runs go over more than two nodes: leave --rate out, or ask for other experiments"
            );
        }
        if self.chunk == 0 || self.pool < self.chunk || self.pool > 1 << 30 {
            bail!(
                "a pool holds at least one chunk and at most 1 GiB: choose another --pool or \
                 --chunk"
            );
        }
        if self.ranks == 0 || self.streams == 0 || self.mib.contains(&0) {
            bail!("--ranks, --streams and --mib are at least 1");
        }
        let mpi = self.setup.libmpi();
        if self.ways.contains(&Way::Live) && !mpi.is_file() {
            bail!(
                "{} is missing: run `make setup` in the source folder, say where MPICH is with \
                 --venv, or leave the live way out (--way)",
                mpi.display()
            );
        }
        if self.ways.iter().any(|way| way.is_rdma()) && !self.rdma.library.is_file() {
            bail!(
                "{} is missing: say where the site's libfabric is with --libfabric, or leave the \
                 ways that need it out (--way)",
                self.rdma.library.display()
            );
        }
        Ok(())
    }

    /// A task of these options whose files are in `dir`.
    pub fn task(&self, way: Way, work: Work, dir: &Path) -> Task {
        Task {
            way,
            feed: Feed::Ranks,
            sink: Sink::Restore,
            ranks: self.ranks,
            work,
            pool: self.pool,
            chunk: self.chunk,
            streams: self.streams,
            synced: false,
            dir: dir.into(),
            rdma: self.rdma.clone(),
            addresses: match self.rate {
                Some(_) => ADDRESSES.map(String::from),
                None => [self.address.clone(), self.address.clone()],
            },
            rate: self.rate.clone(),
        }
    }

    /// An empty directory for files, gone with the value.
    pub fn place(&self) -> anyhow::Result<tempfile::TempDir> {
        let dir = self.setup.dir.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("eyrie-ppmr-").tempdir_in(&dir);
        made.with_context(|| format!("cannot make a directory in {}", dir.display()))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Options that are valid.
    pub fn some() -> Options {
        let rdma = Rdma { library: "/nowhere.so".into(), provider: "tcp".into() };
        let [eyrie, venv, examples] = ["/nowhere/eyrie", "/nowhere", "/nowhere"].map(Into::into);
        Options {
            ways: vec![Way::Local],
            kinds: vec![Kind::Lu],
            ranks: 1,
            mib: vec![1],
            pool: 8 << 20,
            chunk: 128 << 10,
            streams: 4,
            setup: Setup { eyrie, venv, examples, dir: None },
            rdma,
            address: "127.0.0.1".into(),
            rate: None,
        }
    }

    #[test]
    fn impossible_options_are_refused_in_words() {
        let good = some();
        assert!(good.check(&Experiment::ALL).is_ok());
        let why = |options: Options| options.check(&Experiment::ALL).unwrap_err().to_string();
        assert!(why(Options { chunk: 16 << 20, ..good.clone() }).contains("--pool"));
        assert!(why(Options { mib: vec![1, 0], ..good.clone() }).contains("--mib"));
        assert!(why(Options { rate: Some("1gbit".into()), ..good.clone() }).contains("--rate"));
        assert!(why(Options { ways: vec![Way::Live], ..good.clone() }).contains("--venv"));
        assert!(why(Options { ways: vec![Way::RdmaLocal], ..good }).contains("/nowhere.so"));
    }
}
