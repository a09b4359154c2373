//! A domain joins the running job. The domain that shows the job lets it in: it gives it a number,
//! asks all others whether that may be, has it started, and says that it is a part of the job when
//! it has lines to all. Until then it can be left out, which changes nothing for the job. The new
//! one learns from each other one what that has told the others, in the same letters.
//!
//! No ranks go from one domain to another meanwhile: so each domain knows where the ranks are when
//! the new one learns it.

use super::entry::OtherDomain;
use super::handover::Handover;
use super::joining::{Coming, Joining};
use super::{OtherDomains, LINE_TIMEOUT};
use crate::machine::config::Config;
use crate::machine::io::{Command, ToPeer};
use crate::machine::moves::obstacles::cannot_move_now;
use crate::machine::outbox::consequence::Consequence;
use crate::machine::outbox::Outbox;
use crate::machine::pmi::Pmi;
use crate::machine::ranks::Ranks;
use crate::machine::saving::phase::Saving;
use crate::machine::sent_signals::Signals;
use crate::machine::users::answer::{Answer, RequestId};
use crate::record::Record;
use eyrie_interface::request::NewDomain;
use eyrie_router::RouterCommand;
use eyrie_wire::domains::{Domain, DomainSays, Domains, LineKey};
use eyrie_wire::DomainId;
use std::time::Duration;

/// How long a domain that stays out is told so. It ends by itself as well, when it sees that
/// nothing waits for it.
const TOLD_FOR: Duration = Duration::from_secs(10);

/// What changes when a domain joins, and what is asked.
pub struct Newcomers<'a> {
    pub config: &'a mut Config,
    pub out: &'a mut Outbox,
    pub ranks: &'a Ranks,
    pub pmi: &'a Pmi,
    pub saving: &'a Saving,
    pub signals: &'a Signals,
    pub handover: &'a Handover,
    pub domains: &'a mut OtherDomains,
}

