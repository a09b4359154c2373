//! Who may connect to the controller: the agents and other roles that are expected, users.

use super::inbound::Inbound;
use super::last_output::LastOutput;
use super::router_files::RouterFiles;
use super::subscribers::Published;
use super::users::Unanswered;
use crossbeam_channel::Sender;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, Role};
use eyrie_wire::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long a process waits that connects while a journal is heard again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who may come in.
#[derive(Debug, Default)]
pub struct Admission {
    inner: Mutex<Inner>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// It is known which processes are expected: until then all that connect wait.
    open: bool,
    nodes: u32,
    /// Those that have connected, with the processes of their agents, which may do so again.
    connected: BTreeMap<NodeId, u32>,
    /// Roles in processes of their own.
    roles: BTreeSet<Role>,
    lost: BTreeSet<NodeId>,
}

impl Admission {
    /// For the agents of so many nodes.
    pub fn new(nodes: u32) -> Admission {
        let inner = Mutex::new(Inner { nodes, ..Inner::default() });
        Admission { inner, opened: Condvar::new() }
    }

    /// It is known who is expected.
    pub fn open(&self) {
        self.inner().open = true;
        self.opened.notify_all();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// One more node is expected.
    pub fn expect_node(&self) {
        self.inner().nodes += 1;
    }

    /// The process of this role is expected.
    pub fn expect_role(&self, role: Role) {
        self.inner().roles.insert(role);
    }

    /// From now on the process of this role is refused.
    pub fn refuse_role(&self, role: Role) {
        self.inner().roles.remove(&role);
    }

    /// From now on the node's agent is refused.
    pub fn refuse_node(&self, node: NodeId) {
        self.inner().lost.insert(node);
    }

    pub fn admit(&self, claim: &Claim) -> Result<(), String> {
        let closed = |inner: &mut Inner| !inner.open;
        let waited = self.opened.wait_timeout_while(self.inner(), PATIENCE, closed);
        let (mut inner, _) = waited.unwrap_or_else(|e| e.into_inner());
        match *claim {
            Claim::Agent { node, .. } | Claim::Lost { node } if inner.lost.contains(&node) => {
                Err(format!("node {node} was declared dead"))
            }
            Claim::Agent { node, pid }
                if node >= NodeId(inner.nodes)
                    || *inner.connected.entry(node).or_insert(pid) != pid =>
            {
                Err(format!("node {node} is not expected"))
            }
            Claim::ImageUpload { .. } | Claim::ImageFetch { .. } | Claim::ImageCopy { .. } => {
                Err("images go to the store".into())
            }
            Claim::Role(role) if !inner.roles.contains(&role) => {
                Err(format!("{role} is not expected"))
            }
            Claim::Rank { .. } | Claim::Ledger { .. } => {
                Err("ranks connect to routers and keepers".into())
            }
            Claim::Trunk | Claim::Letters { .. } => Err("other domains go to gateways".into()),
            Claim::Controller { .. } | Claim::Attached => Err("this is the controller".into()),
            _ => Ok(()),
        }
    }
}

/// What every connection's thread needs.
pub struct Services {
    pub secret: Secret,
    pub admission: Arc<Admission>,
    pub inbound: Sender<Inbound>,
    pub router_files: Arc<RouterFiles>,
    pub unanswered: Unanswered,
    pub published: Published,
    pub output: LastOutput,
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::control::RoleKind;
    use eyrie_wire::{ImageId, Rank};

    #[test]
    fn it_refuses_the_lost_and_the_unexpected() {
        let admission = Admission::new(2);
        admission.open();
        let router = |generation| Role { kind: RoleKind::Router, id: 0, generation };
        let store = Role::first(RoleKind::Store, 0);
        for role in [router(1), store] {
            admission.expect_role(role);
        }
        let agent = |node| Claim::Agent { node, pid: 1 };
        assert!(admission.admit(&agent(NodeId(0))).is_ok());
        assert!(admission.admit(&agent(NodeId(0))).is_ok(), "it comes back");
        assert!(admission.admit(&Claim::Agent { node: NodeId(0), pid: 2 }).is_err(), "another one");
        assert!(admission.admit(&agent(NodeId(2))).is_err(), "no such node");
        let role = |role| admission.admit(&Claim::Role(role));
        assert!(role(router(0)).is_err(), "an older one");
        assert!(role(router(1)).is_ok() && role(router(1)).is_ok(), "it comes back");
        admission.refuse_role(router(1));
        assert!(role(router(1)).is_err(), "it was replaced");
        assert!(admission.admit(&Claim::Lost { node: NodeId(1) }).is_ok());
        admission.refuse_node(NodeId(1));
        assert!(admission.admit(&Claim::Lost { node: NodeId(1) }).is_err());
        assert!(admission.admit(&agent(NodeId(1))).unwrap_err().contains("declared dead"));
        let rank = 3;
        let image = 1;
        for claim in [
            Claim::ImageFetch { rank: Rank(rank), image: ImageId(image), since: ImageId(0) },
            Claim::ImageCopy { rank: Rank(rank), image: ImageId(image) },
        ] {
            assert!(admission.admit(&claim).unwrap_err().contains("store"));
        }
        assert!(role(store).is_ok());
    }
}
