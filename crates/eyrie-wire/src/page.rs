//! The rank's page: a few pages of memory that the agent makes for one incarnation of a rank and
//! shares with it. They hold what must never be in an image (the job's secret) and what must be
//! readable when the rank is dead (the trace of what it did last). Both sides have the same layout.
//! Both processes have the memory at once, so no field may be accessed other than atomically.

use crate::auth::SECRET_LEN;
use crate::signals::Signals;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Length of the shared memory in bytes.
pub const PAGE_BYTES: usize = 4096 + RECORDS * size_of::<Slot>();
/// Records that the trace holds: the newest ones.
pub const RECORDS: usize = 1024;

/// Signals that a rank's page has room for. The agent keeps more until the rank has taken these.
pub const SIGNALS: usize = 1024;

/// What a record is about. The comments say what `peer` and `number` are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum What {
    /// A message was given to its router: destination, ssn.
    Sent = 1,
    /// A message became visible: source, rsn.
    Shown = 2,
    /// A message was sent again as its envelope: destination, ssn.
    Repeated = 3,
    /// A router has acknowledged: router, clock.
    Acknowledged = 4,
    /// A stream has begun: router, rsn (delivery) or number of messages sent again (send).
    DeliveryBegun = 5,
    SendBegun = 6,
    /// A stream is lost: router, the error's number.
    DeliveryLost = 7,
    SendLost = 8,
    /// There are determinants to replay: how many, the last one's clock.
    Replay = 9,
    /// The rank has reached the last determinant: -, rsn.
    Replayed = 10,
    /// An image was taken: -, its number.
    Image = 11,
    /// This process was restored from an image: incarnation, rsn.
    Restored = 12,
    /// The rank waits: router, for how many bytes.
    Waits = 13,
    /// The rank waits for room in its ledger: -, how often it has asked.
    LacksRoom = 14,
}

/// One record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Record {
    /// The processor's time stamp counter when it was last read.
    pub time: u64,
    /// The rank's clock.
    pub clock: u64,
    pub number: u64,
    pub peer: u32,
    pub what: u32,
}

/// A [`Record`] in the shared memory.
#[repr(C)]
struct Slot {
    time: AtomicU64,
    clock: AtomicU64,
    number: AtomicU64,
    peer: AtomicU32,
    what: AtomicU32,
}

impl Slot {
    /// Inlined, so that the compiler stores each field from where it is, and does not make the
    /// record first.
    #[inline]
    fn store(&self, record: Record) {
        self.time.store(record.time, Ordering::Relaxed);
        self.clock.store(record.clock, Ordering::Relaxed);
        self.number.store(record.number, Ordering::Relaxed);
        self.peer.store(record.peer, Ordering::Relaxed);
        self.what.store(record.what, Ordering::Relaxed);
    }

    fn load(&self) -> Record {
        Record {
            time: self.time.load(Ordering::Relaxed),
            clock: self.clock.load(Ordering::Relaxed),
            number: self.number.load(Ordering::Relaxed),
            peer: self.peer.load(Ordering::Relaxed),
            what: self.what.load(Ordering::Relaxed),
        }
    }
}

/// The state of a rank's endpoint, by which its MPI library sends and receives. The library opens
/// one when MPI begins, and closes it in MPI_Finalize or with the last session. Sessions may begin
/// anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Endpoint {
    /// The rank has had none yet.
    None = 0,
    Open = 1,
    Closed = 2,
}

/// The shared memory. All zero is valid.
#[repr(C)]
pub struct RankPage {
    secret: [AtomicU8; SECRET_LEN],
    /// The same moment in the time stamp counter and in nanoseconds of the monotonic clock.
    tsc: AtomicU64,
    monotonic_ns: AtomicU64,
    /// Number of records that were ever written.
    written: AtomicU64,
    /// Epoch of the newest directory in the rank's file of directories.
    directory: AtomicU64,
    /// Ticks of the time stamp counter for which the rank has asked for messages and found none.
    polled: AtomicU64,
    /// The state of the rank's endpoint: an [`Endpoint`].
    endpoint: AtomicU64,
    /// The rank does what it has never done before: it is not re-executing.
    is_new: AtomicU64,
    /// Ticks of the time stamp counter for which the rank has waited for messages, whether it kept
    /// its processor busy or not.
    waited: AtomicU64,
    signals: Signals<SIGNALS>,
    reserved: [AtomicU8; 4096 - SECRET_LEN - 64 - size_of::<Signals<SIGNALS>>()],
    records: [Slot; RECORDS],
}
const _: () = assert!(size_of::<RankPage>() == PAGE_BYTES && PAGE_BYTES % 4096 == 0);

