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

use super::observed::ObservedLog;
use super::{ConnId, Log, Output, Protocol, RankState, RouterEvent};
use crate::space::{Bounds, Fill, Store};
use eyrie_wire::data::{Header, Segment, StreamKind};
use eyrie_wire::Rank;
use std::time::Duration;

/// How long senders are held back before a log is cut.
const HOLD: Duration = Duration::from_secs(10);
/// How long the disk is not written after it has failed.
const DISK_REST: Duration = Duration::from_secs(1);
/// The growth of a log is reported in steps of this share of the memory for logs, and of at least
/// these bytes.
const GROWTH_SHARE: u64 = 64;
const MIN_GROWTH: u64 = 1 << 20;
/// Images are asked for when observations take this share of their memory: an image takes a while,
/// and the one before it must count, too.
const SCARCE_SHARE: u64 = 8;

/// The state of the space besides its content.
pub struct Room {
    bounds: Bounds,
    /// Time since the router's start.
    pub now: Duration,
    /// Connections that wait for a segment of this many bytes.
    waiting: Vec<(ConnId, u64)>,
    /// Since when there is too little space.
    pressed: Option<Duration>,
    /// Whether senders are held back.
    held: bool,
    disk_failed: Option<(Duration, String)>,
    growth_step: u64,
}

impl Room {
    pub fn new(bounds: Bounds, ranks: u32) -> Room {
        let share = bounds.memory / (GROWTH_SHARE * u64::from(ranks.max(1)));
        Room {
            bounds,
            now: Duration::ZERO,
            waiting: Vec::new(),
            pressed: None,
            held: false,
            disk_failed: None,
            growth_step: share.max(MIN_GROWTH),
        }
    }

    /// Removes the request of a connection that is gone.
    pub fn remove(&mut self, id: ConnId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    pub fn growth_step(&self) -> u64 {
        self.growth_step
    }

    pub fn holds(&self) -> bool {
        self.held
    }
}

impl<S: Store> Protocol<S> {
    /// Brings the frames in memory below their bound; holds senders back while it cannot.
    pub(super) fn keep_room(&mut self, out: &mut impl Output<S::File>) {
        while self.observed_memory > self.room.bounds.observed_memory() {
            self.lose_observed(out);
        }
        let bound = self.room.bounds.block_memory();
        for also_last in [false, true] {
            if self.block_memory > bound && self.disk_is_rested() {
                self.spill(bound / 2, also_last);
            }
        }
        // A log that has been cut loses nothing by another cut.
        while self.is_pressed() && self.cut(out, |log, state| log.floor() > state.needed_after) {}
        // Messages that are pending for an adoption free their room themselves, and cutting a log
        // would not help them.
        let pressed = self.is_pressed() && self.pending_bytes == 0;
        if let Some(since) = self.room.pressed.filter(|_| pressed) {
            if self.room.now >= since + HOLD && self.cut(out, |_, _| true) {
                self.room.pressed = Some(self.room.now);
            }
        }
        let full = self.is_full();
        if full != self.room.held {
            self.room.held = full;
            self.set_hold(full, out);
        }
        match (self.is_pressed(), self.room.pressed) {
            (true, None) => self.report_pressure(out),
            (false, Some(_)) => self.room.pressed = None,
            _ => {}
        }
    }

    /// Whether frames take twice their bound: there must be room for what was read before the
    /// senders were held back.
    fn is_full(&self) -> bool {
        self.block_memory + self.pending_bytes > self.room.bounds.block_memory() * 2
    }

    /// Whether observations take so much that images should replace them.
    pub(super) fn observed_is_scarce(&self) -> bool {
        self.observed_memory > self.room.bounds.observed_memory() / SCARCE_SHARE
    }

    /// Whether senders wait for space.
    fn is_pressed(&self) -> bool {
        self.is_full() || !self.room.waiting.is_empty()
    }

    fn disk_is_rested(&mut self) -> bool {
        match &self.room.disk_failed {
            Some((at, _)) if self.room.now < *at + DISK_REST => false,
            _ => {
                self.room.disk_failed = None;
                true
            }
        }
    }

    /// Moves blocks to disk, of the largest logs first, until those in memory take at most `goal`
    /// bytes. Blocks that are still written are moved only with `also_last`, because that makes
    /// small ones.
    fn spill(&mut self, goal: u64, also_last: bool) {
        let mut order: Vec<usize> = (0..self.logs.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(self.logs[*i].memory()));
        for i in order {
            while self.block_memory > goal {
                match self.logs[i].spill_one(&mut self.space, also_last) {
                    Ok(0) => break,
                    Ok(n) => self.block_memory -= n,
                    Err(e) => {
                        self.room.disk_failed = Some((self.room.now, e.to_string()));
                        return;
                    }
                }
            }
        }
    }

