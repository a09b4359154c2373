//! One connection of a loop: its handshake, the bytes that were read and not handled yet, and the
//! bytes to be written. It must never hold more than its bounds, whatever the peer sends.

use eyrie_transport::handshake::{Accepting, HandshakeError, Step, MAX_WANTED};
use eyrie_transport::seal::{Keys, Sealed};
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::data::MAX_FRAME;
use eyrie_wire::domains::{Domain, Domains};
use eyrie_wire::Rank;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// A connection that was accepted elsewhere: its peer must prove itself by another key than the
/// job's secret, and it is a trunk for a domain's ranks.
pub struct Accepted {
    pub socket: Stream,
    pub key: Secret,
    pub domain: Arc<Domain>,
}

/// Who the peer of such a connection may be.
struct Line {
    key: Secret,
    domain: Arc<Domain>,
}

/// Most bytes read at once.
const READ_BYTES: usize = 128 * 1024;
const _: () = assert!(READ_BYTES > MAX_FRAME);
/// Bytes read at once at first: a connection on which little comes takes little memory. There may
/// be thousands.
const FIRST_BYTES: usize = 8 * 1024;
const _: () = assert!(FIRST_BYTES >= MAX_WANTED);
/// Bytes that may be queued for a slow reader; with more its log feeds it no longer.
const OUT_BYTES: usize = 128 * 1024;

/// The state of a connection.
pub enum Stage {
    /// The peer has not proven itself.
    Handshake(Accepting),
    Open,
    /// Nothing more is read. It is closed once the rest is written.
    Closing,
}

/// A connection.
pub struct Conn {
    socket: OwnedFd,
    passes_files: bool,
    /// Of a connection from another domain.
    line: Option<Box<Line>>,
    /// Seals and opens all that follows the handshake, unless security is off.
    sealed: Option<Box<Sealed>>,
    pub stage: Stage,
    /// When the connection began, or began to close.
    pub since: Instant,
    /// It grows whenever it is full, and stays; the first `filled` bytes were read.
    input: Vec<u8>,
    filled: usize,
    /// The last read has filled it.
    is_full: bool,
    /// Bytes read since the start.
    pub received: u64,
    pub out: Vec<u8>,
    written: usize,
    /// Descriptors that go with the byte of `out` at this index.
    descriptors: VecDeque<(usize, Arc<OwnedFd>)>,
    /// The kernel did not accept everything: the loop waits until it does.
    pub blocked: bool,
    /// The loop waits for room to write.
    pub watched: bool,
    /// The connection is not read at present.
    pub held: bool,
    /// Something was queued since the last write.
    pub touched: bool,
}

impl Conn {
    /// One that was accepted, and whose peer has not proven itself.
    pub fn new(socket: Stream) -> Conn {
        Conn::at(Stage::Handshake(Accepting::new(socket.security())), socket)
    }

    /// One from another domain, whose peer has not proven itself.
    pub fn of_line(accepted: Accepted) -> Conn {
        let Accepted { socket, key, domain } = accepted;
        Conn { line: Some(Box::new(Line { key, domain })), ..Conn::new(socket) }
    }

    /// One that this side has made, after the handshake. It does not block any more.
    ///
    /// # Errors
    /// When the kernel refuses that.
    pub fn connected(socket: Stream) -> io::Result<Conn> {
        socket.set_nonblocking(true)?;
        Ok(Conn::at(Stage::Open, socket))
    }

    fn at(stage: Stage, socket: Stream) -> Conn {
        let passes_files = socket.passes_files();
        let (socket, sealed) = socket.into_parts();
        Conn {
            stage,
            socket,
            passes_files,
            line: None,
            sealed: sealed.map(Box::new),
            since: Instant::now(),
            input: Vec::new(),
            filled: 0,
            is_full: false,
            received: 0,
            out: Vec::new(),
            written: 0,
            descriptors: VecDeque::new(),
            blocked: false,
            watched: false,
            held: false,
            touched: false,
        }
    }

    /// Whether descriptors can go over it.
    pub fn passes_files(&self) -> bool {
        self.passes_files
    }

    /// Whether it comes from another domain.
    pub fn is_of_line(&self) -> bool {
        self.line.is_some()
    }

    /// Whether it comes from the domain of this rank.
    pub fn is_of_line_for(&self, rank: Rank) -> bool {
        self.line.as_ref().is_some_and(|line| line.domain.has(rank))
    }

    /// Whether it comes from one of these domains, as that is now.
    pub fn is_of_one_of(&self, domains: &Domains) -> bool {
        self.line.as_ref().is_some_and(|line| {
            let mut living = domains.others().filter(|(id, _)| domains.key(*id).is_some());
            living.any(|(_, domain)| *domain == *line.domain)
        })
    }

