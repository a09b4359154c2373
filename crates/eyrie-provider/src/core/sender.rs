//! A send stream: what this rank sends to the ranks of one router. A frame is kept until the router says that it
//! is logged, so that a broken connection loses nothing; what the router has already is not sent again but
//! for its envelope. Nothing may leave without the determinants of all that was shown before it.

use super::delivery::refusal;
use super::identity::Identity;
use super::socket;
use eyrie_wire::data::{
    content_hash, Determinant, Frame, Header, Kind, Stream, HEADER_LEN, IN_SEGMENT,
    MAX_DETERMINANTS, MAX_FRAME, MAX_INLINE,
};
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Bytes that may wait for an acknowledgement before a send waits too.
const MAX_KEPT: usize = 4 << 20;
/// How long the router may take to acknowledge or to give a segment.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// A payload in a segment starts at a multiple of this.
const ALIGN: u64 = 64;

/// A segment to write large payloads to.
struct Segment {
    id: u32,
    file: OwnedFd,
    size: u64,
    used: u64,
}

/// Determinants that no router has acknowledged.
#[derive(Default)]
pub struct Unstored {
    list: VecDeque<Determinant>,
}

impl Unstored {
    /// Something was shown.
    pub fn push(&mut self, d: Determinant) {
        self.list.push_back(d);
    }

    /// A router has all up to this clock.
    pub fn stored(&mut self, clock: u64) {
        while self.list.front().is_some_and(|d| d.clock <= clock) {
            self.list.pop_front();
        }
    }

    pub fn newest(&self) -> u64 {
        self.list.back().map_or(0, |d| d.clock)
    }

    fn after(&self, clock: u64) -> impl Iterator<Item = &Determinant> {
        let from = self.list.partition_point(|d| d.clock <= clock);
        self.list.range(from..)
    }
}

/// The stream to one router.
pub struct Sender {
    router: u32,
    socket: Option<OwnedFd>,
    /// Frames that are not acknowledged: `kept[acked..]`, of which the kernel has `kept[..written]`.
    kept: Vec<u8>,
    acked: usize,
    written: usize,
    lengths: VecDeque<u32>,
    /// Frames acknowledged on this connection.
    acknowledged: u64,
    /// Clock of the last determinant that went out on this connection.
    determinants_sent: u64,
    /// Number of the last message to each rank that the router has.
    known: Vec<u64>,
    segment: Option<Segment>,
    /// Older segments that unacknowledged frames name.
    retired: Vec<Segment>,
    input: Vec<u8>,
    filled: usize,
}

/// A message to send.
pub struct Outgoing<'a> {
    pub destination: Rank,
    /// Number of the message among those to this destination.
    pub seq: u64,
    pub flags: u8,
    pub tag: u64,
    pub data: u64,
    /// The sender's clock.
    pub clock: u64,
    pub content: &'a [u8],
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

impl Sender {
    /// A stream to `router` that is not connected yet.
    pub fn new(router: u32, ranks: u32) -> Sender {
        Sender {
            router,
            socket: None,
            kept: Vec::with_capacity(256 * 1024),
            acked: 0,
            written: 0,
            lengths: VecDeque::with_capacity(1024),
            acknowledged: 0,
            determinants_sent: 0,
            known: vec![0; ranks as usize],
            segment: None,
            retired: Vec::new(),
            input: vec![0; 64 * 1024],
            filled: 0,
        }
    }

    pub fn connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Something is not acknowledged yet.
    pub fn busy(&self) -> bool {
        !self.lengths.is_empty()
    }

    /// Unacknowledged frames name segments, whose content an image would not hold.
    pub fn names_segments(&self) -> bool {
        let mut at = self.acked;
        self.lengths.iter().any(|len| {
            let in_segment = self.kept[at + 1] & IN_SEGMENT != 0;
            at += *len as usize;
            in_segment
        })
    }

