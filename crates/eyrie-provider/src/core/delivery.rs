//! The delivery stream: what the home router sends this rank. Bytes are read ahead, but a message is shown to
//! matching only when asked for, and `position` counts only what was shown: the rest comes again
//! after a reconnection.

use super::identity::Identity;
use super::matching::{Completion, Content, Envelope, Matching};
use super::socket;
use eyrie_wire::data::{
    home, Determinant, Frame, Header, Kind, Stream, HAS_DATA, IN_SEGMENT, MAX_FRAME, TAGGED,
};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Bytes read ahead.
const INPUT_BYTES: usize = 512 * 1024;
const _: () = assert!(INPUT_BYTES > 2 * MAX_FRAME);
/// Longest single wait for bytes.
pub const WAIT: Duration = Duration::from_millis(1);
/// How long the router may take to start the stream.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Descriptors that may come with one read.
const MAX_DESCRIPTORS: usize = 32;

/// The stream.
pub struct Delivery {
    socket: Option<OwnedFd>,
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// Descriptors that have come, whose frames have not been looked at.
    arrived: VecDeque<OwnedFd>,
    segments: Vec<(u32, OwnedFd)>,
    position: u64,
}

/// The content of a message, in its frame or in a segment.
enum Payload<'a> {
    Inline(&'a [u8]),
    Segment { file: RawFd, offset: u64 },
}

