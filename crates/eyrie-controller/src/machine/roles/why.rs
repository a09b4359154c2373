//! Why ranks cannot be stopped now, and why a role does not leave a drained node.

use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::machine::timeouts::{LEAVE_TIMEOUT, WRITE_TIMEOUT};
use crate::machine::view::View;
use eyrie_wire::control::Role;
use std::time::Duration;

impl View<'_> {
    /// Why ranks cannot be stopped without need.
    pub fn why_ranks_cannot_stop(self) -> String {
        let mut routers = self.roles.routers.iter();
        if let Some(id) = routers.position(|router| !router.is_up()) {
            return format!("router {id} is being started");
        }
        let broken = |r: &&RankEntry| {
            !r.is(RankStateName::Finished)
                && (r.log_lost || r.unprotected.is_some() || self.roles.is_unheard(r))
        };
        match self.ranks.iter().find(broken) {
            Some(r) => format!(
                "no rank is stopped while a router is new to rank {}: {}",
                r.rank,
                self.why_no_image(r.rank)
            ),
            None => "a router was new to a rank".into(),
        }
    }

    /// How long a drained node may have roles: while images are copied, as long as one may take.
    pub fn patience_with_roles(self) -> Duration {
        let mut kept = self.ranks.iter().flat_map(|r| &r.images);
        if kept.any(|kept| !kept.copies.coming.is_empty()) {
            WRITE_TIMEOUT
        } else {
            LEAVE_TIMEOUT
        }
    }

    /// Why a role does not leave a drained node.
    pub fn why_role_stays(self, role: Role) -> String {
        let living = || self.ranks.living();
        let why = match role {
            Role::Router { id, .. } => {
                let runs = |r: &&RankEntry| r.is(RankStateName::Running) && r.can_be_captured();
                let at_home = self.roles.at_home(id);
                let broken = |r: &&RankEntry| {
                    let is_whole = r.unprotected.is_none() && !r.log_lost && !r.exposed;
                    !runs(r) || at_home[r.rank as usize] && !is_whole
                };
                living().find(broken).map(|r| (r.rank, self.why_no_image(r.rank)))
            }
            Role::Store { id } => {
                let has_only = |r: &&RankEntry| {
                    r.images.iter().any(|kept| !kept.copies.stores.iter().any(|s| *s != id))
                };
                let why = "no other store has its images";
                living().find(has_only).map(|r| (r.rank, why.to_string()))
            }
        };
        match why {
            Some((rank, why)) => format!("{role} did not leave it, because of rank {rank}: {why}"),
            None => format!("{role} did not leave it: no other node can have it"),
        }
    }
}
