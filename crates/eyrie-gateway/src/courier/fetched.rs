//! What the other domain's gateway says: messages go on to the routers of this domain, unless they
//! did before. It must never take a message of a rank that is not in that domain.

use super::fetch::{Awaited, Fetch, Incoming};
use super::gives::Gives;
use super::mutation::{active, Mutation};
use super::output::{Link, Output, Taken};
use super::ranks::{Pairs, Ranks};
use super::safe::Safe;
use eyrie_wire::data::{Deliver, Frame, Header, Message, Piece, Place};
use std::time::Duration;

/// So many messages that were safe already are reported at once.
const REPORT_MESSAGES: u64 = 64;

/// Handles frames of the other domain's gateway.
pub struct Fetched<'a> {
    pub ranks: &'a Ranks,
    pub pairs: &'a mut Pairs,
    pub fetches: &'a mut [Fetch],
    pub gives: &'a mut Gives,
    pub now: Duration,
}

impl Fetched<'_> {
    /// Handles a frame for an own rank.
    ///
    /// # Errors
    /// Why the connection is to be closed.
    pub fn frame(
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
        self.ranks
            .place_of_other(source)
            .ok_or_else(|| format!("a message of rank {source}, which is not there"))
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
            let router = self.ranks.primaries[own];
            let link = Link::Give { source: message.source, router };
            let at = self.ranks.stream(other, router);
            place = self.gives.at(at).place(message.size, link, out);
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
            let router = self.ranks.primaries[own];
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
        let Deliver { source, ssn, rsn, envelope, size, sent_bytes, place } = message;
        let router = self.ranks.primaries[own];
        let link = Link::Give { source, router };
        let at = self.ranks.stream(other, router);
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
            if !self.gives.at(at).is_ready() || !out.has_room(link) {
                return Ok(Taken::Later);
            }
            let destination = self.ranks.own()[own];
            let clock = 0;
            let place = incoming;
            let m = Message { destination, ssn, clock, envelope, size, sent_bytes, place };
            out.frame(link, &Header::Message(m), payload);
            self.gives.at(at).gave(own, ssn, self.now);
            self.pairs.of_mut(other, own).given = given.max(ssn);
        }
        if let Some(place) = incoming {
            self.gives.at(at).end_writing(place.segment, link, out);
        }
        let fetch = &mut self.fetches[own];
        fetch.incoming = None;
        fetch.awaited.push_back(Awaited { rsn, source, other, ssn });
        let Fetched { ranks, pairs, fetches, .. } = self;
        let mut safe = Safe { ranks, pairs, fetches };
        safe.advance(own);
        let fetch = &safe.fetches[own];
        if fetch.awaited.is_empty() || fetch.safe >= fetch.reported + REPORT_MESSAGES {
            safe.report(own, out);
        }
        Ok(Taken::Yes)
    }
}
