//! The surroundings of the protocol, in memory: for tests of this crate and of those that talk to
//! it.

use crate::protocol::{ConnId, Output, RouterEvent};
use crate::space::Store;
use eyrie_wire::data::{put, put_plain, Determinant, Header, ObservedPart};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;

/// Runs schedules with these seeds on all processors; returns the sum of what they return.
pub fn on_all_processors(seeds: std::ops::Range<u64>, run: impl Fn(u64) -> u64 + Sync) -> u64 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = |t| (seeds.start + t as u64..seeds.end).step_by(threads).map(&run).sum::<u64>();
    let share = &share;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|t| scope.spawn(move || share(t))).collect();
        running.into_iter().map(|r| r.join().expect("a schedule failed")).sum()
    })
}

/// Files in memory; the disk can be full.
#[derive(Default)]
pub struct MemoryStore {
    full: Rc<Cell<bool>>,
    blocks: BTreeMap<u64, Vec<u8>>,
    end: u64,
}

impl MemoryStore {
    /// A store whose disk is full while `full` is true.
    pub fn new(full: Rc<Cell<bool>>) -> MemoryStore {
        MemoryStore { full, ..MemoryStore::default() }
    }
}

/// A segment's file.
pub type MemoryFile = Rc<RefCell<Vec<u8>>>;

impl Store for MemoryStore {
    type File = MemoryFile;

    fn memory_file(&mut self, bytes: u64) -> io::Result<MemoryFile> {
        Ok(Rc::new(RefCell::new(vec![0; bytes as usize])))
    }

    fn disk_file(&mut self, bytes: u64) -> io::Result<MemoryFile> {
        if self.full.get() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            self.memory_file(bytes)
        }
    }

    fn read_file(&self, file: &MemoryFile, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let at = offset as usize;
        to.copy_from_slice(&file.borrow()[at..at + to.len()]);
        Ok(())
    }

    fn write_file(&mut self, file: &MemoryFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = offset as usize;
        file.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn write_block(&mut self, bytes: &[u8]) -> io::Result<u64> {
        if self.full.get() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let offset = self.end;
        self.end += bytes.len() as u64;
        self.blocks.insert(offset, bytes.to_vec());
        Ok(offset)
    }

    fn read_block(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let block = self.blocks.get(&offset).ok_or(io::ErrorKind::NotFound)?;
        assert_eq!(block.len(), len);
        Ok(block.clone())
    }

    fn free_block(&mut self, offset: u64, len: usize) {
        let block = self.blocks.remove(&offset).expect("freed once");
        assert_eq!(block.len(), len);
    }
}

/// A frame, with the file that goes with it.
pub type Queued = (Vec<u8>, Option<MemoryFile>);

/// The protocol's output, kept until the test looks at it.
#[derive(Default)]
pub struct Said {
    /// Frames for each connection.
    pub frames: BTreeMap<ConnId, VecDeque<Queued>>,
    pub closed: Vec<ConnId>,
    pub held: BTreeSet<ConnId>,
    pub events: Vec<RouterEvent>,
    /// Most frames that may be queued for a connection.
    pub room: usize,
}

impl Said {
    fn put(&mut self, conn: ConnId, bytes: Vec<u8>, file: Option<MemoryFile>) {
        self.frames.entry(conn).or_default().push_back((bytes, file));
    }
}

impl Output<MemoryFile> for Said {
    fn frame(&mut self, conn: ConnId, header: &Header, payload: &[u8]) {
        let mut bytes = Vec::new();
        put_plain(&mut bytes, header, payload);
        self.put(conn, bytes, None);
    }

    fn replay(
        &mut self,
        conn: ConnId,
        list: &[Determinant],
        observed: Option<ObservedPart<&[u8]>>,
    ) {
        let mut bytes = Vec::new();
        put(&mut bytes, &Header::Replay, list.iter().copied(), observed, &[]);
        self.put(conn, bytes, None);
    }

    fn logged(&mut self, conn: ConnId, frame: &[u8]) {
        self.put(conn, frame.to_vec(), None);
    }

    fn frame_with_file(&mut self, conn: ConnId, header: &Header, file: MemoryFile) {
        let mut bytes = Vec::new();
        put_plain(&mut bytes, header, &[]);
        self.put(conn, bytes, Some(file));
    }

    fn has_room(&self, conn: ConnId) -> bool {
        self.frames.get(&conn).map_or(0, VecDeque::len) < self.room
    }

    fn close(&mut self, conn: ConnId) {
        self.closed.push(conn);
    }

    fn hold(&mut self, conn: ConnId, held: bool) {
        if held {
            self.held.insert(conn);
        } else {
            self.held.remove(&conn);
        }
    }

    fn event(&mut self, event: RouterEvent) {
        self.events.push(event);
    }
}
