//! A domain that all ranks have left ends while the job goes on. First all that it has said is
//! confirmed. Then it tells that it goes, and ends when all know that. They keep a line for it
//! until it says that it knows that. It must never go while another domain may wait for a letter of
//! it.

use super::{Going, OtherDomains, FINISH_TIMEOUT};
use crate::machine::config::Config;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::record::Record;
use eyrie_wire::domains::DomainSays;
use eyrie_wire::DomainId;

/// What ends while the job goes on: this domain, or another one.
pub struct Parting<'a> {
    pub config: &'a Config,
    pub out: &'a mut Outbox,
    pub domains: &'a mut OtherDomains,
}

impl Parting<'_> {
    /// All ranks of this domain run in another one. The one that shows the job stays, unless it is
    /// to have a successor.
    pub fn are_elsewhere(&mut self) {
        let shows = self.config.domains.as_ref().is_none_or(|of| of.shown_by().is_none());
        if !shows && self.domains.going.is_none() {
            self.domains.going = Some(Going::Decided);
        }
    }

    /// Goes when nothing keeps it here any more.
    pub fn look(&mut self) {
        let now = self.out.now();
        let are_told = !self.domains.must_confirm() && self.domains.have_confirmed_output();
        match self.domains.going {
            // The end of the job is the end of all domains.
            _ if self.out.has_ended() || self.domains.has_finished_here() => {}
            Some(Going::Decided) if are_told => {
                self.domains.going = Some(Going::Told { until: now + FINISH_TIMEOUT });
                let says = Box::new(DomainSays::Gone);
                self.out.follows(Consequence::Tell { to: None, says });
            }
            Some(Going::Told { until }) if are_told || now >= until => {
                let own = self.config.domains.as_ref().map(|domains| domains.own().name.clone());
                self.out.record(Record::DomainGone { domain: own.unwrap_or_default() });
                self.domains.going = Some(Going::Gone);
                let says = Box::new(DomainSays::Left);
                self.out.follows(Consequence::Tell { to: None, says });
                self.out.end(0, None);
            }
            _ => {}
        }
    }

    /// Another domain ends, which has no ranks.
    pub fn gone(&mut self, id: DomainId) {
        let Some(other) = self.domains.all.get_mut(&id).filter(|other| !other.is_gone()) else {
            return;
        };
        other.go();
        let domain = other.name().to_string();
        self.out.record(Record::DomainGone { domain });
    }

    /// Another domain knows that it can go.
    pub fn left(&mut self, id: DomainId) {
        if let Some(other) = self.domains.all.get_mut(&id).filter(|other| other.is_gone()) {
            other.leave();
        }
    }
}
