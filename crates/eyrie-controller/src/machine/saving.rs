//! How far saving the job has come. Decides nothing.

use super::answer::RequestId;
use eyrie_transport::RouterId;
use eyrie_wire::{ImageId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How far it has come.
#[derive(Debug, Serialize, Deserialize)]
pub enum Phase {
    /// These ranks have had no image since it began.
    Images {
        waiting: BTreeSet<Rank>,
        until: Duration,
    },
    /// These images are not in the archive yet. `failures`: copies that could not be made.
    Copies {
        waiting: BTreeSet<(Rank, ImageId)>,
        failures: u32,
        until: Duration,
    },
    /// These ranks can still speak.
    Fences {
        waiting: BTreeSet<Rank>,
    },
    Routers {
        waiting: BTreeSet<RouterId>,
        bytes: u64,
        until: Duration,
    },
    Rest {
        bytes: u64,
        until: Duration,
    },
}

/// A job that is being saved.
#[derive(Debug, Serialize, Deserialize)]
pub struct Saving {
    pub since: Duration,
    pub phase: Phase,
    /// Users who wait for it.
    pub users: Vec<RequestId>,
}