impl Newcomers<'_> {
    // The domain that lets another one in.

    /// A user asks for it. `keys`: one in common with each domain, by their numbers.
    pub fn join_asked(&mut self, request: RequestId, new: NewDomain, keys: Vec<LineKey>) {
        if let Some(why) = self.why_not(&new) {
            return self.out.answer(request, Answer::Refused(why));
        }
        let Some((own, id)) = self.next_number() else { return };
        let Some(own_key) = keys.get(own.index()).cloned() else { return };
        let now = self.out.now();
        let members: Vec<DomainId> = self.living().map(|(id, _)| id).collect();
        let NewDomain { name, gateway, .. } = &new;
        for member in &members {
            let Some(key) = keys.get(member.index()).cloned() else { continue };
            let (name, gateway) = (name.clone(), gateway.address.clone());
            self.tell(*member, DomainSays::Joins { id, name, gateway, key });
        }
        let domain = Domain { name: name.clone(), ranks: vec![], gateway: gateway.address.clone() };
        self.add(domain, own_key);
        for signal in self.signals.all() {
            self.tell(id, DomainSays::Signal { signal: *signal });
        }
        let asked = members.into_iter().collect();
        self.domains.joining = Some(Joining::new(request, (id, new), keys, asked, now));
    }

    /// Why a domain cannot join.
    fn why_not(&self, new: &NewDomain) -> Option<String> {
        let Some(domains) = &self.config.domains else {
            return Some(
                "the job runs in one domain only: `eyrie run --domains` starts it over several"
                    .into(),
            );
        };
        if domains.shown_by().is_some() {
            return Some("domains join where `eyrie run` was started: type it there".into());
        }
        if self.domains.succession().has_happened() {
            return Some(
                "the domain of `eyrie run` has left the job: only `eyrie run` starts controllers"
                    .into(),
            );
        }
        if self.domains.succession().is_left() {
            return Some("this domain is about to end".into());
        }
        if let Some((id, other)) = domains.present().find(|(_, other)| other.name == new.name) {
            let is_there = |other: &OtherDomain| !other.is_gone() && other.told_until().is_none();
            let is_there = id == domains.own || self.domains.get(id).is_some_and(is_there);
            let is = if is_there {
                "a part of the job already"
            } else {
                "just ending: try again in some seconds"
            };
            return Some(format!("domain {} is {is}", other.name));
        }
        let same = |(_, other): &(DomainId, &Domain)| other.gateway == new.gateway.address;
        if let Some((_, other)) = domains.present().find(same) {
            return Some(format!(
                "domain {} has the gateway address {} of {}: each has one of its own",
                other.name, other.gateway, new.name
            ));
        }
        let down = self.living().find(|(_, other)| !other.line().up);
        if let Some((_, other)) = down {
            return Some(format!(
                "there is no line to domain {}: try again when there is one",
                other.name()
            ));
        }
        self.cannot_join_now()
    }

    /// Why no domain can join at present, as far as this one knows.
    fn cannot_join_now(&self) -> Option<String> {
        if let Some(why) = cannot_move_now(self.out, self.saving) {
            return Some(why);
        }
        if self.handover.is_busy() {
            return Some("ranks go from one domain to another: try again when they have".into());
        }
        if self.domains.are_to_be_left() {
            return Some("it is about to end: try again when it has".into());
        }
        self.domains.joins_forbid_moves()
    }

    /// A domain says whether another one may join.
    pub fn may_join(&mut self, by: DomainId, id: DomainId, result: Result<(), String>) {
        let Some(joining) = self.domains.joining.as_mut().filter(|joining| joining.id() == id)
        else {
            return;
        };
        match result {
            Ok(()) => joining.agree(by),
            Err(why) => self.leave_out(&format!("domain {}: {why}", self.name(by))),
        }
    }

    /// Goes on as far as what it waits for has come.
    pub fn go_on(&mut self) {
        self.say_ready();
        let now = self.out.now();
        if self.domains.coming.and_then(|coming| coming.until()).is_some_and(|until| until <= now) {
            let waited = eyrie_units::time(LINE_TIMEOUT);
            let cause =
                format!("the domain has not heard for {waited} whether it has joined the job");
            return self.out.end(1, Some(cause));
        }
        let out = self.domains.iter().filter(|(_, other)| other.is_out(now));
        let out: Vec<DomainId> = out.map(|(id, _)| id).collect();
        out.into_iter().for_each(|id| self.remove(id));
        let Some(joining) = &self.domains.joining else { return };
        if self.domains.finished_here.is_some() && self.domains.code().is_some() {
            return self.leave_out("the ranks of all domains have finished");
        }
        if now >= joining.until() {
            let why = match joining.waits_for() {
                Some(other) => format!("domain {} has not answered in time", self.name(other)),
                None => "it has not come in time: does it run there, and do its gateway and those \
                         of the other domains reach each other?"
                    .into(),
            };
            return self.leave_out(&why);
        }
        if joining.is_agreed() {
            if self.handover.is_busy() {
                return self.leave_out("ranks have begun to go from one domain to another");
            }
            self.start();
        }
    }

    /// All know of it, and no ranks go: it is started, and told where they are.
    fn start(&mut self) {
        let now = self.out.now();
        let Some(domains) = &self.config.domains else { return };
        let (all, shows) = (domains.all.clone(), domains.own);
        let present = self.living().map(|(id, _)| id).chain([shows]).collect();
        let Some(joining) = &mut self.domains.joining else { return };
        joining.start(now);
        let domains = joining.domains(all, shows, &present);
        let new = joining.new_domain().clone();
        self.out.push(Command::StartDomain(Box::new((domains, new))));
    }

    /// The domain that joins has a line to each other one.
    pub fn ready(&mut self, by: DomainId) {
        let is_it = |joining: &mut Joining| joining.id() == by && joining.is_starting();
        let Some(joining) = self.domains.joining.take_if(is_it) else { return };
        self.tell_all(DomainSays::Joined { id: by });
        self.become_member(by);
        self.out.answer(joining.request(), Answer::Accepted);
    }

    /// The controller of a domain is gone, and is not brought back.
    pub fn lost(&mut self, id: DomainId, code: i32, cause: String) {
        match self.domains.get(id) {
            // It was not to join.
            None => {}
            Some(other) if other.is_member() => self.out.end(code, Some(cause)),
            Some(other) => {
                // It is named where that is said.
                let named = format!("domain {}: ", other.name());
                self.ended(id, cause.strip_prefix(&named).unwrap_or(&cause));
            }
        }
    }

    /// The domain that joins has ended, or says that the job has: it was no part of that.
    pub fn ended(&mut self, by: DomainId, cause: &str) {
        if self.domains.joining.as_ref().is_some_and(|joining| joining.id() == by) {
            self.leave_out(cause);
        }
    }

    /// Nothing comes of it, since this controller is another one, to which no user listens.
    pub fn resumed(&mut self) {
        self.leave_out("the controller that let it join has died meanwhile");
    }

    /// It is not to be a part of the job: that goes on as if it had not been asked for.
    fn leave_out(&mut self, why: &str) {
        let Some(joining) = self.domains.joining.take() else { return };
        let id = joining.id();
        let until = self.out.now() + TOLD_FOR;
        let Some(other) = self.domains.all.get_mut(&id) else { return };
        other.stay_out(until);
        let domain = other.name().to_string();
        self.tell_all(DomainSays::StaysOut { id, why: why.into() });
        self.out.record(Record::DomainStaysOut { domain: domain.clone(), cause: why.into() });
        let why = format!("domain {domain} has not joined: {why}");
        self.out.answer(joining.request(), Answer::Refused(why));
    }

    // All other domains.

    /// The domain that shows the job lets another one in, under this number.
    pub fn joins(&mut self, by: DomainId, id: DomainId, domain: Domain, key: LineKey) {
        if !self.is_shown_by(by) || self.next_number().is_none_or(|(_, next)| next != id) {
            let why = "it lets a domain join that it may not";
            return self.out.note(self.domains.not_believed(by, why));
        }
        let result = match self.cannot_join_now() {
            Some(why) => {
                // The number is given all the same.
                if let Some(domains) = &mut self.config.domains {
                    domains.add(domain, None);
                }
                Err(why)
            }
            None => {
                self.add(domain, key);
                Ok(())
            }
        };
        self.tell(by, DomainSays::MayJoin { id, result });
    }

    /// A domain is a part of the job from now on.
    pub fn joined(&mut self, by: DomainId, id: DomainId) {
        if !self.is_shown_by(by) {
            return;
        }
        if self.own() == Some(id) {
            self.domains.coming = None;
        } else if self.domains.get(id).is_some_and(|other| !other.is_member()) {
            self.become_member(id);
        }
    }

    /// A domain is not to be a part of the job.
    pub fn stays_out(&mut self, by: DomainId, id: DomainId, why: &str) {
        if !self.is_shown_by(by) {
            return;
        }
        if self.own() == Some(id) && self.domains.coming.is_some() {
            self.out.note(format!("this domain has not joined the job, and ends: {why}"));
            self.out.end(0, None);
        } else if self.domains.get(id).is_some_and(|other| !other.is_member()) {
            self.remove(id);
        }
    }

    /// Says that this domain, which is to join, is ready.
    fn say_ready(&mut self) {
        let is_reached = |(_, other): (DomainId, &OtherDomain)| other.line().up || other.is_gone();
        let shows = self.config.domains.as_ref().and_then(Domains::shown_by);
        let (Some(Coming::Begun), Some(shows)) = (self.domains.coming, shows) else { return };
        if self.domains.iter().all(is_reached) {
            let until = self.out.now() + LINE_TIMEOUT;
            self.domains.coming = Some(Coming::Ready { until });
            self.tell(shows, DomainSays::Ready);
        }
    }

    // What they have in common.

    fn become_member(&mut self, id: DomainId) {
        let Some(other) = self.domains.all.get_mut(&id) else { return };
        other.join();
        let domain = other.name().to_string();
        self.out.record(Record::DomainJoined { domain });
    }

    /// The gateway makes a line to it, and it is told what the others have been told.
    fn add(&mut self, domain: Domain, key: LineKey) {
        let now = self.out.now();
        let Some(domains) = &mut self.config.domains else { return };
        let name = domain.name.clone();
        let id = domains.add(domain, Some(key));
        self.domains.all.insert(id, OtherDomain::joining(name, now));
        self.tell_gateway();
        let own = self.config.domains.as_ref().map(|domains| domains.own().clone());
        let told = own.map(|own| self.pmi.told_so_far(&own)).unwrap_or_default();
        told.into_iter().for_each(|says| self.tell(id, says));
        if self.domains.finished_here.is_some() {
            self.tell(id, DomainSays::Finished { code: self.ranks.code() });
        }
    }

    /// Nothing more is told to it, and it is not reached any more.
    fn remove(&mut self, id: DomainId) {
        if let Some(domains) = &mut self.config.domains {
            domains.end(id);
        }
        self.domains.all.remove(&id);
        self.tell_gateway();
    }

    fn tell_gateway(&mut self) {
        let gateway = self.config.gateway_router();
        if let (Some(gateway), Some(domains)) = (gateway, self.config.domains.clone()) {
            let command = RouterCommand::Domains(domains);
            self.out.push(Command::Send(ToPeer::Router(gateway, command)));
        }
    }

    /// This domain, and the number of the next one.
    fn next_number(&self) -> Option<(DomainId, DomainId)> {
        let domains = self.config.domains.as_ref()?;
        Some((domains.own, DomainId(domains.all.len() as u32)))
    }

    fn own(&self) -> Option<DomainId> {
        self.config.domains.as_ref().map(|domains| domains.own)
    }

    fn is_shown_by(&self, by: DomainId) -> bool {
        self.config.domains.as_ref().and_then(Domains::shown_by) == Some(by)
    }

    /// The parts of the job that have not ended.
    fn living(&self) -> impl Iterator<Item = (DomainId, &OtherDomain)> {
        self.domains.members().filter(|(_, other)| !other.is_gone())
    }

    fn name(&self, id: DomainId) -> &str {
        self.domains.get(id).map_or("", OtherDomain::name)
    }

    fn tell(&mut self, to: DomainId, says: DomainSays) {
        self.out.follows(Consequence::Tell { to: Some(to), says: Box::new(says) });
    }

    fn tell_all(&mut self, says: DomainSays) {
        self.out.follows(Consequence::Tell { to: None, says: Box::new(says) });
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{end, told, Job, B, GATEWAY};
    use super::*;
    use crate::machine::{said, Event};
    use eyrie_interface::request::NewGateway;
    use eyrie_interface::Way;
    use eyrie_router::RouterEvent;
    use eyrie_wire::domains::Letter;

    const C: DomainId = DomainId(2);

    fn new() -> NewDomain {
        let gateway = NewGateway { host: "gw".into(), address: "c:7411".into(), port: 7411 };
        let (hosts, spares, launcher, via) = Default::default();
        NewDomain { name: "c".into(), hosts, spares, launcher, gateway, via }
    }

    fn ask(job: &mut Job, request: RequestId) -> Vec<Command> {
        let keys = job.trial.machine.domains().map_or(0, |domains| domains.all.len());
        let keys = (0..keys).map(|_| LineKey::new()).collect();
        job.trial.handle(Event::JoinDomain { request, new: new(), keys })
    }

    fn answer(commands: &[Command]) -> Option<Answer> {
        commands.iter().find_map(|command| match command {
            Command::Answer { answer, .. } => Some(answer.clone()),
            _ => None,
        })
    }

    fn refused(commands: &[Command], why: &str) {
        let Some(Answer::Refused(text)) = answer(commands) else { panic!("{commands:?}") };
        assert!(text.contains(why), "{text}");
    }

    fn started(commands: &[Command]) -> Option<&Domains> {
        commands.iter().find_map(|command| match command {
            Command::StartDomain(start) => Some(&start.0),
            _ => None,
        })
    }

    fn may_join(id: DomainId, result: Result<(), String>) -> DomainSays {
        DomainSays::MayJoin { id, result }
    }

    /// The gateway says this of the domain that joins.
    fn of_c(job: &mut Job, event: RouterEvent) -> Vec<Command> {
        job.trial.handle(said::router(GATEWAY, event))
    }

    fn c_says(job: &mut Job, number: u64, says: DomainSays) -> Vec<Command> {
        let letter = Letter { number, heard: 0, says: Some(says) };
        of_c(job, RouterEvent::FromDomain { domain: C, letter })
    }

    #[test]
    fn it_joins_when_all_others_know_it_and_it_reaches_them() {
        let mut job = Job::new();
        job.runs();
        let asked = ask(&mut job, 7);
        let [DomainSays::Joins { id: C, name, gateway, key }] = &told(&asked)[..] else {
            panic!("{asked:?}")
        };
        assert_eq!((name.as_str(), gateway.as_str()), ("c", "c:7411"));
        refused(&ask(&mut job, 8), "domain c is a part of the job already");
        let agreed = job.says(1, may_join(C, Ok(())));
        let domains = started(&agreed).expect("it starts");
        assert_eq!((domains.own, domains.shows), (C, DomainId(0)));
        assert_eq!((domains.key(B), domains.key(C)), (Some(key), None));
        assert!(domains.key(DomainId(0)).is_some());
        of_c(&mut job, RouterEvent::Line { domain: C, up: true });
        let ready = c_says(&mut job, 1, DomainSays::Ready);
        assert_eq!(told(&ready), [DomainSays::Joined { id: C }]);
        assert_eq!(answer(&ready), Some(Answer::Accepted));
        // It is waited for in the end from now on.
        job.finish(0);
        job.confirms(3);
        assert_eq!(end(&job.says(3, DomainSays::Finished { code: 0 })), None);
    }

    #[test]
    fn one_that_may_not_join_stays_out_and_its_number_is_not_given_again() {
        let mut job = Job::new();
        job.runs();
        ask(&mut job, 7);
        let not = job.says(1, may_join(C, Err("ranks go".into())));
        let why = "domain b: ranks go".to_string();
        assert_eq!(told(&not), [DomainSays::StaysOut { id: C, why }]);
        refused(&not, "domain c has not joined: domain b: ranks go");
        assert!(job.trial.machine.other_domains().all(|(id, ..)| id != C));
        let again = told(&ask(&mut job, 8));
        assert!(matches!(again[..], [DomainSays::Joins { id: DomainId(3), .. }]), "{again:?}");
        // Who does not answer is not waited for.
        assert_eq!(job.pass(Duration::from_secs(59)), None);
        assert!(job.trial.machine.other_domains().any(|(id, ..)| id == DomainId(3)));
        assert_eq!(job.pass(Duration::from_secs(20)), None);
        assert!(job.trial.machine.other_domains().all(|(id, ..)| id == B));
    }

    #[test]
    fn its_end_before_it_has_joined_is_not_that_of_the_job() {
        for by_letter in [true, false] {
            let mut job = Job::new();
            job.runs();
            ask(&mut job, 7);
            job.says(1, may_join(C, Ok(())));
            of_c(&mut job, RouterEvent::Line { domain: C, up: true });
            let cause = "no node is left".to_string();
            let ended = if by_letter {
                c_says(&mut job, 1, DomainSays::Ended { code: 3, cause, domain: C })
            } else {
                job.trial.handle(Event::DomainLost { domain: C, code: 3, cause })
            };
            refused(&ended, "domain c has not joined: no node is left");
            assert_eq!((end(&ended), job.trial.machine.has_ended()), (None, false));
            assert_eq!(job.pass(Duration::from_secs(20)), None, "it is told, and then forgotten");
            assert!(job.trial.machine.other_domains().all(|(id, ..)| id == B));
        }
    }

    #[test]
    fn another_controller_lets_none_in_that_was_on_its_way() {
        let mut job = Job::new();
        job.runs();
        ask(&mut job, 7);
        job.says(1, may_join(C, Ok(())));
        let resumed = told(&job.trial.handle(Event::Resumed));
        assert!(resumed.iter().any(|says| matches!(says, DomainSays::StaysOut { id: C, .. })));
        assert!(job.trial.machine.other_domains().all(|(id, ..)| id == B));
    }

    #[test]
    fn one_that_does_not_hear_whether_it_has_joined_ends() {
        for hears in [true, false] {
            let mut config = Config { joins: true, ..Config::of_domain(3) };
            config.domains.iter_mut().for_each(|domains| domains.shows = B);
            let mut job = Job::without_line(config);
            job.runs();
            assert!(told(&job.line(true)).contains(&DomainSays::Ready));
            if hears {
                job.says(1, DomainSays::Joined { id: DomainId(0) });
            }
            assert_eq!(job.pass(LINE_TIMEOUT / 2), None);
            assert_eq!(job.pass(LINE_TIMEOUT), (!hears).then_some(1));
        }
    }

    #[test]
    fn ranks_do_not_leave_while_a_domain_joins_nor_the_other_way_round() {
        let migrate = |to: &str| {
            let to = Some(to.to_string());
            Event::MigrateDomain { request: 9, to, way: Way::Live, leave: false }
        };
        let joins = |id| {
            let (name, gateway) = ("c".to_string(), "c:7411".to_string());
            DomainSays::Joins { id, name, gateway, key: LineKey::new() }
        };
        let mut job = Job::shown_by_b();
        job.runs();
        assert!(told(&job.says(0, joins(C))).contains(&may_join(C, Ok(()))));
        refused(&job.trial.handle(migrate("b")), "domain c is just joining");
        let why = "it has ended".into();
        job.says(1, DomainSays::StaysOut { id: C, why });
        assert!(job.trial.machine.other_domains().all(|(id, ..)| id == B));
        job.trial.handle(migrate("b"));
        let refusal = told(&job.says(1, joins(DomainId(3))));
        let is_refused = |says: &DomainSays| matches!(says, DomainSays::MayJoin { id: DomainId(3), result: Err(why) } if why.contains("ranks go"));
        assert!(refusal.iter().any(is_refused), "{refusal:?}");
        // A number that is not the next one is not given.
        let told = format!("{:?}", job.says(1, joins(DomainId(9))));
        assert!(told.contains("domain b is not believed"), "{told}");
    }
}
