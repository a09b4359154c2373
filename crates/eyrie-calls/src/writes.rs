//! write(2) and writev(2): writes to files are done once ([`crate::files`]). A write to a full pipe
//! that an image has interrupted continues with its rest, because many programs take a short write
//! to a pipe for a whole one. A write that anything else has cut short stays short.

use crate::files::buffers::{one, Buffers};
use crate::files::pipes::writes_pipe;
use crate::files::writing::writes;
use crate::interruption::{errno, in_a_rank, set_errno, watched};
use crate::next::next;
use libc::{c_int, c_void, iovec, size_t, ssize_t};

next! {
    write: fn(c_int, *const c_void, size_t) -> ssize_t;
    writev: fn(c_int, *const iovec, c_int) -> ssize_t;
}

/// Writes `len` bytes by `call`, which writes those behind as many as it is told, and again while
/// images alone have cut it short.
fn whole(len: usize, mut call: impl FnMut(usize) -> ssize_t) -> ssize_t {
    let mut done = 0;
    let before = errno();
    loop {
        let (result, by_image) = watched(|| call(done));
        if result <= 0 {
            if done > 0 {
                set_errno(before);
                return done as ssize_t;
            }
            return result;
        }
        done += result as usize;
        if done >= len || !by_image {
            return done as ssize_t;
        }
    }
}

/// # Safety
/// As write(2).
#[export_name = "write"]
pub unsafe extern "C-unwind" fn our_write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: handed on to the caller; no more than `len` bytes are behind it.
    unsafe {
        let next = || write.get()(fd, bytes, len);
        let file = writes(fd, Buffers::new(&one(bytes, len)), None, &next);
        if let Some(n) = file.or_else(|| writes_pipe(fd, &next)) {
            return n;
        }
        if !in_a_rank() {
            return next();
        }
        whole(len, |done| write.get()(fd, bytes.byte_add(done), len - done))
    }
}

/// # Safety
/// As writev(2).
#[export_name = "writev"]
pub unsafe extern "C-unwind" fn our_writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
    // SAFETY: handed on to the caller. What is not valid is for the kernel to refuse: its call is
    // the first, and what it has written bytes of can be read.
    unsafe {
        let first = writev.get();
        let next = || first(fd, parts, n);
        let file = writes(fd, Buffers::of(parts, n), None, &next);
        if let Some(n) = file.or_else(|| writes_pipe(fd, &next)) {
            return n;
        }
        if !in_a_rank() {
            return first(fd, parts, n);
        }
        let (result, by_image) = watched(|| first(fd, parts, n));
        if result <= 0 || !by_image {
            return result;
        }
        let parts = std::slice::from_raw_parts(parts, n as usize);
        let len = parts.iter().map(|part| part.iov_len).sum::<usize>();
        let written = result as usize;
        if written >= len {
            return result;
        }
        let before = errno();
        let rest = whole(len - written, |done| {
            let (part, offset) = place(parts, written + done);
            let iovec { iov_base, iov_len } = parts[part];
            match offset {
                0 => first(fd, &raw const parts[part], n - part as c_int),
                _ => write.get()(fd, iov_base.byte_add(offset), iov_len - offset),
            }
        });
        if rest < 0 {
            set_errno(before);
        }
        result + rest.max(0)
    }
}

/// The part in which so many bytes end, one of which is left at least, and how many of it they are.
fn place(parts: &[iovec], mut bytes: usize) -> (usize, usize) {
    for (n, part) in parts.iter().enumerate() {
        if bytes < part.iov_len {
            return (n, bytes);
        }
        bytes -= part.iov_len;
    }
    (parts.len() - 1, 0)
}
