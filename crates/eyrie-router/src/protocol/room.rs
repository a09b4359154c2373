//! Keeping the log within its bounds. Frames beyond the memory's bound go to disk. Before the
//! disk's share is used up, images are asked for; when it is, senders are held back; and when that
//! does not help in time, the largest log is cut by what its rank has taken already, which is said.
//! What ranks have observed stays in memory, and has a bound of its own: images are asked for long
//! before it, and beyond it what is held of the rank that has most is lost, which is said. No rank
//! is held back for it: one that waits in the middle of a call on files gets no image.

use super::observed::ObservedLog;
use super::{ConnId, Log, Output, Protocol, RankState, RouterEvent};
use crate::space::{Bounds, Fill, Store};
use eyrie_wire::data::{Header, Segment, StreamKind};
use eyrie_wire::Rank;
use std::time::Duration;

/// How long senders are held back before a log is cut.
const HOLD: Duration = Duration::from_secs(10);
/// How long the disk is left alone after it has failed.
const DISK_REST: Duration = Duration::from_secs(1);
/// The growth of a log is told in steps of this share of the memory for logs, at least in these
/// bytes.
const GROWTH_SHARE: u64 = 64;
const MIN_GROWTH: u64 = 1 << 20;
/// Images are asked for when what was observed takes this share of its memory: an image takes a
/// while, and the one before it must count, too.
const SCARCE_SHARE: u64 = 8;

/// What is known of the space besides what is in it.
pub struct Room {
    bounds: Bounds,
    /// Time since the router's start.
    pub now: Duration,
    /// Connections that wait for a segment of so many bytes.
    waiting: Vec<(ConnId, u64)>,
    /// Since when there is less space than is needed.
    pressed: Option<Duration>,
    /// Senders are held back.
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

    /// The connection is gone, and so is its request.
    pub fn forget(&mut self, id: ConnId) {
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
    /// Brings the frames in memory below their bound; holds senders back while that is impossible.
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
        // Nothing is lost any more by cutting a log that has been cut.
        while self.is_pressed() && self.cut(out, |log, state| log.floor() > state.needed_after) {}
        // What waits for an adoption makes room by itself, and cutting a log would not help it.
        let pressed = self.is_pressed() && self.aside_bytes == 0;
        if let (true, Some(since)) = (pressed, self.room.pressed) {
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
            (true, None) => self.tell_pressure(out),
            (false, Some(_)) => self.room.pressed = None,
            _ => {}
        }
    }

    /// Frames take twice their bound: what was read before the senders were held back must have its
    /// place.
    fn is_full(&self) -> bool {
        self.block_memory + self.aside_bytes > self.room.bounds.block_memory() * 2
    }

    /// What was observed takes so much that images are to take its place.
    pub(super) fn observed_is_scarce(&self) -> bool {
        self.observed_memory > self.room.bounds.observed_memory() / SCARCE_SHARE
    }

    /// Senders wait for space.
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
    /// bytes; blocks that are still written to only with `also_last`, because that makes small
    /// ones.
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

    /// A sender asks for a segment. When there is none to be had it waits.
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
        match conn.passes_files {
            true => out.frame_with_file(id, &header, found.file.clone()),
            false => out.frame(id, &header, &[]),
        }
        true
    }

    /// Serves those that wait for a segment, as far as there is space.
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

    fn tell_pressure(&mut self, out: &mut impl Output<S::File>) {
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
    pub(super) fn tell_scarcity(&mut self, out: &mut impl Output<S::File>) {
        let scarce = self.space.fill() >= Fill::Scarce
            || self.room.pressed.is_some()
            || self.observed_is_scarce();
        if let Some(rank) = self.largest().filter(|_| scarce) {
            out.event(RouterEvent::LogScarce { rank });
        }
    }

    /// Loses what is held of the rank that has observed most: it cannot be recovered until its next
    /// image.
    fn lose_observed(&mut self, out: &mut impl Output<S::File>) {
        let held = |r: &usize| self.ranks[*r].observed.memory();
        let Some(r) = (0..self.ranks.len()).max_by_key(held) else { return };
        let mib = held(&r) >> 20;
        self.change_observed(r as Rank, ObservedLog::lose);
        let reason = format!(
            "{mib} MiB of what it has read of files are recorded no longer: it reads more of files \
             that have changed than the memory for logs holds until the next image"
        );
        out.event(RouterEvent::Unprotected { rank: r as Rank, reason });
    }

    /// Of the logs that `may` be cut the largest is cut by what its rank has taken already. That
    /// rank cannot be recovered until its next image. False: there is nothing to cut.
    fn cut(
        &mut self,
        out: &mut impl Output<S::File>,
        may: impl Fn(&Log, &RankState) -> bool,
    ) -> bool {
        // What is on its way only is not cut: that would free nothing, and the rank has yet to read
        // it.
        let taken = |r: usize| {
            let shown = self.ranks[r].determinants.last().map_or(0, |d| d.rsn);
            self.logs[r].passed(&self.ranks[r].cursor).min(shown)
        };
        let largest = (0..self.logs.len())
            .filter(|r| taken(*r) > self.logs[*r].floor() && may(&self.logs[*r], &self.ranks[*r]))
            .max_by_key(|r| self.logs[*r].held());
        let Some(r) = largest else { return false };
        let (rsn, before) = (taken(r), self.logs[r].floor());
        // A restarted rank may have yet to read again what its predecessor was shown.
        let named: Vec<u32> = self.logs[r].segments_up_to(rsn).collect();
        for segment in named {
            self.space.segments.not_again(segment);
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
