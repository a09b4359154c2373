//! Files in /dev/shm that MPI libraries have made for ranks, and that stay behind when a rank dies:
//! they must be gone before its next incarnation starts. Nothing here touches a file.

use eyrie_wire::Rank;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The paths, for each rank.
#[derive(Default, Serialize, Deserialize)]
pub struct Leftovers(Vec<BTreeSet<String>>);

impl Leftovers {
    pub fn new(ranks: u32) -> Leftovers {
        Leftovers(vec![BTreeSet::new(); ranks as usize])
    }

    /// A rank has made a file.
    pub fn add(&mut self, rank: Rank, path: String) {
        if let Some(paths) = self.0.get_mut(rank.index()) {
            paths.insert(path);
        }
    }

    /// Those of a rank.
    pub fn of(&self, rank: Rank) -> Vec<String> {
        let paths = self.0.get(rank.index()).into_iter().flatten();
        paths.cloned().collect()
    }

    pub fn all(&self) -> impl Iterator<Item = &String> {
        self.0.iter().flatten()
    }
}
