//! The buffers of a call that reads or writes: one, or several that follow each other.

use libc::{c_int, c_void, iovec};

/// Buffers that the caller's program has given.
#[derive(Clone, Copy)]
pub struct Buffers<'a>(&'a [iovec]);

impl<'a> Buffers<'a> {
    /// # Safety
    /// They must be there for as long as the call lasts, as the C library's function wants them.
    pub unsafe fn new(parts: &'a [iovec]) -> Buffers<'a> {
        Buffers(parts)
    }

    /// Those of readv(2) and the like.
    ///
    /// # Safety
    /// As [`Buffers::new`]; with a number that the kernel would refuse there are none.
    pub unsafe fn of(parts: *const iovec, n: c_int) -> Buffers<'a> {
        match usize::try_from(n) {
            // SAFETY: the caller passes so many buffers at `parts`, which live as long as the
            // result.
            Ok(n @ 1..=1024) if !parts.is_null() => unsafe {
                Buffers(std::slice::from_raw_parts(parts, n))
            },
            _ => Buffers(&[]),
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.0.iter().fold(0, |len, part| len.saturating_add(part.iov_len))
    }

    /// Where a byte is, and how many lie behind it.
    fn place(&self, mut at: usize) -> Option<(*mut u8, usize)> {
        for part in self.0 {
            if at < part.iov_len {
                return Some((part.iov_base.cast::<u8>().wrapping_add(at), part.iov_len - at));
            }
            at -= part.iov_len;
        }
        None
    }

    /// The bytes from a place on that lie together, up to a number.
    ///
    /// # Safety
    /// They have been read or are to be written.
    pub unsafe fn bytes(&self, at: usize, most: usize) -> &'a [u8] {
        match self.place(at) {
            // SAFETY: the caller promises that the buffer has `n` bytes that are initialised.
            Some((bytes, n)) => unsafe { std::slice::from_raw_parts(bytes, n.min(most)) },
            None => &[],
        }
    }

    /// Puts bytes at a place; what does not fit is left out.
    ///
    /// # Safety
    /// The buffers are to be read into.
    pub unsafe fn put(&self, mut at: usize, mut bytes: &[u8]) {
        while let Some((to, room)) = self.place(at).filter(|_| !bytes.is_empty()) {
            let n = room.min(bytes.len());
            // SAFETY: the caller promises that the buffer can be written, and `n` is at most its
            // room.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), n) };
            (at, bytes) = (at + n, &bytes[n..]);
        }
    }

    /// Puts zeros from a place on.
    ///
    /// # Safety
    /// As [`Buffers::put`].
    pub unsafe fn clear(&self, mut at: usize) {
        while let Some((to, room)) = self.place(at) {
            // SAFETY: the caller promises that the buffer can be written, and `room` is within it.
            unsafe { to.write_bytes(0, room) };
            at += room;
        }
    }
}

/// One buffer.
pub fn one(bytes: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: bytes.cast_mut(), iov_len: len }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_one_behind_another() {
        let mut a = [0u8; 3];
        let mut b = [0u8; 4];
        let parts = [one(a.as_mut_ptr().cast(), 3)[0], one(b.as_mut_ptr().cast(), 4)[0]];
        // SAFETY: both are there, and only this test uses them.
        unsafe {
            let both = Buffers::new(&parts);
            assert_eq!(both.len(), 7);
            both.put(1, b"xyzw");
            both.put(6, b"12");
            assert_eq!((both.bytes(0, 9), both.bytes(4, 1)), (&b"\0xy"[..], &b"w"[..]));
            assert_eq!((both.bytes(3, 9), both.bytes(7, 1)), (&b"zw\x001"[..], &b""[..]));
            both.clear(2);
            assert_eq!((both.bytes(0, 9), both.bytes(3, 9)), (&b"\0x\0"[..], &[0; 4][..]));
        }
    }
}
