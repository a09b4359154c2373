//! The state of the space besides its content: what waits for space, and since when there is too
//! little. Decides nothing.

use super::output::ConnId;
use crate::space::Bounds;
use std::time::Duration;

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
    pub pressed: Option<Duration>,
    /// Whether senders are held back.
    pub held: bool,
    disk_failed: Option<(Duration, String)>,
    growth_step: u64,
    /// When senders were last shown that this router lives.
    pub last_sign: Duration,
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
            last_sign: Duration::ZERO,
        }
    }

    /// Bytes of frames that memory has room for.
    pub fn block_memory(&self) -> u64 {
        self.bounds.block_memory()
    }

    /// Whether frames of this many bytes take twice their bound: there must be room for what was
    /// read before the senders were held back.
    pub fn is_filled_by(&self, bytes: u64) -> bool {
        bytes > self.bounds.block_memory() * 2
    }

    /// Whether observations of this many bytes are beyond their bound.
    pub fn overflows_with(&self, observed: u64) -> bool {
        observed > self.bounds.observed_memory()
    }

    /// Whether observations of this many bytes take so much that images should replace them.
    pub fn is_scarce_with(&self, observed: u64) -> bool {
        observed > self.bounds.observed_memory() / SCARCE_SHARE
    }

    /// The bytes by which a log grows between two reports.
    pub fn growth_step(&self) -> u64 {
        self.growth_step
    }

    /// A connection waits for a segment of this many bytes.
    pub fn wait(&mut self, id: ConnId, bytes: u64) {
        self.waiting.push((id, bytes));
    }

    /// Whether connections wait for segments.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The connections that wait for segments, and do not any more.
    pub fn take_waiting(&mut self) -> Vec<(ConnId, u64)> {
        std::mem::take(&mut self.waiting)
    }

    /// Removes the request of a connection that is gone.
    pub fn remove(&mut self, id: ConnId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    /// The disk could not be written.
    pub fn disk_failed(&mut self, e: &std::io::Error) {
        self.disk_failed = Some((self.now, e.to_string()));
    }

    /// Why the disk could not be written, if it failed recently.
    pub fn disk_failure(&self) -> Option<&str> {
        self.disk_failed.as_ref().map(|(_, e)| e.as_str())
    }

    /// Whether the disk may be written: it has not failed recently.
    pub fn disk_is_rested(&mut self) -> bool {
        match &self.disk_failed {
            Some((at, _)) if self.now < *at + DISK_REST => false,
            _ => {
                self.disk_failed = None;
                true
            }
        }
    }
}
