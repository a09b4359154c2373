//! What routers and stores have told of themselves, for users. Nothing here waits for them.

use super::peers::RolePeers;
use crossbeam_channel::Sender;
use eyrie_interface::status::LogStatus;
use eyrie_router::Stats;
use eyrie_wire::RouterId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long users wait for the figures of a router that does not answer.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// The figures of all roles.
pub struct Figures {
    /// What each router has told last.
    routers: BTreeMap<RouterId, Stats>,
    /// Those that have not told their figures since they were asked, and since when.
    missing: BTreeSet<RouterId>,
    asked: Instant,
    /// Users who wait for them.
    waiting: Vec<Sender<String>>,
    /// Bytes that all images took when the last one was stored.
    store_bytes: u64,
}

impl Figures {
    pub fn new() -> Figures {
        let routers = BTreeMap::new();
        let missing = BTreeSet::new();
        let waiting = Vec::new();
        Figures { routers, missing, asked: Instant::now(), waiting, store_bytes: 0 }
    }

    /// A router begins, or another one takes its place.
    pub fn begin(&mut self, id: RouterId) {
        self.routers.insert(id, Stats::default());
        self.missing.remove(&id);
    }

    /// Asks the routers for figures, unless an answer is on its way.
    pub fn ask(&mut self, roles: &RolePeers) {
        if self.missing.is_empty() {
            self.missing = roles.routers().into_iter().collect();
            self.asked = Instant::now();
            roles.ask_routers();
        }
    }

    /// A user waits for figures.
    pub fn wait(&mut self, roles: &RolePeers, user: Sender<String>) {
        self.waiting.push(user);
        self.ask(roles);
    }

    /// A router has told its figures.
    pub fn add(&mut self, id: RouterId, stats: Stats) {
        self.routers.insert(id, stats);
        self.missing.remove(&id);
    }

    /// The stores hold so many bytes of images.
    pub fn set_store_bytes(&mut self, bytes: u64) {
        self.store_bytes = bytes;
    }

    /// Bytes that all images took when the last one was stored.
    pub fn store_bytes(&self) -> u64 {
        self.store_bytes
    }

    /// Users who waited, when all routers have told, or had long enough to.
    pub fn ready(&mut self) -> Vec<Sender<String>> {
        if self.asked.elapsed() > STATS_TIMEOUT {
            self.missing.clear();
        }
        if self.missing.is_empty() {
            std::mem::take(&mut self.waiting)
        } else {
            Vec::new()
        }
    }

    /// What each router holds, as it was told last.
    pub fn logs(&self, roles: &RolePeers) -> Vec<LogStatus> {
        let log = |router| {
            let stats = self.routers.get(&router);
            let (memory_bytes, disk_bytes) =
                stats.map_or((0, 0), |stats| (stats.memory_bytes, stats.disk_bytes));
            LogStatus { router, memory_bytes, disk_bytes }
        };
        roles.routers().into_iter().map(log).collect()
    }

    /// Figures of all routers together, as they were told last; those of single ranks are left out.
    pub fn stats(&self) -> Stats {
        let sum = |of: fn(&Stats) -> u64| self.routers.values().map(of).sum();
        Stats {
            memory_bytes: sum(|s| s.memory_bytes),
            disk_bytes: sum(|s| s.disk_bytes),
            messages: sum(|s| s.messages),
            bytes: sum(|s| s.bytes),
            log_bytes: Vec::new(),
        }
    }
}
