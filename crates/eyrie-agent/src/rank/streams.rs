//! The standard streams of a rank, as the agent sees them: how far each has come, and how much more
//! may be read before the controller has shown what it received.

use rustix::io::{read, write, Errno};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most bytes of one stream that may be on the way to the controller. A reader of the job's output
/// that stops reading stops the rank at its next write, as a pipe would.
const WINDOW: u64 = 256 * 1024;
/// Most bytes of one message.
const PIECE: usize = 64 * 1024;
/// Bytes at the end of a stream that are kept for messages about the rank's death.
const TAIL: usize = 256;

/// Standard output or standard error of a rank.
#[derive(Debug)]
pub struct Output {
    fd: Option<OwnedFd>,
    /// Offset of the next byte to be read from the rank.
    read: u64,
    /// Offset up to which the controller has shown the output.
    shown: u64,
    /// The last bytes that were read.
    tail: Vec<u8>,
}

impl Output {
    pub fn new(fd: OwnedFd) -> Output {
        Output { fd: Some(fd), read: 0, shown: 0, tail: Vec::new() }
    }

    /// The rank had written this much before its image. Nothing was read from this stream yet.
    pub fn begins_at(&mut self, offset: u64) {
        (self.read, self.shown) = (offset, offset);
    }

    /// Offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.read
    }

    /// The last line that the rank has written since this stream began.
    pub fn last_line(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.tail);
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_string)
    }

    /// The descriptor to wait for, when there is room for more.
    pub fn wanted(&self) -> Option<BorrowedFd<'_>> {
        (self.read - self.shown < WINDOW).then_some(())?;
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Whether all that the (dead) rank wrote has been read. False while the window is full.
    pub fn is_drained(&self) -> bool {
        self.fd.is_none()
    }

    pub fn shown(&mut self, offset: u64) {
        self.shown = self.shown.max(offset.min(self.read));
    }

    /// Reads what is there within the window (all that is there with `beyond_window`), as pieces
    /// with their offsets. When all is read and the rank is dead, the stream is closed: another
    /// process that holds the writing end would keep it open forever.
    pub fn take(&mut self, beyond_window: bool, dead: bool) -> Vec<(u64, Vec<u8>)> {
        let mut pieces = Vec::new();
        while let Some(fd) = &self.fd {
            if !beyond_window && self.read - self.shown >= WINDOW {
                break;
            }
            let mut bytes = vec![0; PIECE];
            match read(fd, &mut bytes) {
                Ok(0) => self.fd = None,
                Ok(n) => {
                    bytes.truncate(n);
                    self.tail.extend(&bytes[n.saturating_sub(TAIL)..]);
                    self.tail.drain(..self.tail.len().saturating_sub(TAIL));
                    pieces.push((self.read, bytes));
                    self.read += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if dead {
                        self.fd = None;
                    }
                    break;
                }
                Err(_) => self.fd = None,
            }
        }
        pieces
    }
}

/// Standard input of a rank.
#[derive(Debug)]
pub struct Input {
    fd: Option<OwnedFd>,
    /// The rank's end, which says how much it has not read yet, also after the agent's was closed.
    peek: OwnedFd,
    /// Offset of the next byte to be written to the rank.
    written: u64,
    pending: VecDeque<u8>,
    eof: bool,
}

impl Input {
    pub fn new(fd: OwnedFd, peek: OwnedFd) -> Input {
        Input { fd: Some(fd), peek, written: 0, pending: VecDeque::new(), eof: false }
    }

    /// The rank had read this much before its image. Nothing was written to this stream yet.
    pub fn begins_at(&mut self, offset: u64) {
        self.written = offset;
    }

    /// Offset of the next byte that the controller should send.
    pub fn wanted_from(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// How far the rank has read.
    pub fn consumed(&self) -> u64 {
        let waiting = rustix::io::ioctl_fionread(&self.peek).unwrap_or(0);
        self.written - waiting.min(self.written)
    }

    /// The descriptor to wait for, when there is something to write.
    pub fn wanted(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then_some(())?;
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Receives a piece from the controller. A piece at another offset than the wanted one is not
    /// for this incarnation of the rank.
    pub fn receive(&mut self, offset: u64, bytes: &[u8], eof: bool) {
        if offset == self.wanted_from() && !self.eof {
            self.pending.extend(bytes);
            self.eof = eof;
        }
    }

    /// Writes what the pipe accepts; true when nothing is pending and more may come.
    pub fn push(&mut self) -> bool {
        while let (Some(fd), false) = (&self.fd, self.pending.is_empty()) {
            match write(fd, self.pending.as_slices().0) {
                Ok(n) => {
                    self.pending.drain(..n);
                    self.written += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => self.fd = None,
            }
        }
        if self.eof {
            self.fd = None;
        }
        !self.eof
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{pipe_with, PipeFlags};

    #[test]
    fn output_stops_at_the_window_and_ends_with_the_rank() {
        let (r, w) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        rustix::pipe::fcntl_setpipe_size(&w, 1 << 20).unwrap();
        let mut out = Output::new(r);
        out.begins_at(100);
        let mut written = 0;
        while written < 600_000 {
            written += write(&w, &vec![7; 600_000 - written]).unwrap();
        }
        let got: usize = out.take(false, false).iter().map(|p| p.1.len()).sum();
        assert!(got as u64 >= WINDOW && (got as u64) < WINDOW + PIECE as u64);
        assert!(out.wanted().is_none());
        assert_eq!(out.tail.len(), TAIL);
        out.shown(100 + got as u64);
        assert!(out.wanted().is_some());
        let rest = out.take(true, true);
        assert_eq!(rest[0].0, 100 + got as u64);
        assert_eq!(out.offset(), 600_100);
        // The writing end is still open, as with a grandchild that holds it.
        assert!(out.is_drained());
    }

    #[test]
    fn the_last_line_is_known() {
        let (r, w) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut out = Output::new(r);
        assert_eq!(out.last_line(), None);
        write(&w, b"first\nfree(): invalid pointer\n \n").unwrap();
        out.take(false, false);
        assert_eq!(out.last_line().as_deref(), Some("free(): invalid pointer"));
    }

    #[test]
    fn input_counts_what_the_rank_has_read() {
        let (r, w) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let mut input = Input::new(w, rustix::io::fcntl_dupfd_cloexec(&r, 0).unwrap());
        input.begins_at(10);
        input.receive(3, b"not mine", false);
        input.receive(10, b"abcdef", false);
        assert!(input.push());
        assert_eq!((input.wanted_from(), input.consumed()), (16, 10));
        let mut two = [0; 2];
        read(&r, &mut two).unwrap();
        assert_eq!(input.consumed(), 12);
        input.receive(16, b"", true);
        assert!(!input.push());
        let mut rest = [0; 10];
        assert_eq!(input.consumed(), 12);
        assert_eq!(read(&r, &mut rest).unwrap(), 4);
        assert_eq!(read(&r, &mut rest).unwrap(), 0);
    }
}
