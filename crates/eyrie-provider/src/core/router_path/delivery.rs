//! The delivery stream: what the primary router sends to this rank. Bytes are read ahead, but a
//! message is shown only when asked for. `rsn` counts only what was shown: the rest comes again
//! after a reconnection. Where routers may be lost, a rank that re-executes reads all that it needs
//! ahead, and can go on without its router. Nothing here may wait, except for a moment when asked
//! to.

use super::host::{File, Host, RouterStream};
use super::send_stream::refusal;
use crate::core::matching::Content;
use crate::core::mutation::{active, Mutation};
use eyrie_wire::data::{put_plain, Deliver, Determinant, Frame, Header, Piece, Place, MAX_FRAME};
use eyrie_wire::data::{ObservedPart, Received, Replayed, Resume, Shown};
use eyrie_wire::traffic::Sent;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

/// Bytes read ahead.
const INPUT_BYTES: usize = 512 * 1024;
const _: () = assert!(INPUT_BYTES > 2 * MAX_FRAME);
/// Most bytes that are read ahead of what a re-executing rank needs; tests are short.
const MOST_AHEAD: usize = if cfg!(test) { 4 << 20 } else { 256 << 20 };

/// What a rank needs to re-execute, besides messages.
#[derive(Default)]
pub struct Script {
    pub determinants: Vec<Determinant>,
    pub observed: Vec<ObservedPart>,
}

/// The stream.
pub struct Delivery<H: Host> {
    stream: Option<H::RouterStream>,
    /// Whether files come with it, or came with the last one.
    files: bool,
    /// What is to be replayed has all come.
    begun: bool,
    script: Script,
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// What waits to be written: short frames.
    out: Vec<u8>,
    /// Files that have come, whose frames have not been looked at.
    arrived: VecDeque<H::File>,
    segments: Vec<(u32, H::File)>,
    /// The payload of the next message that does not come in its frame, as far as it has come.
    ahead: Ahead,
    rsn: u64,
    /// Where routers may be lost: what each source has sent up to its last message that was shown,
    /// for a router that takes over. Empty elsewhere.
    shown: Vec<Sent>,
    /// The last message of which the router knows that it was received, and the bytes of those
    /// behind it.
    reported: u64,
    unreported_bytes: u64,
    /// The last message that this rank, or an earlier incarnation, has acknowledged or is known to
    /// have seen. Only the primary router still has these messages, or knows their order.
    received_before: u64,
    /// The last message that is whole in `input`, as long as that matters, and up to which byte
    /// `input` was looked through for it.
    held: u64,
    looked_at: usize,
    /// There is no connection, and none is needed: all that will be shown again is in `input`.
    alone: bool,
    /// The router knows, over this connection, that the rank does not re-execute any more.
    reported_replayed: bool,
}

/// Messages and bytes after which the router is told that they were received; tests are short.
const REPORT_MESSAGES: u64 = if cfg!(test) { 4 } else { 64 };
const REPORT_BYTES: u64 = 64 * 1024;

/// Capacity beyond which the place for payloads in pieces is given back, in bytes.
const AHEAD_BYTES: usize = 4 << 20;

/// A payload that comes in pieces, ahead of its message.
#[derive(Default)]
struct Ahead {
    place: Option<Place>,
    bytes: Vec<u8>,
}

