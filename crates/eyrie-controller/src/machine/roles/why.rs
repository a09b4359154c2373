//! Why ranks cannot be stopped now, and for how long a drained node may have roles.

use super::Roles;
use crate::machine::images::why::ImageAges;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::ranks::Ranks;
use crate::machine::timeouts::{LEAVE_TIMEOUT, WRITE_TIMEOUT};
use std::time::Duration;

/// Why ranks cannot be stopped without need.
pub fn why_ranks_cannot_stop(roles: &Roles, ages: ImageAges<'_>) -> String {
    let mut routers = roles.home_routers();
    if let Some((id, _)) = routers.find(|(_, router)| !router.is_up()) {
        return format!("router {id} is being started");
    }
    let broken = |r: &&RankEntry| r.is_living() && (!r.log().is_whole() || roles.is_unheard(r));
    match ages.ranks.iter().find(broken) {
        Some(r) => format!(
            "no rank is stopped while a router is new to rank {}: {}",
            r.rank(),
            ages.why_no_image(r.rank())
        ),
        None => "a router was new to a rank".into(),
    }
}

/// How long a drained node may have roles: while images are copied, as long as one may take.
pub fn patience_with_roles(ranks: &Ranks) -> Duration {
    let mut kept = ranks.iter().flat_map(|r| r.images().iter());
    if kept.any(|kept| kept.copies.are_coming()) {
        WRITE_TIMEOUT
    } else {
        LEAVE_TIMEOUT
    }
}
