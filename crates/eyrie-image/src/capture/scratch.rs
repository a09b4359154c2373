//! The capture's working memory: one mapping for each capture, left out of the image and unmapped
//! afterwards. So an image never contains state of the engine.

use crate::refusal::Refusal;
use eyrie_image_kernel::sys;

/// Address space of a scratch; only what is touched costs memory.
const LEN: usize = 192 << 20;

/// A region that allocates from the front and frees nothing.
pub struct Scratch {
    base: usize,
    used: usize,
}

/// The refusal when a scratch, or a list in it, is full.
const FULL: Refusal = Refusal::Kernel { step: "making room for the capture", errno: sys::ENOMEM };

impl Scratch {
    pub fn new() -> Result<Scratch, Refusal> {
        match sys::map_anonymous(LEN, sys::MAP_PRIVATE | sys::MAP_NORESERVE) {
            Ok(base) => Ok(Scratch { base, used: 0 }),
            Err(errno) => Err(Refusal::Kernel { step: "mapping memory for the capture", errno }),
        }
    }

    pub fn range(&self) -> (u64, u64) {
        (self.base as u64, (self.base + LEN) as u64)
    }

    /// `count` zeroed values. `T` must be valid when all its bytes are zero.
    ///
    /// # Safety
    /// The slice must not outlive the mapping, which [`Scratch::release`] ends.
    pub unsafe fn take<T: Copy>(&mut self, count: usize) -> Result<&'static mut [T], Refusal> {
        let at = self.used.next_multiple_of(64);
        let bytes = size_of::<T>().checked_mul(count).ok_or(FULL)?;
        if bytes > LEN || at > LEN - bytes {
            return Err(FULL);
        }
        self.used = at + bytes;
        // SAFETY: the slice is within the mapping, aligned to 64 and given out once. The kernel has
        // filled it with zeros, which the caller guarantees to be valid for `T`.
        Ok(unsafe { core::slice::from_raw_parts_mut((self.base + at) as *mut T, count) })
    }

    /// A list of at most `capacity` values.
    ///
    /// # Safety
    /// As [`Scratch::take`].
    pub unsafe fn list<T: Copy>(&mut self, capacity: usize) -> Result<List<T>, Refusal> {
        // SAFETY: the caller guarantees that the list is not used after the scratch is released.
        Ok(List { items: unsafe { self.take(capacity)? }, len: 0 })
    }

    /// A copy of `bytes` that lives as long as the scratch.
    ///
    /// # Safety
    /// As [`Scratch::take`].
    pub unsafe fn keep(&mut self, bytes: &[u8]) -> Result<&'static [u8], Refusal> {
        // SAFETY: the caller guarantees that the copy is not used after the scratch is released.
        let slice = unsafe { self.take::<u8>(bytes.len())? };
        slice.copy_from_slice(bytes);
        Ok(slice)
    }

    /// Unmaps the memory.
    ///
    /// # Safety
    /// Nothing taken from it may be used afterwards.
    pub unsafe fn release(&mut self) {
        // SAFETY: `new` made the mapping, and the caller uses nothing taken from it any more.
        let _ = unsafe { sys::munmap(self.base, LEN) };
    }
}

/// A list with a fixed capacity in a scratch.
pub struct List<T: 'static> {
    items: &'static mut [T],
    len: usize,
}

impl<T: Copy> List<T> {
    pub fn push(&mut self, item: T) -> Result<(), Refusal> {
        *self.items.get_mut(self.len).ok_or(FULL)? = item;
        self.len += 1;
        Ok(())
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
