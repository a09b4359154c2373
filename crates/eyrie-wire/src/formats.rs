//! What each file and stream of Eyrie's begins with, so that none is taken for another. A format
//! has a version of its own behind it: this says only what the bytes are.

/// Bytes of a magic number.
pub const MAGIC_LEN: usize = 8;

/// A format.
#[derive(PartialEq, Eq, Debug)]
pub struct Format {
    pub magic: [u8; MAGIC_LEN],
    /// What such bytes are, for users.
    pub name: &'static str,
}

/// The stream of an image. `eyrie-image-format` has its number, too, because it depends on no other
/// crate: a test of `eyrie-store` compares them. Manifests up to version 2 began with it as well.
pub const IMAGE: Format = Format { magic: *b"EYRIEIMG", name: "an image of a process" };
/// What a store has of an image.
pub const MANIFEST: Format = Format { magic: *b"EYRIEMAN", name: "the manifest of an image" };
/// What the controller of a job has heard, and copies of it.
pub const JOURNAL: Format = Format { magic: *b"EYRIEJNL", name: "the journal of a job" };
/// The state of the controller's machine, within a journal.
pub const SNAPSHOT: Format = Format { magic: *b"EYRIESNP", name: "the state of a controller" };
/// What is needed to go on with a saved job besides its images and routers.
pub const SAVED_JOB: Format = Format { magic: *b"EYRIEJOB", name: "a saved job" };
/// Messages, determinants and observations that a router has saved.
pub const SAVED_ROUTER: Format = Format { magic: *b"EYRIERTR", name: "a saved router" };
/// The ledgers of a job's ranks, that a keeper has saved.
pub const SAVED_LEDGERS: Format = Format { magic: *b"EYRIELDG", name: "saved ledgers" };
/// A connection from the gateway of one domain to that of another one.
pub const LINE: Format = Format { magic: *b"EYRIELIN", name: "a connection between domains" };
/// How much of a job's output was written.
pub const WRITTEN: Format =
    Format { magic: *b"EYRIEOUT", name: "the file that says how much output was written" };
/// What the controller of another domain is told to start with.
pub const ORDER: Format =
    Format { magic: *b"EYRIEORD", name: "the order of a domain's controller" };

/// All of them.
pub const ALL: [&Format; 10] = [
    &IMAGE,
    &MANIFEST,
    &JOURNAL,
    &SNAPSHOT,
    &SAVED_JOB,
    &SAVED_ROUTER,
    &SAVED_LEDGERS,
    &LINE,
    &WRITTEN,
    &ORDER,
];

impl Format {
    /// What follows the magic number; `None` where the bytes are of no such format.
    pub fn strip<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.strip_prefix(&self.magic)
    }

    /// What the bytes are instead, for users, when they are of another format of Eyrie's.
    pub fn mistaken(&self, bytes: &[u8]) -> Option<String> {
        let other = ALL.into_iter().find(|other| other.strip(bytes).is_some());
        let other = other.filter(|other| *other != self)?;
        Some(format!("it is {}, not {}", other.name, self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_format_has_a_magic_number_of_its_own_and_names_the_others() {
        let magics: BTreeSet<_> = ALL.iter().map(|format| format.magic).collect();
        assert_eq!(magics.len(), ALL.len());
        for format in ALL {
            assert_eq!(format.strip(&format.magic), Some(&[][..]));
            assert_eq!(format.mistaken(&format.magic), None);
            assert_eq!(format.mistaken(b"EYRIE??? of no format"), None);
            for other in ALL.into_iter().filter(|other| *other != format) {
                assert_eq!(format.strip(&other.magic), None);
                assert!(format.mistaken(&other.magic).unwrap().contains(other.name));
            }
        }
    }
}
