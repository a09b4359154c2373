//! Who may connect to the controller: the agents and other roles that are expected, users.

use super::inbound::Inbound;
use crossbeam_channel::Sender;
use eyrie_router::RouterEvent;
use eyrie_transport::RouterId;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::Node;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// Who may come in.
#[derive(Debug, Default)]
pub struct Admission {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: u32,
    connected: BTreeSet<Node>,
    /// Routers in processes of their own that have not connected yet.
    routers: BTreeSet<RouterId>,
    lost: BTreeSet<Node>,
    /// The store is a process of its own that has not connected yet.
    store: bool,
}

impl Admission {
    /// For the agents of so many nodes, these routers, and whether the store is expected.
    pub fn new(nodes: u32, routers: impl Iterator<Item = RouterId>, store: bool) -> Admission {
        let routers = routers.collect();
        Admission { inner: Mutex::new(Inner { nodes, routers, store, ..Inner::default() }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// One more node is expected.
    pub fn expect_node(&self) {
        self.inner().nodes += 1;
    }

    /// From now on the node's agent is refused.
    pub fn refuse_node(&self, node: Node) {
        self.inner().lost.insert(node);
    }

    pub fn admit(&self, claim: &Claim) -> Result<(), String> {
        let mut inner = self.inner();
        match *claim {
            Claim::Agent { node, .. } if inner.lost.contains(&node) => {
                Err(format!("node {node} was declared dead"))
            }
            Claim::Agent { node, .. } if node >= inner.nodes || !inner.connected.insert(node) => {
                Err(format!("node {node} is not expected"))
            }
            Claim::Store if !std::mem::take(&mut inner.store) => {
                Err("a store is not expected".into())
            }
            Claim::ImageUpload { .. } | Claim::ImageFetch { .. } | Claim::ImageCopy { .. } => {
                Err("images go to the store".into())
            }
            Claim::Router { id } if !inner.routers.remove(&id) => {
                Err(format!("router {id} is not expected"))
            }
            Claim::Rank { .. } => Err("ranks connect to routers".into()),
            _ => Ok(()),
        }
    }
}

/// What every connection's thread needs.
pub struct Services {
    pub secret: Secret,
    pub admission: Arc<Admission>,
    pub inbound: Sender<Inbound>,
    /// For routers in processes of their own.
    pub router_events: Sender<(RouterId, RouterEvent)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refuses_the_lost_and_the_unexpected() {
        let admission = Admission::new(2, 0..1, true);
        let agent = |node| Claim::Agent { node, pid: 1 };
        assert!(admission.admit(&agent(0)).is_ok());
        assert!(admission.admit(&agent(0)).is_err(), "twice");
        assert!(admission.admit(&agent(2)).is_err(), "no such node");
        let router = |id| admission.admit(&Claim::Router { id });
        assert!(router(0).is_ok() && router(0).is_err() && router(1).is_err());
        admission.refuse_node(1);
        assert!(admission.admit(&agent(1)).unwrap_err().contains("declared dead"));
        let (rank, image) = (3, 1);
        for claim in [Claim::ImageFetch { rank, image }, Claim::ImageCopy { rank, image }] {
            assert!(admission.admit(&claim).unwrap_err().contains("store"));
        }
        assert!(admission.admit(&Claim::Store).is_ok() && admission.admit(&Claim::Store).is_err());
    }
}
