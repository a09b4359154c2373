//! The state of messages that were received, and of those that were not yet when they arrived.
//! Decides nothing.

use super::log::{Cursor, Log};
use crate::space::{Space, Store};
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::Rank;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Most bytes that one sender keeps for its receivers. It has room for more (`MAX_KEPT` of the
/// provider), so it is not stopped.
pub const UNRECEIVED_BYTES: u64 = 16 << 20;

/// How far the messages of a rank have been received whose primary router this is.
#[derive(Default)]
struct Received {
    /// Messages up to this receive sequence number were received.
    rsn: u64,
    /// The place in the log behind that message.
    cursor: Cursor,
    /// Send sequence number of the last of them from each source.
    ssn: Vec<u64>,
    /// Only this router keeps some of the messages up to this one.
    exposed: Option<u64>,
}

/// What is saved of the receipts of a rank.
#[derive(Default)]
pub struct SavedReceipts {
    pub rsn: u64,
    pub ssn: Vec<u64>,
    pub exposed: Option<u64>,
}

/// Until when senders keep messages: they are acknowledged then. If until they are received, how
/// far they were.
pub struct Receipts {
    kept_until: KeptUntil,
    /// Most bytes that one sender keeps for its receivers.
    most_unreceived: u64,
    /// Empty where messages are kept until they are logged.
    ranks: Vec<Received>,
}

impl Receipts {
    /// Messages are kept until they are logged.
    pub fn none() -> Receipts {
        Receipts { kept_until: KeptUntil::Logged, most_unreceived: 0, ranks: Vec::new() }
    }

    /// Messages are kept until they are received, or a sender keeps more than `most` bytes.
    /// `is_primary`: for each rank of the job whether this is its primary router.
    pub fn new(is_primary: &[bool], most: u64) -> Receipts {
        let ssn = |here: &bool| vec![0; if *here { is_primary.len() } else { 0 }];
        let received = |here: &bool| Received { ssn: ssn(here), ..Received::default() };
        Receipts {
            kept_until: KeptUntil::Received,
            most_unreceived: most,
            ranks: is_primary.iter().map(received).collect(),
        }
    }

    pub fn kept_until(&self) -> KeptUntil {
        self.kept_until
    }

    pub fn most_unreceived(&self) -> u64 {
        self.most_unreceived
    }

    /// Messages of a rank up to this receive sequence number were received, as far as is known.
    pub fn rsn(&self, rank: Rank) -> u64 {
        self.ranks.get(rank.index()).map_or(0, |received| received.rsn)
    }

    /// Send sequence number of the last message from `source` that `destination` has received.
    pub fn last_ssn(&self, destination: Rank, source: Rank) -> u64 {
        self.ranks[destination.index()].ssn[source.index()]
    }

    /// Notes that a rank has received its messages up to `rsn`, as far as its log has any. Returns
    /// who has sent those that are new, each once, and whether the rank was exposed until now.
    ///
    /// # Errors
    /// When the log cannot be read back.
    pub fn advance<S: Store>(
        &mut self,
        rank: Rank,
        rsn: u64,
        log: &Log,
        space: &Space<S>,
    ) -> io::Result<(Vec<Rank>, bool)> {
        let mut sources: Vec<Rank> = Vec::new();
        let Some(received) = self.ranks.get_mut(rank.index()) else { return Ok((sources, false)) };
        while received.rsn < rsn {
            let Some(logged) = log.next(&mut received.cursor, space)? else { break };
            let deliver = logged.deliver;
            let len = logged.frame.len();
            if deliver.rsn > rsn {
                break;
            }
            Log::advance(&mut received.cursor, len);
            if deliver.rsn > received.rsn {
                received.rsn = deliver.rsn;
                received.ssn[deliver.source.index()] = deliver.ssn;
                sources.push(deliver.source);
            }
        }
        sources.sort_unstable();
        sources.dedup();
        let covered = received.exposed.is_some_and(|newest| newest <= received.rsn);
        if covered {
            received.exposed = None;
        }
        Ok((sources, covered))
    }

    /// Only this router keeps messages of the rank up to `newest`. True: that is new.
    pub fn expose(&mut self, rank: Rank, newest: u64) -> bool {
        self.ranks[rank.index()].exposed.replace(newest).is_none()
    }

    /// Nothing is kept for the rank any more.
    pub fn cover(&mut self, rank: Rank) {
        if let Some(received) = self.ranks.get_mut(rank.index()) {
            received.exposed = None;
        }
    }

    /// The rank has been adopted at `rsn` and `ssn`; its messages go on up to `newest`.
    pub fn adopt(&mut self, rank: Rank, rsn: u64, ssn: &[u64], newest: u64) {
        if let Some(received) = self.ranks.get_mut(rank.index()) {
            received.rsn = rsn;
            received.ssn.copy_from_slice(ssn);
            received.exposed = received.exposed.map(|_| newest);
        }
    }

    /// The rank has received no message of any source that counts.
    pub fn forget_senders(&mut self, rank: Rank) {
        if let Some(received) = self.ranks.get_mut(rank.index()) {
            received.ssn.fill(0);
        }
    }

    /// This is the primary router of the rank as well.
    pub fn serve(&mut self, rank: Rank) {
        let ranks = self.ranks.len();
        if let Some(received) = self.ranks.get_mut(rank.index()) {
            *received = Received { ssn: vec![0; ranks], ..Received::default() };
        }
    }

    pub fn saved(&self, rank: Rank) -> SavedReceipts {
        let saved = |received: &Received| SavedReceipts {
            rsn: received.rsn,
            ssn: received.ssn.clone(),
            exposed: received.exposed,
        };
        self.ranks.get(rank.index()).map(saved).unwrap_or_default()
    }

    /// Goes on with what was saved; `cursor` is behind the last message that was received.
    pub fn restore(&mut self, rank: Rank, saved: &SavedReceipts, cursor: Cursor) {
        let Some(received) = self.ranks.get_mut(rank.index()) else { return };
        if saved.ssn.len() == received.ssn.len() {
            (received.rsn, received.cursor) = (saved.rsn, cursor);
            received.ssn.copy_from_slice(&saved.ssn);
        }
        received.exposed = saved.exposed;
    }
}

/// The frames of one sender's connection that are not acknowledged because of receivers.
#[derive(Default)]
pub struct Unreceived {
    /// In order.
    pub(super) messages: VecDeque<Awaited>,
    /// Bytes ever received, and those up to the last frame that is acknowledged by itself.
    pub(super) bytes: u64,
    pub(super) whole_bytes: u64,
    /// The same, before that frame.
    pub(super) before_last: u64,
    /// Frames and bytes that were acknowledged to the sender.
    pub(super) acknowledged: u64,
    pub(super) acknowledged_bytes: u64,
    /// The last frame for which the sender waits, and since when.
    pub(super) flush: Option<(u64, Duration)>,
}

/// A message that was not received yet when it arrived here.
pub struct Awaited {
    pub(super) destination: Rank,
    pub(super) ssn: u64,
    /// Frames and bytes before it.
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl Unreceived {
    /// A frame of `len` bytes; `whole`: it is acknowledged by itself.
    pub fn count(&mut self, len: usize, whole: bool) {
        self.bytes += len as u64;
        if whole {
            self.before_last = self.whole_bytes;
            self.whole_bytes = self.bytes;
        }
    }
}