    /// Reads once what is there. `Ok(false)` at the end of the stream.
    ///
    /// # Errors
    /// Those of the socket, except that nothing is there.
    pub fn read(&mut self) -> io::Result<bool> {
        // A peer that has not proven itself gets no more memory than a handshake needs.
        let (room, limit) = match &self.stage {
            Stage::Handshake(accepting) => (MAX_WANTED, accepting.wanted()),
            _ => {
                let room = if self.is_full { 2 * self.input.len() } else { self.input.len() };
                let room = room.clamp(FIRST_BYTES, READ_BYTES);
                (room, room)
            }
        };
        if self.input.len() < room {
            self.input.resize(room, 0);
        }
        let into = &mut self.input[self.filled..limit];
        let receive = |into: &mut [u8]| -> io::Result<usize> {
            let (n, _) = rustix::net::recv(&self.socket, into, RecvFlags::DONTWAIT)?;
            Ok(n)
        };
        let received = match &mut self.sealed {
            None => receive(into),
            Some(sealed) => sealed.opening.read(into, receive),
        };
        match received {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.filled += n;
                self.received += n as u64;
                self.is_full = self.filled == limit;
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether something can be read that poll(2) does not report: it is in the buffer.
    pub fn has_more(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.opening.has_more())
    }

    /// Seals everything from now on with these keys: the peer has proven itself.
    pub fn open(&mut self, keys: Option<Keys>) {
        self.sealed = keys.map(|keys| Box::new(Sealed::accepting(&keys)));
        self.stage = Stage::Open;
    }

    /// Makes the next step of the handshake, if all bytes for it have arrived.
    ///
    /// # Errors
    /// Why the peer is refused; the answer to it is queued.
    pub fn handshake(&mut self, secret: &Secret) -> Result<Step, HandshakeError> {
        let Stage::Handshake(accepting) = &mut self.stage else { return Ok(Step::More) };
        if self.filled < accepting.wanted() {
            return Ok(Step::More);
        }
        let filled = std::mem::take(&mut self.filled);
        let secret = self.line.as_ref().map_or(secret, |line| &line.key);
        accepting.step(&self.input[..filled], secret, &mut self.out)
    }

    /// Whether a step of the handshake can be made with what has been read.
    pub fn can_step(&self) -> bool {
        matches!(&self.stage, Stage::Handshake(a) if a.wanted() > 0 && self.filled >= a.wanted())
    }

    /// Takes the buffer and the number of bytes in it; give it back with [`Conn::put_back`].
    pub fn take_input(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.input), self.filled)
    }

    /// Gives back the buffer of [`Conn::take_input`], of which `used` bytes were handled.
    pub fn put_back(&mut self, mut input: Vec<u8>, used: usize) {
        input.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.input = input;
    }

    /// Sends a descriptor with the next byte that is put into `out`.
    pub fn attach(&mut self, descriptor: Arc<OwnedFd>) {
        self.descriptors.push_back((self.out.len(), descriptor));
    }

    /// Whether more messages may be queued.
    pub fn has_room(&self) -> bool {
        !self.blocked && self.waiting() < OUT_BYTES
    }

    /// Bytes that are queued and not written.
    pub fn waiting(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes as much as the kernel accepts.
    ///
    /// # Errors
    /// Those of the socket: the connection is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        self.blocked = false;
        while self.written < self.out.len() {
            match self.send_some() {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    self.compact();
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    fn compact(&mut self) {
        self.out.drain(..self.written);
        for (at, _) in &mut self.descriptors {
            *at -= self.written;
        }
        self.written = 0;
    }

    fn send_some(&mut self) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Some(sealed) = &mut self.sealed {
            let send = |bytes: &[u8]| -> io::Result<usize> {
                Ok(rustix::net::send(&self.socket, bytes, flags)?)
            };
            return sealed.sealing.write(&self.out[self.written..], send);
        }
        match self.descriptors.front() {
            Some((at, descriptor)) if *at == self.written => {
                let end = self.descriptors.get(1).map_or(self.out.len(), |(next, _)| *next);
                let descriptors = [descriptor.as_fd()];
                let mut space =
                    [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
                let bytes = [IoSlice::new(&self.out[self.written..end])];
                let n = rustix::net::sendmsg(&self.socket, &bytes, &mut ancillary, flags)?;
                self.descriptors.pop_front();
                Ok(n)
            }
            other => {
                let end = other.map_or(self.out.len(), |(at, _)| *at);
                Ok(rustix::net::send(&self.socket, &self.out[self.written..end], flags)?)
            }
        }
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