impl Ahead {
    /// Takes the next piece.
    fn add(&mut self, piece: Piece, bytes: &[u8]) -> io::Result<()> {
        let Piece { segment, offset } = piece;
        let first = *self.place.get_or_insert(Place { segment, offset });
        if first.segment != segment || offset.wrapping_sub(first.offset) != self.bytes.len() as u64
        {
            return Err(broken("a piece of a payload is missing"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The payload, when it is the one at this place, and whole.
    fn whole(&self, place: Place, size: u64) -> io::Result<&[u8]> {
        if self.place != Some(place) || self.bytes.len() as u64 != size {
            return Err(broken("the payload of a message is not whole"));
        }
        Ok(&self.bytes)
    }

    fn clear(&mut self) {
        self.place = None;
        self.bytes.clear();
        if self.bytes.capacity() > AHEAD_BYTES {
            self.bytes.shrink_to(0);
        }
    }
}

/// The content of a message, in its frame or in a segment.
pub enum Payload<'a, F> {
    Inline(&'a [u8]),
    Segment { file: &'a F, offset: u64 },
}

impl<F: File> Content for Payload<'_, F> {
    unsafe fn copy_to(&self, to: *mut u8, len: usize) -> io::Result<()> {
        match self {
            // SAFETY: the caller promises that `to` is valid for so many bytes.
            Payload::Inline(bytes) => unsafe { bytes.copy_to(to, len) },
            // SAFETY: the caller promises that `to` is valid for so many bytes.
            Payload::Segment { file, offset } => unsafe { file.read_to(*offset, to, len) },
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}

impl<H: Host> Delivery<H> {
    /// A stream that is not connected yet. `sources`: ranks whose messages are counted each by
    /// itself, all of the job where routers may be lost.
    pub fn new(sources: u32) -> Delivery<H> {
        Delivery {
            stream: None,
            files: false,
            begun: false,
            script: Script::default(),
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            out: Vec::new(),
            arrived: VecDeque::new(),
            segments: Vec::new(),
            ahead: Ahead::default(),
            rsn: 0,
            shown: vec![Sent::default(); sources as usize],
            reported: 0,
            unreported_bytes: 0,
            received_before: 0,
            held: 0,
            looked_at: 0,
            alone: false,
            reported_replayed: false,
        }
    }

    /// Receive sequence number of the last message shown.
    pub fn rsn(&self) -> u64 {
        self.rsn
    }

    /// Whether all that was ever received has been shown again.
    pub fn has_all(&self) -> bool {
        self.rsn >= self.received_before
    }

    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether all that was ever received has been read, where that helps: without its router the
    /// rank can show it again.
    pub fn holds_all(&self) -> bool {
        self.begun && !self.shown.is_empty() && self.held >= self.received_before
    }

    /// Whether it goes on without a connection.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The connection is lost: what was read is kept, and no other one is needed to show it.
    pub fn go_on_alone(&mut self) {
        self.stream = None;
        self.out.clear();
        self.alone = true;
    }

    /// The descriptors of this stream, for the capture of an image.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> + '_ {
        let files = self.arrived.iter().chain(self.segments.iter().map(|(_, file)| file));
        let files = files.filter_map(File::descriptor);
        self.stream.iter().filter_map(RouterStream::descriptor).chain(files)
    }

    /// Drops the connection and all that was read ahead.
    pub fn disconnect(&mut self) {
        self.stream = None;
        self.begun = false;
        self.reported_replayed = false;
        self.script = Script::default();
        (self.start, self.end) = (0, 0);
        (self.held, self.looked_at, self.alone) = (self.rsn, 0, false);
        self.out.clear();
        self.arrived.clear();
        self.segments.clear();
        self.ahead.clear();
    }

    /// Goes on with a new connection behind what has been shown. `live`: the rank does not
    /// re-execute; a router that has taken over can learn from it what the rank has.
    pub fn begin(&mut self, stream: H::RouterStream, clock: u64, live: bool) {
        self.disconnect();
        self.files = stream.passes_files();
        self.stream = Some(stream);
        if !self.shown.is_empty() {
            let sources = (0..).map(Rank).zip(&self.shown);
            for (source, sent) in sources.filter(|(_, sent)| sent.messages > 0) {
                let shown = Header::Shown(Shown { source, sent: *sent });
                put_plain(&mut self.out, &shown, &[]);
            }
        }
        if live && !self.shown.is_empty() {
            put_plain(&mut self.out, &Header::Received(Received { rsn: self.rsn }), &[]);
            (self.reported, self.unreported_bytes) = (self.rsn, 0);
        }
        put_plain(&mut self.out, &Header::Resume(Resume { rsn: self.rsn, clock }), &[]);
    }

    /// What is to be replayed, once it has all come, and with it what was received before,
    /// as far as there is room for it.
    ///
    /// # Errors
    /// The connection's, or the router's refusal.
    pub fn take_script(&mut self) -> io::Result<Option<Script>> {
        self.write()?;
        while !self.begun {
            let bytes = &self.input[self.start..self.end];
            let Some(frame) = Frame::parse(bytes).map_err(broken)? else { break };
            match frame.header {
                Header::Replay => {
                    self.script.determinants.extend(frame.determinants());
                    self.script.observed.extend(frame.observed().map(|part| part.to_owned()));
                }
                Header::Ready(ready) => {
                    let seen = self.script.determinants.last().map_or(0, |d| d.rsn);
                    let counts = !self.shown.is_empty();
                    self.received_before = if counts { ready.up_to.max(seen) } else { 0 };
                    self.looked_at = self.start + frame.len;
                    self.begun = true;
                }
                Header::Refused => return Err(refusal(frame.payload)),
                _ => return Err(broken("unexpected frame at the start of a stream")),
            }
            self.start += frame.len;
        }
        if self.begun {
            self.look_ahead()?;
        }
        let ready = self.begun && (self.held >= self.received_before || !self.reads_ahead());
        Ok(ready.then(|| std::mem::take(&mut self.script)))
    }

    /// Whether more is to be read than fits, because the rank depends on it.
    fn reads_ahead(&self) -> bool {
        self.held < self.received_before && self.input.len() < MOST_AHEAD
    }

    /// Notes which messages have been read, as long as the rank depends on it.
    fn look_ahead(&mut self) -> io::Result<()> {
        self.looked_at = self.looked_at.max(self.start);
        while self.begun && self.held < self.received_before {
            let bytes = &self.input[self.looked_at..self.end];
            let Some(frame) = Frame::parse(bytes).map_err(broken)? else { break };
            if let Header::Deliver(deliver) = frame.header {
                self.held = deliver.rsn;
            }
            self.looked_at += frame.len;
        }
        Ok(())
    }

    /// Whether the router has been told that the rank re-executes no more.
    pub fn has_reported_replayed(&self) -> bool {
        self.reported_replayed
    }

    /// Tells the router that the last determinant has been followed, and all that was ever received
    /// has been shown again.
    ///
    /// # Errors
    /// The connection's.
    pub fn report_replayed(&mut self) -> io::Result<()> {
        self.reported_replayed = true;
        put_plain(&mut self.out, &Header::Replayed(Replayed { rsn: self.rsn }), &[]);
        self.write()
    }

    /// Whether so much was received that the router should be told.
    pub fn owes_receipt(&self) -> bool {
        self.rsn >= self.reported + REPORT_MESSAGES || self.unreported_bytes >= REPORT_BYTES
    }

    /// Tells the router what was received, if it does not know.
    ///
    /// # Errors
    /// The connection's.
    pub fn report_received(&mut self) -> io::Result<()> {
        let unheard = !self.begun || self.alone;
        if self.shown.is_empty() || self.rsn <= self.reported || unheard {
            return Ok(());
        }
        (self.reported, self.unreported_bytes) = (self.rsn, 0);
        put_plain(&mut self.out, &Header::Received(Received { rsn: self.rsn }), &[]);
        self.write()
    }

    /// Gives what waits to be written; little goes this way, so it is taken at once.
    fn write(&mut self) -> io::Result<()> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        while !self.out.is_empty() {
            match stream.send(&self.out) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads what is there; with `wait` it waits shortly for something. True: something came.
    ///
    /// # Errors
    /// The connection's; `UnexpectedEof` when the router has closed it.
    pub fn receive(&mut self, wait: bool) -> io::Result<bool> {
        if self.alone {
            return Ok(false);
        }
        self.make_room();
        if self.end == self.input.len() {
            return Ok(true);
        }
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        let arrived = &mut self.arrived;
        let room = &mut self.input[self.end..];
        let came = stream.receive(room, wait, &mut |file| arrived.push_back(file))?;
        if let Some(n) = came {
            self.end += n;
            self.look_ahead()?;
        }
        Ok(came.is_some())
    }

    /// Makes room for a frame in `input`, or for more while the rank depends on it.
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end, self.looked_at) = (0, 0, 0);
            if self.input.len() > INPUT_BYTES {
                self.input = vec![0; INPUT_BYTES];
            }
        }
        if self.input.len() - self.end >= MAX_FRAME {
            return;
        }
        self.input.copy_within(self.start..self.end, 0);
        self.looked_at = self.looked_at.saturating_sub(self.start);
        (self.start, self.end) = (0, self.end - self.start);
        if self.input.len() - self.end < MAX_FRAME && self.reads_ahead() {
            self.input.resize(2 * self.input.len(), 0);
        }
    }

    /// Whether nothing is left of what was read.
    pub fn is_all_shown(&self) -> bool {
        self.start == self.end
    }

    /// Shows messages that have been read, up to `up_to`, until `show` says false; each counts as
    /// shown when `show` returns.
    ///
    /// # Errors
    /// What `show` returns; inside, when what was read is no sound stream, or the router refuses
    /// this incarnation.
    pub fn show<E>(
        &mut self,
        up_to: u64,
        mut show: impl FnMut(&Deliver, &Payload<'_, H::File>) -> Result<bool, E>,
    ) -> Result<io::Result<()>, E> {
        let files = self.files;
        let mut on = true;
        while on && self.rsn < up_to {
            let frame = match Frame::parse(&self.input[self.start..self.end]) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(what) => return Ok(Err(broken(what))),
            };
            match frame.header {
                Header::Deliver(deliver) => {
                    if deliver.rsn != self.rsn + 1 {
                        return Ok(Err(broken("a message is missing in the delivery stream")));
                    }
                    let payload = match deliver.place {
                        None => Payload::Inline(frame.payload),
                        Some(place) if !files => match self.ahead.whole(place, deliver.size) {
                            Ok(bytes) => Payload::Inline(bytes),
                            Err(e) => return Ok(Err(e)),
                        },
                        Some(Place { segment, offset }) => {
                            match self.segments.iter().find(|(id, _)| *id == segment) {
                                Some((_, file)) => Payload::Segment { file, offset },
                                None => return Ok(Err(broken("unknown segment"))),
                            }
                        }
                    };
                    on = show(&deliver, &payload)?;
                    self.rsn = deliver.rsn;
                    if let Some(last) = self.shown.get_mut(deliver.source.index()) {
                        if !active(Mutation::ForgetTheTable) {
                            *last = deliver.sent();
                        }
                        self.unreported_bytes += deliver.size;
                    }
                    if !files {
                        self.ahead.clear();
                    }
                }
                Header::Piece(piece) if !files => {
                    if let Err(e) = self.ahead.add(piece, frame.payload) {
                        return Ok(Err(e));
                    }
                }
                Header::Segment(s) => match self.arrived.pop_front() {
                    Some(file) => self.segments.push((s.segment, file)),
                    None => return Ok(Err(broken("no file came"))),
                },
                Header::SegmentDrop(s) => self.segments.retain(|(id, _)| *id != s.segment),
                Header::Refused => return Ok(Err(refusal(frame.payload))),
                _ => return Ok(Err(broken("unexpected frame on a delivery stream"))),
            }
            self.start += frame.len;
        }
        Ok(Ok(()))
    }
}

/// The state that an image of this rank would hold, without its connection: for tests.
#[cfg(test)]
impl<H: Host> Clone for Delivery<H> {
    fn clone(&self) -> Self {
        Delivery { rsn: self.rsn, shown: self.shown.clone(), ..Delivery::new(0) }
    }
}
