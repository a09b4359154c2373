//! What users ask for: failures to be made, and checkpoints.

use super::answer::{Answer, RequestId};
use super::io::Command;
use super::rank::RankEntry;
use super::reactor::Machine;
use super::state::RankStateName;
use super::timeouts::IMAGE_TIMEOUT;
use crate::inject::Injection;
use eyrie_wire::{Node, Rank};

impl Machine {
    /// A user asks for a failure.
    pub(super) fn injection_asked(&mut self, request: RequestId, injection: Injection) {
        let nodes = self.nodes.len() as Node;
        let answer = match injection.check(self.config.ranks, nodes) {
            Ok(()) => {
                self.faults.add(&injection, self.now);
                Answer::Accepted
            }
            Err(text) => Answer::Refused(text),
        };
        self.answer(request, answer);
    }

    pub(super) fn answer(&mut self, request: RequestId, answer: Answer) {
        self.commands.push(Command::Answer { request, answer });
    }

    /// Says why something is not done: to the user who has asked, or, when it was a signal or the
    /// like, to everybody.
    pub(super) fn refuse(&mut self, request: Option<RequestId>, why: String) {
        match request {
            Some(request) => self.answer(request, Answer::Refused(why)),
            None => self.note(why),
        }
    }

    /// A user asks for what a rank did last.
    pub(super) fn trace_asked(&mut self, request: RequestId, rank: Rank) {
        let refused = match self.ranks.get(rank as usize) {
            Some(r) if r.on_node().is_some() => {
                let (node, instance) = (r.node, r.instance());
                return self.commands.push(Command::Trace { node, request, instance });
            }
            Some(_) => format!("rank {rank} does not run now: it has finished, or is recovering"),
            None => self.no_such_rank(rank),
        };
        self.answer(request, Answer::Refused(refused));
    }

    pub(super) fn no_such_rank(&self, rank: Rank) -> String {
        format!("there is no rank {rank}: the job has ranks 0 to {}", self.ranks.len() - 1)
    }

    /// A user asks for checkpoints of one rank or all; they are answered when they are stored.
    pub(super) fn checkpoint_asked(&mut self, request: RequestId, rank: Option<Rank>) {
        if let Err(text) = self.checkpoint_of_users(request, rank) {
            self.answer(request, Answer::Refused(text));
        }
        self.commands.extend(self.requests.take_answers());
    }

    fn checkpoint_of_users(
        &mut self,
        request: RequestId,
        rank: Option<Rank>,
    ) -> Result<(), String> {
        let finished = |r: &RankEntry| r.is(RankStateName::Finished);
        if let Some(rank) = rank {
            match self.ranks.get(rank as usize) {
                None => return Err(self.no_such_rank(rank)),
                Some(r) if finished(r) => return Err(format!("rank {rank} has finished")),
                Some(_) => {}
            }
        }
        let wanted: Vec<Rank> = (self.ranks.iter())
            .filter(|r| !finished(r) && rank.is_none_or(|one| one == r.rank))
            .map(|r| r.rank)
            .collect();
        self.requests.add(request, wanted.iter().copied(), self.now)?;
        wanted.iter().for_each(|rank| self.schedule.want(*rank, self.now));
        Ok(())
    }

    /// Answers users who wait for images that cannot be begun.
    pub(super) fn watch_requests(&mut self) {
        let (now, waited) = (self.now, eyrie_units::time(IMAGE_TIMEOUT));
        for rank in self.requests.not_begun(now, IMAGE_TIMEOUT) {
            let why = format!("none could be begun for {waited}: {}", self.why_no_image(rank));
            self.requests.give_up(rank, &why, now, IMAGE_TIMEOUT);
        }
        self.commands.extend(self.requests.take_answers());
    }
}
