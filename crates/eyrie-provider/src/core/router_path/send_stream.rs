//! A send stream: what this rank sends to the ranks of one router. A frame is kept until the router
//! says that it is safe (logged; where routers may be lost, received), so that a broken connection
//! loses nothing. Of a message that the router has already, only the envelope is sent again.
//! Nothing may leave without the determinants of all that was shown before it. Nothing here may
//! wait: [`super::sending`] does.

use super::host::{File, Host, Interest, RouterStream};
use crate::core::error::RankError;
use crate::core::mutation::{active, Mutation};
use eyrie_wire::data::{
    content_hash, put, put_plain, Determinant, Frame, Header, Message, ObservedPart, ObservedParts,
    Piece, Place, Repeat, SegmentDone, SegmentRequest, MAX_DETERMINANTS, MAX_FRAME, MAX_INLINE,
};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

/// Bytes that may wait for an acknowledgement before a send waits too.
const MAX_KEPT: usize = 4 << 20;
/// The same where they wait for receivers: above what a router lets them wait for.
const MAX_UNRECEIVED: usize = 64 << 20;
/// There, messages from one look for acknowledgements to the next.
const LOOK_EVERY: u32 = 32;
/// Frames, and a share of [`MAX_KEPT`], after which acknowledgements are looked for without need.
const LOOK_FRAMES: usize = 256;
const LOOK_BYTES: usize = MAX_KEPT / 4;
/// Room for kept frames at the start, in bytes.
const KEPT_BYTES: usize = 256 * 1024;
/// Bytes of payloads in segments after which the router is asked whether their messages are safe:
/// as long as one of them is not, its segment is kept open.
const ASK_BYTES: u64 = 512 * 1024;
/// A payload in a segment starts at a multiple of this.
const ALIGN: u64 = 64;
const INPUT_BYTES: usize = 64 * 1024;
const _: () = assert!(MAX_FRAME < INPUT_BYTES);

/// A segment to write large payloads to.
struct Segment<F> {
    id: u32,
    /// `None` where no file can be passed: payloads go through the stream in pieces.
    file: Option<F>,
    bytes: u64,
    used: u64,
}

/// Determinants and what was observed besides messages, as far as no router has acknowledged it;
/// where routers may be lost, the primary router.
#[derive(Clone, Default)]
pub struct Unstored {
    list: VecDeque<Determinant>,
    /// What was shown up to this clock is safe.
    stored: u64,
    observed: ObservedParts,
    /// What was observed up to this byte is safe.
    observed_stored: u64,
}

impl Unstored {
    /// Something was shown.
    pub fn push(&mut self, d: Determinant) {
        self.list.push_back(d);
    }

    /// Nothing more was shown up to this clock than up to the last determinant: a no-delivery
    /// determinant.
    pub fn push_no_delivery(&mut self, d: Determinant) {
        if d.clock > self.newest().max(self.stored) {
            self.push(d);
        }
    }

    /// Something was observed.
    pub fn push_observed(&mut self, part: ObservedPart<&[u8]>) {
        self.observed.push(part);
    }

    /// The last byte that was observed.
    pub fn observed(&self) -> u64 {
        self.observed.end().unwrap_or(self.observed_stored)
    }

    /// Whether what was shown up to this clock is safe, and what was observed up to this byte.
    pub fn are_stored(&self, clock: u64, observed: u64) -> bool {
        self.stored >= clock && self.observed_stored >= observed
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.observed.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// A router has all up to this clock.
    pub fn stored(&mut self, clock: u64) {
        self.stored = self.stored.max(clock);
        while self.list.front().is_some_and(|d| d.clock <= clock) {
            self.list.pop_front();
        }
    }

    /// A router has what was observed up to this byte.
    pub fn observed_stored(&mut self, end: u64) {
        self.observed_stored = self.observed_stored.max(end);
        self.observed.drop_while(|part| part.end() <= end);
    }

    pub fn newest(&self) -> u64 {
        self.list.back().map_or(0, |d| d.clock)
    }

    fn after(&self, clock: u64) -> impl ExactSizeIterator<Item = Determinant> + '_ {
        // Few are new, at the back.
        let new = self.list.iter().rev().take_while(|d| d.clock > clock).count();
        self.list.range(self.list.len() - new..).copied()
    }
}

