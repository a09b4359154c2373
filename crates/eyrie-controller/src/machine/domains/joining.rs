//! How far a domain is on its way into the running job: at the domain that lets it join, and at the
//! one that joins. Decides nothing about domains. A number is given once, also where nothing comes
//! of it.

use super::entry::FIRST_LINE_TIMEOUT;
use crate::machine::users::answer::RequestId;
use eyrie_interface::request::NewDomain;
use eyrie_wire::domains::{Domain, Domains, LineKey};
use eyrie_wire::DomainId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the other domains may take to say whether it may join.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug, Serialize, Deserialize)]
enum Stage {
    /// These domains are to say that it may join.
    Asked(BTreeSet<DomainId>),
    /// It starts, and makes lines to all others.
    Starting,
}

/// The domain that is let in by this one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Joining {
    id: DomainId,
    new: NewDomain,
    /// Those that it has in common with each other domain, by their numbers.
    keys: Vec<LineKey>,
    request: RequestId,
    stage: Stage,
    until: Duration,
}

impl Joining {
    /// A user asks for it, and these domains are asked. `keys`: those that it has in common with
    /// each, by their numbers.
    pub fn new(
        request: RequestId,
        (id, new): (DomainId, NewDomain),
        keys: Vec<LineKey>,
        asked: BTreeSet<DomainId>,
        now: Duration,
    ) -> Joining {
        Joining { id, new, keys, request, stage: Stage::Asked(asked), until: now + ANSWER_TIMEOUT }
    }

    pub fn id(&self) -> DomainId {
        self.id
    }

    pub fn new_domain(&self) -> &NewDomain {
        &self.new
    }

    /// The domains as it is to know them. `all`: as this one does; `present`: those that have not
    /// ended.
    pub fn domains(
        &self,
        all: Vec<Domain>,
        shows: DomainId,
        present: &BTreeSet<DomainId>,
    ) -> Domains {
        let numbered = (0..).map(DomainId).zip(&self.keys);
        let of_present =
            |(id, key): (DomainId, &LineKey)| present.contains(&id).then(|| key.clone());
        // It has none with itself.
        let keys = numbered.map(of_present).chain([None]).collect();
        Domains { own: self.id, all, keys, shows }
    }

    pub fn request(&self) -> RequestId {
        self.request
    }

    /// A domain says that it may join.
    pub fn agree(&mut self, by: DomainId) {
        if let Stage::Asked(waits) = &mut self.stage {
            waits.remove(&by);
        }
    }

    /// Whether all have said so, and it has not been started.
    pub fn is_agreed(&self) -> bool {
        matches!(&self.stage, Stage::Asked(waits) if waits.is_empty())
    }

    /// It is started now.
    pub fn start(&mut self, now: Duration) {
        self.stage = Stage::Starting;
        self.until = now + FIRST_LINE_TIMEOUT;
    }

    pub fn is_starting(&self) -> bool {
        matches!(self.stage, Stage::Starting)
    }

    /// The first of the domains that have not said whether it may join.
    pub fn waits_for(&self) -> Option<DomainId> {
        match &self.stage {
            Stage::Asked(waits) => waits.first().copied(),
            Stage::Starting => None,
        }
    }

    /// Until when something must have come of it.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        self.until += gap;
    }
}

/// How far this domain itself is, which is to join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Coming {
    /// It starts, or has no line to one of the others.
    Begun,
    /// It has said that it is ready, and must hear until then whether it has joined.
    Ready { until: Duration },
}

impl Coming {
    /// Until when it must hear whether it has joined.
    pub fn until(&self) -> Option<Duration> {
        match self {
            Coming::Begun => None,
            Coming::Ready { until } => Some(*until),
        }
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        if let Coming::Ready { until } = self {
            *until += gap;
        }
    }
}