impl RankPage {
    /// Prepares fresh memory, all zero. Only the agent calls this, before the rank has the memory.
    pub fn prepare(&self, secret: &[u8; SECRET_LEN], tsc: u64, monotonic_ns: u64) {
        for (to, byte) in self.secret.iter().zip(secret) {
            to.store(*byte, Ordering::Relaxed);
        }
        self.tsc.store(tsc, Ordering::Relaxed);
        self.monotonic_ns.store(monotonic_ns, Ordering::Relaxed);
    }

    pub fn secret(&self) -> [u8; SECRET_LEN] {
        std::array::from_fn(|n| self.secret[n].load(Ordering::Relaxed))
    }

    /// Epoch of the newest directory in the rank's file of directories.
    #[inline]
    pub fn directory(&self) -> u64 {
        self.directory.load(Ordering::Acquire)
    }

    /// Notes that the file has a directory with this epoch. Only the agent calls this.
    pub fn set_directory(&self, epoch: u64) {
        self.directory.store(epoch, Ordering::Release);
    }

    /// The signals of the job for this rank.
    #[inline]
    pub fn signals(&self) -> &Signals<SIGNALS> {
        &self.signals
    }

    /// Notes whether the rank does what it has never done before. Only the rank calls this.
    pub fn set_new(&self, new: bool) {
        self.is_new.store(new.into(), Ordering::Release);
    }

