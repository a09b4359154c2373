//! The machine: its components, and what each handler borrows of them. It decides nothing.

use super::config::Config;
use super::domains::exchange::Exchange;
use super::domains::going::Parting;
use super::domains::handover::{HandingOver, Handover};
use super::domains::newcomers::Newcomers;
use super::domains::printing::Printing;
use super::domains::succeeding::Succeeding;
use super::domains::OtherDomains;
use super::ending::EndOfRanks;
use super::faults::moments::Injecting;
use super::faults::pending::Faults;
use super::health::precautions::Precautions;
use super::health::Health;
use super::images::captures::Captures;
use super::images::counting::Counting;
use super::images::overdue::Overdue;
use super::images::schedule::Schedule;
use super::images::stores::{Stores, SAVED};
use super::images::why::ImageAges;
use super::leftovers::Leftovers;
use super::moves::mover::Mover;
use super::moves::Moves;
use super::nodes::contact::Contact;
use super::nodes::reach::Reach;
use super::nodes::watch::Watch;
use super::nodes::Nodes;
use super::outbox::Outbox;
use super::output::Ledger;
use super::pmi::Pmi;
use super::ranks::Ranks;
use super::recovery::course::Recovery;
use super::recovery::gathered::Gathered;
use super::roles::hosting::Hosting;
use super::roles::missing::Redundancy;
use super::roles::places::Places;
use super::roles::Roles;
use super::saving::contents::Saved;
use super::saving::phase::Saving;
use super::saving::steps::Saver;
use super::sent_signals::Signals;
use super::starting::Starting;
use super::traffic::MeasuredTraffic;
use super::users::asked::Asked;
use super::users::balance::Balancing;
use super::users::measurements::Measurements;
use eyrie_interface::Summary;
use eyrie_placement::Placement;
use eyrie_wire::domains::Domains;
use eyrie_wire::formats::{MAGIC_LEN, SNAPSHOT};
use serde::{Deserialize, Serialize};

/// The machine. Each component keeps its fields to itself.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub(super) config: Config,
    #[serde(skip)]
    pub(super) placement: Placement,
    pub(super) out: Outbox,
    pub(super) nodes: Nodes,
    pub(super) contact: Contact,
    pub(super) reach: Reach,
    pub(super) ranks: Ranks,
    pub(super) roles: Roles,
    pub(super) redundancy: Redundancy,
    pub(super) pmi: Pmi,
    pub(super) output: Ledger,
    pub(super) stores: Stores,
    pub(super) schedule: Schedule,
    pub(super) overdue: Overdue,
    pub(super) moves: Moves,
    pub(super) saving: Saving,
    pub(super) measurements: Measurements,
    pub(super) health: Health,
    pub(super) faults: Faults,
    pub(super) signals: Signals,
    pub(super) gathered: Gathered,
    pub(super) leftovers: Leftovers,
    pub(super) domains: OtherDomains,
    pub(super) handover: Handover,
    /// What was measured last of what ranks send each other.
    pub(super) traffic: MeasuredTraffic,
}

/// The form of a snapshot: it goes up with each change of what is in it.
const FORM: u32 = 9;

/// A handler that borrows these components.
macro_rules! borrow {
    ($machine:ident, $handler:ident { $($component:ident),* $(,)? }) => {
        $handler { $($component: &mut $machine.$component),* }
    };
    ($machine:ident, placing $handler:ident { $($component:ident),* $(,)? }) => {
        $handler { placement: &$machine.placement, $($component: &mut $machine.$component),* }
    };
}

