//! The journal of a job: what the job was made for, then everything that its controller has heard,
//! with the time. A controller that hears the same again comes to the same state. It is a file in
//! the job's directory, and copies on hosts of other nodes; what follows from an entry goes out
//! when the entry can be lost no more. A file that has become long makes room for one that begins
//! with the state that it leads to; it goes only when that one is whole.

use super::inbound::Heard;
use super::link::JournalProgress;
use super::options::JobOptions;
use super::program::Provided;
use super::snapshot::Snapshot;
use eyrie_wire::control::{Program, ToAgent};
use eyrie_wire::formats::JOURNAL;
use eyrie_wire::NodeId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The journal's name in the job's directory; copies have the number of their node behind it.
pub const FILE: &str = "journal";
/// How many hosts have a copy.
pub const COPIES: usize = 2;
/// Longest piece that is sent to a copy, and most that is on the way to one, in bytes.
const PIECE: u64 = 1 << 20;
const ON_THE_WAY: u64 = 4 << 20;
/// Longest entry in bytes.
const MAX_ENTRY: usize = 1 << 30;
/// How long it becomes before it begins anew, in bytes: so much, and so many times what the one
/// that takes its place begins with.
const LONG: u64 = 8 << 20;
const LONG_TIMES: u64 = 4;
/// What goes before an entry: its length, and the beginnings of the hashes of that and of it.
const PREFIX: usize = 16;

/// The form of journals and saved jobs, which changes more often than the version of the command.
const FORM: u32 = 4;

/// The version of Eyrie, as journals and saved jobs have it: only the same one goes on with them.
pub fn this_version() -> String {
    format!("{}, form {FORM}", env!("CARGO_PKG_VERSION"))
}

/// What a job was made for.
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

/// What a file begins with. Positions are counted in bytes from the journal's beginning and never
/// go back: where a file takes the place of another it begins where that had ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    pub beginning: Beginning,
    /// The file's first byte has this position.
    pub position: u64,
    /// The state that all before it has led to, unless this is the beginning.
    pub snapshot: Option<Snapshot>,
}

/// Something that the job has heard, and when (since its start).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub at: Duration,
    pub heard: Heard,
}

/// A copy on another host.
#[derive(Debug)]
struct Copy {
    /// The positions up to which it was sent, and up to which it has come.
    sent: u64,
    kept: u64,
    /// The position at which the journal ended when it was sent as far: with that the copy is
    /// whole.
    whole_with: Option<u64>,
    /// The copy of the file before, until this one is whole.
    before: Option<Before>,
}

/// A copy of a file that another has taken the place of.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Up to where.
    end: u64,
    /// It is there, and whole; else that is on its way.
    is_there: bool,
}

impl Copy {
    /// One of a file that begins there.
    fn new(position: u64, before: Option<Before>) -> Copy {
        Copy { sent: position, kept: position, whole_with: None, before }
    }

    /// Up to where a whole copy is on its host, or will be when what was sent there comes.
    fn state(&self) -> Option<Before> {
        match self.whole_with {
            Some(end) if self.kept >= end => Some(Before { end: self.kept, is_there: true }),
            Some(end) => self.before.or(Some(Before { end, is_there: false })),
            None => self.before,
        }
    }

    /// Another controller can go on from there.
    fn is_whole(&self) -> bool {
        self.state().is_some_and(|state| state.is_there)
    }

    /// A piece of the file before has come, which was on its way.
    fn kept_before(&mut self, position: u64) {
        if let Some(before) = self.before.as_mut().filter(|before| before.end <= position) {
            *before = Before { end: position, is_there: true };
        }
    }
}

/// The journal while the job runs.
#[derive(Debug, Default)]
pub struct Journal {
    /// None: no other controller can go on with this job.
    file: Option<File>,
    path: PathBuf,
    /// The positions at which the file begins and ends.
    begins: u64,
    ends: u64,
    /// The file may become so long, in bytes.
    limit: u64,
    buffer: Vec<u8>,
    copies: BTreeMap<NodeId, Copy>,
}

impl Journal {
    /// Begins a journal in the job's directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(dir: &Path, beginning: &Beginning) -> io::Result<Journal> {
        let path = dir.join(FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = Some(options.open(&path)?);
        let mut journal = Journal { file, path, limit: LONG, ..Journal::default() };
        let head = Head { beginning: beginning.clone(), position: 0, snapshot: None };
        journal.buffer.extend(JOURNAL.magic);
        put(&mut journal.buffer, &head)?;
        journal.flush()?;
        Ok(journal)
    }

