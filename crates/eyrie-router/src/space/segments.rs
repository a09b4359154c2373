//! Segments: files of the router that hold large payloads. A sender writes into its segment, and
//! receivers read from it; the router only keeps the descriptor. So a payload is copied twice in
//! all. A segment lives as long as a logged frame names it or its sender may still write to it.

use super::store::Store;
use rustc_hash::FxHashMap;
use std::io;

/// One segment.
pub struct Segment<F> {
    pub file: F,
    pub bytes: u64,
    in_memory: bool,
    /// Logged frames that name it.
    frames: u64,
    /// Its sender may still write to it.
    open: bool,
    /// Only logged frames can name it: its pages may be reused once it is freed.
    reusable: bool,
}

/// All segments of a router.
pub struct Segments<S: Store> {
    map: FxHashMap<u32, Segment<S::File>>,
    newest: u32,
    memory_limit: u64,
    /// Bytes of segments in memory, those of the pool included.
    memory: u64,
    /// Bytes of segments on disk.
    pub disk: u64,
    /// Free memory segments of the standard size. They have their pages already: getting new ones
    /// from the kernel takes longer than filling them.
    pool: Vec<S::File>,
    standard_bytes: u64,
}

impl<S: Store> Segments<S> {
    /// `memory_limit` bounds the segments in memory, in bytes.
    pub fn new(memory_limit: u64, ranks: u32) -> Segments<S> {
        let share = memory_limit / (4 * u64::from(ranks.max(1)));
        Segments {
            map: FxHashMap::default(),
            newest: 0,
            memory_limit,
            memory: 0,
            disk: 0,
            pool: vec![],
            standard_bytes: share.clamp(1 << 20, 16 << 20) & !4095,
        }
    }

    /// Makes a segment for at least `bytes` bytes: in memory if its bound allows, else on disk,
    /// where it may take `disk_room` bytes.
    pub fn open(&mut self, bytes: u64, disk_room: u64, store: &mut S) -> io::Result<u32> {
        let bytes = bytes.max(self.standard_bytes).next_multiple_of(4096);
        let pooled = if bytes == self.standard_bytes { self.pool.pop() } else { None };
        while pooled.is_none()
            && self.memory + bytes > self.memory_limit
            && self.pool.pop().is_some()
        {
            self.memory -= self.standard_bytes;
        }
        let in_memory = pooled.is_some() || self.memory + bytes <= self.memory_limit;
        let file = match pooled {
            Some(file) => file,
            None if in_memory => {
                let file = store.memory_file(bytes)?;
                self.memory += bytes;
                file
            }
            None if bytes > disk_room => return Err(io::ErrorKind::StorageFull.into()),
            None => {
                let file = store.disk_file(bytes)?;
                self.disk += bytes;
                file
            }
        };
        let id = self.free_number();
        let segment = Segment { file, bytes, in_memory, frames: 0, open: true, reusable: true };
        self.map.insert(id, segment);
        Ok(id)
    }

    /// A number that no living segment has. 0 is none: a payload "in the frame" has it.
    fn free_number(&mut self) -> u32 {
        loop {
            self.newest = self.newest.wrapping_add(1);
            if self.newest != 0 && !self.map.contains_key(&self.newest) {
                return self.newest;
            }
        }
    }

    /// Bytes that segments may take in memory.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// Bytes of segments in memory that are in use.
    pub fn memory(&self) -> u64 {
        self.memory - self.pool.len() as u64 * self.standard_bytes
    }

    pub fn get(&self, id: u32) -> Option<&Segment<S::File>> {
        self.map.get(&id)
    }

    /// The segment, when these bytes lie within it.
    pub fn within(&self, id: u32, offset: u64, len: u64) -> Option<&Segment<S::File>> {
        let end = offset.checked_add(len)?;
        self.get(id).filter(|segment| end <= segment.bytes)
    }

    /// A frame that names the segment was logged.
    pub fn frame_logged(&mut self, id: u32) {
        if let Some(s) = self.map.get_mut(&id) {
            s.frames += 1;
        }
    }

    /// `n` frames that named it were truncated. True: the segment is freed.
    pub fn frames_truncated(&mut self, id: u32, n: u32) -> bool {
        if let Some(s) = self.map.get_mut(&id) {
            s.frames = s.frames.saturating_sub(n.into());
        }
        self.reap(id)
    }

    /// The sender writes no more. True: the segment is freed.
    pub fn close(&mut self, id: u32) -> bool {
        if let Some(s) = self.map.get_mut(&id) {
            s.open = false;
        }
        self.reap(id)
    }

    /// The connection of the sender is gone: frames that name the segment may not be logged yet.
    /// True: the segment is freed.
    pub fn abandon(&mut self, id: u32) -> bool {
        self.forbid_reuse(id);
        self.close(id)
    }

    /// Forbids to reuse the segment's pages once it is freed: a rank may still read or write them.
    pub fn forbid_reuse(&mut self, id: u32) {
        if let Some(s) = self.map.get_mut(&id) {
            s.reusable = false;
        }
    }

    fn reap(&mut self, id: u32) -> bool {
        match self.map.get(&id) {
            Some(s) if s.frames == 0 && !s.open => {}
            _ => return false,
        }
        let Some(segment) = self.map.remove(&id) else { return false };
        if !segment.in_memory {
            self.disk -= segment.bytes;
        } else if segment.reusable && segment.bytes == self.standard_bytes {
            self.pool.push(segment.file);
        } else {
            self.memory -= segment.bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::Files;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn pages_are_reused_and_freed_for_larger_segments() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::create(dir.path()).unwrap();
        let mut segments = Segments::<Files>::new(4 << 20, 1);
        let mut open = |segments: &mut Segments<Files>, bytes| {
            segments.open(bytes, u64::MAX, &mut files).unwrap()
        };
        let standard: Vec<u32> = (0..4).map(|_| open(&mut segments, 1)).collect();
        assert_eq!((segments.memory(), segments.disk), (4 << 20, 0));
        let file = segments.get(standard[3]).unwrap().file.clone();
        for id in standard {
            segments.close(id);
        }
        assert_eq!(segments.memory(), 0);
        let again = open(&mut segments, 1);
        assert!(Arc::ptr_eq(&segments.get(again).unwrap().file, &file));
        // Three are in the pool, and are freed for it.
        let large = open(&mut segments, 3 << 20);
        assert!(segments.get(large).unwrap().in_memory);
        assert_eq!((segments.memory(), segments.disk), (4 << 20, 0));
        open(&mut segments, 1);
        assert_eq!(segments.disk, 1 << 20);
        assert!(segments.open(1, 4096, &mut files).is_err(), "beyond the disk's share");
    }

    #[test]
    fn a_number_is_never_that_of_a_living_segment() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::create(dir.path()).unwrap();
        let mut segments = Segments::<Files>::new(64 << 20, 1);
        let first = segments.open(1, 0, &mut files).unwrap();
        segments.newest = u32::MAX;
        let second = segments.open(1, 0, &mut files).unwrap();
        assert!(second != 0 && second != first, "{first} {second}");
    }
}
