//! What concerns a domain whether its ranks go or others come: ranks of one domain are those of
//! another one. It must never believe a domain that it has ranks which theirs has not given it.

use super::handover::HandingOver;
use super::leaving::Departure;
use eyrie_wire::DomainId;

impl HandingOver<'_> {
    /// Something has come, or time has passed.
    pub fn go_on(&mut self) {
        self.go_on_leaving();
        self.go_on_arriving();
    }

    /// Whether another domain may end: it has no ranks, or is about to hear that it has none, and
    /// does not show the job.
    pub fn may_go(&mut self, id: DomainId) -> bool {
        let has_ranks = !self.ranks_of(id).is_empty() && !self.handover.given.contains_key(&id);
        let shows = self.config.domains.as_ref().is_some_and(|domains| domains.shows == id);
        let why = match (has_ranks, shows) {
            (true, _) => "it has ranks, and says it ends",
            (_, true) => "it shows what ranks print, and says it ends",
            _ => return true,
        };
        let name = self.name(id);
        self.out.note(format!("domain {name} is not believed: {why}"));
        false
    }

    /// Another domain has taken the ranks of this one, or of a third one. That one has said before
    /// that it may.
    pub fn took(&mut self, by: DomainId, from: DomainId, arrived: u32) {
        if Some(from) == self.own() {
            let is_it = |departure: &Departure| departure.is_final() && departure.to() == by;
            if self.handover.departure.as_ref().is_some_and(is_it) {
                let released = self.pmi.taken(by, from, arrived);
                self.out.extend(released);
                self.were_taken();
            }
            return;
        }
        let (of, to) = (self.name(from), self.name(by));
        if self.handover.given.get(&from) != Some(&by) {
            return self.out.note(format!(
                "domain {to} is not believed: it says that it has the ranks of {of}, which has not \
                 said so"
            ));
        }
        self.handover.given.remove(&from);
        let released = self.pmi.taken(by, from, arrived);
        self.out.extend(released);
        self.pass(from, by);
        self.out.note(format!("the ranks of domain {of} are ranks of {to} now"));
    }
}
