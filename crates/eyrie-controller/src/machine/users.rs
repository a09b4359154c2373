//! What users ask for: failures to be made, and checkpoints.

use super::answer::{Answer, RequestId};
use super::io::Command;
use super::rank::RankEntry;
use super::reactor::Machine;
use super::state::RankStateName;
use crate::inject::Injection;
use eyrie_wire::Rank;

impl Machine {
    /// A user asks for a failure.
    pub(super) fn injection_asked(&mut self, request: RequestId, injection: Injection) {
        let nodes = self.config.nodes + self.config.spares;
        let answer = match injection.check(self.config.ranks, nodes) {
            Ok(()) => {
                self.faults.add(&injection, self.now);
                Answer::Accepted
            }
            Err(text) => Answer::Refused(text),
        };
        self.commands.push(Command::Answer { request, answer });
    }

    /// A user asks for checkpoints of one rank or all; they are answered when they are stored.
    pub(super) fn checkpoint_asked(&mut self, request: RequestId, rank: Option<Rank>) {
        if let Err(text) = self.checkpoint_of_users(request, rank) {
            let answer = Answer::Refused(text);
            self.commands.push(Command::Answer { request, answer });
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
                None => {
                    let last = self.ranks.len() - 1;
                    return Err(format!("there is no rank {rank}: the job has ranks 0 to {last}"));
                }
                Some(r) if finished(r) => return Err(format!("rank {rank} has finished")),
                Some(_) => {}
            }
        }
        let wanted: Vec<Rank> = (self.ranks.iter())
            .filter(|r| !finished(r) && rank.is_none_or(|one| one == r.rank))
            .map(|r| r.rank)
            .collect();
        self.requests.add(request, wanted.iter().copied())?;
        wanted.iter().for_each(|rank| self.schedule.want(*rank, self.now));
        Ok(())
    }
}
