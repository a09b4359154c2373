//! The journal of a job: what the job was made for, then everything that its controller has heard,
//! with the time. Whoever hears the same again comes to the same state. It is a file in the job's
//! directory, and copies on hosts of other nodes; what follows from an entry goes out when the
//! entry can be lost no more.

use super::inbound::Heard;
use super::link::Gate;
use super::options::JobOptions;
use super::program::Provided;
use eyrie_wire::control::{Program, ToAgent};
use eyrie_wire::Node;
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// The journal's name in the job's directory; copies have the number of their node behind it.
pub const FILE: &str = "journal";
/// How many hosts have a copy.
const COPIES: usize = 2;
/// Longest piece that is sent to a copy, and most that is on the way to one, in bytes.
const PIECE: u64 = 1 << 20;
const ON_THE_WAY: u64 = 4 << 20;
/// Longest entry in bytes.
const MAX_ENTRY: usize = 1 << 30;
/// What goes before an entry: its length and the beginning of its hash.
const PREFIX: usize = 8;

/// What a job was made for: the first entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Beginning {
    /// Of Eyrie: no other one can read what follows.
    pub version: String,
    pub name: String,
    pub kvsname: String,
    pub options: JobOptions,
    pub program: Program,
    pub provided: Vec<Provided>,
}

/// Something that the job has heard, and when (since its start).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub at: Duration,
    pub heard: Heard,
}

/// A copy on another host.
#[derive(Debug, Default)]
struct Copy {
    /// Bytes that were sent to it, and that it has.
    sent: u64,
    kept: u64,
    /// So many bytes were the journal when it was sent as far: with them the copy is whole.
    whole_with: Option<u64>,
}

impl Copy {
    fn is_whole(&self) -> bool {
        self.whole_with.is_some_and(|bytes| self.kept >= bytes)
    }
}

/// The journal while the job runs.
#[derive(Debug, Default)]
pub struct Journal {
    /// None: nobody can go on with this job.
    file: Option<File>,
    /// Bytes in the file.
    written: u64,
    buffer: Vec<u8>,
    copies: BTreeMap<Node, Copy>,
}

impl Journal {
    /// Begins a journal in the job's directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(dir: &Path, beginning: &Beginning) -> io::Result<Journal> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = Some(options.open(dir.join(FILE))?);
        let mut journal = Journal { file, ..Journal::default() };
        put(&mut journal.buffer, beginning)?;
        journal.flush()?;
        Ok(journal)
    }

    /// Goes on with a journal of which the first `bytes` are right.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn go_on(path: &Path, bytes: u64) -> io::Result<Journal> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.set_len(bytes)?;
        Ok(Journal { file: Some(file), written: bytes, ..Journal::default() })
    }

    /// Whether there is one.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Adds an entry, which [`Journal::flush`] writes.
    ///
    /// # Errors
    /// When it is too long.
    pub fn add(&mut self, entry: &Entry) -> io::Result<()> {
        match self.file {
            Some(_) => put(&mut self.buffer, entry),
            None => Ok(()),
        }
    }

    /// Writes what was added. After an error there is no journal any more.
    ///
    /// # Errors
    /// Those of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if self.buffer.is_empty() {
            return Ok(());
        }
        let result = file.write_all_at(&self.buffer, self.written);
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if result.is_err() {
            *self = Journal::default();
        }
        result
    }

    /// How far it has come. Without copies the file must do; else one of them has it, too.
    pub fn gate(&self) -> Gate {
        if self.file.is_none() {
            return Gate::OPEN;
        }
        let whole = self.copies.values().filter(|copy| copy.is_whole());
        let kept = whole.map(|copy| copy.kept).max().unwrap_or(u64::MAX);
        Gate { position: self.written + self.buffer.len() as u64, durable: kept.min(self.written) }
    }

    /// The nodes that have a whole copy.
    pub fn whole_copies(&self) -> impl Iterator<Item = Node> + '_ {
        self.copies.iter().filter(|(_, copy)| copy.is_whole()).map(|(node, _)| *node)
    }

    /// Whether more copies are wanted.
    pub fn wants_copies(&self) -> bool {
        self.file.is_some() && self.copies.len() < COPIES
    }

    /// Copies can be on these nodes, best first.
    pub fn keep_on(&mut self, nodes: impl Iterator<Item = Node>) {
        for node in nodes {
            if !self.wants_copies() {
                return;
            }
            self.copies.entry(node).or_default();
        }
    }

    /// The node is lost, and its copy with it.
    pub fn lose(&mut self, node: Node) {
        self.copies.remove(&node);
    }

    /// A copy has come so far.
    pub fn kept(&mut self, node: Node, bytes: u64) {
        if let Some(copy) = self.copies.get_mut(&node) {
            copy.kept = bytes.min(copy.sent);
        }
    }

    /// The next pieces for all copies.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn pieces(&mut self) -> io::Result<Vec<(Node, ToAgent)>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let mut pieces = Vec::new();
        for (node, copy) in &mut self.copies {
            while copy.sent < self.written && copy.sent - copy.kept < ON_THE_WAY {
                let at = copy.sent;
                let mut bytes = vec![0; (self.written - at).min(PIECE) as usize];
                file.read_exact_at(&mut bytes, at)?;
                copy.sent += bytes.len() as u64;
                let whole = copy.whole_with.is_none() && copy.sent == self.written;
                copy.whole_with = copy.whole_with.or(whole.then_some(copy.sent));
                pieces.push((*node, ToAgent::Journal { at, bytes, whole }));
            }
        }
        Ok(pieces)
    }
}

