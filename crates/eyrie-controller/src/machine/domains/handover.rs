//! The ranks of one domain go to another one: what is known of that here, and what its handlers
//! borrow. `give.rs` is the side of the domain that they leave, `take.rs` that of the one that they
//! come to, and of all others.
//!
//! No log of a router goes with them. A rank stands still from its last image on, which has all
//! that it received, and senders keep what was not received. Up to the letter that says that the
//! ranks have moved, whatever fails makes them stay; after it, nothing does.

use super::arriving::Arrival;
use super::leaving::Departure;
use super::OtherDomains;
use crate::machine::config::Config;
use crate::machine::images::overdue::Overdue;
use crate::machine::images::schedule::Schedule;
use crate::machine::images::stores::Stores;
use crate::machine::io::{Command, ToPeer};
use crate::machine::moves::Moves;
use crate::machine::nodes::reach::Reach;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::output::Ledger;
use crate::machine::pmi::Pmi;
use crate::machine::ranks::Ranks;
use crate::machine::recovery::stop::{stop_of, Stop};
use crate::machine::roles::Roles;
use crate::machine::saving::phase::Saving;
use crate::record::Record;
use eyrie_interface::record::MovePhase;
use eyrie_router::RouterCommand;
use eyrie_wire::control::{RoleKind, StoreAt};
use eyrie_wire::domains::DomainSays;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{DomainId, ImageId, Rank, StoreId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Ranks on their way between domains.
#[derive(Default, Serialize, Deserialize)]
pub struct Handover {
    /// Those of this domain.
    pub(super) departure: Option<Departure>,
    /// Those that come here.
    pub(super) arrival: Option<Arrival>,
    /// Domains that say that their ranks may go to another one.
    pub(super) given: BTreeMap<DomainId, DomainId>,
    /// The domain that has taken all ranks of this one.
    pub(super) gone_to: Option<DomainId>,
    /// Where the gateway gives images of other domains.
    pub(super) images_at: Option<Addr>,
    /// Bytes of standard input that have come here, when it has ended.
    pub(super) input: Option<u64>,
}

impl Handover {
    /// Whether the next image of the rank is the last one here.
    pub fn holds(&self, rank: Rank) -> bool {
        self.departure.as_ref().is_some_and(|departure| departure.holds(rank))
    }

    /// Whether the rank stands still, and no image of it is to be taken.
    pub fn is_held(&self, rank: Rank) -> bool {
        self.departure.as_ref().is_some_and(|departure| departure.is_held(rank))
    }

    /// Whether images of all ranks are taken at the same time.
    pub fn is_imaging(&self) -> bool {
        self.departure.as_ref().is_some_and(|departure| departure.images().is_some())
    }

    /// Whether ranks that are fenced stay so, because they leave.
    pub fn ranks_stay_fenced(&self) -> bool {
        self.departure.as_ref().is_some_and(Departure::ranks_stay_fenced)
    }

    /// Whether ranks of another domain may come, so that this one has not finished with its own.
    pub fn may_bring_ranks(&self) -> bool {
        self.arrival.is_some()
    }

    /// Whether ranks go from one domain to another, as far as is known here.
    pub fn is_busy(&self) -> bool {
        self.departure.is_some() || self.arrival.is_some() || !self.given.is_empty()
    }

    /// Why ranks cannot move within this domain.
    pub fn forbids_moves(&self) -> Option<String> {
        let leave = self.departure.is_some();
        leave.then(|| "all ranks of this domain are about to leave it: nothing else moves".into())
    }

    /// Standard input has ended here after so many bytes.
    pub fn input_ends(&mut self, bytes: u64) {
        self.input = Some(bytes);
    }

    /// Where the gateway gives images of other domains; `None`: nowhere.
    pub fn set_images_at(&mut self, addr: Option<Addr>) {
        self.images_at = addr;
    }

    /// When something is to be looked at.
    pub fn next(&self) -> Option<Duration> {
        let departure = self.departure.as_ref().and_then(Departure::next);
        let arrival = self.arrival.as_ref().and_then(Arrival::next);
        [departure, arrival].into_iter().flatten().min()
    }

    /// The controller itself stood still for so long.
    pub fn extend(&mut self, gap: Duration) {
        if let Some(departure) = &mut self.departure {
            departure.extend(gap);
        }
        if let Some(arrival) = &mut self.arrival {
            arrival.in_place_mut().extend(gap);
        }
    }
}

/// What changes when ranks go from one domain to another, and what is asked.
pub struct HandingOver<'a> {
    pub config: &'a mut Config,
    pub out: &'a mut Outbox,
    pub nodes: &'a mut Nodes,
    pub reach: &'a Reach,
    pub ranks: &'a mut Ranks,
    pub roles: &'a mut Roles,
    pub stores: &'a Stores,
    pub schedule: &'a mut Schedule,
    pub overdue: &'a mut Overdue,
    pub moves: &'a Moves,
    pub saving: &'a Saving,
    pub pmi: &'a mut Pmi,
    pub output: &'a mut Ledger,
    pub domains: &'a OtherDomains,
    pub handover: &'a mut Handover,
}