impl Machine {
    pub fn new(config: Config) -> Machine {
        let Config { nodes, spares, ref hosts, heartbeat_timeout, archive, .. } = config;
        // Stores on nodes come later.
        let stores = if config.roles_on_nodes { archive.into() } else { config.stores };
        let Config { checkpoint_every, checkpoint_order, .. } = config;
        let ranks = Ranks::new(&config);
        let domains = OtherDomains::new(&config);
        Machine {
            placement: Placement::default(),
            out: Outbox::new(Summary { ranks: config.ranks, ..Summary::default() }),
            nodes: Nodes::new(nodes, spares, hosts.clone(), heartbeat_timeout),
            contact: Contact::default(),
            reach: Reach::default(),
            pmi: Pmi::new(&ranks, config.domains.iter().flat_map(Domains::others_with_ranks)),
            ranks,
            roles: Roles::of_job(&config),
            redundancy: Redundancy::default(),
            output: Ledger::new(config.ranks),
            stores: Stores::new(stores, archive),
            schedule: Schedule::new(checkpoint_every, checkpoint_order, config.ranks),
            overdue: Overdue::default(),
            moves: Moves::default(),
            saving: Saving::new(config.can_be_saved),
            measurements: Measurements::default(),
            health: Health::default(),
            faults: Faults::new(&config.injections),
            signals: Signals::default(),
            gathered: Gathered::default(),
            leftovers: Leftovers::new(config.ranks),
            domains,
            handover: Handover::default(),
            traffic: MeasuredTraffic::default(),
            config,
        }
    }

    /// A machine that goes on with a saved job.
    pub fn go_on(config: Config, saved: Saved) -> Machine {
        let mut machine = Machine::new(config);
        for (r, saved) in machine.ranks.iter_mut().zip(&saved.ranks) {
            r.resume(saved, SAVED);
        }
        machine.ranks.count();
        machine.pmi = saved.pmi;
        machine.output = saved.output;
        machine.out = Outbox::new(saved.summary);
        machine.roles.set_primaries(saved.primaries);
        machine.signals = Signals::sent(saved.signals);
        machine
    }

    /// The same machine, asking `placement` for the nodes of displaced ranks.
    pub fn place_by(self, placement: Placement) -> Machine {
        Machine { placement, ..self }
    }

    /// Ranks are placed by this traffic from now on, where the network is known.
    pub(super) fn place_by_traffic(&mut self, traffic: MeasuredTraffic) {
        self.placement.measure(&traffic.messages(), traffic.over.as_secs_f64());
        self.traffic = traffic;
    }

    /// The state between two events, so that another machine goes on without what this one has
    /// heard. Users who wait for answers are not in it: their connections end with their
    /// controller.
    ///
    /// # Errors
    /// None but those of the encoding.
    pub fn snapshot(&self) -> postcard::Result<Vec<u8>> {
        postcard::to_stdvec(&(SNAPSHOT.magic, FORM, self))
    }

    /// Goes on from such a state; ranks are placed as before.
    ///
    /// # Errors
    /// When these bytes are none, or of another form ([`FORM`]).
    pub fn restore(&mut self, snapshot: &[u8]) -> postcard::Result<()> {
        let (found, rest) = postcard::take_from_bytes::<([u8; MAGIC_LEN], u32)>(snapshot)?;
        if found != (SNAPSHOT.magic, FORM) {
            return Err(postcard::Error::SerdeDeCustom);
        }
        let mut restored: Machine = postcard::from_bytes(rest)?;
        std::mem::swap(&mut restored.placement, &mut self.placement);
        *self = restored;
        self.placement.join(self.nodes.hosts());
        self.place_by_traffic(self.traffic.clone());
        Ok(())
    }

