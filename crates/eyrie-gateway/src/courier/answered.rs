//! What the routers of this domain answer to the courier.

use super::fetch::Fetch;
use super::gives::Gives;
use super::mutation::{active, Mutation};
use super::output::Output;
use super::ranks::{Pairs, Ranks};
use super::safe::Safe;
use eyrie_wire::data::{Frame, Header};
use eyrie_wire::RouterId;
use std::time::Duration;

/// Handles frames of routers of this domain.
pub struct Answered<'a> {
    pub ranks: &'a Ranks,
    pub pairs: &'a mut Pairs,
    pub fetches: &'a mut [Fetch],
    pub gives: &'a mut Gives,
    /// Own ranks for which something became safe just now: a buffer.
    pub touched: &'a mut Vec<usize>,
    pub now: Duration,
}

impl Answered<'_> {
    /// Handles a frame of a router on the stream of a rank of the other domain.
    ///
    /// # Errors
    /// Why the connection is to be closed.
    pub fn frame(
        &mut self,
        other: usize,
        router: RouterId,
        frame: &Frame,
        out: &mut impl Output,
    ) -> Result<(), String> {
        let stream = self.ranks.stream(other, router);
        let give = self.gives.at(stream);
        match frame.header {
            Header::Known(known) if !give.is_ready() => {
                if let Some(own) = self.ranks.place_of_own(known.destination) {
                    let pair = self.pairs.of_mut(other, own);
                    if !active(Mutation::IgnoreKnown) {
                        pair.safe = pair.safe.max(known.ssn);
                    }
                }
            }
            Header::Ready(_) if !give.is_ready() => {
                give.greet();
                for (own, primary) in self.ranks.primaries.iter().enumerate() {
                    if *primary == router {
                        let pair = self.pairs.of_mut(other, own);
                        pair.given = pair.safe;
                    }
                }
            }
            Header::Ack(ack) if give.is_ready() => {
                self.acknowledged(other, stream, ack.frames, out)?;
            }
            Header::Segment(s) if give.is_ready() => give.add_segment(s.segment, s.bytes),
            Header::Refused => return Err(String::from_utf8_lossy(frame.payload).into_owned()),
            _ => return Err("unexpected frame of a router".into()),
        }
        Ok(())
    }

    /// A router has acknowledged this many frames of a connection.
    fn acknowledged(
        &mut self,
        other: usize,
        stream: usize,
        frames: u64,
        out: &mut impl Output,
    ) -> Result<(), String> {
        let Answered { ranks, pairs, fetches, gives, touched, now } = self;
        gives.at(stream).acknowledge(frames, *now, |own, ssn| {
            let pair = pairs.of_mut(other, own);
            pair.safe = pair.safe.max(ssn);
            if touched.last() != Some(&own) {
                touched.push(own);
            }
        })?;
        let mut safe = Safe { ranks, pairs, fetches };
        while let Some(own) = touched.pop() {
            safe.advance(own);
            safe.report(own, out);
        }
        Ok(())
    }
}
