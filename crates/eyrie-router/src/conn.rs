//! One connection of a rank: its handshake, what has been read and not yet understood, what is to be
//! written. It must never hold more than its bounds, whatever the other side sends.

use eyrie_wire::auth::{random, Secret, Side, NONCE_LEN, PROOF_LEN};
use eyrie_wire::data::{Challenge, Header, Hello, Stream, MAX_FRAME};
use eyrie_wire::{Incarnation, Rank};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a connection may take to prove itself.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes read at once.
const READ_BYTES: usize = 128 * 1024;
const _: () = assert!(READ_BYTES > MAX_FRAME);
/// Bytes that wait for a slow reader before the log cursor stops feeding it.
pub const OUT_BYTES: usize = 128 * 1024;

/// How far a connection has come.
pub enum Stage {
    /// Waits for the hello.
    Hello,
    /// Waits for the proof.
    Proof { hello: Hello, nonce: [u8; NONCE_LEN] },
    /// The other side is this rank.
    Rank { stream: Stream, rank: Rank, incarnation: Incarnation },
    /// Nothing more is read; closed once the rest is written.
    Closing,
}

/// What a handshake step gave.
pub enum Handshake {
    More,
    Proven(Hello),
}

/// A connection.
pub struct Conn {
    socket: UnixStream,
    pub stage: Stage,
    pub since: Instant,
    /// Grows once and stays; the first `filled` bytes count.
    input: Vec<u8>,
    filled: usize,
    /// Bytes read since the start.
    pub received: u64,
    out: Vec<u8>,
    written: usize,
    /// Descriptors that go with the byte of `out` at this index.
    descriptors: VecDeque<(usize, Arc<OwnedFd>)>,
    /// The kernel did not take everything; wait until it does.
    pub blocked: bool,
    /// Frames of this stream that are logged, and how many of them the rank does not know of yet.
    pub frames: u64,
    pub unacknowledged: u64,
    pub unacknowledged_bytes: usize,
    /// Segments whose descriptors the other side has, oldest first.
    pub segments: VecDeque<u32>,
}

impl Conn {
    pub fn new(socket: UnixStream) -> Conn {
        Conn {
            socket,
            stage: Stage::Hello,
            since: Instant::now(),
            input: Vec::new(),
            filled: 0,
            received: 0,
            out: Vec::new(),
            written: 0,
            descriptors: VecDeque::new(),
            blocked: false,
            frames: 0,
            unacknowledged: 0,
            unacknowledged_bytes: 0,
            segments: VecDeque::new(),
        }
    }

    /// Reads what is there, once. `Ok(false)` at the end of the stream.
    ///
    /// # Errors
    /// The socket's, but for "nothing there".
    pub fn read(&mut self) -> io::Result<bool> {
        let want = match self.stage {
            Stage::Rank { .. } => READ_BYTES,
            // Who has not proven itself gets no more than a handshake's worth of memory.
            _ => 256,
        };
        if self.input.len() < want {
            self.input.resize(want, 0);
        }
        if self.filled >= want {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "too much before the handshake",
            ));
        }
        let room = &mut self.input[self.filled..];
        let got = rustix::net::recv(&self.socket, room, rustix::net::RecvFlags::DONTWAIT);
        let n = got.as_ref().map_or(0, |g| g.0);
        self.filled += n;
        self.received += n as u64;
        match got {
            Ok((0, _)) => Ok(false),
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes the buffer and how much of it counts; give it back with [`Conn::put_back`].
    pub fn take_input(&mut self) -> (Vec<u8>, usize) {
        (std::mem::take(&mut self.input), self.filled)
    }

    /// Gives back the buffer of [`Conn::take_input`], of which `used` bytes are done with.
    pub fn put_back(&mut self, mut input: Vec<u8>, used: usize) {
        input.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.input = input;
    }

    fn consume(&mut self, used: usize) {
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
    }

    /// The next step of the handshake with what was read.
    ///
    /// # Errors
    /// Why the other side is refused.
    pub fn handshake(&mut self, secret: &Secret) -> Result<Handshake, &'static str> {
        match &self.stage {
            Stage::Hello => {
                let Some(bytes) = self.input[..self.filled].first_chunk::<{ Hello::LEN }>() else {
                    return Ok(Handshake::More);
                };
                let (hello, nonce) = (Hello::decode(bytes)?, random());
                let proof = secret.proof(Side::Accepting, &hello.nonce, &nonce, bytes);
                self.consume(Hello::LEN);
                self.out.extend_from_slice(&Challenge { nonce, proof }.encode());
                self.stage = Stage::Proof { hello, nonce };
                Ok(Handshake::More)
            }
            Stage::Proof { hello, nonce } => {
                let Some(proof) = self.input[..self.filled].first_chunk::<PROOF_LEN>() else {
                    return Ok(Handshake::More);
                };
                let claim = hello.encode();
                if !secret.verify(Side::Connecting, &hello.nonce, nonce, &claim, proof) {
                    return Err("does not know the secret of the job");
                }
                let hello = *hello;
                self.consume(PROOF_LEN);
                let Hello { stream, rank, incarnation, .. } = hello;
                self.stage = Stage::Rank { stream, rank, incarnation };
                Ok(Handshake::Proven(hello))
            }
            Stage::Rank { .. } | Stage::Closing => Ok(Handshake::More),
        }
    }

    /// Queues a frame.
    pub fn push(&mut self, header: &Header, payload: &[u8]) {
        self.out.extend_from_slice(&header.encode());
        self.out.extend_from_slice(payload);
    }

    /// Queues a frame that a descriptor goes with.
    pub fn push_with_descriptor(&mut self, header: &Header, descriptor: Arc<OwnedFd>) {
        self.descriptors.push_back((self.out.len(), descriptor));
        self.push(header, &[]);
    }

    /// Bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.out.len() - self.written
    }

    /// Writes what the kernel takes.
    ///
    /// # Errors
    /// The socket's: the connection is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        self.blocked = false;
        while self.written < self.out.len() {
            match self.send_some() {
                Ok(n) => self.written += n,
                Err(rustix::io::Errno::AGAIN) => {
                    self.blocked = true;
                    self.compact();
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
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

    fn send_some(&mut self) -> Result<usize, rustix::io::Errno> {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
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
                rustix::net::send(&self.socket, &self.out[self.written..end], flags)
            }
        }
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
