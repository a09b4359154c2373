//! Memory of one block of a log. Blocks that are going to be full lie in large pages, of which the
//! kernel makes one at a time: as small ones, each made when it is first written to, they took
//! longer to make than to fill. What is free is used again before more is taken.

use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A large page of x86-64.
const PAGE_BYTES: usize = 2 << 20;
/// Blocks in a large page.
const BLOCKS: usize = PAGE_BYTES / Buffer::BLOCK_BYTES;
const _: () = assert!(BLOCKS <= 8, "one bit each");
/// None is taken.
const ALL: u8 = (((1u16) << BLOCKS) - 1) as u8;

/// Bytes that grow at their end.
pub struct Buffer(Place);

enum Place {
    Heap(Vec<u8>),
    Page(Block),
}

impl Buffer {
    /// What a buffer for a block has room for.
    pub const BLOCK_BYTES: usize = 256 * 1024;

    /// An empty buffer for a block that is going to be full.
    pub fn for_block() -> Buffer {
        Buffer(match pages().take() {
            Ok(at) => Place::Page(Block { at, len: 0 }),
            Err(_) => Place::Heap(Vec::with_capacity(Buffer::BLOCK_BYTES)),
        })
    }

    /// Puts bytes behind what there is.
    ///
    /// # Panics
    /// When a buffer for a block is full.
    pub fn put(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Place::Heap(vec) => vec.extend_from_slice(bytes),
            Place::Page(block) => block.put(bytes),
        }
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer(Place::Heap(Vec::new()))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Heap(vec) => vec,
            // SAFETY: so many bytes were put there, and the memory is this block's own.
            Place::Page(Block { at, len }) => unsafe {
                std::slice::from_raw_parts(at.as_ptr(), *len)
            },
        }
    }
}

/// A part of a large page, which belongs to whoever has this.
struct Block {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: memory that nobody else has; where it is taken and given back there is a lock.
unsafe impl Send for Block {}

impl Block {
    fn put(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= Buffer::BLOCK_BYTES - self.len, "a block is full");
        // SAFETY: there is room for them behind what there is, which belongs to nobody else.
        unsafe {
            let to = self.at.as_ptr().add(self.len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.len += bytes.len();
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        pages().give_back(self.at);
    }
}

/// A large page.
struct Page {
    at: NonNull<u8>,
    /// Which of its blocks are free, a bit each.
    free: u8,
}

// SAFETY: as of blocks.
unsafe impl Send for Page {}

/// All large pages of this process.
struct Pages(Vec<Page>);

static PAGES: Mutex<Pages> = Mutex::new(Pages(Vec::new()));

fn pages() -> MutexGuard<'static, Pages> {
    PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    fn take(&mut self) -> io::Result<NonNull<u8>> {
        let found = self.0.iter_mut().rposition(|page| page.free != 0);
        let index = match found {
            Some(index) => index,
            None => {
                self.0.push(Page { at: map_page()?, free: ALL });
                self.0.len() - 1
            }
        };
        let page = &mut self.0[index];
        let block = page.free.trailing_zeros() as usize;
        page.free &= !(1 << block);
        // SAFETY: within the page.
        Ok(unsafe { page.at.add(block * Buffer::BLOCK_BYTES) })
    }

    /// A page of which all is free goes, unless it is the only one with anything free.
    fn give_back(&mut self, at: NonNull<u8>) {
        let offset = |page: &Page| (at.as_ptr() as usize).wrapping_sub(page.at.as_ptr() as usize);
        let Some(index) = self.0.iter().position(|page| offset(page) < PAGE_BYTES) else { return };
        let page = &mut self.0[index];
        page.free |= 1 << (offset(page) / Buffer::BLOCK_BYTES);
        let others = || self.0.iter().enumerate().any(|(n, page)| n != index && page.free != 0);
        if self.0[index].free == ALL && others() {
            let page = self.0.swap_remove(index);
            // SAFETY: nobody has any of its blocks.
            let gone = unsafe { munmap(page.at.as_ptr().cast(), PAGE_BYTES) };
            debug_assert_eq!(gone, Ok(()));
        }
    }
}

/// A large page, where the kernel has some; else small ones.
fn map_page() -> io::Result<NonNull<u8>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping, twice as long as needed, so that a whole large page lies in it, of
    // which what is before and behind that goes again.
    unsafe {
        let all = mmap_anonymous(std::ptr::null_mut(), 2 * PAGE_BYTES, access, flags)?;
        let before = all.cast::<u8>().align_offset(PAGE_BYTES);
        let at = all.cast::<u8>().add(before);
        if before > 0 {
            munmap(all, before)?;
        }
        munmap(at.add(PAGE_BYTES).cast(), PAGE_BYTES - before)?;
        // Without large pages it works, too.
        let _ = madvise(at.cast(), PAGE_BYTES, Advice::LinuxHugepage);
        NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{rngs::SmallRng, Rng, SeedableRng};

    #[test]
    fn blocks_keep_what_was_put_there_however_they_come_and_go() {
        let mut random = SmallRng::seed_from_u64(7);
        let mut living: Vec<(Buffer, Vec<u8>)> = Vec::new();
        for _ in 0..2000 {
            match random.gen_range(0..3) {
                0 => living.push((Buffer::for_block(), Vec::new())),
                1 if !living.is_empty() => {
                    drop(living.swap_remove(random.gen_range(0..living.len())));
                }
                _ => {
                    let bytes = vec![random.gen(); random.gen_range(0..20_000)];
                    for (buffer, expected) in &mut living {
                        if expected.len() + bytes.len() <= Buffer::BLOCK_BYTES {
                            buffer.put(&bytes);
                            expected.extend_from_slice(&bytes);
                        }
                    }
                }
            }
            assert!(living.iter().all(|(buffer, expected)| buffer.len() == expected.len()));
        }
        assert!(living.iter().all(|(buffer, expected)| **buffer == **expected));
    }

    #[test]
    fn what_is_free_is_used_again_and_whole_pages_go() {
        let mut pages = Pages(Vec::new());
        let blocks: Vec<_> = (0..3 * BLOCKS).map(|_| pages.take().unwrap()).collect();
        assert_eq!(pages.0.len(), 3);
        let mut distinct = blocks.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), blocks.len());
        blocks[..BLOCKS].iter().for_each(|block| pages.give_back(*block));
        assert_eq!(pages.0.len(), 3, "the only one with anything free stays");
        assert!(blocks[..BLOCKS].contains(&pages.take().unwrap()), "it is used again");
        blocks[BLOCKS..2 * BLOCKS].iter().for_each(|block| pages.give_back(*block));
        assert_eq!(pages.0.len(), 2, "a whole one has gone");
    }

    #[test]
    #[should_panic(expected = "a block is full")]
    fn a_full_block_takes_no_more() {
        let mut buffer = Buffer::for_block();
        buffer.put(&[0; Buffer::BLOCK_BYTES]);
        buffer.put(&[0]);
    }
}