impl HandingOver<'_> {
    pub(super) fn stop(&mut self) -> Stop<'_> {
        stop_of!(self)
    }

    pub(super) fn tell(&mut self, to: DomainId, says: DomainSays) {
        self.out.follows(Consequence::Tell { to: Some(to), says: Box::new(says) });
    }

    pub(super) fn tell_all(&mut self, says: DomainSays) {
        self.out.follows(Consequence::Tell { to: None, says: Box::new(says) });
    }

    /// Tells the domain that ranks come from whether an image of one of them is here, unless they
    /// have moved.
    pub(super) fn answer(&mut self, rank: Rank, image: ImageId, result: Result<(), String>) {
        let waits = |arrival: &&Arrival| !arrival.has_moved();
        let from = self.handover.arrival.as_ref().filter(waits).map(Arrival::from);
        if let Some(from) = from {
            self.tell(from, DomainSays::ImageHere { rank, image, result });
        }
    }

    pub(super) fn own(&self) -> Option<DomainId> {
        self.config.domains.as_ref().map(|domains| domains.own)
    }

    /// The name of a domain.
    pub(super) fn name(&self, id: DomainId) -> String {
        let domains = self.config.domains.as_ref();
        let domain = domains.and_then(|domains| domains.all.get(id.index()));
        domain.map_or(String::new(), |domain| domain.name.clone())
    }

    /// The ranks of a domain.
    pub(super) fn ranks_of(&self, id: DomainId) -> Vec<Rank> {
        let domains = self.config.domains.as_ref();
        let domain = domains.and_then(|domains| domains.all.get(id.index()));
        domain.map_or(Vec::new(), |domain| domain.ranks().collect())
    }

    /// Says to users how far it is.
    pub(super) fn record(
        &mut self,
        (from, to): (DomainId, DomainId),
        phase: MovePhase,
        took: Duration,
        cause: Option<String>,
    ) {
        let from = self.name(from);
        let to = self.name(to);
        self.out.record(Record::DomainMove { from, to, phase, took, cause });
    }

    /// All ranks of one domain are those of another one from now on: the gateway learns it.
    pub(super) fn pass(&mut self, from: DomainId, to: DomainId) {
        let Some(domains) = &mut self.config.domains else { return };
        domains.give(from, to);
        self.tell_gateway_of_domains();
    }

    /// Which domain has which ranks now.
    pub(super) fn tell_gateway_of_domains(&mut self) {
        let Some(domains) = self.config.domains.clone() else { return };
        self.tell_gateway(RouterCommand::Domains(domains));
    }

    pub(super) fn tell_gateway(&mut self, command: RouterCommand) {
        if let Some(id) = self.config.gateway_router() {
            self.out.push(Command::Send(ToPeer::Router(id, command)));
        }
    }

    /// Where the stores are, and which domain may fetch images from them.
    pub fn tell_gateway_of_stores(&mut self) {
        let at = |store: StoreId| {
            let on_node = self.roles.addr(RoleKind::Store, store.0);
            let addr = on_node.or_else(|| self.stores.addr(store)).cloned();
            StoreAt { store, addr }
        };
        let stores = self.stores.for_images().map(at).collect();
        let to = self.handover.departure.as_ref().map(Departure::to);
        self.tell_gateway(RouterCommand::Stores { stores, to });
    }
}
