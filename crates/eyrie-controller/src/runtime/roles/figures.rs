//! What routers and stores have told of themselves, for users. Nothing here waits for them.

use super::node_traffic::NodeTraffic;
use super::peers::RolePeers;
use super::question::Question;
use super::traffic::Traffic;
use crossbeam_channel::Sender;
use eyrie_interface::status::LogStatus;
use eyrie_router::{LineFigures, RouterCommand, RouterEvent, Stats};
use eyrie_wire::{DomainId, NodeId, Rank, RouterId};
use std::collections::BTreeMap;

/// The figures of all roles.
pub struct Figures {
    /// What each router has told last.
    routers: BTreeMap<RouterId, Stats>,
    /// What the gateway has told last of the lines to other domains.
    lines: Vec<LineFigures>,
    status: Question,
    /// What ranks have sent each other.
    sent: Traffic,
    traffic: Question,
    /// What nodes have, as far as a user has asked for it.
    by_node: NodeTraffic,
    node_traffic: Question,
    /// Bytes that all images took when the last one was stored.
    store_bytes: u64,
}

impl Figures {
    pub fn new() -> Figures {
        Figures {
            routers: BTreeMap::new(),
            lines: Vec::new(),
            status: Question::new(RouterCommand::Stats),
            sent: Traffic::default(),
            traffic: Question::new(RouterCommand::Traffic),
            by_node: NodeTraffic::default(),
            node_traffic: Question::new(RouterCommand::Traffic),
            store_bytes: 0,
        }
    }

    /// A router begins, or another one takes its place.
    pub fn begin(&mut self, id: RouterId) {
        self.routers.insert(id, Stats::default());
        self.status.answered(id);
        self.traffic.answered(id);
        self.node_traffic.answered(id);
    }

    /// Asks the routers for their figures, unless an answer is on its way.
    pub fn ask(&mut self, roles: &RolePeers) {
        self.status.ask(roles);
    }

    /// Asks the routers what ranks have sent each other, unless an answer is on its way.
    pub fn ask_for_traffic(&mut self, roles: &RolePeers) {
        self.traffic.ask(roles);
    }

    /// Whether routers have told that since they were asked last.
    pub fn has_traffic(&self) -> bool {
        self.traffic.is_answered()
    }

    /// A user waits for the status of the job.
    pub fn wait_for_status(&mut self, roles: &RolePeers, user: Sender<String>) {
        self.status.wait(roles, user);
    }

    /// A user waits for what ranks have sent each other.
    pub fn wait_for_traffic(&mut self, roles: &RolePeers, user: Sender<String>) {
        self.traffic.wait(roles, user);
    }

    /// A user waits for what nodes have sent each other.
    pub fn wait_for_node_traffic(&mut self, roles: &RolePeers, user: Sender<String>) {
        self.node_traffic.wait(roles, user);
    }

    /// A router has told something that is passing.
    pub fn add(&mut self, id: RouterId, told: RouterEvent) {
        match told {
            RouterEvent::Stats(stats) => {
                self.routers.insert(id, stats);
                self.status.answered(id);
            }
            RouterEvent::Traffic(pairs) => {
                self.sent.add(pairs);
                self.traffic.answered(id);
                self.node_traffic.answered(id);
            }
            _ => {}
        }
    }

    /// Users who have waited for the status, and need not any more.
    pub fn ready_for_status(&mut self, roles: &RolePeers) -> Vec<Sender<String>> {
        self.status.ready(roles)
    }

    /// Users who have waited for what ranks have sent each other, and need not any more.
    pub fn ready_for_traffic(&mut self, roles: &RolePeers) -> Vec<Sender<String>> {
        self.traffic.ready(roles)
    }

    /// Users who have waited for what nodes have sent each other, and need not any more.
    pub fn ready_for_node_traffic(&mut self, roles: &RolePeers) -> Vec<Sender<String>> {
        self.node_traffic.ready(roles)
    }

    /// What nodes have sent each other, as far as routers have told it. `at`: where ranks are.
    pub fn sent_by_node(&mut self, at: impl Fn(Rank) -> Option<NodeId>) -> &NodeTraffic {
        self.by_node.look(&self.sent, at);
        &self.by_node
    }

    /// What ranks have sent each other, as far as routers have told it.
    pub fn sent(&self) -> &Traffic {
        &self.sent
    }

    /// The gateway has told the figures of its lines.
    pub fn set_lines(&mut self, lines: Vec<LineFigures>) {
        self.lines = lines;
    }

    /// Those of the line to a domain, as they were told last.
    pub fn line(&self, domain: DomainId) -> Option<LineFigures> {
        self.lines.iter().find(|line| line.domain == domain).copied()
    }

    /// Bytes of messages to these ranks that a router holds, as it has told last.
    pub fn waiting_bytes(&self, router: RouterId, ranks: impl Iterator<Item = Rank>) -> u64 {
        let Some(stats) = self.routers.get(&router) else { return 0 };
        ranks.filter_map(|rank| stats.log_bytes.get(rank.index())).sum()
    }

    /// The stores hold so many bytes of images.
    pub fn set_store_bytes(&mut self, bytes: u64) {
        self.store_bytes = bytes;
    }

    /// Bytes that all images took when the last one was stored.
    pub fn store_bytes(&self) -> u64 {
        self.store_bytes
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
