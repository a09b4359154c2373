//! Segments: files of the router that hold large payloads. A sender writes into its segment, receivers read
//! from it, the router only keeps the descriptor, so a payload is copied twice in all. A segment
//! lives as long as a logged frame names it or its sender may still write to it.

use crate::spill::unnamed_file;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// One segment.
pub struct Segment {
    pub file: Arc<OwnedFd>,
    /// Bytes.
    pub size: u64,
    in_memory: bool,
    /// Logged frames that name it.
    frames: u64,
    /// Its sender may still write to it.
    open: bool,
    /// Its sender's connection broke: frames that name it may be on no log yet, so it is not used anew.
    abandoned: bool,
}

/// All segments of a router.
pub struct Segments {
    map: HashMap<u32, Segment>,
    next: u32,
    memory_limit: u64,
    /// Bytes of segments in memory and on disk.
    pub memory: u64,
    pub disk: u64,
    dir: PathBuf,
    /// Memory segments of the standard size that nobody needs: their pages are there already.
    pool: Vec<Arc<OwnedFd>>,
    standard_size: u64,
}

impl Segments {
    /// `memory_limit` bounds the segments in memory; more go to files in `dir`.
    pub fn new(memory_limit: u64, ranks: u32, dir: PathBuf) -> Segments {
        let share = memory_limit / (4 * u64::from(ranks.max(1)));
        let standard_size = share.clamp(1 << 20, 16 << 20) & !4095;
        let map = HashMap::new();
        Segments {
            map,
            next: 1,
            memory_limit,
            memory: 0,
            disk: 0,
            dir,
            pool: vec![],
            standard_size,
        }
    }

    /// Makes a segment for at least `size` bytes.
    ///
    /// # Errors
    /// When there is room neither in memory nor on disk.
    pub fn open(&mut self, size: u64) -> io::Result<u32> {
        let size = size.max(self.standard_size).next_multiple_of(4096);
        let pooled = if size == self.standard_size { self.pool.pop() } else { None };
        let in_memory = pooled.is_some() || self.memory + size <= self.memory_limit;
        let file = match pooled {
            Some(file) => file,
            None if in_memory => {
                self.memory += size;
                Arc::new(rustix::fs::memfd_create(
                    "eyrie-segment",
                    rustix::fs::MemfdFlags::CLOEXEC,
                )?)
            }
            None => {
                let file = unnamed_file(&self.dir)?;
                let none = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&file, none, 0, size)?;
                self.disk += size;
                Arc::new(file.into())
            }
        };
        let id = self.next;
        self.next = self.next.checked_add(1).unwrap_or(1);
        self.map
            .insert(id, Segment { file, size, in_memory, frames: 0, open: true, abandoned: false });
        Ok(id)
    }

    pub fn get(&self, id: u32) -> Option<&Segment> {
        self.map.get(&id)
    }

    /// A frame that names the segment was logged.
    pub fn frame_logged(&mut self, id: u32) {
        if let Some(s) = self.map.get_mut(&id) {
            s.frames += 1;
        }
    }

    /// `n` such frames were discarded. Returns true when the segment is gone.
    pub fn frames_discarded(&mut self, id: u32, n: u32) -> bool {
        if let Some(s) = self.map.get_mut(&id) {
            s.frames = s.frames.saturating_sub(n.into());
        }
        self.reap(id)
    }

    /// The sender writes no more. Returns true when the segment is gone.
    pub fn close(&mut self, id: u32) -> bool {
        if let Some(s) = self.map.get_mut(&id) {
            s.open = false;
        }
        self.reap(id)
    }

    /// The connection of the sender is gone. Returns true when the segment is gone.
    pub fn abandon(&mut self, id: u32) -> bool {
        if let Some(s) = self.map.get_mut(&id) {
            s.abandoned = true;
        }
        self.close(id)
    }

    fn reap(&mut self, id: u32) -> bool {
        match self.map.get(&id) {
            Some(s) if s.frames == 0 && !s.open => {}
            _ => return false,
        }
        let segment = self.map.remove(&id).unwrap();
        if !segment.in_memory {
            self.disk -= segment.size;
        } else if !segment.abandoned && segment.size == self.standard_size && self.pool.len() < 8 {
            self.pool.push(segment.file);
        } else {
            self.memory -= segment.size;
        }
        true
    }
}