    /// Handles a sender's request for a segment. Without space for one the sender waits.
    pub(super) fn request_segment(
        &mut self,
        id: ConnId,
        bytes: u64,
        out: &mut impl Output<S::File>,
    ) {
        if !self.give_segment(id, bytes, out) {
            self.room.waiting.push((id, bytes));
            self.keep_room(out);
        }
    }

    /// Gives the sender of a connection a segment. False: there is no space for one.
    fn give_segment(&mut self, id: ConnId, bytes: u64, out: &mut impl Output<S::File>) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return true };
        let Ok(segment) = self.space.open_segment(bytes) else { return false };
        let Some(found) = self.space.segments.get(segment) else { return false };
        conn.segments.push_back(segment);
        let header = Header::Segment(Segment { segment, bytes: found.bytes });
        if conn.passes_files {
            out.frame_with_file(id, &header, found.file.clone());
        } else {
            out.frame(id, &header, &[]);
        }
        true
    }

    /// Gives segments to the senders that wait for one, as long as there is space.
    pub(super) fn serve_waiting(&mut self, out: &mut impl Output<S::File>) {
        for (id, bytes) in std::mem::take(&mut self.room.waiting) {
            if !self.give_segment(id, bytes, out) {
                self.room.waiting.push((id, bytes));
            }
        }
    }

    fn set_hold(&self, held: bool, out: &mut impl Output<S::File>) {
        for (id, conn) in &self.conns {
            if conn.stream == StreamKind::Send {
                out.hold(*id, held);
            }
        }
    }

    fn report_pressure(&mut self, out: &mut impl Output<S::File>) {
        self.room.pressed = Some(self.room.now);
        let why = self.room.disk_failed.as_ref().map_or(String::new(), |(_, e)| format!(" ({e})"));
        let reason = format!("no space is left for the log of messages{why}");
        out.event(RouterEvent::HeldBack { reason });
        if let Some(rank) = self.largest() {
            out.event(RouterEvent::LogScarce { rank });
        }
    }

    /// The rank whose log takes most space.
    fn largest(&self) -> Option<Rank> {
        let held = |r: &usize| self.logs[*r].held() + self.ranks[*r].observed.memory();
        let largest = (0..self.logs.len()).filter(|r| held(r) > 0).max_by_key(held);
        largest.map(|r| r as Rank)
    }

    /// Asks for images while space is scarce.
    pub(super) fn report_scarcity(&mut self, out: &mut impl Output<S::File>) {
        let scarce = self.space.fill() >= Fill::Scarce
            || self.room.pressed.is_some()
            || self.observed_is_scarce();
        if let Some(rank) = self.largest().filter(|_| scarce) {
            out.event(RouterEvent::LogScarce { rank });
        }
    }

    /// Removes the observations of the rank that has most. It cannot be recovered until its next
    /// image.
    fn lose_observed(&mut self, out: &mut impl Output<S::File>) {
        let held = |r: &usize| self.ranks[*r].observed.memory();
        let Some(r) = (0..self.ranks.len()).max_by_key(held) else { return };
        let mib = held(&r) >> 20;
        self.change_observed(r as Rank, ObservedLog::lose);
        let reason = format!(
            "{mib} MiB of what it has read from files are not recorded any more: until the next \
             image it reads more from files that have changed than the memory for logs holds"
        );
        out.event(RouterEvent::Unprotected { rank: r as Rank, reason });
    }

    /// Cuts the largest of the logs that `may` be cut: truncates what its rank has received. That
    /// rank cannot be recovered until its next image. False: there is nothing to cut.
    fn cut(
        &mut self,
        out: &mut impl Output<S::File>,
        may: impl Fn(&Log, &RankState) -> bool,
    ) -> bool {
        // Messages on their way are not cut: that would free nothing, and the rank has yet to read
        // them.
        let taken = |r: usize| {
            let shown = self.ranks[r].determinants.last().map_or(0, |d| d.rsn);
            self.logs[r].passed(&self.ranks[r].cursor).min(shown)
        };
        let largest = (0..self.logs.len())
            .filter(|r| taken(*r) > self.logs[*r].floor() && may(&self.logs[*r], &self.ranks[*r]))
            .max_by_key(|r| self.logs[*r].held());
        let Some(r) = largest else { return false };
        let rsn = taken(r);
        let before = self.logs[r].floor();
        // A restarted rank may still have to read what its predecessor has received.
        let named: Vec<u32> = self.logs[r].segments_up_to(rsn).collect();
        for segment in named {
            self.space.segments.forbid_reuse(segment);
        }
        self.truncate_log(r as Rank, rsn, out);
        if self.logs[r].floor() == before {
            return false;
        }
        let why = self.room.disk_failed.as_ref().map_or("no space is left", |(_, e)| e.as_str());
        let reason =
            format!("the log cannot be written: {why}; messages up to {rsn} are no longer logged");
        out.event(RouterEvent::Unprotected { rank: r as Rank, reason });
        self.serve_waiting(out);
        true
    }
}