/// Frames that are kept, one behind another. A message whose payload goes in pieces is kept,
/// counted and acknowledged as one with them.
#[derive(Clone, Default)]
struct Kept {
    bytes: Vec<u8>,
    /// Of these the router has `bytes[..acked]`, and the kernel `bytes[..written]`.
    acked: usize,
    written: usize,
    /// Lengths of the frames that are not acknowledged.
    lengths: VecDeque<usize>,
}

impl Kept {
    fn unacknowledged(&self) -> usize {
        self.bytes.len() - self.acked
    }

    /// The frames that are not acknowledged.
    fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = self.acked;
        self.lengths.iter().map(move |len| {
            let frame = &self.bytes[at..at + *len];
            at += *len;
            frame
        })
    }

    fn acknowledge(&mut self, frames: usize) {
        self.acked += self.lengths.drain(..frames).sum::<usize>();
        if self.lengths.is_empty() {
            self.bytes.clear();
            // A large message must not be in every image from now on.
            if self.bytes.capacity() > 2 * MAX_KEPT {
                self.bytes.shrink_to(KEPT_BYTES);
            }
            (self.acked, self.written) = (0, 0);
        }
    }

    /// Moves the frames that count to the front, when at least as many bytes are before them.
    fn compact(&mut self) {
        if self.acked >= LOOK_BYTES && self.acked >= self.unacknowledged() {
            self.bytes.drain(..self.acked);
            self.written -= self.acked;
            self.acked = 0;
        }
    }
}

/// A message to send.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// Without its place.
    pub message: Message,
    pub content: &'a [u8],
}

/// The result of offering a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// It is kept, to be written.
    Kept,
    /// Too much waits for acknowledgements: wait for some.
    NoRoom,
    /// A segment was asked for: wait for it.
    NoSegment,
}

/// The stream to one router.
pub struct Sender<H: Host> {
    /// Until when frames are kept, with their payloads where they wait for receivers.
    kept_until: KeptUntil,
    /// What this router holds of the rank's determinants is safe.
    stores: bool,
    /// This rank must connect to the router, even if nothing is kept for it.
    wanted: bool,
    /// Messages since acknowledgements were looked for.
    unlooked: u32,
    stream: Option<H::RouterStream>,
    /// The router's greeting has been read to its end.
    greeted: bool,
    kept: Kept,
    /// What was kept when an earlier connection broke and has not been given to this one yet.
    backlog: VecDeque<Vec<u8>>,
    /// Segments that frames of the backlog name.
    old_segments: Vec<Segment<H::File>>,
    /// Frames acknowledged on this connection.
    acknowledged: u64,
    /// Bytes ever given to a connection.
    given: u64,
    /// Clock of the last determinant that was sent on this connection.
    determinants_sent: u64,
    /// The last observed byte that was sent on this connection.
    observed_sent: u64,
    /// Send sequence number of the last message to each rank that the router has.
    known: Vec<u64>,
    segment: Option<Segment<H::File>>,
    segment_asked: bool,
    /// Bytes of payloads in segments since the router was last asked whether messages are safe.
    unasked: u64,
    /// Older segments of this connection, each with the number of frames after whose
    /// acknowledgement nothing names it.
    retired: VecDeque<(u64, Segment<H::File>)>,
    /// Files that have come, whose frames have not been looked at.
    arrived: VecDeque<H::File>,
    input: Vec<u8>,
    filled: usize,
}