    /// For how long ranks have had no new image, and why.
    pub(super) fn ages(&self) -> ImageAges<'_> {
        let ranks = &self.ranks;
        let schedule = &self.schedule;
        let stores = &self.stores;
        ImageAges { now: self.out.now(), ranks, schedule, stores }
    }

    /// Where roles can be.
    pub(super) fn places(&self) -> Places<'_> {
        let nodes = &self.nodes;
        let reach = &self.reach;
        let ranks = &self.ranks;
        let roles = &self.roles;
        Places { now: self.out.now(), nodes, reach, ranks, roles }
    }

    pub(super) fn overdue_and_ages(&mut self) -> (&mut Overdue, ImageAges<'_>) {
        let ranks = &self.ranks;
        let schedule = &self.schedule;
        let stores = &self.stores;
        (&mut self.overdue, ImageAges { now: self.out.now(), ranks, schedule, stores })
    }

    pub(super) fn redundancy_and_places(&mut self) -> (&mut Redundancy, &Config, Places<'_>) {
        let nodes = &self.nodes;
        let reach = &self.reach;
        let ranks = &self.ranks;
        let roles = &self.roles;
        let places = Places { now: self.out.now(), nodes, reach, ranks, roles };
        (&mut self.redundancy, &self.config, places)
    }

    pub(super) fn starting(&mut self) -> Starting<'_> {
        borrow!(self, Starting { config, out, nodes, ranks, pmi, schedule, faults })
    }

    pub(super) fn watch(&mut self) -> Watch<'_> {
        borrow!(self, Watch { config, out, nodes, contact, reach, ranks, roles, redundancy })
    }

    pub(super) fn hosting(&mut self) -> Hosting<'_> {
        borrow!(self, Hosting { config, out, nodes, reach, ranks, roles, schedule })
    }

    pub(super) fn captures(&mut self) -> Captures<'_> {
        borrow!(
            self,
            Captures {
                config,
                out,
                reach,
                ranks,
                roles,
                stores,
                schedule,
                moves,
                saving,
                handover
            }
        )
    }

    pub(super) fn counting(&mut self) -> Counting<'_> {
        borrow!(
            self,
            Counting { config, out, nodes, reach, ranks, roles, stores, schedule, output }
        )
    }

    pub(super) fn recovery(&mut self) -> Recovery<'_> {
        borrow!(
            self,
            placing Recovery {
                config, out, nodes, ranks, roles, schedule, overdue, moves, faults, output, gathered
            }
        )
    }

    pub(super) fn mover(&mut self) -> Mover<'_> {
        borrow!(
            self,
            placing Mover {
                config, out, nodes, ranks, roles, stores, schedule, overdue, moves, saving
            }
        )
    }

    pub(super) fn precautions(&mut self) -> Precautions<'_> {
        borrow!(self, Precautions { config, out, nodes, health })
    }

    pub(super) fn end_of_ranks(&mut self) -> EndOfRanks<'_> {
        borrow!(self, EndOfRanks { out, ranks, signals })
    }

    pub(super) fn exchange(&mut self) -> Exchange<'_> {
        borrow!(self, Exchange { config, out, ranks, roles, pmi, domains })
    }

    pub(super) fn parting(&mut self) -> Parting<'_> {
        borrow!(self, Parting { config, out, domains })
    }

    pub(super) fn succeeding(&mut self) -> Succeeding<'_> {
        borrow!(self, Succeeding { config, out, nodes, ranks, domains, handover })
    }

    pub(super) fn newcomers(&mut self) -> Newcomers<'_> {
        borrow!(self, Newcomers { config, out, ranks, pmi, saving, signals, handover, domains })
    }

    pub(super) fn printing(&mut self) -> Printing<'_> {
        borrow!(self, Printing { config, out, nodes, ranks, domains })
    }

    pub(super) fn handing_over(&mut self) -> HandingOver<'_> {
        borrow!(
            self,
            HandingOver {
                config,
                out,
                nodes,
                reach,
                ranks,
                roles,
                stores,
                schedule,
                overdue,
                moves,
                saving,
                pmi,
                output,
                domains,
                handover
            }
        )
    }

    pub(super) fn saver(&mut self) -> Saver<'_> {
        borrow!(self, Saver { config, out, ranks, roles, schedule, overdue, saving })
    }

    pub(super) fn injecting(&mut self) -> Injecting<'_> {
        borrow!(self, Injecting { out, nodes, ranks, faults })
    }

    pub(super) fn asked(&mut self) -> Asked<'_> {
        borrow!(self, Asked { out, nodes, ranks, schedule, faults })
    }

    pub(super) fn balancing(&mut self) -> Balancing<'_> {
        borrow!(self, placing Balancing { config, out, nodes, ranks, moves, measurements })
    }
}
