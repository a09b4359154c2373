//! Compares what a re-executing rank sends again with the log. It must never stop a rank for what the
//! log no longer holds, nor for content that differs under the same envelope.

use crate::log::{Cursor, Log};
use crate::segments::Segments;
use crate::spill::Spill;
use crate::RouterEvent;
use eyrie_wire::data::{content_hash, Frame, Header, IN_SEGMENT, MAX_INLINE};
use eyrie_wire::Rank;
use std::collections::HashMap;

/// How far the comparison of one re-executing rank has come, per destination.
#[derive(Default)]
pub struct Verifier {
    cursors: HashMap<Rank, Cursor>,
    content_reported: bool,
}

impl Verifier {
    /// Compares one message sent again by `source`; says what the controller must hear, if anything.
    pub fn check(
        &mut self,
        source: Rank,
        again: &Header,
        log: &Log,
        spill: &Spill,
        segments: &Segments,
    ) -> Option<RouterEvent> {
        let cursor = self.cursors.entry(again.peer).or_default();
        loop {
            let frame = log.frame(cursor, spill).ok()??;
            let (logged, len) = (frame.header, frame.len);
            if logged.peer == source && logged.seq > again.seq {
                return None;
            }
            if logged.peer != source || logged.seq < again.seq {
                log.advance(cursor, len);
                continue;
            }
            let verdict = compare(source, again, &frame, segments);
            log.advance(cursor, len);
            let (reason, diverged) = verdict?;
            if diverged {
                return Some(RouterEvent::Divergence { rank: source, reason });
            }
            let first = !std::mem::replace(&mut self.content_reported, true);
            return first.then_some(RouterEvent::ContentDiffers { rank: source, reason });
        }
    }
}

/// What differs, and whether it is the envelope.
fn compare(
    source: Rank,
    again: &Header,
    frame: &Frame,
    segments: &Segments,
) -> Option<(String, bool)> {
    let logged = &frame.header;
    let kind = |h: &Header| h.flags & !IN_SEGMENT;
    if (again.tag, again.size, kind(again)) != (logged.tag, logged.size, kind(logged)) {
        let text = format!(
            "message {} from rank {source} to rank {} was sent with tag {:#x} and {} bytes, and is \
             sent again with tag {:#x} and {} bytes",
            again.seq, again.peer, logged.tag, logged.size, again.tag, again.size
        );
        return Some((text, true));
    }
    let hash = if logged.flags & IN_SEGMENT != 0 {
        let mut head = vec![0; logged.size.min(MAX_INLINE as u64) as usize];
        let file = &segments.get(logged.segment)?.file;
        rustix::io::pread(file, &mut head, logged.offset).ok()?;
        content_hash(&head)
    } else {
        content_hash(frame.payload)
    };
    (hash != again.offset).then(|| {
        let text = format!(
            "message {} from rank {source} to rank {} has the same envelope but another content \
             than before (a time, perhaps)",
            again.seq, again.peer
        );
        (text, false)
    })
}
