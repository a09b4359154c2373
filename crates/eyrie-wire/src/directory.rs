//! Where the parts of a job are. The controller makes this data and distributes it; it is never
//! computed from a formula, and never part of an image. A directory with a higher epoch replaces
//! one with a lower epoch.

use crate::role_address::Addr;
use crate::{Rank, RouterId};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// Until when a message is kept by the rank that has sent it: when its router acknowledges it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum KeptUntil {
    /// It is logged by the router of its receiver, which lives as long as the job.
    #[default]
    Logged,
    /// Its receiver has it, and has said so: routers may be lost and replaced.
    Received,
}

/// The way that the messages of a job take. On the direct way router 0 is the keeper of the host's
/// ledgers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum MessagePath {
    /// Through routers, which order and keep them
    #[default]
    Router,
    /// Straight from rank to rank, through memory that they share and that keeps them
    Direct,
}

/// Where the parts of a job are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Directory {
    pub epoch: u64,
    /// The primary router of each rank.
    #[serde(serialize_with = "write_primaries", deserialize_with = "read_primaries")]
    pub primaries: Vec<RouterId>,
    /// Where each router listens.
    pub routers: Vec<Addr>,
    /// Routers on the host of the receiver of this directory, which are lost together with it, and
    /// the gateway to other domains. What a rank has seen is elsewhere before it tells these.
    pub beside: Vec<RouterId>,
    /// The router of all ranks of other domains, if there are any. It can be away for as long as
    /// its host is: who needs it waits for as long as the job does.
    pub gateway: Option<RouterId>,
    pub kept_until: KeptUntil,
    pub path: MessagePath,
}

impl Directory {
    /// The primary router of a rank.
    pub fn primary(&self, rank: Rank) -> RouterId {
        self.primaries.get(rank.index()).copied().unwrap_or(RouterId(0))
    }

    /// The routers that are elsewhere than in an older directory, or serve other ranks, in order.
    pub fn changed_since(&self, older: &Directory) -> Vec<RouterId> {
        let mut changed = BTreeSet::new();
        let numbered = (0..).map(RouterId).zip(self.routers.iter().zip(&older.routers));
        changed.extend(numbered.filter(|(_, (new, old))| new != old).map(|(router, _)| router));
        for (new, old) in self.primaries.iter().zip(&older.primaries) {
            if new != old {
                changed.extend([*new, *old]);
            }
        }
        changed.into_iter().collect()
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a directory is plain data")
    }

    /// An encoded directory as a record for a file to which newer ones are appended.
    pub fn record(encoded: &[u8]) -> Vec<u8> {
        [&(encoded.len() as u64).to_le_bytes(), encoded].concat()
    }

    /// The last directory in such a file.
    ///
    /// # Errors
    /// When there is none.
    pub fn last(mut records: &[u8]) -> Result<Directory, String> {
        let mut last: &[u8] = &[];
        while let Some((len, rest)) = records.split_first_chunk() {
            let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
            let Some(directory) = rest.get(..len) else { break };
            (last, records) = (directory, &rest[len..]);
        }
        Directory::decode(last)
    }

    /// Reads a directory.
    ///
    /// # Errors
    /// When the bytes are not a directory, or it names routers that it does not have.
    pub fn decode(bytes: &[u8]) -> Result<Directory, String> {
        let directory: Directory =
            postcard::from_bytes(bytes).map_err(|e| format!("not a directory: {e}"))?;
        directory.check()?;
        Ok(directory)
    }

    /// A directory that came in a message may be wrong.
    ///
    /// # Errors
    /// When it names routers that it does not have.
    pub fn check(&self) -> Result<(), String> {
        if self.primaries.iter().any(|r| r.index() >= self.routers.len()) {
            Err("the directory names a router that it does not have".into())
        } else {
            Ok(())
        }
    }
}

/// Most ranks of a directory. A malformed directory must not exhaust the reader's memory.
const MAX_RANKS: usize = 1 << 24;

/// Writes the primary routers as runs: how many consecutive ranks have which. Each node of a large
/// job receives them, and the ranks of a node have the same primary router.
fn write_primaries<S: Serializer>(primaries: &[RouterId], to: S) -> Result<S::Ok, S::Error> {
    let runs = primaries.chunk_by(|a, b| a == b).map(|run| (run.len() as u32, run[0]));
    runs.collect::<Vec<_>>().serialize(to)
}

fn read_primaries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RouterId>, D::Error> {
    let mut primaries = Vec::new();
    for (ranks, router) in Vec::<(u32, RouterId)>::deserialize(from)? {
        if ranks as usize > MAX_RANKS - primaries.len() {
            return Err(D::Error::custom("it has too many ranks"));
        }
        primaries.resize(primaries.len() + ranks as usize, router);
    }
    Ok(primaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_survive_and_must_be_whole() {
        let routers = vec![Addr::Unix("/a".into()), Addr::Unix("/b".into())];
        let primaries = [0, 1, 0].map(RouterId).to_vec();
        let beside = vec![RouterId(1)];
        let kept_until = KeptUntil::Received;
        let path = MessagePath::Direct;
        let gateway = Some(RouterId(1));
        let whole = Directory { epoch: 3, primaries, routers, beside, gateway, kept_until, path };
        assert_eq!(Directory::decode(&whole.encode()), Ok(whole.clone()));
        assert_eq!(whole.primary(Rank(1)), RouterId(1));
        let first = Directory { epoch: 2, ..whole.clone() };
        let mut file = Directory::record(&first.encode());
        file.extend(Directory::record(&whole.encode()));
        assert_eq!(Directory::last(&file), Ok(whole.clone()));
        assert_eq!(Directory::last(&file[..file.len() - 1]), Ok(first));
        let broken = Directory { primaries: vec![RouterId(0), RouterId(2)], ..whole.clone() };
        assert!(Directory::decode(&broken.encode()).is_err());
        assert_eq!(whole.changed_since(&whole), []);
        let routers = vec![Addr::Unix("/a".into()), Addr::Unix("/c".into())];
        let moved = Directory { routers, ..whole.clone() };
        assert_eq!(moved.changed_since(&whole), [RouterId(1)]);
        let serves = Directory { primaries: [0, 1, 1].map(RouterId).to_vec(), ..whole.clone() };
        assert_eq!(serves.changed_since(&whole), [RouterId(0), RouterId(1)]);
        let bytes = whole.encode();
        for cut in 0..bytes.len() {
            assert!(Directory::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn a_directory_of_many_ranks_is_short_and_one_of_too_many_is_refused() {
        let routers = vec![Addr::Unix("/a".into()), Addr::Unix("/b".into())];
        let primaries = [vec![RouterId(0); 1_000_000], vec![RouterId(1); 1_000_000]].concat();
        let whole = Directory { primaries, routers, ..Directory::default() };
        let bytes = whole.encode();
        assert!(bytes.len() < 100, "{} bytes", bytes.len());
        assert_eq!(Directory::decode(&bytes), Ok(whole));
        let epoch = 1_u64;
        let runs = vec![(u32::MAX, 0_u32); 3];
        assert!(Directory::decode(&postcard::to_stdvec(&(epoch, runs)).unwrap()).is_err());
    }
}
