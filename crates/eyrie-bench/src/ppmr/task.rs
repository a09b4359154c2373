//! The tasks of the two nodes of a migration and their reports, as commands, driver and nodes share
//! them. Pure except for the clock.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::ppmr::kinds::Kind;

/// How the images of a node's ranks get to the other node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Into files, files copied over TCP, restored from the files.
    Local,
    /// Into files in a directory that both nodes see, restored from there.
    Shared,
    /// As local, but the files are pulled by reads of remote memory.
    RdmaLocal,
    /// Through a pool of buffers into the restorers, pulled over TCP, without files.
    Pipeline,
    /// The same, pulled by reads of remote memory: PPMR.
    RdmaPipeline,
    /// As ranks of a job of Eyrie, which compute meanwhile. These nodes do not use it.
    Live,
}

impl Way {
    pub const ALL: [Way; 6] =
        [Way::Local, Way::Shared, Way::RdmaLocal, Way::Pipeline, Way::RdmaPipeline, Way::Live];

    pub fn name(self) -> &'static str {
        match self {
            Way::Local => "local",
            Way::Shared => "shared",
            Way::RdmaLocal => "rdma-local",
            Way::Pipeline => "pipeline",
            Way::RdmaPipeline => "rdma-pipeline",
            Way::Live => "live",
        }
    }

    pub fn has_files(self) -> bool {
        matches!(self, Way::Local | Way::Shared | Way::RdmaLocal)
    }

    pub fn is_rdma(self) -> bool {
        matches!(self, Way::RdmaLocal | Way::RdmaPipeline)
    }
}

impl std::str::FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let named = Way::ALL.into_iter().find(|way| way.name() == text);
        let names = || Way::ALL.map(Way::name).join(", ");
        named.ok_or_else(|| format!("no way is called {text:?}: there are {}", names()))
    }
}

/// What fills the chunks at the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feed {
    /// Ranks, of which images are taken.
    Ranks,
    /// Nothing: the same memory is sent again and again, this many bytes.
    Memory(u64),
}

/// What happens to the chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sink {
    /// Ranks are restored at the target.
    Restore,
    /// They are dropped at the target.
    Drop,
    /// They are dropped at the source; there is no target.
    Stay,
}

/// What each rank does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Work {
    pub kind: Kind,
    /// Memory of a rank.
    pub mib: u64,
    pub steps: u32,
    /// How often it moves, in equal parts of its run; fewer times than `steps`.
    pub moves: u32,
}

impl Work {
    /// Whether a rank moves after this many steps.
    pub fn moves_before(&self, step: u32) -> bool {
        (1..=self.moves).any(|i| step == self.steps * i / (self.moves + 1))
    }
}

/// One migration or several of the same way, or a part of one. All nodes have the same task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Task {
    pub way: Way,
    pub feed: Feed,
    pub sink: Sink,
    pub ranks: u32,
    pub work: Work,
    /// Bytes of the pool of each node, and of a chunk in it.
    pub pool: usize,
    pub chunk: usize,
    /// Connections, or reads under way for each, that pull at the same time.
    pub streams: usize,
    /// Whether files are written to the disk before the next phase.
    pub synced: bool,
    /// The directory for files; each node makes its own directory in it.
    pub dir: PathBuf,
    pub rdma: Rdma,
    /// The addresses of source and target.
    pub addresses: [String; 2],
    /// The rate of the network that the nodes have between them, if they have one of their own.
    pub rate: Option<String>,
}

/// The site's libfabric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rdma {
    pub library: PathBuf,
    pub provider: String,
}

impl Task {
    /// The file of a rank's image, on the node with this name. All nodes see the same directory
    /// where the way is shared.
    pub fn file(&self, node: &str, rank: u32) -> PathBuf {
        let node = if self.way == Way::Shared { "shared" } else { node };
        self.dir.join(format!("{node}-{rank}"))
    }

    /// The number of streams that are sent: one for each rank, or one.
    pub fn sources(&self) -> u32 {
        match self.feed {
            Feed::Ranks => self.ranks,
            Feed::Memory(_) => 1,
        }
    }
}

/// The report of the source; times of the machine's monotonic clock in nanoseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SourceReport {
    pub ordered_ns: u64,
    /// All ranks have written their images (and files are on the disk).
    pub imaged_ns: u64,
    /// When the target had received everything.
    pub taken_ns: u64,
    pub image_bytes: u64,
    pub most_chunks: usize,
    pub memory_kib: u64,
}

/// The report of the target, like that of the source; without a target: nothing.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TargetReport {
    /// The last byte was pulled (and files are on the disk).
    pub pulled_ns: u64,
    /// All ranks run.
    pub running_ns: u64,
    pub pulled_bytes: u64,
    pub most_chunks: usize,
    pub memory_kib: u64,
}

/// The machine's monotonic clock, the same in all processes, in nanoseconds.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The most memory that this process has had, in KiB.
pub fn most_memory_kib() -> u64 {
    eyrie_proc::Status::read(eyrie_proc::OWN).bytes("VmHWM").unwrap_or(0) >> 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_known_by_their_names() {
        for way in Way::ALL {
            assert_eq!(way.name().parse(), Ok(way));
        }
        assert!("ftp".parse::<Way>().unwrap_err().contains("rdma-local"));
    }

    #[test]
    fn ranks_move_in_equal_parts_of_their_run() {
        let moves = |steps, moves| {
            let work = Work { kind: Kind::Lu, mib: 1, steps, moves };
            (0..steps).filter(|step| work.moves_before(*step)).collect::<Vec<_>>()
        };
        assert_eq!(moves(8, 3), [2, 4, 6]);
        assert_eq!(moves(2, 1), [1]);
        assert_eq!(moves(5, 3), [1, 2, 3]);
        assert!(moves(8, 0).is_empty());
    }

    #[test]
    fn only_a_shared_directory_has_the_same_file_on_both_nodes() {
        let rdma = Rdma { library: "l".into(), provider: "tcp".into() };
        let task = |way| Task {
            way,
            feed: Feed::Ranks,
            sink: Sink::Restore,
            ranks: 2,
            work: Work { kind: Kind::Lu, mib: 1, steps: 2, moves: 1 },
            pool: 8,
            chunk: 4,
            streams: 1,
            synced: false,
            dir: "/d".into(),
            rdma: rdma.clone(),
            addresses: ["a", "b"].map(String::from),
            rate: None,
        };
        let same = |way| task(way).file("source", 1) == task(way).file("target", 1);
        assert_eq!(Way::ALL.map(same), [false, true, false, false, false, false]);
        let text = serde_json::to_string(&task(Way::RdmaLocal)).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&text).unwrap(), task(Way::RdmaLocal));
    }
}
