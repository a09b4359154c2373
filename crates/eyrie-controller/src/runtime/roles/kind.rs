//! What the runtime asks of a kind of role. A kind is one file that answers (`routers.rs`,
//! `stores.rs`); `registry.rs` lists them. Nothing else distinguishes kinds.

use super::figures::Figures;
use crate::machine::{FromPeer, Machine};
use crate::runtime::images_dir::ImagesDir;
use crate::runtime::link::{JournalProgress, Session};
use crate::runtime::options::JobOptions;
use crate::runtime::places::RoleAddresses;
use eyrie_interface::RolesAt;
use eyrie_wire::control::Role;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, Rank};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

/// What a kind borrows of the job when one of its roles starts on a node.
pub struct Starting<'a> {
    pub options: &'a JobOptions,
    pub kvsname: &'a str,
    pub dir: &'a Path,
    pub machine: &'a Machine,
    pub figures: &'a mut Figures,
    pub images: Option<&'a ImagesDir>,
    /// Where the controller listens.
    pub controller: &'a Addr,
    /// By which address the node reaches the controller, where it has one.
    pub peer: Option<IpAddr>,
    pub progress: JournalProgress,
}

/// What a kind borrows of the job when one of its roles says something.
pub struct Hearing<'a> {
    pub options: &'a JobOptions,
    pub figures: &'a mut Figures,
    pub role_addresses: &'a mut RoleAddresses,
    /// The images of a saved job, until the store has said what it has.
    pub needed_images: &'a mut Option<BTreeSet<(Rank, ImageId)>>,
    /// What users should know.
    pub notes: Vec<String>,
    /// Images of the saved job that are not needed.
    pub needless: Vec<(Rank, ImageId)>,
}

impl Hearing<'_> {
    /// Whether roles run on nodes.
    pub fn on_nodes(&self) -> bool {
        self.options.roles == RolesAt::Nodes
    }
}

/// A kind of role.
pub trait Kind: Sync {
    /// The session with a role that starts on a node: its first message is what the role is to be.
    /// `takes_over`: in the place of a lost one, of which nothing is left.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn begin(
        &self,
        starting: &mut Starting<'_>,
        role: Role,
        takes_over: bool,
    ) -> anyhow::Result<Session>;

    /// Reads a message of such a role.
    ///
    /// # Errors
    /// `InvalidData` when it is none.
    fn decode(&self, role: Role, payload: &[u8]) -> std::io::Result<FromPeer>;

    /// A role says something: takes from it what the runtime itself must know. The machine decides
    /// what follows.
    fn hear(&self, hearing: &mut Hearing<'_>, message: &FromPeer);
}
