//! Writes records to the stream. Payloads are not copied: they are sent by vectored writes, or lent
//! to the pipe page by page (vmsplice) when the memory can no longer change.

use super::scratch::Scratch;
use crate::refusal::Refusal;
use eyrie_image_format::stream::{Kind, RecordHeader, RECORD_HEADER_LEN};
use eyrie_image_format::{bytes_of, MetaHash};
use eyrie_image_kernel::sys::{self, nr, IoVec};

/// Room for record headers, bytes. Lent headers cannot be reused while the pipe may hold them.
const HEADER_ROOM: usize = 16 << 20;
/// Pieces of one vectored write.
const PIECES: usize = 128;
/// Length to which a pipe is enlarged, if the system allows it, bytes.
const PIPE_LEN: usize = 1 << 20;

/// The stream that is being written.
pub struct Output {
    fd: i32,
    splice: bool,
    headers: &'static mut [u8],
    headers_used: usize,
    pieces: &'static mut [IoVec],
    pieces_used: usize,
    hash: MetaHash,
    pub bytes: u64,
    records: u64,
}

impl Output {
    /// `lend` says that no byte passed to it changes later: true in the image-writing child only.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn new(scratch: &mut Scratch, fd: i32, lend: bool) -> Result<Output, Refusal> {
        let st = sys::fstat(fd).map_err(|errno| Refusal::Output { errno })?;
        let pipe = st.mode & sys::S_IFMT == sys::S_IFIFO;
        if pipe && sys::fcntl(fd, sys::F_GETPIPE_SZ, 0).is_ok_and(|len| len < PIPE_LEN) {
            let _ = sys::fcntl(fd, sys::F_SETPIPE_SZ, PIPE_LEN);
        }
        // SAFETY: the caller does not use the result after the scratch is released.
        let (headers, pieces) = unsafe { (scratch.take(HEADER_ROOM)?, scratch.take(PIECES)?) };
        Ok(Output {
            fd,
            splice: pipe && lend,
            headers,
            headers_used: 0,
            pieces,
            pieces_used: 0,
            hash: MetaHash::new(),
            bytes: 0,
            records: 0,
        })
    }

    /// Queues a record that describes the process. Its parts must stay unchanged until the end, and
    /// the length of each but the last is a multiple of 8.
    pub fn describe(&mut self, kind: Kind, flags: u32, parts: &[&[u8]]) -> Result<(), i32> {
        let len = parts.iter().map(|p| p.len() as u64).sum();
        self.header(RecordHeader { kind, flags, a: 0, b: 0, len })?;
        for part in parts {
            self.hash.update(part);
            self.piece(part.as_ptr() as usize, part.len())?;
        }
        Ok(())
    }

    /// Queues a record with a name. Its payload must stay unchanged until the end.
    pub fn named(&mut self, header: RecordHeader, payload: &[u8]) -> Result<(), i32> {
        self.header(header)?;
        self.hash.update(payload);
        self.piece(payload.as_ptr() as usize, payload.len())
    }

    /// Queues a Pages record for `address` whose content is at `data`.
    ///
    /// # Safety
    /// `len` bytes at `data` must be readable.
    pub unsafe fn pages(
        &mut self,
        flags: u32,
        a: u64,
        b: u64,
        data: usize,
        len: usize,
    ) -> Result<(), i32> {
        self.header(RecordHeader { kind: Kind::Pages, flags, a, b, len: len as u64 })?;
        self.piece(data, len)
    }

    /// Writes that the stream builds on an earlier image.
    pub fn base(&mut self, image: u64) -> Result<(), i32> {
        self.header(RecordHeader { kind: Kind::Base, flags: 0, a: image, b: 0, len: 0 })
    }

    /// Ends the stream.
    pub fn finish(&mut self, hash_room: &'static mut u64) -> Result<(), i32> {
        let a = self.bytes;
        let b = self.records;
        self.header(RecordHeader { kind: Kind::Trailer, flags: 0, a, b, len: 8 })?;
        *hash_room = self.hash.value();
        let bytes = bytes_of_u64(hash_room);
        self.piece(bytes.as_ptr() as usize, 8)?;
        self.flush()
    }

    fn header(&mut self, header: RecordHeader) -> Result<(), i32> {
        if self.pieces_used + 4 > self.pieces.len() {
            self.flush()?;
        }
        if self.headers_used + RECORD_HEADER_LEN > self.headers.len() {
            // The pipe may still hold lent headers. From here on headers are copied, from the
            // second half, which is reused after each flush.
            self.flush()?;
            if self.splice {
                wait_until_empty(self.fd)?;
                self.splice = false;
            }
            self.headers_used = 0;
        }
        let at = self.headers_used;
        let encoded = header.encode();
        self.headers[at..at + RECORD_HEADER_LEN].copy_from_slice(&encoded);
        self.headers_used += RECORD_HEADER_LEN;
        if header.kind.is_description() {
            self.hash.update(&encoded);
        }
        self.records += 1;
        let base = self.headers.as_ptr() as usize + at;
        self.piece(base, RECORD_HEADER_LEN)
    }

    fn piece(&mut self, base: usize, len: usize) -> Result<(), i32> {
        if len == 0 {
            return Ok(());
        }
        if self.pieces_used == self.pieces.len() {
            self.flush()?;
        }
        self.pieces[self.pieces_used] = IoVec { base, len };
        self.pieces_used += 1;
        self.bytes += len as u64;
        Ok(())
    }

    /// Writes out all pieces.
    pub fn flush(&mut self) -> Result<(), i32> {
        let mut at = 0;
        while at < self.pieces_used {
            let call = if self.splice { nr::VMSPLICE } else { nr::WRITEV };
            let pieces = &self.pieces[at..self.pieces_used];
            // SAFETY: `pieces` has valid pieces, and each caller of `piece` guarantees that its
            // memory is readable.
            let done = unsafe {
                sys::call6(call, self.fd as usize, pieces.as_ptr() as usize, pieces.len(), 0, 0, 0)
            };
            let mut done = match done {
                Ok(n) => n,
                Err(sys::EINTR) => continue,
                Err(sys::EAGAIN) => {
                    wait_for_room(self.fd)?;
                    continue;
                }
                Err(sys::EINVAL | sys::ENOSYS) if self.splice => {
                    self.splice = false;
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            while done > 0 && at < self.pieces_used {
                let piece = &mut self.pieces[at];
                let step = done.min(piece.len);
                piece.base += step;
                piece.len -= step;
                done -= step;
                at += (piece.len == 0) as usize;
            }
        }
        self.pieces_used = 0;
        Ok(())
    }
}

fn bytes_of_u64(word: &u64) -> &[u8] {
    // SAFETY: the bytes of a word are always initialised, and the slice borrows the word.
    unsafe { core::slice::from_raw_parts((word as *const u64).cast(), 8) }
}

/// Waits until a non-blocking descriptor accepts bytes again.
fn wait_for_room(fd: i32) -> Result<(), i32> {
    const POLLOUT: u64 = 4;
    let mut poll = fd as u32 as u64 | POLLOUT << 32;
    // SAFETY: struct pollfd is one word (descriptor, events, results), a local variable.
    match unsafe { sys::call3(nr::POLL, &raw mut poll as usize, 1, usize::MAX) } {
        Ok(_) | Err(sys::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Waits until the reader has read everything from the pipe.
fn wait_until_empty(fd: i32) -> Result<(), i32> {
    const FIONREAD: usize = 0x541b;
    loop {
        let mut left = 0u32;
        // SAFETY: the kernel writes one number into `left`, a local variable.
        unsafe { sys::call3(nr::IOCTL, fd as usize, FIONREAD, &raw mut left as usize)? };
        if left == 0 {
            return Ok(());
        }
        // A pipe has no event for "empty", and POLLOUT would wake this too early. This happens once
        // in an image, after half a million records.
        let mut poll = fd as u32 as u64;
        // SAFETY: struct pollfd is one word, a local variable. It asks for no events, so only
        // errors are reported.
        unsafe { sys::call3(nr::POLL, &raw mut poll as usize, 1, 1)? };
        const POLLERR: u64 = 8;
        if poll >> 48 & POLLERR != 0 {
            return Err(sys::EPIPE);
        }
    }
}

/// The bytes of a record's fixed part, copied into the scratch until the stream has ended.
///
/// # Safety
/// Must not outlive the scratch.
pub unsafe fn keep<T: eyrie_image_format::Plain>(
    scratch: &mut Scratch,
    value: &T,
) -> Result<&'static [u8], Refusal> {
    // SAFETY: the caller does not use the result after the scratch is released.
    unsafe { scratch.keep(bytes_of(value)) }
}