    /// Goes on with a journal that was read.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn go_on(path: &Path, read: &Read) -> io::Result<Journal> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let begins = read.head.position;
        let ends = read.end;
        file.set_len(ends - begins)?;
        let file = Some(file);
        let path = path.to_path_buf();
        Ok(Journal { file, path, begins, ends, limit: LONG, ..Journal::default() })
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
        let result = file.write_all_at(&self.buffer, self.ends - self.begins);
        self.ends += self.buffer.len() as u64;
        self.buffer.clear();
        if result.is_err() {
            *self = Journal::default();
        }
        result
    }

    /// Whether it is time for [`Journal::begin_anew`].
    pub fn is_long(&self) -> bool {
        self.is_kept() && self.ends - self.begins > self.limit
    }

    /// A new file takes the place of this one, all of which was flushed; it begins with the state
    /// that this one leads to. After an error this one goes on, and may become twice as long.
    ///
    /// # Errors
    /// When the new one cannot be written.
    pub fn begin_anew(&mut self, beginning: Beginning, snapshot: Snapshot) -> io::Result<()> {
        self.limit = (self.ends - self.begins).saturating_mul(2);
        let position = self.ends;
        let mut bytes = JOURNAL.magic.to_vec();
        put(&mut bytes, &Head { beginning, position, snapshot: Some(snapshot) })?;
        let partial = self.path.with_extension("partial");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(&partial)?;
        file.write_all_at(&bytes, 0)?;
        std::fs::rename(&partial, &self.path)?;
        let len = bytes.len() as u64;
        (self.file, self.begins, self.ends) = (Some(file), position, position + len);
        self.limit = LONG.max(len * LONG_TIMES);
        for copy in self.copies.values_mut() {
            *copy = Copy::new(position, copy.state());
        }
        Ok(())
    }

    /// How far it has come. Without copies the file must do; else each that is whole, or becomes so
    /// by what is on its way, has it, too: another controller goes on from any one of them.
    pub fn progress(&self) -> JournalProgress {
        if self.file.is_none() {
            return JournalProgress::NO_JOURNAL;
        }
        let kept =
            self.copies.values().filter_map(Copy::state).map(|s| s.end).min().unwrap_or(u64::MAX);
        JournalProgress {
            position: self.ends + self.buffer.len() as u64,
            durable: kept.min(self.ends),
        }
    }

    /// The nodes that have a whole copy.
    pub fn whole_copies(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.copies.iter().filter(|(_, copy)| copy.is_whole()).map(|(node, _)| *node)
    }

    /// How many copies there are, those that are on their way to be whole included.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Whether more copies are wanted.
    pub fn wants_copies(&self) -> bool {
        self.file.is_some() && self.copies.len() < COPIES
    }

    /// Copies can be on these nodes, best first.
    pub fn keep_on(&mut self, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            if !self.wants_copies() {
                return;
            }
            self.copies.entry(node).or_insert_with(|| Copy::new(self.begins, None));
        }
    }

    /// The node is lost, and its copy with it.
    pub fn lose(&mut self, node: NodeId) {
        self.copies.remove(&node);
    }

    /// What was on its way to a copy may be lost with a connection: all of it is sent once more.
    pub fn send_anew(&mut self, node: NodeId) {
        if let Some(copy) = self.copies.get_mut(&node) {
            *copy = Copy::new(self.begins, copy.state());
        }
    }

    /// A copy has come to this position.
    pub fn kept(&mut self, node: NodeId, position: u64) {
        let Some(copy) = self.copies.get_mut(&node) else { return };
        if position > self.begins {
            copy.kept = position.min(copy.sent);
        } else {
            copy.kept_before(position);
        }
    }

    /// The next pieces for all copies.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn pieces(&mut self) -> io::Result<Vec<(NodeId, ToAgent)>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let mut pieces = Vec::new();
        for (node, copy) in &mut self.copies {
            while copy.sent < self.ends && copy.sent - copy.kept < ON_THE_WAY {
                let at = copy.sent;
                let mut bytes = vec![0; (self.ends - at).min(PIECE) as usize];
                file.read_exact_at(&mut bytes, at - self.begins)?;
                copy.sent += bytes.len() as u64;
                let whole = copy.whole_with.is_none() && copy.sent == self.ends;
                copy.whole_with = copy.whole_with.or(whole.then_some(copy.sent));
                let begins = at == self.begins;
                pieces.push((*node, ToAgent::Journal { at, bytes, begins, whole }));
            }
        }
        Ok(pieces)
    }
}

