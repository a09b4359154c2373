//! What users ask for: failures to be made, checkpoints, and what a rank did last.

use super::answer::{Answer, RequestId};
use crate::inject::Injection;
use crate::machine::faults::pending::Faults;
use crate::machine::images::schedule::Schedule;
use crate::machine::nodes::Nodes;
use crate::machine::outbox::Outbox;
use crate::machine::ranks::Ranks;
use crate::machine::timeouts::IMAGE_TIMEOUT;
use eyrie_wire::control::ToAgent;
use eyrie_wire::Rank;
use std::collections::BTreeSet;

pub struct Asked<'a> {
    pub out: &'a mut Outbox,
    pub nodes: &'a Nodes,
    pub ranks: &'a Ranks,
    pub schedule: &'a mut Schedule,
    pub faults: &'a mut Faults,
}

impl Asked<'_> {
    /// A user asks for a failure.
    pub fn injection_asked(&mut self, request: RequestId, injection: Injection) {
        let nodes = self.nodes.len() as u32;
        let answer = match injection.check(self.ranks.len() as u32, nodes) {
            Ok(()) => {
                self.faults.add(&injection, self.out.now());
                Answer::Accepted
            }
            Err(text) => Answer::Refused(text),
        };
        self.out.answer(request, answer);
    }

    /// A user asks for what a rank did last.
    pub fn trace_asked(&mut self, request: RequestId, rank: Rank) {
        let refused = match self.ranks.get(rank) {
            Some(r) if r.on_node().is_some() => {
                let node = r.node();
                let instance = r.instance();
                let trace = ToAgent::Trace { request, instance };
                return self.out.send_agent(node, trace);
            }
            Some(r) if r.is_elsewhere() => self.ranks.is_of_another_domain(rank),
            Some(_) => format!("rank {rank} does not run now: it has finished, or is recovering"),
            None => self.ranks.no_such(rank),
        };
        self.out.answer(request, Answer::Refused(refused));
    }

    /// A user asks for checkpoints of one rank or all; they are answered when they are stored.
    pub fn checkpoint_asked(&mut self, request: RequestId, rank: Option<Rank>) {
        if let Err(text) = self.checkpoint_of_users(request, rank) {
            self.out.answer(request, Answer::Refused(text));
        }
        self.out.answer_requests();
    }

    fn checkpoint_of_users(
        &mut self,
        request: RequestId,
        rank: Option<Rank>,
    ) -> Result<(), String> {
        if let Some(rank) = rank {
            match self.ranks.get(rank) {
                None => return Err(self.ranks.no_such(rank)),
                Some(r) if r.is_elsewhere() => return Err(self.ranks.is_of_another_domain(rank)),
                Some(r) if !r.is_living() => return Err(format!("rank {rank} has finished")),
                Some(_) => {}
            }
        }
        let is_wanted = |other: &Rank| rank.is_none_or(|one| one == *other);
        let wanted: Vec<Rank> = self.ranks.unfinished().filter(is_wanted).collect();
        let now = self.out.now();
        self.out.requests_mut().add(request, wanted.iter().copied(), now)?;
        wanted.iter().for_each(|rank| self.schedule.want(*rank, now));
        Ok(())
    }

    /// Users wait for images of these ranks, and none could be begun.
    pub fn give_up(&mut self, late: Vec<(Rank, String)>) {
        let now = self.out.now();
        let waited = eyrie_units::time(IMAGE_TIMEOUT);
        for (rank, why) in late {
            let why = format!("none could be begun for {waited}: {why}");
            self.out.requests_mut().give_up(rank, &why, now, IMAGE_TIMEOUT);
        }
        self.out.answer_requests();
    }
}

/// The ranks of which no image could be begun for too long, though users wait for them.
pub fn not_begun(out: &Outbox) -> BTreeSet<Rank> {
    out.requests().not_begun(out.now(), IMAGE_TIMEOUT)
}
