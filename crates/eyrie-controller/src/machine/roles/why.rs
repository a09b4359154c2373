//! Why ranks cannot be stopped now, and for how long a drained node may have roles.

use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::machine::timeouts::{LEAVE_TIMEOUT, WRITE_TIMEOUT};
use crate::machine::view::View;
use eyrie_wire::control::RoleKind;
use std::time::Duration;

impl View<'_> {
    /// Why ranks cannot be stopped without need.
    pub fn why_ranks_cannot_stop(self) -> String {
        let mut routers = self.roles.of(RoleKind::Router);
        if let Some((id, _)) = routers.find(|(_, router)| !router.is_up()) {
            return format!("router {id} is being started");
        }
        let broken = |r: &&RankEntry| {
            !r.is(RankStateName::Finished) && (!r.log.is_whole() || self.roles.is_unheard(r))
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
}
