//! How domains come to a running job: what is made for one that a user wants to join, and its start
//! by the `eyrie run` of which this controller is a part. It decides nothing.

use super::beside::NewSite;
use super::job::Job;
use crate::machine::Event;
use eyrie_interface::request::NewDomain;
use eyrie_interface::Request;
use eyrie_wire::domains::{Domains, LineKey};

impl Job {
    /// The keys that a domain which is to join has in common with each other one. They are in the
    /// journal, so that they are made once.
    pub fn with_keys(&self, request: Request) -> Request {
        let Request::JoinDomain { domain, .. } = request else { return request };
        let domains = self.machine.domains().map_or(0, |domains| domains.all.len());
        let keys = (0..domains).map(|_| LineKey::new()).collect();
        Request::JoinDomain { domain, keys }
    }

    /// Why a domain that a user wants to join cannot be started from here.
    pub fn cannot_start_domain(&self, request: &Request) -> Option<&'static str> {
        let shows = self.machine.domains().is_some_and(|domains| domains.shown_by().is_none());
        let is_asked = matches!(request, Request::JoinDomain { .. });
        (is_asked && shows && self.joins.is_none()).then_some(
            "no domain can join any more, because `eyrie run` has died, and it starts them; what is \
             there goes on",
        )
    }

    /// Has the controller of a domain that joins started.
    pub fn start_domain(&mut self, (domains, new): (Domains, NewDomain)) {
        if let Some(own) = &mut self.beginning.options.domains {
            own.ways.destinations.insert(new.name.clone(), new.via.clone());
        }
        if self.is_replaying {
            // The controller that has died has done it.
            return;
        }
        let domain = domains.own;
        let start = NewSite { domains, new };
        if self.joins.as_ref().is_none_or(|joins| joins.send(start).is_err()) {
            let cause = "it cannot be started from here".into();
            self.hear_later([Event::DomainLost { domain, code: 1, cause }]);
        }
    }
}