/// Whether a file of a job's directory is its journal, or a copy of it.
pub fn is_journal(name: &str) -> bool {
    name.strip_prefix(FILE).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.parse::<Node>().is_ok())
    })
}

/// Whether there is one in a job's directory.
pub fn is_in(dir: &Path) -> bool {
    let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.any(|entry| is_journal(&entry.file_name().to_string_lossy()))
}

pub fn put(buffer: &mut Vec<u8>, value: &impl Serialize) -> io::Result<()> {
    let bytes =
        postcard::to_stdvec(value).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
    if bytes.len() > MAX_ENTRY {
        return Err(io::Error::new(ErrorKind::InvalidData, "an entry too long for the journal"));
    }
    buffer.extend((bytes.len() as u32).to_le_bytes());
    buffer.extend(&blake3::hash(&bytes).as_bytes()[..4]);
    buffer.extend(bytes);
    Ok(())
}

/// The value at the start of `bytes`, and what follows it; `None` when it is torn.
pub fn take<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (hash, rest) = rest.split_first_chunk::<{ PREFIX - 4 }>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let payload = rest.get(..len)?;
    if blake3::hash(payload).as_bytes()[..4] != *hash {
        return None;
    }
    Some((postcard::from_bytes(payload).ok()?, &rest[len..]))
}

/// A journal that is read back.
#[derive(Debug)]
pub struct Read {
    pub beginning: Beginning,
    pub entries: Vec<Entry>,
    /// Bytes of all that; what follows them is torn.
    pub bytes: u64,
}

