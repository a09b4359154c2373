//! Feeding a rank from its log, as fast as the rank reads. The router leaves a slow reader behind
//! and feeds it later; no other rank waits for it.

use super::conns::Conns;
use super::kept::Kept;
use super::log::Log;
use super::mutation::{active, Mutation};
use super::output::{unreadable, ConnId, Output};
use super::streams::Streams;
use crate::space::{Space, Store};
use eyrie_wire::data::{Header, Piece, Place, Segment, SegmentDrop};
use eyrie_wire::Rank;
use std::collections::VecDeque;

/// Segments whose files one connection may hold at a time.
const PASSED_SEGMENTS: usize = 32;

/// Feeds ranks.
pub struct Deliver<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub kept: &'a Kept,
    pub streams: &'a mut Streams,
    pub space: &'a Space<S>,
}

impl<S: Store> Deliver<'_, S> {
    /// Feeds a rank from its log, as fast as it reads. True: something was queued.
    pub fn deliver(&mut self, rank: Rank, out: &mut impl Output<S::File>) -> bool {
        let Some(id) = self.conns.delivery(rank) else { return false };
        let (stream, buffer) = self.streams.with_buffer(rank);
        let Some(conn) = self.conns.get_mut(id).filter(|_| stream.resumed.is_some()) else {
            return false;
        };
        let log = self.kept.log(rank);
        let mut queued = false;
        while out.has_room(id) {
            match log.next(&mut stream.cursor, self.space) {
                Ok(Some(logged)) => {
                    if let Some(Place { segment, offset }) = logged.deliver.place {
                        if conn.passes_files {
                            pass_segment(id, &mut conn.segments, self.space, segment, out);
                        } else if let Some((from, len)) = stream.ahead.next(&logged.deliver) {
                            let begins = from == 0 && self.kept.is_elsewhere(rank);
                            if begins && !active(Mutation::AnnounceNothing) {
                                out.frame(id, &Header::Announced(logged.deliver), &[]);
                            }
                            let offset = offset + from;
                            let piece = &mut buffer[..len];
                            if let Err(e) = self.space.read_piece(segment, offset, piece) {
                                unreadable(rank, &e, out);
                                break;
                            }
                            out.frame(id, &Header::Piece(Piece { segment, offset }), piece);
                            queued = true;
                            continue;
                        }
                    }
                    let len = logged.frame.len();
                    out.logged(id, logged.frame);
                    Log::advance(&mut stream.cursor, len);
                    queued = true;
                }
                Ok(None) => break,
                Err(e) => {
                    unreadable(rank, &e, out);
                    break;
                }
            }
        }
        queued
    }
}

/// Sends the receiver a segment's file if it does not have it.
fn pass_segment<S: Store>(
    id: ConnId,
    passed: &mut VecDeque<u32>,
    space: &Space<S>,
    segment: u32,
    out: &mut impl Output<S::File>,
) {
    if passed.contains(&segment) {
        return;
    }
    let Some(found) = space.segments.get(segment) else { return };
    while passed.len() >= PASSED_SEGMENTS {
        let Some(oldest) = passed.pop_front() else { break };
        out.frame(id, &Header::SegmentDrop(SegmentDrop { segment: oldest }), &[]);
    }
    let header = Header::Segment(Segment { segment, bytes: found.bytes });
    out.frame_with_file(id, &header, found.file.clone());
    passed.push_back(segment);
}