    pub fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Acquire) != 0
    }

    /// Notes the state of the rank's endpoint. Only the rank calls this.
    pub fn set_endpoint(&self, endpoint: Endpoint) {
        self.endpoint.store(endpoint as u64, Ordering::Release);
    }

    pub fn endpoint(&self) -> Endpoint {
        match self.endpoint.load(Ordering::Acquire) {
            1 => Endpoint::Open,
            2 => Endpoint::Closed,
            _ => Endpoint::None,
        }
    }

    /// Notes that the rank has asked for messages: for so many ticks it kept its processor busy and
    /// found none, and for so many it had nothing else to do. Only the rank calls this.
    #[inline]
    pub fn add_asked(&self, polled: u64, waited: u64) {
        for (all, more) in [(&self.polled, polled), (&self.waited, waited)] {
            all.store(all.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }

    /// How long the rank has asked for messages and found none, in nanoseconds. `tsc` and
    /// `monotonic_ns` as for [`RankPage::read`].
    pub fn polled_ns(&self, tsc: u64, monotonic_ns: u64) -> u64 {
        (self.polled.load(Ordering::Relaxed) as f64 * self.ns_per_tick(tsc, monotonic_ns)) as u64
    }

    /// How many records were ever added.
    pub fn steps(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// How long the rank has waited for messages, in nanoseconds. `tsc` and `monotonic_ns` as for
    /// [`RankPage::read`].
    pub fn waited_ns(&self, tsc: u64, monotonic_ns: u64) -> u64 {
        (self.waited.load(Ordering::Relaxed) as f64 * self.ns_per_tick(tsc, monotonic_ns)) as u64
    }

    /// Adds a record. Only the rank calls this.
    #[inline]
    pub fn add(&self, record: Record) {
        let n = self.written.load(Ordering::Relaxed);
        self.records[n as usize % RECORDS].store(record);
        self.written.store(n + 1, Ordering::Release);
    }

    /// The records, oldest first, with the time of each in nanoseconds of the monotonic clock.
    /// `tsc` and `monotonic_ns`: the present moment on the same host. A record that the rank is
    /// writing meanwhile may have fields of the one that it overwrites.
    pub fn read(&self, tsc: u64, monotonic_ns: u64) -> Vec<(u64, Record)> {
        let written = self.written.load(Ordering::Acquire) as usize;
        let per_tick = self.ns_per_tick(tsc, monotonic_ns);
        let tsc_then = self.tsc.load(Ordering::Relaxed);
        let ns_then = self.monotonic_ns.load(Ordering::Relaxed);
        let at = |r: &Record| {
            let ns = (r.time.saturating_sub(tsc_then) as f64 * per_tick) as u64;
            ns_then.saturating_add(ns)
        };
        (written.saturating_sub(RECORDS)..written)
            .map(|n| self.records[n % RECORDS].load())
            .map(|r| (at(&r), r))
            .collect()
    }

    fn ns_per_tick(&self, tsc: u64, monotonic_ns: u64) -> f64 {
        let ns = monotonic_ns.saturating_sub(self.monotonic_ns.load(Ordering::Relaxed));
        let ticks = tsc.saturating_sub(self.tsc.load(Ordering::Relaxed));
        ns as f64 / ticks.max(1) as f64
    }
}

impl Record {
    /// The record in words.
    pub fn text(&self) -> String {
        let Record { peer, number, .. } = *self;
        match self.what {
            w if w == What::Sent as u32 => format!("sent message {number} to rank {peer}"),
            w if w == What::Shown as u32 => format!("message {number} visible, from rank {peer}"),
            w if w == What::Repeated as u32 => format!("repeated message {number} to rank {peer}"),
            w if w == What::Acknowledged as u32 => {
                format!("router {peer} holds determinants up to clock {number}")
            }
            w if w == What::DeliveryBegun as u32 => {
                format!("delivery stream from router {peer} begun behind message {number}")
            }
            w if w == What::SendBegun as u32 => {
                format!("send stream to router {peer} begun, {number} messages given again")
            }
            w if w == What::DeliveryLost as u32 => {
                format!("delivery stream from router {peer} lost, error {number}")
            }
            w if w == What::SendLost as u32 => {
                format!("send stream to router {peer} lost, error {number}")
            }
            w if w == What::Replay as u32 => {
                format!("{peer} determinants to replay, up to clock {number}")
            }
            w if w == What::Replayed as u32 => format!("replayed up to message {number}"),
            w if w == What::Image as u32 => format!("image {number} taken"),
            w if w == What::Restored as u32 => {
                format!("restored as incarnation {peer}, message {number} was the last")
            }
            w if w == What::Waits as u32 => {
                format!("waits for router {peer}, {number} bytes are not acknowledged")
            }
            w if w == What::LacksRoom as u32 => {
                format!("waits for room in its ledger, has asked {number} times")
            }
            other => format!("record of kind {other}: {peer}, {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Box<RankPage> {
        let layout = std::alloc::Layout::new::<RankPage>();
        // SAFETY: an all-zero page is valid, and the box frees it with the layout that allocated
        // it.
        unsafe {
            let at = std::alloc::alloc_zeroed(layout).cast::<RankPage>();
            Box::from_raw(at)
        }
    }

    /// The agent reads the page while the rank writes: both have it by shared references.
    #[test]
    fn one_side_reads_while_the_other_writes() {
        const LAST: u64 = 20 * RECORDS as u64;
        let page = fresh();
        page.prepare(&[7; SECRET_LEN], 0, 0);
        let written = |n| Record { time: n, clock: n, number: n, ..Record::default() };
        std::thread::scope(|threads| {
            threads.spawn(|| (1..=LAST).for_each(|n| page.add(written(n))));
            loop {
                // Each field is one that was written, though not all need be of one record.
                let records = page.read(1, 1);
                let of_all = records.iter().flat_map(|(_, r)| [r.time, r.clock, r.number]);
                assert!(
                    records.len() <= RECORDS && of_all.into_iter().all(|n| (1..=LAST).contains(&n))
                );
                if records.last().is_some_and(|(_, r)| *r == written(LAST)) {
                    break;
                }
            }
        });
        let numbers = page.read(1, 1).into_iter().map(|(_, r)| r.number);
        assert!(numbers.eq(LAST - RECORDS as u64 + 1..=LAST));
    }

    #[test]
    fn the_newest_records_are_kept_in_order_with_their_time() {
        let page = fresh();
        page.prepare(&[7; SECRET_LEN], 1000, 50_000);
        for n in 0..RECORDS as u64 + 10 {
            page.add(Record {
                time: 1000 + n,
                number: n,
                what: What::Sent as u32,
                ..Record::default()
            });
        }
        let records = page.read(1000 + 4000, 50_000 + 2000);
        assert_eq!(records.len(), RECORDS);
        assert_eq!((records[0].1.number, records[0].0), (10, 50_005));
        assert_eq!(page.secret(), [7; SECRET_LEN]);
        assert_eq!(records[0].1.text(), "sent message 10 to rank 0");
        page.add_asked(300, 1000);
        page.add_asked(700, 3000);
        assert_eq!(page.polled_ns(1000 + 4000, 50_000 + 2000), 500);
        assert_eq!(page.waited_ns(1000 + 4000, 50_000 + 2000), 2000);
        assert!(page.signals().add(0, 10) && page.signals().take(0) == Some((10, true)));
        assert_eq!(page.endpoint(), Endpoint::None);
        page.set_endpoint(Endpoint::Closed);
        assert_eq!(page.endpoint(), Endpoint::Closed);
    }
}