/// Reads a journal as far as it is whole; `None` when not even its beginning is.
pub fn read(bytes: &[u8]) -> Option<Read> {
    let (beginning, mut rest) = take::<Beginning>(bytes)?;
    let mut entries = Vec::new();
    while let Some((entry, behind)) = take::<Entry>(rest) {
        entries.push(entry);
        rest = behind;
    }
    Some(Read { beginning, entries, bytes: (bytes.len() - rest.len()) as u64 })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::runtime::options::tests::options;
    use proptest::prelude::*;

    pub fn beginning() -> Beginning {
        let text = String::from;
        Beginning {
            version: text("1"),
            name: text("j"),
            kvsname: text("k"),
            options: options(),
            program: Program {
                exe: "/bin/true".into(),
                argv: vec!["true".into()],
                env: vec![("A".into(), "b".into())],
                cwd: "/".into(),
            },
            provided: vec![],
        }
    }

    fn entry(n: u64) -> Entry {
        Entry { at: Duration::from_micros(n), heard: Heard::Note(format!("note {n}")) }
    }

    #[test]
    fn what_was_written_is_read_back_and_a_torn_end_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut journal = Journal::begin(dir.path(), &beginning()).unwrap();
        let first = journal.written as usize;
        (0..3).for_each(|n| journal.add(&entry(n)).unwrap());
        assert!(journal.gate().position > journal.gate().durable);
        journal.flush().unwrap();
        assert_eq!(journal.gate().position, journal.gate().durable);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            let mut torn = bytes[..cut].to_vec();
            let whole = read(&torn).map(|r| (r.entries.len(), r.bytes as usize));
            assert_eq!(whole.is_some(), cut >= first);
            torn.extend([0xff; 100]);
            assert_eq!(read(&torn).map(|r| (r.entries.len(), r.bytes as usize)), whole);
        }
        let back = read(&bytes).unwrap();
        assert_eq!(back.entries, [entry(0), entry(1), entry(2)]);
        assert_eq!(back.beginning.program, beginning().program);
        std::fs::write(&path, [&bytes[..], &[1; 9]].concat()).unwrap();
        let mut journal = Journal::go_on(&path, back.bytes).unwrap();
        journal.add(&entry(3)).unwrap();
        journal.flush().unwrap();
        assert_eq!(read(&std::fs::read(&path).unwrap()).unwrap().entries.len(), 4);
    }

    proptest! {
        /// Copies come and go; one that is said to be whole is a beginning of the journal, and what
        /// may go out is in one of them.
        #[test]
        fn what_may_go_out_is_in_a_copy(
            steps in prop::collection::vec((0u32..4, 0u8..6), 1..200),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::begin(dir.path(), &beginning()).unwrap();
            let mut hosts: BTreeMap<Node, (Vec<u8>, bool)> = BTreeMap::new();
            let mut wires: BTreeMap<Node, Vec<ToAgent>> = BTreeMap::new();
            for (node, what) in steps {
                match what {
                    0 | 1 => journal.add(&entry(7)).unwrap(),
                    2 => journal.flush().unwrap(),
                    3 => {
                        journal.lose(node);
                        hosts.remove(&node);
                        wires.remove(&node);
                        journal.keep_on((0..4).filter(|n| *n != node));
                    }
                    _ => {
                        // The wire of a node hands a piece over.
                        let wire = wires.entry(node).or_default();
                        if !wire.is_empty() {
                            let ToAgent::Journal { at, bytes, whole } = wire.remove(0) else {
                                unreachable!()
                            };
                            let (copy, is_whole) = hosts.entry(node).or_default();
                            copy.truncate(at as usize);
                            copy.extend(bytes);
                            *is_whole |= whole;
                            let kept = copy.len() as u64;
                            journal.kept(node, kept);
                        }
                    }
                }
                for (node, piece) in journal.pieces().unwrap() {
                    wires.entry(node).or_default().push(piece);
                }
                let bytes = std::fs::read(dir.path().join(FILE)).unwrap();
                let durable = journal.gate().durable as usize;
                prop_assert!(durable <= bytes.len());
                let present = |n: &Node| journal.copies.get(n).is_some_and(Copy::is_whole);
                let whole: Vec<_> = hosts.iter().filter(|(n, _)| present(n)).collect();
                for (_, (copy, _)) in &whole {
                    prop_assert!(bytes.starts_with(copy));
                }
                if !whole.is_empty() {
                    prop_assert!(whole.iter().any(|(_, (copy, _))| copy.len() >= durable));
                }
            }
        }
    }
}
