//! The stream of what one rank of the other domain gives to one router of this one: as a rank does,
//! but nothing is kept.

use super::mutation::{active, Mutation};
use super::output::{Link, Output};
use eyrie_wire::data::{Header, Place, SegmentDone, SegmentRequest};
use std::collections::VecDeque;
use std::time::Duration;

/// The time from a message to the question whether it is safe, and the longest time between two
/// questions. A router acknowledges many messages by itself, but not the last few.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After this time without an acknowledgement a router is asked to answer for what its ranks do not
/// take. A sender waits meanwhile, and a receiver may wait for what that would send next.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(60);
/// A payload in a segment starts at a multiple of this.
const ALIGN: u64 = 64;

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
    /// Since when nothing was acknowledged that could have been.
    unanswered_since: Duration,
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
        if self.sent.is_empty() {
            self.unanswered_since = now;
        }
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
            let header = if now >= self.unanswered_since + RECEIPT_PATIENCE
                && !active(Mutation::WaitForEver)
            {
                self.unanswered_since = now;
                Header::Flush
            } else {
                Header::Determinants
            };
            self.say(link, &header, out);
        }
    }

    /// The router has said what it has.
    pub fn greet(&mut self) {
        self.greeted = true;
    }

    /// A segment has come.
    pub fn add_segment(&mut self, id: u32, bytes: u64) {
        self.asked = false;
        self.segments.push(Segment { id, bytes, used: 0, writers: 0, full: false });
    }

    /// So many frames are acknowledged: the messages among them go to `safe`, each with the place
    /// of its receiver and its send sequence number.
    ///
    /// # Errors
    /// When they were not sent.
    pub fn acknowledge(
        &mut self,
        frames: u64,
        now: Duration,
        mut safe: impl FnMut(usize, u64),
    ) -> Result<(), &'static str> {
        if frames > self.acknowledged {
            self.unanswered_since = now;
        }
        while self.acknowledged < frames {
            match self.sent.pop_front().ok_or("it acknowledges what was not sent")? {
                Sent::Message { own, ssn } => safe(own, ssn),
                Sent::Other => {}
            }
            self.acknowledged += 1;
        }
        Ok(())
    }
}
