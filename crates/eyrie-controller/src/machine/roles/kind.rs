//! What the machine asks of a kind of role. A kind is one file that answers (`routers.rs`,
//! `stores.rs`); `registry.rs` lists them, and asks. Nothing else distinguishes kinds.

use super::hosting::Hosting;
use super::places::Places;
use super::redundancy::Missing;
use super::Roles;
use crate::machine::config::Config;
use crate::machine::images::why::ImageAges;
use eyrie_wire::role_address::Addr;
use eyrie_wire::Rank;

/// Something to look at when time has passed.
pub type Look = for<'a, 'b> fn(&'a mut Hosting<'b>);

/// A kind of role. The numbers are those of its roles.
pub trait Kind: Sync {
    /// Starts those that a job begins with, when all agents are there; false when no node is up
    /// for them.
    fn start(&self, hosting: &mut Hosting<'_>) -> bool;

    /// One of them listens at this address.
    fn listens(&self, hosting: &mut Hosting<'_>, id: u32, addr: Addr);

    /// One of them is gone with all that it held, or could not be started: what that means for
    /// ranks, and where its successor starts. `by_itself`: its node is still there.
    fn lost(&self, hosting: &mut Hosting<'_>, id: u32, cause: String, by_itself: bool);

    /// What is looked at when time has passed, in this order: whether one must move, or is missing.
    /// What follows from one look is handled before the next.
    fn looks(&self) -> &'static [Look];

    /// Moves those that ranks do not reach, unless `looks` does.
    fn watch_reach(&self, _hosting: &mut Hosting<'_>) {}

    /// What roles of this kind were promised to keep twice, and do not at present.
    fn missing(&self, config: &Config, places: Places<'_>) -> Option<Missing>;

    /// The rank because of which one of them does not leave a drained node, and why; `None` where
    /// no other node can have it.
    fn why_it_stays(&self, roles: &Roles, ages: ImageAges<'_>, id: u32) -> Option<(Rank, String)>;
}
