//! All ranks of this domain go to another one. First that one says whether it can have them. Then
//! it fetches images while they compute. Then the gateway stops fetching messages to them. Each
//! rank stands still from its last image on, and that is fetched. The ranks are ended and fenced,
//! and the other domain is told that they are its own. Up to then they stay when anything fails,
//! and compute on.

use super::entry::OtherDomain;
use super::handover::HandingOver;
use super::leaving::{Departure, Images, Stage};
use crate::machine::io::{Command, ToPeer};
use crate::machine::moves::obstacles::cannot_move_now;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::ranks::capture::Capture;
use crate::machine::ranks::entry::RankEntry;
use crate::machine::state::RankStateName;
use crate::machine::users::answer::{Answer, RequestId};
use eyrie_interface::record::MovePhase;
use eyrie_interface::Way;
use eyrie_router::RouterCommand;
use eyrie_store::role::StoreCommand;
use eyrie_wire::control::ToAgent;
use eyrie_wire::domains::DomainSays;
use eyrie_wire::{DomainId, ImageId, Rank, RankInstance, RouterId};
use std::collections::BTreeSet;
use std::time::Duration;

impl HandingOver<'_> {
    /// A user asks for it; `to`: the name of the other domain, or `None`: they are to stay.
    /// `leave`: this domain is to end then, also where it shows the job.
    pub fn migration_asked(
        &mut self,
        request: RequestId,
        to: Option<String>,
        way: Way,
        leave: bool,
    ) {
        let Some(name) = to else { return self.stay_asked(request) };
        // Others end anyway.
        let leave = leave && self.config.domains.as_ref().is_some_and(|of| of.shown_by().is_none());
        let to = match self.destination(&name, leave) {
            Ok(to) => to,
            Err(why) => return self.out.answer(request, Answer::Refused(why)),
        };
        if leave && self.ranks.here() == 0 {
            return self.out.follows(Consequence::DomainLeaves { to, request: Some(request) });
        }
        let now = self.out.now();
        let departure = Departure::new(to, way, Some(request), now).and_leave(leave);
        self.handover.departure = Some(departure);
        self.tell_gateway_of_stores();
        self.note(MovePhase::Requested);
        self.tell_all(DomainSays::Gives { to: Some(to) });
    }

    fn stay_asked(&mut self, request: RequestId) {
        let refused = match &self.handover.departure {
            None => "no domain is being left",
            Some(departure) if departure.is_final() => {
                "its ranks are in the other domain: this cannot be taken back"
            }
            Some(_) => {
                self.stay("it was cancelled");
                return self.out.answer(request, Answer::Accepted);
            }
        };
        self.out.answer(request, Answer::Refused(refused.into()));
    }

    /// The domain of this name, when the ranks can go there as far as that is known here; with
    /// `leave` also when there are none.
    fn destination(&self, name: &str, leave: bool) -> Result<DomainId, String> {
        let Some(domains) = &self.config.domains else {
            return Err("the job runs in one domain only: `eyrie run --domains` starts it over \
                        several"
                .into());
        };
        let own = &domains.own().name;
        let others = || domains.present().filter(|(id, _)| *id != domains.own);
        let names = || others().map(|(_, domain)| domain.name.as_str());
        let to = domains.named(name).ok_or_else(|| {
            let others = names().collect::<Vec<_>>().join(", ");
            format!("there is no domain {name}: this one is {own}, the others are {others}")
        })?;
        if to == domains.own {
            let others = names().collect::<Vec<_>>().join(" or ");
            return Err(format!(
                "this is domain {own}, whose ranks are to leave: they can go to {others}; of another \
                 domain's ask at its site"
            ));
        }
        if self.domains.get(to).is_none_or(OtherDomain::is_gone) {
            return Err(format!(
                "domain {name} has ended: `eyrie join --domains`, where `eyrie run` was started, \
                 brings it back"
            ));
        }
        if let Some(why) = self.domains.joins_forbid_moves() {
            return Err(why);
        }
        if let Some(why) = cannot_move_now(self.out, self.saving) {
            return Err(why);
        }
        if self.handover.departure.is_some() || self.handover.arrival.is_some() {
            return Err("ranks are on their way to or from another domain already".into());
        }
        if leave && self.ranks.here() == 0 {
            return Ok(to);
        }
        if let Some(gone) = self.handover.gone_to {
            let gone = self.name(gone);
            return Err(format!("domain {own} has no ranks: they are in {gone}"));
        }
        if let Some(why) = self.domains.succession().forbids_moves(|id| self.name(id)) {
            return Err(why);
        }
        if self.moves.iter().next().is_some() {
            return Err("ranks are moving within the domain: try again when they have".into());
        }
        if self.ranks.living().next().is_none() {
            return Err(format!("all ranks of domain {own} have finished"));
        }
        if self.reads_input() {
            return Err(READS_INPUT.into());
        }
        Ok(to)
    }

    /// Whether rank 0 is here and has read standard input, of which there may be more, by its
    /// newest image. One that has read all of it finds its end in any domain.
    fn reads_input(&self) -> bool {
        let first = self.ranks.get(Rank(0)).filter(|r| !r.is_elsewhere());
        let read = first.and_then(|r| r.images().newest()).map_or(0, |kept| kept.image.stdin);
        read > 0 && self.handover.input.is_none_or(|end| read < end)
    }

    fn note(&mut self, phase: MovePhase) {
        let now = self.out.now();
        let (Some(departure), Some(own)) = (&self.handover.departure, self.own()) else { return };
        let (to, took) = (departure.to(), departure.took(now));
        self.record((own, to), phase, took, None);
    }

    /// The ranks stay where they are, and compute on. Nothing happens where it is too late for
    /// that.
    pub fn stay(&mut self, why: &str) {
        let can = |departure: &mut Departure| !departure.is_final();
        let Some(departure) = self.handover.departure.take_if(can) else { return };
        let now = self.out.now();
        self.tell_gateway_of_stores();
        self.tell_all(DomainSays::Gives { to: None });
        if departure.has_stopped_fetching() {
            self.tell_gateway(RouterCommand::Fetch(true));
        }
        if let Stage::Last(images) = departure.stage() {
            images.told().for_each(|(rank, image)| self.compute_on(rank, image));
        }
        if let Stage::Fences { .. } = departure.stage() {
            let fenced = self.ranks.living().filter(|r| self.ranks.is_fenced(r.rank()));
            let fenced = fenced.map(RankEntry::instance).collect();
            self.out.follows(Consequence::RanksReturn(fenced));
        }
        if let Some(own) = self.own() {
            let cause = Some(why.to_string());
            self.record((own, departure.to()), MovePhase::Cancelled, departure.took(now), cause);
        }
        if let Some(request) = departure.request() {
            let to = self.name(departure.to());
            let why = format!("the ranks did not go to {to}: {why}");
            self.out.answer(request, Answer::Refused(why));
        }
    }

    /// The rank stands still for this image, if it lives.
    fn compute_on(&mut self, rank: Rank, image: ImageId) {
        let r = &self.ranks[rank];
        let node = r.node();
        if r.on_node().is_some() && self.nodes.is_up(node) {
            let instance = r.instance();
            self.out.send_agent(node, ToAgent::GoOn { instance, image });
        }
    }

    /// A rank has died, or its program has ended.
    pub fn rank_died(&mut self, rank: Rank) {
        if self.handover.departure.is_some() {
            self.stay(&format!("rank {rank} died meanwhile"));
        }
    }

    pub fn rank_finished(&mut self, rank: Rank) {
        if let Some(images) = self.images() {
            images.forget(rank);
        }
    }

    fn images(&mut self) -> Option<&mut Images> {
        self.handover.departure.as_mut()?.images_mut()
    }

    /// The other domain can have the ranks, or not.
    pub fn may_come(&mut self, from: DomainId, result: Result<(), String>) {
        let now = self.out.now();
        let name = self.name(from);
        let Some(departure) = self.handover.departure.as_mut().filter(|d| d.to() == from) else {
            return;
        };
        match result {
            Ok(()) => {
                departure.agree();
                departure.note_progress(now);
            }
            Err(why) => self.stay(&format!("domain {name}: {why}")),
        }
    }

    /// The gateway fetches no messages any more, or fetches them again.
    pub fn fetches(&mut self, fetches: bool) {
        if let Some(departure) = self.handover.departure.as_mut().filter(|_| !fetches) {
            departure.flush();
        }
    }

    /// A router of this domain is lost: ranks must tell another one what they have, which they
    /// cannot while they stand still.
    pub fn router_lost(&mut self) {
        let is_fenced = |departure: &Departure| departure.ranks_stay_fenced();
        if !self.handover.departure.as_ref().is_some_and(is_fenced) {
            self.stay("a router was lost meanwhile");
        }
    }

    /// The gateway is lost: another one would fetch messages at once.
    pub fn gateway_lost(&mut self) {
        self.handover.set_images_at(None);
        let has_stopped = |departure: &Departure| departure.has_stopped_fetching();
        if self.handover.departure.as_ref().is_some_and(has_stopped) {
            self.stay("the gateway was lost meanwhile");
        }
    }

    /// An image of the rank counts. Whether the rank stands still for it, and stays so.
    pub fn imaged(&mut self, rank: Rank, capture: &Capture) -> bool {
        let now = self.out.now();
        let Some(departure) = &mut self.handover.departure else { return false };
        let is_last = departure.stand_still();
        let Some(images) = departure.images_mut() else { return false };
        if !images.wants(rank, capture.asked()) || is_last != capture.holds() {
            return false;
        }
        departure.note_progress(now);
        self.tell_of_image(rank);
        is_last
    }

    /// The rank could not be imaged. `passing`: for a reason that passes soon.
    pub fn not_imaged(&mut self, rank: Rank, why: &str, passing: bool, again: Duration) {
        let Some(departure) = &self.handover.departure else { return };
        let is_missing = |images: &Images| images.missing().any(|missing| missing == rank);
        if !departure.images().is_some_and(is_missing) {
            return;
        }
        if passing {
            self.schedule.retry(rank, again);
        } else {
            self.stay(&format!("rank {rank} cannot be imaged: {why}"));
        }
    }

    /// The other domain is told of the newest image of a rank, which it is to fetch.
    fn tell_of_image(&mut self, rank: Rank) {
        let now = self.out.now();
        let Some(kept) = self.ranks[rank].images().newest().cloned() else { return };
        let Some(departure) = &mut self.handover.departure else { return };
        let to = departure.to();
        let Some(images) = departure.images_mut() else { return };
        images.tell(rank, kept.image.image, now);
        let stores = kept.copies.stores().collect();
        let instance = kept.instance;
        self.tell(to, DomainSays::ImageThere { instance, image: kept.image, stores });
    }

    /// The other domain has an image, or could not fetch it.
    pub fn image_here(
        &mut self,
        from: DomainId,
        rank: Rank,
        image: ImageId,
        result: Result<(), String>,
    ) {
        let now = self.out.now();
        let Some(departure) = self.handover.departure.as_mut().filter(|d| d.to() == from) else {
            return;
        };
        let Some(images) = departure.images_mut() else { return };
        let goes_on = images.fetched(rank, image, result.is_ok(), now);
        if result.is_ok() {
            departure.note_progress(now);
        }
        if !goes_on {
            let why = result.err().unwrap_or_default();
            self.stay(&format!("an image of rank {rank} could not be fetched: {why}"));
        }
    }

    /// Goes on as far as what it waits for has come.
    pub(super) fn go_on_leaving(&mut self) {
        let now = self.out.now();
        let Some(departure) = &self.handover.departure else { return };
        if departure.is_final() {
            return;
        }
        if let Some(why) = self.why_stay() {
            return self.stay(&why);
        }
        let due = departure.images().map_or(Vec::new(), |images| images.due(now));
        due.into_iter().for_each(|rank| self.tell_of_image(rank));
        let Some(departure) = &mut self.handover.departure else { return };
        let ranks = || self.ranks.unfinished().collect::<Vec<Rank>>();
        match departure.stage() {
            Stage::Asked { agreed: true } if self.domains.have_confirmed() => {
                if departure.is_live() {
                    departure.begin_round(ranks(), now);
                    self.begin_first_round();
                } else {
                    departure.begin_flush(now);
                    self.tell_gateway(RouterCommand::Fetch(false));
                }
            }
            Stage::Rounds { images, .. } if images.are_there() => {
                if departure.rounds_are_enough() {
                    departure.begin_flush(now);
                    self.tell_gateway(RouterCommand::Fetch(false));
                } else {
                    departure.begin_round(ranks(), now);
                    self.want_images();
                }
            }
            // One that re-executes has not received yet what its router has for it.
            Stage::Flushing { is_flushed: true }
                if self.ranks.living().all(|r| r.is(RankStateName::Running)) =>
            {
                departure.begin_last(ranks(), now);
                self.note(MovePhase::Flushed);
                self.want_images();
            }
            Stage::Last(images)
                if images.are_there()
                    && self.roles.ranks_can_stop(self.config, self.ranks)
                    && self.domains.have_confirmed_output() =>
            {
                departure.begin_fences(now);
                self.note(MovePhase::Imaged);
                let all: Vec<Rank> = self.ranks.unfinished().collect();
                for rank in all {
                    self.stop().stop(rank);
                    self.ranks[rank].log_mut().stand_still();
                }
            }
            Stage::Fences { .. } if self.ranks.living().all(|r| self.ranks.is_fenced(r.rank())) => {
                self.move_out();
            }
            _ => {}
        }
    }

    /// Why the ranks are to stay by now.
    fn why_stay(&self) -> Option<String> {
        let now = self.out.now();
        let departure = self.handover.departure.as_ref()?;
        let to = self.name(departure.to());
        if self.ranks.living().next().is_none() {
            return Some("all of them have finished".into());
        }
        if self.moves.iter().next().is_some() {
            return Some("ranks move within the domain".into());
        }
        if departure.until().is_some_and(|until| until <= now) {
            let what = match departure.stage() {
                Stage::Asked { agreed: false } => format!("domain {to} has not answered"),
                Stage::Asked { .. } => "not all other domains have confirmed that they know".into(),
                Stage::Flushing { is_flushed: false } => {
                    "the gateway has not given the messages away that it had".to_string()
                }
                Stage::Flushing { .. } => {
                    "not all ranks run: some have not been recovered".to_string()
                }
                Stage::Last(images) if images.are_there() => {
                    "what the ranks have printed has not come to where it is shown".into()
                }
                Stage::Rounds { .. } | Stage::Last(_) => {
                    format!("images of the ranks have not come to {to}")
                }
                _ => "the routers have not answered".into(),
            };
            return Some(format!("{what} in time"));
        }
        let line = self.domains.get(departure.to())?.line();
        let down_since = line.since.filter(|_| !line.up)?;
        let is_late = now >= down_since + departure.line_timeout();
        is_late.then(|| format!("there is no line to domain {to}"))
    }

    /// The newest images will do; where there is none, one is taken.
    fn begin_first_round(&mut self) {
        let imaged = self.ranks.living().filter(|r| !r.images().is_empty());
        let imaged: Vec<Rank> = imaged.map(RankEntry::rank).collect();
        imaged.into_iter().for_each(|rank| self.tell_of_image(rank));
        self.want_images();
    }

    fn want_images(&mut self) {
        let now = self.out.now();
        let missing: Vec<Rank> =
            self.images().map_or(Vec::new(), |images| images.missing().collect());
        missing.into_iter().for_each(|rank| self.schedule.want(rank, now));
    }

    /// No rank speaks any more, and the other domain has all images: the ranks are its own from now
    /// on. What their routers have in their stead keeps them here: senders do not keep it.
    fn move_out(&mut self) {
        let only_here = self.ranks.living().find(|r| r.log().is_only_copy());
        if let Some(rank) = only_here.map(RankEntry::rank) {
            let why = format!("too many messages are on their way to rank {rank}: try again");
            return self.stay(&why);
        }
        if self.reads_input() {
            return self.stay(READS_INPUT);
        }
        let last = |departure: &Departure| {
            let told: Vec<(Rank, ImageId)> =
                departure.images().map_or(Vec::new(), |images| images.told().collect());
            told
        };
        let last = self.handover.departure.as_ref().map_or(Vec::new(), last);
        let is_newest = |(rank, image): &(Rank, ImageId)| {
            self.ranks[*rank].images().newest().is_some_and(|kept| kept.image.image == *image)
        };
        if let Some((rank, _)) = last.iter().find(|last| !is_newest(last)) {
            return self.stay(&format!("the last image of rank {rank} is lost"));
        }
        self.leave_all();
    }

    fn leave_all(&mut self) {
        let now = self.out.now();
        let (Some(own), Some(gateway)) = (self.own(), self.config.gateway_router()) else { return };
        let Some(departure) = &mut self.handover.departure else { return };
        let to = departure.to();
        let numbers = self.ranks.numbers();
        let mut moved = Vec::new();
        let mut kept = Vec::new();
        let all_arrived = self.pmi.arrived();
        for rank in &numbers {
            let arrived = self.pmi.leave(*rank);
            let output = self.output.taken(*rank);
            let node = self.config.gateway.unwrap_or_default();
            let images = self.ranks[*rank].images().iter();
            kept.extend(images.map(|image| {
                let stores: BTreeSet<_> = image.copies.stores().collect();
                (*rank, image.image.image, stores)
            }));
            moved.extend(self.ranks.leave(*rank, node, arrived, output));
            self.roles.set_primary(*rank, gateway);
        }
        departure.move_out(kept, now);
        self.handover.gone_to = Some(to);
        self.pmi.leave_all(own, all_arrived);
        let (mut entries, unknown) = self.domains.unknown_elsewhere();
        entries.extend(self.pmi.take_entries());
        let known = unknown.map_or(all_arrived, |barrier| barrier.saturating_sub(1));
        self.tell(to, DomainSays::Moved { ranks: moved, entries, known });
        // The gateway learns it when nothing is fetched from here any more.
        if let Some(domains) = &mut self.config.domains {
            domains.give(own, to);
        }
        for id in RouterId::first(self.config.routers) {
            let leave = RouterCommand::Leave(numbers.clone());
            self.out.push(Command::Send(ToPeer::Router(id, leave)));
        }
        self.tell_gateway(RouterCommand::ForgetSenders);
        self.out.follows(Consequence::PrimariesChanged);
        self.note(MovePhase::Moved);
    }

    /// The other domain has taken the ranks: it has no more need of images here.
    pub(super) fn were_taken(&mut self) {
        let Some(departure) = &self.handover.departure else { return };
        let Stage::Moved { images } = departure.stage() else { return };
        for (rank, image, stores) in images {
            for store in stores {
                let discard = StoreCommand::Discard { rank: *rank, image: *image };
                self.out.send_store(*store, discard);
            }
        }
        self.tell_gateway_of_domains();
    }

    /// The ranks run in the other domain.
    pub fn run_elsewhere(&mut self, from: DomainId) {
        let is_it = |departure: &mut Departure| departure.is_final() && departure.to() == from;
        if !self.handover.departure.as_mut().is_some_and(is_it) {
            return;
        }
        self.note(MovePhase::Resumed);
        let Some(departure) = self.handover.departure.take() else { return };
        self.tell_gateway_of_stores();
        let request = departure.request();
        if departure.is_followed_by_end() {
            return self.out.follows(Consequence::DomainLeaves { to: from, request });
        }
        if let Some(request) = request {
            self.out.answer(request, Answer::Accepted);
        }
        self.out.follows(Consequence::RanksElsewhere);
    }

    /// Whether this incarnation was ended so that its rank leaves.
    pub fn is_leaving(&self, instance: RankInstance) -> bool {
        self.handover.ranks_stay_fenced() && self.ranks.is_here(instance.rank)
    }
}

/// Why a domain whose rank 0 reads standard input stays.
const READS_INPUT: &str =
    "rank 0 is here and has not read standard input to its end, which cannot go along";