    /// The descriptors of this stream, for the capture of an image.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> + '_ {
        let segments = self.segment.iter().chain(&self.retired).map(|s| &s.file);
        self.socket.iter().chain(segments).map(AsRawFd::as_raw_fd)
    }

    /// Drops the connection; what is not acknowledged stays.
    pub fn disconnect(&mut self) {
        self.socket = None;
        self.filled = 0;
    }

    /// Connects, learns what the router has, sends the rest of what was kept.
    ///
    /// # Errors
    /// `ConnectionRefused` with the router's words when it refuses this incarnation; else the socket's.
    pub fn connect(&mut self, me: &Identity, unstored: &mut Unstored) -> io::Result<()> {
        self.disconnect();
        self.socket = Some(socket::connect(me, self.router, Stream::Send)?);
        self.acknowledged = 0;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while !self.greeted(unstored)? {
            self.fill(deadline)?;
        }
        self.send_kept_again(unstored)
    }

    /// Reads the router's greeting as far as it has come. True: it is whole.
    fn greeted(&mut self, unstored: &mut Unstored) -> io::Result<bool> {
        let mut used = 0;
        let mut ready = false;
        while let Some(frame) = Frame::parse(&self.input[used..self.filled]).map_err(broken)? {
            used += frame.len;
            let h = frame.header;
            match h.kind {
                Kind::Known => {
                    let known = self.known.get_mut(h.peer as usize);
                    *known.ok_or_else(|| broken("no such rank"))? = h.seq;
                }
                Kind::Ready => {
                    unstored.stored(h.tag);
                    self.determinants_sent = h.tag;
                    ready = true;
                    break;
                }
                Kind::Refused => return Err(refusal(frame.payload)),
                _ => return Err(broken("unexpected frame at the start of a stream")),
            }
        }
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        Ok(ready)
    }

    /// After a reconnection: keeps only the messages that the router does not have, and sends them. Payloads in
    /// segments move to new ones, because the router has forgotten the old ones.
    fn send_kept_again(&mut self, unstored: &mut Unstored) -> io::Result<()> {
        let kept = std::mem::take(&mut self.kept);
        let lengths = std::mem::take(&mut self.lengths);
        let mut at = self.acked;
        (self.acked, self.written) = (0, 0);
        let old: Vec<Segment> = self.retired.drain(..).chain(self.segment.take()).collect();
        let mut failed = None;
        for len in lengths {
            let frame = Frame::parse(&kept[at..at + len as usize]).map_err(broken)?;
            at += len as usize;
            let Frame { header: mut h, payload, .. } = frame.ok_or_else(|| broken("kept frame"))?;
            if h.kind != Kind::Data || h.seq <= self.known[h.peer as usize] {
                continue;
            }
            if failed.is_none() && h.flags & IN_SEGMENT != 0 {
                match self.move_payload(&h, &old, unstored) {
                    Ok(place) => (h.segment, h.offset) = place,
                    Err(e) => failed = Some(e),
                }
            }
            self.keep(&h, unstored, payload);
        }
        if let Some(e) = failed {
            // The next connection starts over with the same frames and the same payloads.
            self.retired.extend(old);
            return Err(e);
        }
        self.write()
    }

    fn move_payload(
        &mut self,
        h: &Header,
        old: &[Segment],
        unstored: &mut Unstored,
    ) -> io::Result<(u32, u64)> {
        let Some(from) = old.iter().find(|s| s.id == h.segment) else {
            super::rank::fatal(
                "a large message had not reached its router when the image was taken, and its \
                 connection was lost before it did",
            );
        };
        let mut content = vec![0; h.size as usize];
        read_exact_at(&from.file, &mut content, h.offset)?;
        self.place(&content, unstored)
    }

    /// Keeps a message to be written ([`Sender::write`]). What the router has already goes as an envelope.
    ///
    /// # Errors
    /// The connection's: the message is not kept.
    pub fn enqueue(&mut self, m: &Outgoing, unstored: &mut Unstored) -> io::Result<()> {
        self.make_room(unstored)?;
        let mut h = Header {
            flags: m.flags,
            peer: m.destination,
            seq: m.seq,
            tag: m.tag,
            data: m.data,
            position: m.clock,
            size: m.content.len() as u64,
            ..Header::new(Kind::Data)
        };
        if m.seq <= self.known[m.destination as usize] {
            let head = &m.content[..m.content.len().min(MAX_INLINE)];
            h = Header { kind: Kind::Resend, offset: content_hash(head), ..h };
            self.keep(&h, unstored, &[]);
        } else if m.content.len() <= MAX_INLINE {
            h.inline = m.content.len() as u32;
            self.keep(&h, unstored, m.content);
        } else {
            (h.segment, h.offset) = self.place(m.content, unstored)?;
            h.flags |= IN_SEGMENT;
            self.keep(&h, unstored, &[]);
            // The payload must stay reachable until the frame is logged: ask to hear of it soon.
            self.keep(&Header::new(Kind::Flush), unstored, &[]);
        }
        Ok(())
    }

    /// Sends determinants that have not gone out, if there are any.
    ///
    /// # Errors
    /// The connection's.
    pub fn send_determinants(&mut self, unstored: &mut Unstored) -> io::Result<()> {
        if unstored.newest() <= self.determinants_sent {
            return Ok(());
        }
        self.make_room(unstored)?;
        self.keep(&Header::new(Kind::Determinants), unstored, &[]);
        self.write()
    }

    /// Waits until everything is acknowledged.
    ///
    /// # Errors
    /// The connection's; `TimedOut`.
    pub fn flush(&mut self, unstored: &mut Unstored) -> io::Result<()> {
        if !self.busy() {
            return Ok(());
        }
        self.keep(&Header::new(Kind::Flush), unstored, &[]);
        self.write()?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.busy() {
            self.fill(deadline)?;
            self.absorb(unstored)?;
        }
        Ok(())
    }

    /// Takes what acknowledgements have come, without waiting. Allocates nothing.
    ///
    /// # Errors
    /// The connection's.
    pub fn take_acknowledgements(&mut self, unstored: &mut Unstored) -> io::Result<()> {
        self.read(libc::MSG_DONTWAIT)?;
        self.absorb(unstored).map(drop)
    }

    fn make_room(&mut self, unstored: &mut Unstored) -> io::Result<()> {
        if self.socket.is_none() {
            return Err(ErrorKind::NotConnected.into());
        }
        if self.lengths.len() >= 512 || self.kept.len() - self.acked >= MAX_KEPT / 4 {
            self.take_acknowledgements(unstored)?;
        }
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.kept.len() - self.acked > MAX_KEPT {
            self.fill(deadline)?;
            self.absorb(unstored)?;
        }
        if self.acked >= MAX_KEPT / 4 {
            self.kept.drain(..self.acked);
            self.written -= self.acked;
            self.acked = 0;
        }
        Ok(())
    }

    /// Puts a frame behind the kept ones, with the determinants that have not gone out on this stream.
    fn keep(&mut self, header: &Header, unstored: &Unstored, payload: &[u8]) {
        loop {
            let at = self.kept.len();
            self.kept.extend_from_slice(&header.encode());
            let mut n = 0u16;
            for d in unstored.after(self.determinants_sent).take(MAX_DETERMINANTS) {
                self.kept.extend_from_slice(&d.encode());
                self.determinants_sent = d.clock;
                n += 1;
            }
            self.kept[at + 2..at + 4].copy_from_slice(&n.to_le_bytes());
            let more = n as usize == MAX_DETERMINANTS && unstored.newest() > self.determinants_sent;
            if more {
                // Too many for one frame: this one carries determinants only, and goes first.
                let only = Header { determinants: n, ..Header::new(Kind::Determinants) };
                self.kept[at..at + HEADER_LEN].copy_from_slice(&only.encode());
            } else {
                self.kept.extend_from_slice(payload);
            }
            self.lengths.push_back((self.kept.len() - at) as u32);
            if !more {
                return;
            }
        }
    }

    /// Gives the kernel everything that is kept and not written; the router always reads, so this ends.
    ///
    /// # Errors
    /// The connection's: what is kept goes out when [`Sender::connect`] succeeds.
    pub fn write(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.written < self.kept.len() {
            let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
            let bytes = &self.kept[self.written..];
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the buffer is as long as said.
            let n = unsafe {
                libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
            };
            if n >= 0 {
                self.written += n as usize;
                continue;
            }
            let e = io::Error::last_os_error();
            match e.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock => {
                    socket::wait(socket, libc::POLLOUT, 100);
                    if Instant::now() > deadline {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                _ => return Err(e),
            }
        }
        Ok(())
    }

    /// Puts a payload into a segment; returns which, and where.
    fn place(&mut self, content: &[u8], unstored: &mut Unstored) -> io::Result<(u32, u64)> {
        let size = content.len() as u64;
        let fits = |s: &Segment| s.used.checked_add(size).is_some_and(|end| end <= s.size);
        if !self.segment.as_ref().is_some_and(fits) {
            if let Some(old) = self.segment.take() {
                let done = Header { segment: old.id, ..Header::new(Kind::SegmentDone) };
                self.keep(&done, unstored, &[]);
                self.retired.push(old);
            }
            self.segment = Some(self.ask_segment(size, unstored)?);
        }
        let segment = self.segment.as_mut().expect("just made");
        let offset = segment.used;
        write_all_at(&segment.file, content, offset)?;
        segment.used = (offset + size).next_multiple_of(ALIGN);
        Ok((segment.id, offset))
    }

    fn ask_segment(&mut self, size: u64, unstored: &mut Unstored) -> io::Result<Segment> {
        self.keep(&Header { size, ..Header::new(Kind::SegmentRequest) }, unstored, &[]);
        self.write()?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            if let Some(file) = self.fill(deadline)? {
                // The descriptor comes with the first byte of its frame.
                loop {
                    if let Some(h) = self.absorb(unstored)? {
                        return Ok(Segment { id: h.segment, file, size: h.size, used: 0 });
                    }
                    self.fill(deadline)?;
                }
            }
            self.absorb(unstored)?;
        }
    }

    /// Handles what was read; returns the header of a segment frame when one came.
    fn absorb(&mut self, unstored: &mut Unstored) -> io::Result<Option<Header>> {
        let mut used = 0;
        let mut segment = None;
        while let Some(frame) = Frame::parse(&self.input[used..self.filled]).map_err(broken)? {
            used += frame.len;
            let h = frame.header;
            match h.kind {
                Kind::Ack => {
                    let new = h.seq.saturating_sub(self.acknowledged);
                    if new > self.lengths.len() as u64 {
                        return Err(broken("acknowledgement of what was not sent"));
                    }
                    self.acknowledged = h.seq;
                    self.acked +=
                        self.lengths.drain(..new as usize).map(|l| l as usize).sum::<usize>();
                    unstored.stored(h.tag);
                }
                Kind::Segment => segment = Some(h),
                Kind::Refused => return Err(refusal(frame.payload)),
                _ => return Err(broken("unexpected frame on a send stream")),
            }
        }
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        if self.lengths.is_empty() {
            self.kept.clear();
            (self.acked, self.written) = (0, 0);
            self.retired.clear();
        }
        Ok(segment)
    }

    /// Waits for something to read, and reads it. Returns the descriptor that came with it, if one did.
    fn fill(&mut self, deadline: Instant) -> io::Result<Option<OwnedFd>> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        if Instant::now() > deadline {
            let text = format!("router {} has not answered for {ANSWER_TIMEOUT:?}", self.router);
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        if !socket::wait(socket, libc::POLLIN, 100) {
            return Ok(None);
        }
        self.read(libc::MSG_DONTWAIT)
    }

    fn read(&mut self, flags: i32) -> io::Result<Option<OwnedFd>> {
        let Some(socket) = &self.socket else { return Err(ErrorKind::NotConnected.into()) };
        let room = &mut self.input[self.filled..];
        let mut iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut control = [0u64; 4];
        // SAFETY: all zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the header names a buffer and a control buffer that live through the call.
        let n = unsafe {
            libc::recvmsg(socket.as_raw_fd(), &mut message, flags | libc::MSG_CMSG_CLOEXEC)
        };
        if n < 0 {
            let e = io::Error::last_os_error();
            return match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
                _ => Err(e),
            };
        }
        if n == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.filled += n as usize;
        if message.msg_controllen == 0 {
            return Ok(None);
        }
        // SAFETY: the kernel has filled the control buffer, with one descriptor at most: we ask for one at a time.
        unsafe {
            let c = libc::CMSG_FIRSTHDR(&message);
            if c.is_null() || (*c).cmsg_type != libc::SCM_RIGHTS {
                return Ok(None);
            }
            let fd = libc::CMSG_DATA(c).cast::<RawFd>().read_unaligned();
            Ok(Some(socket::move_up(OwnedFd::from_raw_fd(fd))))
        }
    }
}

const _: () = assert!(MAX_FRAME < 64 * 1024);

fn read_exact_at(file: &OwnedFd, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let at = offset as i64 + done as i64;
        // SAFETY: writes into the rest of `buf`.
        let n = unsafe {
            libc::pread(file.as_raw_fd(), buf[done..].as_mut_ptr().cast(), buf.len() - done, at)
        };
        match n {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n if n > 0 => done += n as usize,
            _ if io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

fn write_all_at(file: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset as i64 + done as i64;
        // SAFETY: reads from the rest of `bytes`.
        let n = unsafe {
            libc::pwrite(file.as_raw_fd(), bytes[done..].as_ptr().cast(), bytes.len() - done, at)
        };
        if n > 0 {
            done += n as usize;
        } else if io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