/// Whether a file of a job's directory is its journal, or a copy of it.
pub fn is_journal(name: &str) -> bool {
    name.strip_prefix(FILE).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.parse::<NodeId>().is_ok())
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
    buffer.extend(prefix(&bytes));
    buffer.extend(bytes);
    Ok(())
}

fn prefix(entry: &[u8]) -> [u8; PREFIX] {
    let len = (entry.len() as u32).to_le_bytes();
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&len);
    prefix[4..8].copy_from_slice(&blake3::hash(&len).as_bytes()[..4]);
    prefix[8..].copy_from_slice(&blake3::hash(entry).as_bytes()[..8]);
    prefix
}

/// Why a value cannot be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// The file ends before it: its writer was killed.
    Torn,
    /// These are not the bytes that were written.
    Damaged,
}

/// The value at the start of `bytes`, and what follows it.
///
/// # Errors
/// When it is not whole.
pub fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), Unreadable> {
    let (found, rest) = bytes.split_first_chunk::<PREFIX>().ok_or(Unreadable::Torn)?;
    let len = [found[0], found[1], found[2], found[3]];
    if found[4..8] != blake3::hash(&len).as_bytes()[..4] {
        return Err(Unreadable::Damaged);
    }
    let payload = rest.get(..u32::from_le_bytes(len) as usize).ok_or(Unreadable::Torn)?;
    let value = postcard::from_bytes(payload).ok().filter(|_| prefix(payload) == *found);
    Ok((value.ok_or(Unreadable::Damaged)?, &rest[payload.len()..]))
}

/// A journal that is read back.
#[derive(Debug)]
pub struct Read {
    pub head: Head,
    pub entries: Vec<Entry>,
    /// The position at which all that ends; what follows is torn.
    pub end: u64,
}

/// The head of a journal, and what follows it; `None` where it is not whole, or no journal.
fn head_of(bytes: &[u8]) -> Option<(Head, &[u8])> {
    take::<Head>(JOURNAL.strip(bytes)?).ok()
}

/// Reads a journal, but for a last entry that is torn.
///
/// # Errors
/// Where it is damaged, in bytes; 0 also when it is torn in its head.
pub fn read(bytes: &[u8]) -> Result<Read, usize> {
    let (head, mut rest) = head_of(bytes).ok_or(0usize)?;
    let mut entries = Vec::new();
    loop {
        match take::<Entry>(rest) {
            Ok((entry, behind)) => {
                entries.push(entry);
                rest = behind;
            }
            Err(Unreadable::Torn) => break,
            Err(Unreadable::Damaged) => return Err(bytes.len() - rest.len()),
        }
    }
    let end = head.position.checked_add((bytes.len() - rest.len()) as u64).ok_or(0usize)?;
    Ok(Read { head, entries, end })
}

