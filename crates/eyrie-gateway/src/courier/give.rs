//! What one rank of the other domain gives to one router of this one.

use super::mutation::{active, Mutation};
use super::{Courier, Link, Output};
use eyrie_wire::data::{Frame, Header, Place, SegmentDone, SegmentRequest};
use eyrie_wire::RouterId;
use std::collections::VecDeque;
use std::time::Duration;

/// The time from a message to the question whether it is safe, and the longest time between two
/// questions. A router acknowledges many messages by itself, but not the last few.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A payload in a segment starts at a multiple of this.
const ALIGN: u64 = 64;

/// What happened to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Yes,
    /// It must be offered again: there is no room for it at present.
    Later,
}

/// A segment to write large payloads to.
struct Segment {
    id: u32,
    bytes: u64,
    used: u64,
    /// Payloads that are being written.
    writers: u32,
    /// Nothing more is put there.
    full: bool,
}

/// A frame that is not acknowledged: a message to an own rank, or something else.
enum Sent {
    Message { own: usize, ssn: u64 },
    Other,
}

/// The stream of one rank to one router.
#[derive(Default)]
pub struct Give {
    /// The router has said what it has.
    greeted: bool,
    /// In order.
    sent: VecDeque<Sent>,
    /// Frames that were acknowledged.
    acknowledged: u64,
    segments: Vec<Segment>,
    /// A segment was asked for.
    asked: bool,
    /// When the router is asked what is safe, and the time until it is asked again.
    ask_at: Duration,
    pause: Duration,
}

impl Give {
    /// A connection stands; the router's greeting comes first.
    pub fn begin(&mut self) {
        *self = Give::default();
    }

    pub fn lost(&mut self) {
        *self = Give::default();
    }

    /// Whether messages can be given.
    pub fn is_ready(&self) -> bool {
        self.greeted
    }

    /// Whether something is not acknowledged.
    pub fn is_busy(&self) -> bool {
        !self.sent.is_empty()
    }

    /// A message was given.
    pub fn gave(&mut self, own: usize, ssn: u64, now: Duration) {
        self.sent.push_back(Sent::Message { own, ssn });
        self.pause = FIRST_PAUSE;
        self.ask_at = now + self.pause;
    }

    fn say(&mut self, link: Link, header: &Header, out: &mut impl Output) {
        self.sent.push_back(Sent::Other);
        out.frame(link, header, &[]);
    }

    /// A place for a payload; `None`: one was asked for, or the stream is not ready.
    pub fn place(&mut self, size: u64, link: Link, out: &mut impl Output) -> Option<Place> {
        if !self.greeted {
            return None;
        }
        let fits = |s: &Segment| !s.full && s.used.checked_add(size).is_some_and(|e| e <= s.bytes);
        if let Some(segment) = self.segments.iter_mut().find(|s| fits(s)) {
            let offset = segment.used;
            segment.used = (offset + size).next_multiple_of(ALIGN);
            segment.writers += 1;
            return Some(Place { segment: segment.id, offset });
        }
        if !self.asked {
            self.asked = true;
            self.segments.iter_mut().for_each(|segment| segment.full = true);
            self.end_segments(link, out);
            self.say(link, &Header::SegmentRequest(SegmentRequest { bytes: size }), out);
        }
        None
    }

    /// A payload is written, or will not be.
    pub fn end_writing(&mut self, segment: u32, link: Link, out: &mut impl Output) {
        if let Some(segment) = self.segments.iter_mut().find(|s| s.id == segment) {
            segment.writers -= 1;
        }
        self.end_segments(link, out);
    }

    /// Ends the segments that are full and that nothing is written to any more.
    fn end_segments(&mut self, link: Link, out: &mut impl Output) {
        let over = |s: &Segment| s.full && (s.writers == 0 || active(Mutation::EndSegmentEarly));
        while let Some(at) = self.segments.iter().position(over) {
            let segment = self.segments.remove(at).id;
            self.say(link, &Header::SegmentDone(SegmentDone { segment }), out);
        }
    }

    /// Asks the router what is safe, if it is time.
    pub fn ask(&mut self, now: Duration, link: Link, out: &mut impl Output) {
        if self.greeted && self.is_busy() && now >= self.ask_at && out.has_room(link) {
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.ask_at = now + self.pause;
            self.say(link, &Header::Determinants, out);
        }
    }
}

impl Courier {
    /// Handles a frame of a router of this domain.
    pub(super) fn answered(
        &mut self,
        other: usize,
        router: RouterId,
        frame: &Frame,
        out: &mut impl Output,
    ) -> Result<(), String> {
        let at = self.give_at(other, router);
        let give = &mut self.gives[at];
        match frame.header {
            Header::Known(known) if !give.greeted => {
                if let Some(own) = self.own(known.destination) {
                    let pair = self.pairs.of(other, own);
                    if !active(Mutation::IgnoreKnown) {
                        pair.safe = pair.safe.max(known.ssn);
                    }
                }
            }
            Header::Ready(_) if !give.greeted => {
                give.greeted = true;
                for own in 0..self.own.len() {
                    if self.primaries[own] == router {
                        let pair = self.pairs.of(other, own);
                        pair.given = pair.safe;
                    }
                }
            }
            Header::Ack(ack) if give.greeted => self.acknowledged(at, other, ack.frames, out)?,
            Header::Segment(s) if give.greeted => {
                give.asked = false;
                let (id, bytes) = (s.segment, s.bytes);
                give.segments.push(Segment { id, bytes, used: 0, writers: 0, full: false });
            }
            Header::Refused => return Err(String::from_utf8_lossy(frame.payload).into_owned()),
            _ => return Err("unexpected frame of a router".into()),
        }
        Ok(())
    }

    /// A router has acknowledged this many frames of a connection.
    fn acknowledged(
        &mut self,
        at: usize,
        other: usize,
        frames: u64,
        out: &mut impl Output,
    ) -> Result<(), String> {
        let new = frames.saturating_sub(self.gives[at].acknowledged);
        self.gives[at].acknowledged += new;
        for _ in 0..new {
            let sent = self.gives[at].sent.pop_front();
            let Sent::Message { own, ssn } = sent.ok_or("it acknowledges what was not sent")?
            else {
                continue;
            };
            let pair = self.pairs.of(other, own);
            pair.safe = pair.safe.max(ssn);
            if self.touched.last() != Some(&own) {
                self.touched.push(own);
            }
        }
        while let Some(own) = self.touched.pop() {
            self.advance(own);
            self.report(own, out);
        }
        Ok(())
    }
}
