//! The other domains of a simulated job, by the letters of their controllers: each does what this
//! one does, at the same time. Their letters to each other are not simulated.

use super::said::{bytes_in, from_router};
use eyrie_controller::machine::{Command, Event, ToPeer};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::domains::{Domain, DomainSays, Domains, Letter, LineKey};
use eyrie_wire::entries::Entry;
use eyrie_wire::{DomainId, Rank};
use std::collections::BTreeMap;

/// All domains of a job with so many ranks each; this one is the first.
pub fn domains(count: u32, ranks: u32) -> Domains {
    let domain = |number: u32| Domain {
        name: format!("site-{number}"),
        ranks: vec![(Rank(number * ranks), Rank(number * ranks + ranks - 1))],
        gateway: format!("gateway-{number}.example.org:7411"),
    };
    let all = (0..count).map(domain).collect();
    let keys = (0..count).map(|number| (number > 0).then(LineKey::new)).collect();
    Domains { own: DomainId(0), all, keys, shows: DomainId(0) }
}

/// The letters with one of them.
#[derive(Default)]
struct Letters {
    /// How many it has sent, and received.
    sent: u64,
    heard: u64,
}

/// The other domains.
#[derive(Default)]
pub struct Others {
    domains: Option<Domains>,
    /// The router that is the gateway to them.
    gateway: u32,
    letters: BTreeMap<DomainId, Letters>,
    /// How many letters all of them were sent, and bytes of these and of confirmations.
    pub told: u64,
    pub bytes: u64,
    /// What this domain's ranks have put into PMI.
    entries: Vec<Entry>,
}

impl Others {
    pub fn new(domains: Domains, gateway: u32) -> Others {
        let letters = domains.others().map(|(id, _)| (id, Letters::default())).collect();
        Others { domains: Some(domains), gateway, letters, ..Others::default() }
    }

    /// How many gateways this domain has.
    pub fn gateways(&self) -> u32 {
        u32::from(self.domains.is_some())
    }

    fn gateway_says(&self, event: RouterEvent) -> Event {
        from_router(self.gateway, event)
    }

    /// There is a line to each of them.
    pub fn lines(&self) -> Vec<Event> {
        let up = |id: &DomainId| self.gateway_says(RouterEvent::Line { domain: *id, up: true });
        self.letters.keys().map(up).collect()
    }

    /// What the domain to which a command sends a letter answers.
    pub fn answer_to(&mut self, command: &Command) -> Option<Event> {
        let Command::Send(ToPeer::Router(_, RouterCommand::ToDomain { domain, letter })) = command
        else {
            return None;
        };
        self.bytes += bytes_in(letter);
        if letter.number == 0 {
            return None;
        }
        self.told += 1;
        if let Some(DomainSays::Put(entries)) = &letter.says {
            self.entries.clone_from(entries);
        }
        let letters = self.letters.get_mut(domain)?;
        letters.heard = letter.number;
        let letter = Letter { number: 0, heard: letter.number, says: None };
        Some(self.gateway_says(RouterEvent::FromDomain { domain: *domain, letter }))
    }

    /// Each of them says what this one has said: what its ranks have put, and that they have
    /// arrived at this PMI barrier.
    pub fn arrive(&mut self, barrier: u32) -> Vec<Event> {
        let Some(domains) = &self.domains else { return Vec::new() };
        let ranks_of = |id: DomainId| domains.all[id.index()].ranks[0];
        let theirs = |id: DomainId| -> Vec<Entry> {
            let (first, last) = ranks_of(id);
            let of = |entry: &Entry| match entry {
                Entry::Addresses { pattern, .. } => {
                    Some(Entry::Addresses { pattern: pattern.clone(), first, last })
                }
                Entry::Text { .. } => None,
            };
            self.entries.iter().filter_map(of).collect()
        };
        let mut said: Vec<(DomainId, Letter)> = Vec::new();
        for (id, letters) in &mut self.letters {
            let put = (barrier == 1).then(|| DomainSays::Put(theirs(*id)));
            for says in put.into_iter().chain([DomainSays::Arrived { barrier }]) {
                letters.sent += 1;
                let (number, heard) = (letters.sent, letters.heard);
                said.push((*id, Letter { number, heard, says: Some(says) }));
            }
        }
        let event =
            |(domain, letter)| self.gateway_says(RouterEvent::FromDomain { domain, letter });
        said.into_iter().map(event).collect()
    }
}