/// Whether what a router holds of the rank's determinants is safe.
fn stores(kept_until: KeptUntil, is_primary: bool) -> bool {
    is_primary || kept_until == KeptUntil::Logged || active(Mutation::StoredAnywhere)
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

/// The message of a kept entry, with its payload and the pieces before it.
fn message_of(kept: &[u8]) -> Option<(Message, &[u8], &[u8])> {
    let mut at = 0;
    loop {
        match Frame::parse(&kept[at..]) {
            Ok(Some(Frame { header: Header::Piece(_), len, .. })) => at += len,
            Ok(Some(Frame { header: Header::Message(m), payload, .. })) => {
                return Some((m, payload, &kept[..at]))
            }
            _ => return None,
        }
    }
}

/// The payload whose pieces these are.
fn joined(mut pieces: &[u8]) -> Vec<u8> {
    let mut content = Vec::with_capacity(pieces.len());
    while let Ok(Some(frame)) = Frame::parse(pieces) {
        content.extend_from_slice(frame.payload);
        pieces = &pieces[frame.len..];
    }
    content
}

/// Puts the pieces of a payload that is to lie at `place` behind what is in `out`.
fn put_pieces(out: &mut Vec<u8>, place: Place, content: &[u8]) {
    out.reserve(content.len() + content.len() / MAX_INLINE * 32 + MAX_FRAME);
    let mut offset = place.offset;
    for piece in content.chunks(MAX_INLINE) {
        put_plain(out, &Header::Piece(Piece { segment: place.segment, offset }), piece);
        offset += piece.len() as u64;
    }
}

impl<H: Host> Sender<H> {
    /// A stream that is not connected yet, to a router that acknowledges what was received, or what
    /// is logged. `is_primary`: it is the rank's primary router.
    pub fn new(ranks: u32, kept_until: KeptUntil, is_primary: bool) -> Sender<H> {
        let bytes = Vec::with_capacity(KEPT_BYTES);
        Sender {
            kept_until,
            stores: stores(kept_until, is_primary),
            wanted: false,
            unlooked: 0,
            stream: None,
            greeted: false,
            kept: Kept { bytes, lengths: VecDeque::with_capacity(1024), ..Kept::default() },
            backlog: VecDeque::new(),
            old_segments: Vec::new(),
            acknowledged: 0,
            given: 0,
            determinants_sent: 0,
            observed_sent: 0,
            known: vec![0; ranks as usize],
            segment: None,
            segment_asked: false,
            unasked: 0,
            retired: VecDeque::new(),
            arrived: VecDeque::new(),
            input: vec![0; INPUT_BYTES],
            filled: 0,
        }
    }

    /// Its router is the rank's primary router from now on, or is not.
    pub fn set_primary(&mut self, is_primary: bool) {
        self.stores = stores(self.kept_until, is_primary);
    }

    /// Takes out what is kept and not for the ranks that this router `serves`, in order. The
    /// connection ends for it.
    pub fn take_misrouted(&mut self, serves: impl Fn(Rank) -> bool) -> Vec<(Rank, Vec<u8>)> {
        let elsewhere = |kept: &[u8]| {
            let destination = message_of(kept)?.0.destination;
            (!serves(destination)).then_some(destination)
        };
        if self.kept.frames().any(|frame| elsewhere(frame).is_some()) {
            self.disconnect();
        }
        let mut taken = Vec::new();
        for kept in std::mem::take(&mut self.backlog) {
            match elsewhere(&kept) {
                Some(destination) => taken.push((destination, kept)),
                None => self.backlog.push_back(kept),
            }
        }
        taken
    }

    /// Gives the router this message of another stream's backlog, behind what it is to be given.
    pub fn add_to_backlog(&mut self, kept: Vec<u8>) {
        self.backlog.push_back(kept);
    }

    /// Whether messages can be offered.
    pub fn is_ready(&self) -> bool {
        self.stream.is_some() && self.greeted && self.backlog.is_empty()
    }

    pub fn stream(&self) -> Option<&H::RouterStream> {
        self.stream.as_ref()
    }

    /// Its stream, and what that is to be waited for: until something comes over it, or, where not
    /// everything is written, until it takes more.
    pub fn awaited(&self) -> Option<(&H::RouterStream, Interest)> {
        let written = self.kept.written == self.kept.bytes.len();
        let interest = if written { Interest::Read } else { Interest::Write };
        self.stream.as_ref().map(|stream| (stream, interest))
    }

    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Whether the router has this message from an earlier incarnation.
    pub fn has(&self, message: &Message) -> bool {
        message.ssn <= self.known[message.destination.index()]
    }

    /// Something is not acknowledged yet.
    pub fn is_busy(&self) -> bool {
        !self.kept.lengths.is_empty() || !self.backlog.is_empty() || self.wanted
    }

    /// Bytes that wait for an acknowledgement.
    pub fn unacknowledged(&self) -> usize {
        self.kept.unacknowledged()
    }

    /// Bytes ever given to a connection: while they grow, the router takes what it is given.
    pub fn given(&self) -> u64 {
        self.given
    }

    pub fn has_segment_request(&self) -> bool {
        self.segment_asked
    }

    /// Unacknowledged frames name segments, whose content an image would not hold.
    pub fn names_segments(&self) -> bool {
        let names = |frame: &[u8]| {
            message_of(frame).is_some_and(|(m, _, pieces)| m.place.is_some() && pieces.is_empty())
        };
        (!self.retired.is_empty() || self.segment.is_some() || !self.old_segments.is_empty())
            && (self.kept.frames().any(names) || self.backlog.iter().any(|f| names(f)))
    }

    /// The descriptors of this stream, for the capture of an image.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let retired = self.retired.iter().map(|(_, segment)| segment);
        let segments = self.segment.iter().chain(retired).chain(&self.old_segments);
        let files = segments.filter_map(|s| s.file.as_ref()).chain(&self.arrived);
        let files = files.filter_map(File::descriptor);
        self.stream.iter().filter_map(RouterStream::descriptor).chain(files)
    }

    /// Drops the connection; what is not acknowledged stays, to be given to the next one.
    pub fn disconnect(&mut self) {
        self.stream = None;
        self.greeted = false;
        self.filled = 0;
        self.arrived.clear();
        self.segment_asked = false;
        self.unasked = 0;
        let mut again: VecDeque<Vec<u8>> =
            self.kept.frames().filter(|f| message_of(f).is_some()).map(<[u8]>::to_vec).collect();
        again.append(&mut self.backlog);
        self.backlog = again;
        self.kept.acknowledge(self.kept.lengths.len());
        self.old_segments.extend(self.retired.drain(..).map(|(_, segment)| segment));
        self.old_segments.extend(self.segment.take());
    }

    /// Another router replaces this one. It gets what is kept, and this rank must connect to it.
    pub fn replace(&mut self) {
        self.disconnect();
        self.wanted = true;
    }

    /// Goes on with a new connection; the router's greeting comes first.
    pub fn begin(&mut self, stream: H::RouterStream) {
        self.disconnect();
        self.stream = Some(stream);
        self.acknowledged = 0;
        (self.determinants_sent, self.observed_sent) = (0, 0);
    }

    /// Gives the next message of the backlog, unless the router has it.
    ///
    /// # Errors
    /// The connection's, or that the content of a large message is gone.
    pub fn offer_backlog(
        &mut self,
        unstored: &mut Unstored,
    ) -> Result<io::Result<Offer>, RankError> {
        let Some(frame) = self.backlog.pop_front() else { return Ok(Ok(Offer::Kept)) };
        let Some((mut message, payload, pieces)) = message_of(&frame) else {
            return Ok(Ok(Offer::Kept));
        };
        if self.has(&message) {
            return Ok(Ok(Offer::Kept));
        }
        let content;
        let content = match message.place.take() {
            None => payload,
            Some(place) => {
                content = if pieces.is_empty() {
                    self.old_content(place, message.size)?
                } else {
                    joined(pieces)
                };
                &content
            }
        };
        let offer = self.offer(&Outgoing { message, content }, unstored);
        if !matches!(offer, Ok(Offer::Kept)) {
            self.backlog.push_front(frame);
        }
        Ok(offer)
    }

    fn old_content(&self, place: Place, size: u64) -> Result<Vec<u8>, RankError> {
        let segment = self.old_segments.iter().find(|s| s.id == place.segment);
        let file = segment.and_then(|s| s.file.as_ref()).ok_or(RankError::LargeMessageLost)?;
        let mut content = vec![0; size as usize];
        // SAFETY: the vector is as long as said.
        unsafe { file.read_to(place.offset, content.as_mut_ptr(), content.len()) }
            .map_err(|e| RankError::Content(e.to_string()))?;
        Ok(content)
    }

    /// All of the backlog has been given: its segments are not needed any more.
    pub fn end_backlog(&mut self, unstored: &Unstored) {
        self.old_segments.clear();
        if std::mem::take(&mut self.wanted) {
            self.offer_word(unstored);
        }
    }

    /// Keeps a message to be written ([`Sender::write`]). What the router has already goes as an
    /// envelope.
    ///
    /// # Errors
    /// The connection's: the message is not kept.
    pub fn offer(&mut self, out: &Outgoing, unstored: &mut Unstored) -> io::Result<Offer> {
        if self.stream.is_none() {
            return Err(ErrorKind::NotConnected.into());
        }
        let (look_every, most) = match self.kept_until {
            KeptUntil::Logged => (1, MAX_KEPT),
            KeptUntil::Received => (LOOK_EVERY, MAX_UNRECEIVED),
        };
        let much =
            self.kept.lengths.len() >= LOOK_FRAMES || self.kept.unacknowledged() >= LOOK_BYTES;
        self.unlooked += 1;
        if much && self.unlooked >= look_every {
            self.unlooked = 0;
            self.receive(unstored)?;
        }
        if self.kept.unacknowledged() > most {
            return Ok(Offer::NoRoom);
        }
        self.kept.compact();
        let Outgoing { mut message, content } = *out;
        if self.has(&message) {
            let Message { destination, ssn, clock, envelope, size, .. } = message;
            let hash = content_hash(&content[..content.len().min(MAX_INLINE)]);
            let repeat = Repeat { destination, ssn, clock, envelope, size, hash };
            self.keep(&Header::Repeat(repeat), unstored, &[]);
        } else if content.len() <= MAX_INLINE {
            self.keep(&Header::Message(message), unstored, content);
        } else {
            let Some(place) = self.place(content, unstored)? else { return Ok(Offer::NoSegment) };
            message.place = Some(place);
            let pieces = if self.passes_files() { &[] } else { content };
            self.keep_behind(Some((place, pieces)), &Header::Message(message), unstored, &[]);
            // The payload must stay reachable until the frame is logged.
            self.unasked += message.size;
            if self.kept_until == KeptUntil::Logged && self.unasked >= ASK_BYTES {
                self.offer_flush(unstored);
            }
        }
        Ok(Offer::Kept)
    }

    fn passes_files(&self) -> bool {
        self.kept_until == KeptUntil::Logged
            && self.stream.as_ref().is_some_and(RouterStream::passes_files)
    }

    /// Finds a place for a payload, and puts it there when the segment's file is here; `None` when
    /// a segment must be waited for.
    fn place(&mut self, content: &[u8], unstored: &Unstored) -> io::Result<Option<Place>> {
        let size = content.len() as u64;
        let fits =
            |s: &Segment<H::File>| s.used.checked_add(size).is_some_and(|end| end <= s.bytes);
        if !self.segment.as_ref().is_some_and(fits) {
            if let Some(old) = self.segment.take() {
                let done = SegmentDone { segment: old.id };
                self.keep(&Header::SegmentDone(done), unstored, &[]);
                let frames = self.acknowledged + self.kept.lengths.len() as u64;
                self.retired.push_back((frames, old));
            }
            if !self.segment_asked {
                self.segment_asked = true;
                let request = SegmentRequest { bytes: size };
                self.keep(&Header::SegmentRequest(request), unstored, &[]);
            }
            return Ok(None);
        }
        let Some(segment) = self.segment.as_mut() else { return Ok(None) };
        let offset = segment.used;
        if let Some(file) = &segment.file {
            file.write_at(offset, content)?;
        }
        segment.used = (offset + size).next_multiple_of(ALIGN);
        Ok(Some(Place { segment: segment.id, offset }))
    }

    /// Keeps determinants that have not gone out, if there are any.
    pub fn offer_determinants(&mut self, unstored: &Unstored) {
        if unstored.newest() > self.determinants_sent || unstored.observed() > self.observed_sent {
            self.keep(&Header::Determinants, unstored, &[]);
        }
    }

    /// Keeps a frame that the router answers at once with what it holds of the determinants.
    pub fn offer_word(&mut self, unstored: &Unstored) {
        self.keep(&Header::Determinants, unstored, &[]);
    }

    /// Asks for an acknowledgement of the messages that name segments, if that was not done yet.
    pub fn ask_about_segments(&mut self, unstored: &Unstored) {
        if self.unasked > 0 {
            self.offer_flush(unstored);
        }
    }

    /// Asks for an acknowledgement of all that is kept.
    pub fn offer_flush(&mut self, unstored: &Unstored) {
        self.unasked = 0;
        self.keep(&Header::Flush, unstored, &[]);
    }

    /// Puts a frame behind the kept ones, and with it (what is too much, before it) what has not
    /// gone out on this stream: determinants, and what was observed.
    fn keep(&mut self, header: &Header, unstored: &Unstored, payload: &[u8]) {
        self.keep_behind(None, header, unstored, payload);
    }

    /// As [`Sender::keep`], with the pieces of a payload directly before the frame, as one with it.
    fn keep_behind(
        &mut self,
        pieces: Option<(Place, &[u8])>,
        header: &Header,
        unstored: &Unstored,
        payload: &[u8],
    ) {
        while unstored.after(self.determinants_sent).len() > MAX_DETERMINANTS {
            // Too many for one frame: others go before it.
            self.keep_one(None, &Header::DeterminantsPart, unstored, None, &[]);
        }
        // What was observed must not be known without what had been shown before: with other
        // messages the rank may ask for something else, and be told this.
        let mut parts = unstored.observed.after(self.observed_sent).peekable();
        while let Some(part) = parts.next() {
            self.observed_sent = part.end();
            match parts.peek() {
                Some(_) => {
                    self.keep_one(None, &Header::DeterminantsPart, unstored, Some(part), &[]);
                }
                None => return self.keep_one(pieces, header, unstored, Some(part), payload),
            }
        }
        self.keep_one(pieces, header, unstored, None, payload);
    }

    /// Puts one frame behind the kept ones, with as many determinants as it takes.
    fn keep_one(
        &mut self,
        pieces: Option<(Place, &[u8])>,
        header: &Header,
        unstored: &Unstored,
        observed: Option<ObservedPart<&[u8]>>,
        payload: &[u8],
    ) {
        let at = self.kept.bytes.len();
        if let Some((place, content)) = pieces {
            put_pieces(&mut self.kept.bytes, place, content);
        }
        let mut sent = self.determinants_sent;
        let list = unstored.after(sent).inspect(|d| sent = d.clock);
        put(&mut self.kept.bytes, header, list, observed, payload);
        self.determinants_sent = sent;
        self.kept.lengths.push_back(self.kept.bytes.len() - at);
    }

    /// Writes what is kept to the stream, as much as it takes. True: everything was written.
    ///
    /// # Errors
    /// The connection's.
    pub fn write(&mut self) -> io::Result<bool> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        while self.kept.written < self.kept.bytes.len() {
            match stream.send(&self.kept.bytes[self.kept.written..]) {
                Ok(n) => {
                    self.kept.written += n;
                    self.given += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Reads what the router has sent, without waiting. True: something came.
    ///
    /// # Errors
    /// The connection's, or the router's refusal.
    pub fn receive(&mut self, unstored: &mut Unstored) -> io::Result<bool> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        let arrived = &mut self.arrived;
        let room = &mut self.input[self.filled..];
        let came = stream.receive(room, false, &mut |file| arrived.push_back(file))?;
        if let Some(n) = came {
            self.filled += n;
            self.absorb(unstored)?;
        }
        Ok(came.is_some())
    }

    /// The router holds all determinants up to this clock, and what was observed up to this byte.
    fn stored(&self, clock: u64, observed: u64, unstored: &mut Unstored) {
        if self.stores {
            unstored.stored(clock);
            unstored.observed_stored(observed);
        }
    }

    /// Handles what was read.
    fn absorb(&mut self, unstored: &mut Unstored) -> io::Result<()> {
        let mut used = 0;
        while let Some(frame) = Frame::parse(&self.input[used..self.filled]).map_err(broken)? {
            match frame.header {
                Header::Known(k) if !self.greeted => {
                    let known = self.known.get_mut(k.destination.index());
                    *known.ok_or_else(|| broken("no such rank"))? = k.ssn;
                }
                Header::Ready(ready) if !self.greeted => {
                    self.stored(ready.up_to, ready.observed, unstored);
                    self.determinants_sent = ready.up_to;
                    self.observed_sent = ready.observed;
                    self.greeted = true;
                }
                Header::Ack(ack) if self.greeted => {
                    let new = ack.frames.saturating_sub(self.acknowledged) as usize;
                    if new > self.kept.lengths.len() {
                        return Err(broken("acknowledgement of what was not sent"));
                    }
                    self.acknowledged = ack.frames;
                    self.kept.acknowledge(new);
                    self.stored(ack.clock, ack.observed, unstored);
                }
                Header::Segment(s) => {
                    let file = if self.passes_files() {
                        // It comes with the first byte of its frame.
                        Some(self.arrived.pop_front().ok_or_else(|| broken("no file came"))?)
                    } else {
                        None
                    };
                    let segment = Segment { id: s.segment, file, bytes: s.bytes, used: 0 };
                    self.segment = Some(segment);
                    self.segment_asked = false;
                }
                Header::Refused => return Err(refusal(frame.payload)),
                _ => return Err(broken("unexpected frame on a send stream")),
            }
            used += frame.len;
        }
        self.input.copy_within(used..self.filled, 0);
        self.filled -= used;
        let acknowledged = self.acknowledged;
        while self.retired.front().is_some_and(|(frames, _)| *frames <= acknowledged) {
            self.retired.pop_front();
        }
        Ok(())
    }
}

/// The error that carries a router's refusal.
pub fn refusal(payload: &[u8]) -> io::Error {
    io::Error::new(ErrorKind::ConnectionRefused, String::from_utf8_lossy(payload).into_owned())
}

/// The state that an image of this rank would hold, without its connection: for tests.
#[cfg(test)]
impl<H: Host> Clone for Sender<H> {
    fn clone(&self) -> Self {
        let mut copy = Sender::new(self.known.len() as u32, self.kept_until, false);
        (copy.stores, copy.wanted) = (self.stores, self.wanted);
        copy.kept = self.kept.clone();
        copy.backlog = self.backlog.clone();
        copy.known = self.known.clone();
        copy.disconnect();
        copy
    }
}
