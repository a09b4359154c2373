//! Keeps the log within its bounds.
//!
//! - Frames beyond the bound of the memory go to disk.
//! - Before the disk's share is used up, the router asks for images. When it is used up, senders
//!   are held back. When that does not help in time, the largest log is cut: what its rank has
//!   received is truncated. An event says so.
//! - Observations stay in memory and have a bound of their own. The router asks for images long
//!   before they reach it. Beyond it, the observations of the rank that has most are lost, and an
//!   event says so. No rank is held back for them: a rank that waits in the middle of a call on
//!   files cannot be captured.

use super::conns::Conns;
use super::kept::Kept;
use super::log::Log;
use super::orders::RouterEvent;
use super::output::Output;
use super::pending_adoptions::Adoptions;
use super::ranks::Ranks;
use super::receipts::Receipts;
use super::room::Room;
use super::scarcity::Scarcity;
use super::segments::GiveSegments;
use super::streams::Streams;
use super::truncate::Truncate;
use crate::space::{Space, Store};
use eyrie_wire::data::StreamKind;
use eyrie_wire::Rank;
use std::time::Duration;

/// How long senders are held back before a log is cut.
const HOLD: Duration = Duration::from_secs(10);

/// Keeps the log within its bounds.
pub struct KeepRoom<'a, S: Store> {
    pub conns: &'a mut Conns,
    pub ranks: &'a mut Ranks,
    pub kept: &'a mut Kept,
    pub receipts: &'a mut Receipts,
    pub adoptions: &'a Adoptions,
    pub streams: &'a Streams,
    pub room: &'a mut Room,
    pub space: &'a mut Space<S>,
}

impl<S: Store> KeepRoom<'_, S> {
    /// Brings the frames in memory below their bound; holds senders back while it cannot.
    pub fn keep_room(&mut self, out: &mut impl Output<S::File>) {
        while self.room.overflows_with(self.ranks.observed_memory()) {
            self.lose_observed(out);
        }
        let bound = self.room.block_memory();
        for also_last in [false, true] {
            if self.kept.memory() > bound && self.room.disk_is_rested() {
                if let Err(e) = self.kept.spill(bound / 2, also_last, self.space) {
                    self.room.disk_failed(&e);
                }
            }
        }
        // A log that has been cut loses nothing by another cut.
        while self.is_pressed() && self.cut(out, |log, needed_after| log.floor() > needed_after) {}
        // Messages that are pending for an adoption free their room themselves, and cutting a log
        // would not help them.
        let pressed = self.is_pressed() && self.adoptions.pending_bytes() == 0;
        if let Some(since) = self.room.pressed.filter(|_| pressed) {
            if self.room.now >= since + HOLD && self.cut(out, |_, _| true) {
                self.room.pressed = Some(self.room.now);
            }
        }
        let full = self.is_full();
        if full != self.room.held {
            self.room.held = full;
            for (id, _) in self.conns.of_kind(StreamKind::Send) {
                out.hold(id, full);
            }
        }
        match (self.is_pressed(), self.room.pressed) {
            (true, None) => self.report_pressure(out),
            (false, Some(_)) => self.room.pressed = None,
            _ => {}
        }
    }

    /// Whether there is no room for more frames.
    fn is_full(&self) -> bool {
        self.room.is_filled_by(self.kept.memory() + self.adoptions.pending_bytes())
    }

    /// Whether senders wait for space.
    fn is_pressed(&self) -> bool {
        self.is_full() || self.room.waits()
    }

    fn report_pressure(&mut self, out: &mut impl Output<S::File>) {
        self.room.pressed = Some(self.room.now);
        let why = self.room.disk_failure().map_or(String::new(), |e| format!(" ({e})"));
        let reason = format!("no space is left for the log of messages{why}");
        out.event(RouterEvent::HeldBack { reason });
        let KeepRoom { ranks, kept, room, space, .. } = self;
        if let Some(rank) = (Scarcity { ranks, kept, room, space }).largest() {
            out.event(RouterEvent::LogScarce { rank });
        }
    }

    /// Removes the observations of the rank that has most. It cannot be recovered until its next
    /// image.
    fn lose_observed(&mut self, out: &mut impl Output<S::File>) {
        let Some((rank, bytes)) = self.ranks.lose_most_observed() else { return };
        let mib = bytes >> 20;
        let reason = format!(
            "{mib} MiB of what it has read from files are not recorded any more: until the next \
             image it reads more from files that have changed than the memory for logs holds"
        );
        out.event(RouterEvent::Unprotected { rank, reason });
    }

    /// Cuts the largest of the logs that `may` be cut, whose second argument is the last message
    /// before the images of the rank: truncates what the rank has received. The rank cannot be
    /// recovered until its next image. False: there is nothing to cut.
    fn cut(&mut self, out: &mut impl Output<S::File>, may: impl Fn(&Log, u64) -> bool) -> bool {
        // Messages on their way are not cut: that would free nothing, and the rank has yet to read
        // them.
        let taken = |rank: Rank, log: &Log| {
            log.passed(&self.streams.of(rank).cursor).min(self.ranks.shown(rank))
        };
        let cuts = self.kept.logs().filter(|(rank, log)| {
            taken(*rank, log) > log.floor() && may(log, self.ranks.needed_after(*rank))
        });
        let Some((rank, log)) = cuts.max_by_key(|(_, log)| log.held()) else { return false };
        let rsn = taken(rank, log);
        let before = log.floor();
        // A restarted rank may still have to read what its predecessor has received.
        for segment in log.segments_up_to(rsn) {
            self.space.segments.forbid_reuse(segment);
        }
        let KeepRoom { conns, ranks, kept, receipts, space, .. } = self;
        Truncate { conns, ranks, kept, receipts, space }.truncate(rank, rsn, out);
        if self.kept.log(rank).floor() == before {
            return false;
        }
        let why = self.room.disk_failure().unwrap_or("no space is left");
        let reason =
            format!("the log cannot be written: {why}; messages up to {rsn} are no longer logged");
        out.event(RouterEvent::Unprotected { rank, reason });
        let KeepRoom { conns, room, space, .. } = self;
        GiveSegments { conns, room, space }.serve_waiting(out);
        true
    }
}