/// Up to which position a file may go that cannot be read.
pub fn end_of_damaged(bytes: &[u8]) -> u64 {
    let begins = head_of(bytes).map_or(u64::MAX, |(head, _)| head.position);
    begins.saturating_add(bytes.len() as u64)
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
        Entry {
            at: Duration::from_micros(n),
            heard: crate::machine::Event::Note(format!("note {n}")).into(),
        }
    }

    #[test]
    fn what_was_written_is_read_back_and_a_torn_end_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut journal = Journal::begin(dir.path(), &beginning()).unwrap();
        let first = journal.ends as usize;
        (0..3).for_each(|n| journal.add(&entry(n)).unwrap());
        assert!(journal.progress().position > journal.progress().durable);
        journal.flush().unwrap();
        assert_eq!(journal.progress().position, journal.progress().durable);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            let torn = read(&bytes[..cut]).map(|r| (r.entries.len(), r.end as usize));
            assert_eq!(torn.is_ok(), cut >= first);
            assert!(torn.is_err() || torn.is_ok_and(|(_, end)| end <= cut));
        }
        for changed in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[changed] ^= 1 << (changed % 8);
            let at = read(&damaged).expect_err("a changed byte is not found");
            assert!(at <= changed && (at == 0) == (changed < first), "{at} for {changed}");
        }
        let back = read(&bytes).unwrap();
        assert_eq!(back.entries, [entry(0), entry(1), entry(2)]);
        assert_eq!(back.head.beginning.program, beginning().program);
        std::fs::write(&path, [&bytes[..], &[1; 9]].concat()).unwrap();
        let mut journal = Journal::go_on(&path, &back).unwrap();
        journal.add(&entry(3)).unwrap();
        journal.flush().unwrap();
        assert_eq!(read(&std::fs::read(&path).unwrap()).unwrap().entries.len(), 4);
    }

    #[test]
    fn a_journal_that_begins_anew_goes_on_where_the_last_one_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut journal = Journal::begin(dir.path(), &beginning()).unwrap();
        while !journal.is_long() {
            (0..10_000).for_each(|n| journal.add(&entry(n)).unwrap());
            journal.flush().unwrap();
        }
        let before = read(&std::fs::read(&path).unwrap()).unwrap().end;
        journal.begin_anew(beginning(), Snapshot::default()).unwrap();
        assert!(!journal.is_long());
        journal.add(&entry(1)).unwrap();
        journal.flush().unwrap();
        let read = read(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read.entries, [entry(1)]);
        assert!(read.head.position == before && read.end > before && read.head.snapshot.is_some());
        assert!(std::fs::metadata(&path).unwrap().len() < 10_000);
        let again = Journal::go_on(&path, &read).unwrap();
        assert_eq!(again.progress().position, journal.progress().position);
    }

    /// What is on another host.
    #[derive(Default)]
    struct Host {
        coming: Vec<u8>,
        is_whole: bool,
        whole: Vec<u8>,
    }

    impl Host {
        /// As agents do it; returns the position of its end.
        fn hear(&mut self, piece: ToAgent) -> u64 {
            let ToAgent::Journal { at, bytes, begins, whole } = piece else { unreachable!() };
            if begins {
                (self.coming, self.is_whole) = (Vec::new(), false);
            }
            let end = at + bytes.len() as u64;
            self.coming.extend(bytes);
            self.is_whole |= whole;
            if self.is_whole {
                self.whole.clone_from(&self.coming);
            }
            end
        }
    }

    proptest! {
        /// Copies come and go, and the journal begins anew; one that is said to be whole can be
        /// read, and what may go out is in each that is whole on its host.
        #[test]
        fn what_may_go_out_is_in_every_copy(
            steps in prop::collection::vec((0u32..4, 0u8..8), 1..200),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut journal = Journal::begin(dir.path(), &beginning()).unwrap();
            let mut hosts: BTreeMap<NodeId, Host> = BTreeMap::new();
            let mut wires: BTreeMap<NodeId, Vec<ToAgent>> = BTreeMap::new();
            for (node, what) in steps {
                match what {
                    0 | 1 => journal.add(&entry(7)).unwrap(),
                    2 => journal.flush().unwrap(),
                    3 => {
                        journal.lose(NodeId(node));
                        hosts.remove(&NodeId(node));
                        wires.remove(&NodeId(node));
                        journal.keep_on(NodeId::first(4).filter(|n| *n != NodeId(node)));
                    }
                    4 => {
                        journal.flush().unwrap();
                        journal.begin_anew(beginning(), Snapshot::default()).unwrap();
                    }
                    _ => {
                        // The wire of a node hands a piece over.
                        let wire = wires.entry(NodeId(node)).or_default();
                        if !wire.is_empty() {
                            let end = hosts.entry(NodeId(node)).or_default().hear(wire.remove(0));
                            journal.kept(NodeId(node), end);
                        }
                    }
                }
                for (node, piece) in journal.pieces().unwrap() {
                    wires.entry(node).or_default().push(piece);
                }
                let end = read(&std::fs::read(dir.path().join(FILE)).unwrap()).unwrap().end;
                let durable = journal.progress().durable;
                prop_assert!(durable <= end);
                for node in journal.whole_copies() {
                    prop_assert!(!hosts[&node].whole.is_empty(), "that of {node} is not whole");
                }
                for (node, host) in hosts.iter().filter(|(_, host)| !host.whole.is_empty()) {
                    let kept = read(&host.whole).unwrap().end;
                    prop_assert!(kept >= durable, "{node} has {kept} of {durable}");
                }
            }
        }
    }
}
