//! Compares what a re-executing rank sends again with the log. It must never stop a rank because of
//! what the log no longer holds, or because of content that differs under the same envelope.

use super::log::{Cursor, Log, Logged};
use super::orders::RouterEvent;
use crate::space::{Space, Store};
use eyrie_wire::data::{content_hash, Deliver, Repeat, MAX_INLINE};
use eyrie_wire::Rank;
use std::collections::HashMap;

/// How far the comparison of one re-executing rank has come, for each destination.
#[derive(Default)]
pub struct Verifier {
    cursors: HashMap<Rank, Cursor>,
    content_reported: bool,
}

impl Verifier {
    /// Compares one message that `source` sends again; returns the event for the controller, if
    /// there is one.
    pub fn check<S: Store>(
        &mut self,
        source: Rank,
        again: &Repeat,
        log: &Log,
        space: &Space<S>,
    ) -> Option<RouterEvent> {
        let cursor = self.cursors.entry(again.destination).or_default();
        loop {
            let Logged { deliver: logged, payload, frame } = log.next(cursor, space).ok()??;
            let len = frame.len();
            if logged.source == source && logged.ssn > again.ssn {
                return None;
            }
            if logged.source != source || logged.ssn < again.ssn {
                Log::advance(cursor, len);
                continue;
            }
            let difference = compare(source, again, &logged, payload, space);
            Log::advance(cursor, len);
            return match difference? {
                Difference::Envelope(reason) => {
                    Some(RouterEvent::Divergence { rank: source, reason })
                }
                Difference::Content(reason) => {
                    let first = !std::mem::replace(&mut self.content_reported, true);
                    first.then_some(RouterEvent::ContentDiffers { rank: source, reason })
                }
            };
        }
    }
}

enum Difference {
    Envelope(String),
    Content(String),
}

fn compare<S: Store>(
    source: Rank,
    again: &Repeat,
    logged: &Deliver,
    payload: &[u8],
    space: &Space<S>,
) -> Option<Difference> {
    let ssn = again.ssn;
    let to = again.destination;
    if (again.envelope, again.size) != (logged.envelope, logged.size) {
        return Some(Difference::Envelope(format!(
            "message {ssn} from rank {source} to rank {to} was sent with {} and {} bytes, and is \
             sent again with {} and {} bytes",
            logged.envelope, logged.size, again.envelope, again.size
        )));
    }
    let hash = match logged.place {
        None => content_hash(payload),
        Some(place) => {
            let mut head = vec![0; logged.size.min(MAX_INLINE as u64) as usize];
            let file = &space.segments.get(place.segment)?.file;
            space.store.read_file(file, place.offset, &mut head).ok()?;
            content_hash(&head)
        }
    };
    (hash != again.hash).then(|| {
        Difference::Content(format!(
            "message {ssn} from rank {source} to rank {to} has the same envelope but another \
             content than before (a time, perhaps)"
        ))
    })
}
