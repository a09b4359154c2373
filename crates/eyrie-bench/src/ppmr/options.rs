//! What can be asked of PPMR's experiments, and the tasks that follow from it.

use anyhow::{bail, Context};
use std::path::{Path, PathBuf};

use crate::ppmr::network::ADDRESSES;
use crate::ppmr::task::{Feed, Rdma, Sink, Task, Way};

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Experiment {
    /// Images gathered in the pool, by number of writers and size of chunks.
    Aggregation,
    /// Chunks pulled, by their size.
    Network,
    /// Images gathered and pulled, by size of the pool.
    Pipeline,
    /// All ranks of a node moved, by way and memory.
    Ways,
}

impl Experiment {
    pub const ALL: [Experiment; 4] =
        [Experiment::Aggregation, Experiment::Network, Experiment::Pipeline, Experiment::Ways];

    pub fn name(self) -> &'static str {
        match self {
            Experiment::Aggregation => "aggregation",
            Experiment::Network => "network",
            Experiment::Pipeline => "pipeline",
            Experiment::Ways => "ways",
        }
    }
}

/// What is varied, and what is the same in all of it.
#[derive(Clone, Debug)]
pub struct Options {
    pub ways: Vec<Way>,
    pub ranks: u32,
    /// Memory of a rank.
    pub mib: Vec<u64>,
    pub pool: usize,
    pub chunk: usize,
    pub streams: usize,
    /// Where files are; `None`: where temporary files are.
    pub dir: Option<PathBuf>,
    pub rdma: Rdma,
    /// Where both nodes are reached, if not over a network of their own with a `rate`.
    pub address: String,
    pub rate: Option<String>,
}

impl Options {
    /// # Errors
    /// What cannot be, in words for the user.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.chunk == 0 || self.pool < self.chunk || self.pool > 1 << 30 {
            bail!("a pool holds at least one chunk and at most 1 GiB: choose another --pool or --chunk");
        }
        if self.ranks == 0 || self.streams == 0 || self.mib.contains(&0) {
            bail!("--ranks, --streams and --mib are at least 1");
        }
        if self.ways.iter().any(|way| way.is_rdma()) && !self.rdma.library.is_file() {
            bail!(
                "{} is missing: say where the site's libfabric is with --libfabric, or leave the ways that need it out (--way)",
                self.rdma.library.display()
            );
        }
        Ok(())
    }

    /// A task of these options whose files are in `dir`.
    pub fn task(&self, way: Way, mib: u64, dir: &Path) -> Task {
        Task {
            way,
            feed: Feed::Ranks,
            sink: Sink::Restore,
            ranks: self.ranks,
            mib,
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
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("eyrie-ppmr-").tempdir_in(&dir);
        made.with_context(|| format!("cannot make a directory in {}", dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_in_words() {
        let rdma = Rdma { library: "/nowhere.so".into(), provider: "tcp".into() };
        let good = Options {
            ways: vec![Way::Local],
            ranks: 1,
            mib: vec![1],
            pool: 8 << 20,
            chunk: 128 << 10,
            streams: 4,
            dir: None,
            rdma,
            address: "127.0.0.1".into(),
            rate: None,
        };
        assert!(good.check().is_ok());
        let why = |options: Options| options.check().unwrap_err().to_string();
        assert!(why(Options { chunk: 16 << 20, ..good.clone() }).contains("--pool"));
        assert!(why(Options { mib: vec![1, 0], ..good.clone() }).contains("--mib"));
        assert!(why(Options { ways: Way::ALL.to_vec(), ..good }).contains("/nowhere.so"));
    }
}
