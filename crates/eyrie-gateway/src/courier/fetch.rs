//! What the other domain's gateway has for one own rank. The gateway goes on behind what it knows
//! to be safe, so the courier need not know where that is.

use super::give::Taken;
use super::mutation::{active, Mutation};
use super::{Courier, Link, Output};
use eyrie_wire::data::{Deliver, Frame, Header, Message, Piece, Place, Received};
use eyrie_wire::Rank;
use std::collections::VecDeque;

/// So many messages that were safe already are reported at once.
const REPORT_MESSAGES: u64 = 64;

/// A message that was fetched, and is not known to be safe.
struct Awaited {
    rsn: u64,
    source: Rank,
    ssn: u64,
}

/// A message whose payload is coming in pieces.
pub struct Incoming {
    pub message: Deliver,
    /// Where its router wants the payload; `None`: the router has it.
    pub place: Option<Place>,
    /// Bytes of the payload that have come.
    bytes: u64,
}

/// The stream of one own rank.
#[derive(Default)]
pub struct Fetch {
    pub up: bool,
    /// How often the gateway was asked to begin and has not said that it does. What comes before it
    /// does is of the stream before.
    unbegun: u32,
    /// In the order of the gateway.
    awaited: VecDeque<Awaited>,
    pub incoming: Option<Incoming>,
    /// All up to this receive sequence number is safe, and what the gateway was told of that.
    safe: u64,
    reported: u64,
}

impl Fetch {
    /// The stream begins again. True: the gateway must be told.
    pub fn begin(&mut self) -> bool {
        self.awaited.clear();
        self.unbegun += u32::from(self.up);
        self.up
    }

    /// There is no connection any more.
    pub fn lost(&mut self) {
        *self = Fetch::default();
    }

    /// Whether something of this source has come, or is coming, behind its message `safe`.
    pub fn depends_on(&self, source: Rank, safe: u64) -> bool {
        let coming = self.incoming.as_ref().is_some_and(|i| i.message.source == source);
        let awaited = |a: &Awaited| a.source == source && a.ssn > safe;
        (coming || self.awaited.iter().any(awaited)) && !active(Mutation::LoseWithTheConnection)
    }
}

impl Courier {
    /// Handles a frame of the other domain's gateway.
    pub(super) fn fetched(
        &mut self,
        own: usize,
        frame: &Frame,
        out: &mut impl Output,
    ) -> Result<Taken, String> {
        let fetch = &mut self.fetches[own];
        match frame.header {
            Header::Ready(ready) => {
                fetch.unbegun = fetch.unbegun.checked_sub(1).ok_or("it has begun twice")?;
                (fetch.safe, fetch.reported) = (ready.up_to, ready.up_to);
            }
            Header::Refused => return Err(String::from_utf8_lossy(frame.payload).into_owned()),
            _ if fetch.unbegun > 0 && !active(Mutation::TakeTheOldStream) => {}
            Header::Announced(message) => return self.announced(own, message, out),
            Header::Piece(piece) => return self.piece(own, piece, frame.payload, out),
            Header::Deliver(message) => return self.delivered(own, message, frame.payload, out),
            _ => return Err("unexpected frame of a gateway".into()),
        }
        Ok(Taken::Yes)
    }

    /// The source of a message, if it may send here by this way.
    fn source(&self, message: &Deliver) -> Result<usize, String> {
        let source = message.source;
        self.other(source).ok_or_else(|| format!("a message of rank {source}, which is not there"))
    }

    /// The payload of this message comes next.
    fn announced(
        &mut self,
        own: usize,
        message: Deliver,
        out: &mut impl Output,
    ) -> Result<Taken, String> {
        let other = self.source(&message)?;
        if message.place.is_none() || self.fetches[own].incoming.is_some() {
            return Err("a payload is announced before the last one has come".into());
        }
        let mut place = None;
        if message.ssn > self.pairs.of(other, own).given || active(Mutation::GiveTwice) {
            let router = self.primaries[own];
            let link = Link::Give { source: message.source, router };
            let at = self.give_at(other, router);
            place = self.gives[at].place(message.size, link, out);
            if place.is_none() {
                return Ok(Taken::Later);
            }
        }
        self.fetches[own].incoming = Some(Incoming { message, place, bytes: 0 });
        Ok(Taken::Yes)
    }

