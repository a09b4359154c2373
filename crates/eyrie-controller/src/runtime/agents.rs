//! The agents of a job from the controller's side: the sessions with those that are up, where they
//! are reached, and what they were told of each other. Decides nothing.

use super::link::{JournalProgress, SavedSession, Session};
use crate::machine::Peer;
use eyrie_transport::session::Frame;
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// What follows from which hosts meet: the nodes with roles, and pairs of nodes of which one does
/// not reach the other.
#[derive(Clone, PartialEq, Eq)]
pub struct WhoMeets {
    pub roles: BTreeSet<NodeId>,
    pub unreached: Vec<(NodeId, NodeId)>,
}

/// The agents.
#[derive(Default)]
pub struct Agents {
    /// The sessions with those of nodes that are up.
    sessions: BTreeMap<NodeId, Session>,
    /// By which addresses agents reach the controller, where they have any.
    peers: BTreeMap<NodeId, IpAddr>,
    /// Where another controller reaches agents.
    reached_at: BTreeMap<NodeId, Addr>,
    /// Nodes whose agents have come, though they may be lost by now.
    came: BTreeSet<NodeId>,
    /// The last line of the launcher of a node, or of all nodes, that was not passed on yet.
    words: BTreeMap<Option<NodeId>, String>,
    /// Of how many nodes the machine was told whether they are on this host, and how many are.
    here: Option<(u32, usize)>,
    /// The hosts that agents were told to connect to, and what that follows from.
    watching: BTreeMap<NodeId, Vec<NodeId>>,
    watched: Option<WhoMeets>,
    /// Threads that look for agents go on until this is set.
    sought: Arc<AtomicBool>,
}

/// What is kept of them in a snapshot.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedAgents {
    sessions: BTreeMap<NodeId, SavedSession>,
    peers: BTreeMap<NodeId, IpAddr>,
    reached_at: BTreeMap<NodeId, Addr>,
    came: BTreeSet<NodeId>,
    words: BTreeMap<Option<NodeId>, String>,
}

impl SavedAgents {
    /// Where agents can be reached.
    pub fn reached_at(&self) -> &BTreeMap<NodeId, Addr> {
        &self.reached_at
    }
}

impl Agents {
    /// The agent of a node has come for the first time.
    pub fn come(&mut self, node: NodeId, peer: Option<IpAddr>) {
        self.sessions.insert(node, Session::default());
        self.peers.extend(peer.map(|peer| (node, peer)));
        self.came.insert(node);
    }

    /// Whether the agent of a node has come, though it may be lost by now.
    pub fn has_come(&self, node: NodeId) -> bool {
        self.came.contains(&node)
    }

    /// How many have come.
    pub fn came(&self) -> usize {
        self.came.len()
    }

    /// The node is lost: its connection ends.
    pub fn remove(&mut self, node: NodeId) {
        self.sessions.remove(&node);
    }

    /// Whether the node is up.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.sessions.contains_key(&node)
    }

    /// The nodes that are up.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.sessions.keys().copied().collect()
    }

    pub fn session(&mut self, node: NodeId) -> Option<&mut Session> {
        self.sessions.get_mut(&node)
    }

    /// Sends what counts only as long as the present connection lasts.
    pub fn send_passing(&self, node: NodeId, frame: Frame) {
        if let Some(session) = self.sessions.get(&node) {
            session.send_passing(frame);
        }
    }

    /// Sends the same to all.
    pub fn send_all(&mut self, progress: JournalProgress, frame: &Frame) {
        self.sessions.values_mut().for_each(|session| session.send(progress, frame.clone()));
    }

    pub fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.sessions.values_mut()
    }

    /// By which address the agent of a node reaches the controller, where it has one.
    pub fn peer(&self, node: NodeId) -> Option<IpAddr> {
        self.peers.get(&node).copied()
    }

    /// The agent of a node listens there for another controller.
    pub fn listens(&mut self, node: NodeId, addr: Addr) {
        self.reached_at.insert(node, addr);
    }

    /// Where the agent of a node listens for a controller.
    pub fn reached_at(&self, node: NodeId) -> Option<&Addr> {
        self.reached_at.get(&node)
    }

    /// The launcher of a node, or of all nodes, has said this. Returns its line before.
    pub fn launcher_said(&mut self, node: Option<NodeId>, line: String) -> Option<String> {
        self.words.insert(node, line)
    }

    /// Takes the last line of a launcher.
    pub fn launcher_words(&mut self, node: Option<NodeId>) -> Option<String> {
        self.words.remove(&node)
    }

    /// Of how many nodes the machine knows whether they are on this host.
    pub fn looked_at(&self) -> Option<u32> {
        self.here.map(|(known, _)| known)
    }

    /// How many nodes are on this host, of those of which the machine knows it.
    pub fn count_here(&self) -> usize {
        self.here.map_or(0, |(_, here)| here)
    }

    /// The machine is told of so many nodes; `here` of them are on this host.
    pub fn set_here(&mut self, known: u32, here: usize) {
        self.here = Some((known, here));
    }

    /// Whether agents are to be told what follows from this: it has changed.
    pub fn must_watch(&mut self, meets: &WhoMeets) -> bool {
        let changed = self.watched.as_ref() != Some(meets);
        if changed {
            self.watched = Some(meets.clone());
        }
        changed
    }

    /// Whether an agent is to be told to watch these hosts: it watches others.
    pub fn watches_others(&mut self, node: NodeId, hosts: &Vec<NodeId>) -> bool {
        let changed = self.watching.get(&node) != Some(hosts);
        if changed {
            self.watching.insert(node, hosts.clone());
        }
        changed
    }

    /// The agent has a new connection: it watches none.
    pub fn watches_none(&mut self, node: NodeId) {
        self.watching.remove(&node);
        self.watched = None;
    }

    /// Whether any agent listens for another controller.
    pub fn can_be_reached(&self) -> bool {
        !self.reached_at.is_empty()
    }

    /// The threads that look for agents end. Returns what ends those that begin now.
    pub fn seek_anew(&mut self) -> Arc<AtomicBool> {
        self.sought.store(true, Ordering::SeqCst);
        self.sought = Arc::default();
        Arc::clone(&self.sought)
    }

    /// What another controller needs to go on with them.
    pub fn saved(&self) -> SavedAgents {
        SavedAgents {
            sessions: self.sessions.iter().map(|(node, link)| (*node, link.saved())).collect(),
            peers: self.peers.clone(),
            reached_at: self.reached_at.clone(),
            came: self.came.clone(),
            words: self.words.clone(),
        }
    }

    /// Goes on with those of another controller.
    pub fn of(saved: SavedAgents) -> Agents {
        let session = |(node, saved)| (node, Session::of(saved));
        Agents {
            sessions: saved.sessions.into_iter().map(session).collect(),
            peers: saved.peers,
            reached_at: saved.reached_at,
            came: saved.came,
            words: saved.words,
            ..Agents::default()
        }
    }
}

/// The agents and roles that have connected to this controller.
#[derive(Default)]
pub struct Returns {
    returned: BTreeSet<Peer>,
    /// Some of them have heard more than the journal says.
    is_behind: bool,
}

impl Returns {
    /// It has connected. `fits`: it has heard no more than the journal says.
    pub fn add(&mut self, peer: Peer, fits: bool) {
        self.returned.insert(peer);
        self.is_behind |= !fits;
    }

    pub fn has(&self, peer: Peer) -> bool {
        self.returned.contains(&peer)
    }

    /// Whether the journal ends before what an agent or a role has heard.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }
}