impl Content for Payload<'_> {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) {
        match self {
            // SAFETY: handed through.
            Payload::Inline(bytes) => unsafe { bytes.copy_to(to, len) },
            Payload::Segment { file, offset } => {
                let mut done = 0;
                while done < len {
                    let at = (*offset as usize + done) as libc::off_t;
                    // SAFETY: the caller vouches for `len` bytes at `to`, of which `done` are written.
                    let n = unsafe { libc::pread(*file, to.add(done).cast(), len - done, at) };
                    if n > 0 {
                        done += n as usize;
                    } else if n == 0 || io::Error::last_os_error().kind() != ErrorKind::Interrupted
                    {
                        super::rank::fatal("a logged message cannot be read from its segment");
                    }
                }
            }
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

impl Delivery {
    /// A stream that is not connected yet.
    pub fn new() -> Delivery {
        Delivery {
            socket: None,
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            arrived: VecDeque::new(),
            segments: Vec::new(),
            position: 0,
        }
    }

    /// Position of the last message shown to matching.
    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn connected(&self) -> bool {
        self.socket.is_some()
    }

    /// The descriptors of this stream, for the capture of an image.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let segments = self.segments.iter().map(|(_, fd)| fd);
        self.socket.iter().chain(&self.arrived).chain(segments).map(AsRawFd::as_raw_fd)
    }

    /// Drops the connection and all that was read ahead.
    pub fn disconnect(&mut self) {
        self.socket = None;
        self.start = 0;
        self.end = 0;
        self.arrived.clear();
        self.segments.clear();
    }

    /// Connects to the home router behind what has been shown. Returns the determinants to replay.
    ///
    /// # Errors
    /// `ConnectionRefused` with the router's words when it refuses this incarnation; else the socket's.
    pub fn connect(&mut self, me: &Identity, clock: u64) -> io::Result<Vec<Determinant>> {
        self.disconnect();
        let socket = socket::connect(me, home(me.rank, me.routers), Stream::Delivery)?;
        set_receive_timeout(&socket, WAIT)?;
        let resume = Header { position: self.position, tag: clock, ..Header::new(Kind::Resume) };
        send_all(&socket, &resume.encode())?;
        self.socket = Some(socket);
        let mut script = Vec::new();
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            match Frame::parse(&self.input[self.start..self.end]).map_err(broken)? {
                Some(frame) => {
                    let (kind, len) = (frame.header.kind, frame.len);
                    match kind {
                        Kind::Replay => script.extend(Determinant::decode_all(frame.payload)),
                        Kind::Refused => return Err(refusal(frame.payload)),
                        Kind::Ready => {}
                        _ => return Err(broken("unexpected frame at the start of a stream")),
                    }
                    self.start += len;
                    if kind == Kind::Ready {
                        return Ok(script);
                    }
                }
                None => {
                    self.receive(true)?;
                    if Instant::now() > deadline {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// Tells the router that the last determinant has been followed.
    pub fn say_replayed(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        let header = Header { position: self.position, ..Header::new(Kind::Replayed) };
        send_all(socket, &header.encode())
    }

    /// Reads what is there; with `wait` waits up to [`WAIT`] for something. True: something came.
    ///
    /// # Errors
    /// The socket's; `UnexpectedEof` when the router has closed it.
    pub fn receive(&mut self, wait: bool) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.input.len() - self.end < MAX_FRAME {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.input.len() {
            return Ok(true);
        }
        let room = &mut self.input[self.end..];
        let mut iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut control = [0u64; 32];
        // SAFETY: all zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: the header names a buffer and a control buffer that live through the call.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
        if n < 0 {
            let e = io::Error::last_os_error();
            return match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(false),
                _ => Err(e),
            };
        }
        if message.msg_controllen > 0 {
            self.take_descriptors(&message);
        }
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.end += n as usize;
        Ok(true)
    }

    fn take_descriptors(&mut self, message: &libc::msghdr) {
        // SAFETY: the kernel has filled the control buffer of `message`; the macros walk within its length.
        unsafe {
            let mut c = libc::CMSG_FIRSTHDR(message);
            while !c.is_null() {
                if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*c).cmsg_len - libc::CMSG_LEN(0) as usize;
                    for i in 0..(bytes / size_of::<RawFd>()).min(MAX_DESCRIPTORS) {
                        let fd = libc::CMSG_DATA(c).cast::<RawFd>().add(i).read_unaligned();
                        self.arrived.push_back(socket::move_up(OwnedFd::from_raw_fd(fd)));
                    }
                }
                c = libc::CMSG_NXTHDR(message, c);
            }
        }
    }

    /// Shows messages that have been read, up to position `up_to`.
    ///
    /// # Errors
    /// When what was read is no sound stream, or the router refuses this incarnation.
    pub fn show(
        &mut self,
        up_to: u64,
        matching: &mut Matching,
        mut done: impl FnMut(Completion),
    ) -> io::Result<()> {
        while self.position < up_to {
            let Some(frame) = Frame::parse(&self.input[self.start..self.end]).map_err(broken)?
            else {
                return Ok(());
            };
            let h = frame.header;
            match h.kind {
                Kind::Deliver => {
                    if h.position != self.position + 1 {
                        return Err(broken("a message is missing in the delivery stream"));
                    }
                    let content = if h.flags & IN_SEGMENT != 0 {
                        let file = self.segments.iter().find(|(id, _)| *id == h.segment);
                        let (_, file) = file.ok_or_else(|| broken("unknown segment"))?;
                        Payload::Segment { file: file.as_raw_fd(), offset: h.offset }
                    } else {
                        Payload::Inline(frame.payload)
                    };
                    let envelope = Envelope {
                        source: h.peer,
                        tagged: h.flags & TAGGED != 0,
                        tag: h.tag,
                        data: (h.flags & HAS_DATA != 0).then_some(h.data),
                        len: h.size as usize,
                    };
                    if let Some(completion) = matching.arrive(envelope, &content) {
                        done(completion);
                    }
                    self.position = h.position;
                }
                Kind::Segment => {
                    let fd =
                        self.arrived.pop_front().ok_or_else(|| broken("no descriptor came"))?;
                    self.segments.push((h.segment, fd));
                }
                Kind::SegmentDrop => self.segments.retain(|(id, _)| *id != h.segment),
                Kind::Refused => return Err(refusal(frame.payload)),
                _ => return Err(broken("unexpected frame on a delivery stream")),
            }
            self.start += frame.len;
        }
        Ok(())
    }
}

/// The error that carries a router's refusal.
pub fn refusal(payload: &[u8]) -> io::Error {
    io::Error::new(ErrorKind::ConnectionRefused, String::from_utf8_lossy(payload).into_owned())
}

fn set_receive_timeout(socket: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let tv =
        libc::timeval { tv_sec: timeout.as_secs() as i64, tv_usec: timeout.subsec_micros() as i64 };
    // SAFETY: the option takes a timeval, whose address and size are given.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const tv).cast(),
            size_of::<libc::timeval>() as u32,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends a short control frame whole. The stream carries little in this direction, so it does not block.
fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: the buffer is as long as said.
        let n = unsafe {
            libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL)
        };
        if n >= 0 {
            bytes = &bytes[n as usize..];
        } else if io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
