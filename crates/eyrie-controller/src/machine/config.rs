//! What a job is to be: read only.

use super::images::schedule::Interval;
use crate::inject::Injection;
use eyrie_interface::options::Precaution;
use eyrie_interface::Order;
use eyrie_wire::control::CheckpointMode;
use eyrie_wire::directory::MessagePath;
use eyrie_wire::domains::Domains;
use eyrie_wire::{NodeId, Rank, RouterId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a job is to be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Config {
    pub job: String,
    pub ranks: u32,
    /// Nodes that start with ranks.
    pub nodes: u32,
    pub spares: u32,
    /// For each rank the node that it starts on.
    pub start: Vec<NodeId>,
    /// Most ranks that a node may have, by node, where that was said.
    pub slots: Vec<Option<u32>>,
    /// Names of the nodes, where they have some.
    pub hosts: Vec<String>,
    pub routers: u32,
    /// Which way messages take: so errors name what cannot go on.
    pub path: MessagePath,
    /// Routers run on nodes; else beside the controller.
    pub roles_on_nodes: bool,
    /// Stores that are up when the job starts.
    pub stores: u32,
    /// Stores that must have an image before it counts.
    pub image_copies: u32,
    pub checkpoint_every: Interval,
    pub checkpoint_order: Order,
    pub checkpoint_mode: CheckpointMode,
    /// Images have the content of the program and its libraries.
    pub self_contained: bool,
    /// The images outlive the job, so that it can be saved.
    pub can_be_saved: bool,
    /// Stores on nodes have the images of the running job; when it is saved, they are copied to one
    /// beside the controller ([`super::images::stores::SAVED`]).
    pub archive: bool,
    /// Nodes that are about to be taken away are drained.
    pub drain_on_notice: bool,
    /// How long the job is likely to run: moves of ranks that live must have paid by then.
    pub run_time: Duration,
    /// What is done about a node that is suspect, and one that is failing.
    pub on_suspect: Precaution,
    pub on_failing: Precaution,
    /// A node that does not answer for so long is declared dead.
    pub heartbeat_timeout: Duration,
    /// How long all agents may take to come up.
    pub agents_timeout: Duration,
    /// After so long agents that have lost their controller have ended.
    pub alone_for: Duration,
    /// Until then they may come back to it.
    pub agents_come_back: bool,
    pub injections: Vec<Injection>,
    /// The domains of the job, where it has several.
    pub domains: Option<Domains>,
    /// The node of the gateway to other domains.
    pub gateway: Option<NodeId>,
    /// This domain joins a running job.
    pub joins: bool,
}

impl Config {
    /// Whether it is a rank of another domain.
    pub fn is_elsewhere(&self, rank: Rank) -> bool {
        self.domains.as_ref().is_some_and(|domains| !domains.own().has(rank))
    }

    /// The gateway: one more router than those of this domain's ranks, and the primary router of
    /// all other ranks.
    pub fn gateway_router(&self) -> Option<RouterId> {
        self.gateway.map(|_| RouterId(self.routers))
    }
}

#[cfg(test)]
use eyrie_wire::domains::{Domain, LineKey};
#[cfg(test)]
use eyrie_wire::DomainId;

#[cfg(test)]
impl Config {
    /// A job of one rank on so many nodes, which have its roles: two stores, each image in both.
    pub fn with_roles_on(nodes: u32) -> Config {
        let roles_on_nodes = true;
        let stores = 2;
        let image_copies = 2;
        Config { nodes, roles_on_nodes, stores, image_copies, ..Config::of_one_rank() }
    }

    /// The first of two domains, `a` and `b`, with so many nodes. Its rank is on the last one; the
    /// gateway is on the first one, and rank 1 in the other domain.
    pub fn of_domain(nodes: u32) -> Config {
        let domain = |name: &str, rank| Domain {
            name: name.into(),
            ranks: vec![(Rank(rank), Rank(rank))],
            gateway: format!("{name}:7411"),
        };
        let all = vec![domain("a", 0), domain("b", 1)];
        let keys = vec![None, Some(LineKey::new())];
        let domains = Some(Domains { own: DomainId(0), all, keys, shows: DomainId(0) });
        let start = vec![NodeId(nodes - 1), NodeId(0)];
        let hosts = (0..nodes).map(|node| format!("h{node}")).collect();
        let gateway = Some(NodeId(0));
        Config { ranks: 2, start, hosts, domains, gateway, ..Config::with_roles_on(nodes) }
    }

    /// A job of one rank on one node.
    pub fn of_one_rank() -> Config {
        Config {
            job: "j".into(),
            ranks: 1,
            nodes: 1,
            spares: 0,
            start: vec![NodeId(0)],
            slots: vec![],
            hosts: vec![],
            routers: 1,
            path: MessagePath::Router,
            roles_on_nodes: false,
            stores: 1,
            image_copies: 1,
            checkpoint_every: Interval::Off,
            checkpoint_order: Order::Sequential,
            checkpoint_mode: CheckpointMode::Async,
            self_contained: false,
            can_be_saved: false,
            archive: false,
            drain_on_notice: true,
            run_time: Duration::from_secs(3600),
            on_suspect: Precaution::Image,
            on_failing: Precaution::Drain,
            heartbeat_timeout: Duration::from_secs(1_000_000),
            agents_timeout: Duration::from_secs(30),
            alone_for: Duration::from_secs(60),
            agents_come_back: true,
            injections: vec![],
            domains: None,
            gateway: None,
            joins: false,
        }
    }
}