    /// A piece of a payload has come: it goes on at once.
    fn piece(
        &mut self,
        own: usize,
        piece: Piece,
        bytes: &[u8],
        out: &mut impl Output,
    ) -> Result<Taken, String> {
        let missing = "a piece of a payload is missing";
        let incoming = self.fetches[own].incoming.as_mut().ok_or(missing)?;
        let Place { segment, offset } = incoming.message.place.ok_or(missing)?;
        if (piece.segment, piece.offset) != (segment, offset.wrapping_add(incoming.bytes)) {
            return Err(missing.into());
        }
        let after = incoming.bytes + bytes.len() as u64;
        if after > incoming.message.size {
            return Err("a payload is longer than its message".into());
        }
        if let Some(Place { segment, offset }) = incoming.place {
            let router = self.primaries[own];
            let link = Link::Give { source: incoming.message.source, router };
            if !out.has_room(link) {
                return Ok(Taken::Later);
            }
            let offset = offset + incoming.bytes;
            out.frame(link, &Header::Piece(Piece { segment, offset }), bytes);
        }
        incoming.bytes = after;
        Ok(Taken::Yes)
    }

    /// A message has come: it goes on, unless it did before.
    fn delivered(
        &mut self,
        own: usize,
        message: Deliver,
        payload: &[u8],
        out: &mut impl Output,
    ) -> Result<Taken, String> {
        let other = self.source(&message)?;
        let Deliver { source, ssn, rsn, envelope, size, place } = message;
        let router = self.primaries[own];
        let link = Link::Give { source, router };
        let at = self.give_at(other, router);
        let fetch = &mut self.fetches[own];
        if rsn <= fetch.awaited.back().map_or(fetch.safe, |last| last.rsn) {
            return Err("a message comes out of its order".into());
        }
        let whole = |i: &Incoming| i.message == message && i.bytes == size;
        if place.is_some() && !fetch.incoming.as_ref().is_some_and(whole) {
            return Err("the payload of a message is not whole".into());
        }
        let given = self.pairs.of(other, own).given;
        let incoming = fetch.incoming.as_ref().and_then(|i| i.place);
        let new = if place.is_some() { incoming.is_some() } else { ssn > given };
        if new || active(Mutation::GiveTwice) {
            if !self.gives[at].is_ready() || !out.has_room(link) {
                return Ok(Taken::Later);
            }
            let destination = self.own[own];
            let m = Message { destination, ssn, clock: 0, envelope, size, place: incoming };
            out.frame(link, &Header::Message(m), payload);
            self.gives[at].gave(own, ssn, self.now);
            self.pairs.of(other, own).given = given.max(ssn);
        }
        if let Some(place) = incoming {
            self.gives[at].end_writing(place.segment, link, out);
        }
        let fetch = &mut self.fetches[own];
        fetch.incoming = None;
        fetch.awaited.push_back(Awaited { rsn, source, ssn });
        self.advance(own);
        let fetch = &self.fetches[own];
        if fetch.awaited.is_empty() || fetch.safe >= fetch.reported + REPORT_MESSAGES {
            self.report(own, out);
        }
        Ok(Taken::Yes)
    }

    /// Notes what is safe of the messages of an own rank.
    pub(super) fn advance(&mut self, own: usize) {
        while let Some(first) = self.fetches[own].awaited.front() {
            let Some(other) = self.other(first.source) else { return };
            let pair = *self.pairs.of(other, own);
            let safe = first.ssn <= pair.safe
                || active(Mutation::SafeWhenGiven) && first.ssn <= pair.given;
            let fetch = &mut self.fetches[own];
            let later = |a: &Awaited| {
                let of = match self.places.get(a.source.index()) {
                    Some(super::Place::Other(at)) => *at,
                    _ => return false,
                };
                a.ssn <= self.pairs.all[of * self.pairs.own + own].safe
            };
            if !safe && !(active(Mutation::SkipAwaited) && fetch.awaited.iter().any(later)) {
                return;
            }
            fetch.safe = fetch.awaited.pop_front().map_or(fetch.safe, |a| a.rsn);
        }
    }

    /// Tells the gateway what is safe, if it does not know.
    pub(super) fn report(&mut self, own: usize, out: &mut impl Output) {
        let fetch = &mut self.fetches[own];
        if fetch.up && fetch.unbegun == 0 && fetch.safe > fetch.reported {
            fetch.reported = fetch.safe;
            let received = Received { rsn: fetch.safe };
            out.frame(Link::Fetch(self.own[own]), &Header::Received(received), &[]);
        }
    }
}
