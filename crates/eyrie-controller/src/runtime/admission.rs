//! Who may connect to the controller: the agents that are expected, ranks of the present
//! incarnation, users.

use super::inbound::Inbound;
use crossbeam_channel::Sender;
use eyrie_router::RouterEvent;
use eyrie_store::Store;
use eyrie_transport::RouterId;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::{Incarnation, Node, Rank, RankInstance};
use std::collections::{BTreeMap, BTreeSet};
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
    newest: BTreeMap<Rank, Incarnation>,
}

impl Inner {
    fn is_present(&self, instance: RankInstance) -> bool {
        let newest = self.newest.get(&instance.rank).copied().unwrap_or(1);
        newest == instance.incarnation
    }
}

impl Admission {
    /// For the agents of so many nodes, and these routers.
    pub fn new(nodes: u32, routers: impl Iterator<Item = RouterId>) -> Admission {
        let routers = routers.collect();
        Admission { inner: Mutex::new(Inner { nodes, routers, ..Inner::default() }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// From now on the node's agent is refused.
    pub fn refuse_node(&self, node: Node) {
        self.inner().lost.insert(node);
    }

    /// From now on images of older incarnations are refused.
    pub fn fence(&self, instance: RankInstance) {
        self.inner().newest.insert(instance.rank, instance.incarnation);
    }

    /// Whether this is the rank's present incarnation.
    pub fn is_present(&self, instance: RankInstance) -> bool {
        self.inner().is_present(instance)
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
            Claim::ImageUpload { instance, .. } if !inner.is_present(instance) => {
                Err(format!("{instance} is not its newest any more"))
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
    pub store: Arc<Store>,
    pub inbound: Sender<Inbound>,
    /// For routers in processes of their own.
    pub router_events: Sender<(RouterId, RouterEvent)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refuses_the_lost_the_unexpected_and_the_old() {
        let admission = Admission::new(2, 0..1);
        let agent = |node| Claim::Agent { node, pid: 1 };
        let upload = |incarnation| Claim::ImageUpload {
            instance: RankInstance { rank: 3, incarnation },
            image: 1,
        };
        assert!(admission.admit(&agent(0)).is_ok());
        assert!(admission.admit(&agent(0)).is_err(), "twice");
        assert!(admission.admit(&agent(2)).is_err(), "no such node");
        let router = |id| admission.admit(&Claim::Router { id });
        assert!(router(0).is_ok() && router(0).is_err() && router(1).is_err());
        admission.refuse_node(1);
        assert!(admission.admit(&agent(1)).unwrap_err().contains("declared dead"));
        assert!(admission.admit(&upload(1)).is_ok());
        admission.fence(RankInstance { rank: 3, incarnation: 2 });
        assert!(admission.admit(&upload(1)).is_err() && admission.admit(&upload(2)).is_ok());
    }
}
