//! Saving a job, so that it can be gone on with when all of its hosts are gone: an image of each
//! rank, which is copied to the archive where stores are on nodes ([`super::archive`]); then all
//! ranks are fenced as if they had died, then the routers save what they hold. What cannot be saved
//! goes on: its ranks come back as after a death. Nothing of a saved job may run on.

use super::answer::{Answer, RequestId};
use super::checkpoint::RETRY;
use super::io::{Command, Mark};
use super::rank::{Death, RankState};
use super::reactor::Machine;
use super::saving::{Phase, Saving};
use super::state::RankStateName;
use crate::record::Record;
use eyrie_transport::RouterId;
use eyrie_wire::Rank;
use std::collections::BTreeSet;
use std::time::Duration;

/// Exit code of a job that was saved: sysexits' EX_TEMPFAIL, try again.
pub const SAVED_CODE: i32 = 75;
/// How long ranks may take that cannot be imaged just now: then an older image and the log must do.
const IMAGES_TIMEOUT: Duration = Duration::from_secs(30);
/// How long routers, and who writes the rest, may take.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(1800);

impl Machine {
    /// Whether the job is being saved.
    pub fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// Whether ranks that are fenced stay so, because the job is being saved.
    pub(super) fn ranks_stay_fenced(&self) -> bool {
        let runs = |phase: &Phase| matches!(phase, Phase::Images { .. } | Phase::Copies { .. });
        self.saving.as_ref().is_some_and(|saving| !runs(&saving.phase))
    }

    /// The job is to be saved.
    pub(super) fn save_asked(&mut self, request: Option<RequestId>) {
        let refused = match (self.config.can_be_saved, self.started) {
            (false, _) if self.config.archive => {
                "it cannot be saved: the host of its controller does not have its --images directory"
            }
            (false, _) => "it cannot be saved: it was not started with --images",
            (true, false) => "it is just starting: it can be saved when its ranks run",
            (true, true) => "",
        };
        if !refused.is_empty() {
            return self.refuse(request, refused.into());
        }
        if let Some(saving) = &mut self.saving {
            return saving.users.extend(request);
        }
        let now = self.now;
        let waiting: BTreeSet<Rank> = self.unfinished().collect();
        waiting.iter().for_each(|rank| self.schedule.want(*rank, now));
        let phase = Phase::Images { waiting, until: now + IMAGES_TIMEOUT };
        self.saving = Some(Saving { since: now, phase, users: request.into_iter().collect() });
        self.record(Record::Saving);
    }

    /// Whether no more images are begun for saving the job.
    pub(super) fn imaging_is_over(&self) -> bool {
        let phase = self.saving.as_ref().map(|saving| &saving.phase);
        matches!(phase, Some(Phase::Images { until, .. }) if self.now >= *until)
    }

    pub(super) fn unfinished(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranks.iter().filter(|r| !r.is(RankStateName::Finished)).map(|r| r.rank)
    }

    /// An image of the rank counts that was asked for then.
    pub(super) fn imaged_for_saving(&mut self, rank: Rank, asked: Duration) {
        let Some(Saving { since, phase: Phase::Images { waiting, .. }, .. }) = &mut self.saving
        else {
            return;
        };
        if asked >= *since {
            waiting.remove(&rank);
        }
    }

    /// The rank could not be imaged. `passing`: for a reason that passes; else its older image must
    /// do.
    pub(super) fn not_imaged_for_saving(&mut self, rank: Rank, passing: bool) {
        let now = self.now;
        if let Some(Saving { phase: Phase::Images { waiting, .. }, .. }) = &mut self.saving {
            match passing {
                true => self.schedule.retry(rank, now + RETRY),
                false => drop(waiting.remove(&rank)),
            }
        }
    }

    /// Goes on with saving, as far as what it waits for has come.
    pub(super) fn go_on_saving(&mut self) {
        let now = self.now;
        let Some(saving) = &self.saving else { return };
        match &saving.phase {
            Phase::Images { waiting, until } => {
                let here = |rank: &Rank| &self.ranks[*rank as usize];
                let mut open = waiting.iter().filter(|r| !here(r).is(RankStateName::Finished));
                let over = match now >= *until {
                    true => !open.any(|rank| here(rank).capture().is_some()),
                    false => open.next().is_none(),
                };
                if over && self.config.archive {
                    self.begin_to_archive();
                } else if over {
                    self.stop_ranks();
                }
            }
            Phase::Copies { .. } => self.go_on_archiving(),
            Phase::Fences { waiting } => {
                if waiting.is_empty() {
                    let waiting = (0..self.config.routers).collect();
                    self.set_phase(Phase::Routers {
                        waiting,
                        bytes: 0,
                        until: now + WRITE_TIMEOUT,
                    });
                    self.commands.push(Command::SaveRouters);
                }
            }
            Phase::Routers { until, .. } | Phase::Rest { until, .. } => {
                if now >= *until {
                    let waited = eyrie_units::time(WRITE_TIMEOUT);
                    self.give_up_saving(&format!("it is not written after {waited}"));
                }
            }
        }
    }

    pub(super) fn set_phase(&mut self, phase: Phase) {
        if let Some(saving) = &mut self.saving {
            saving.phase = phase;
        }
    }

    /// A rank that could not come back from what is kept of it, and why.
    fn no_way_back(&self) -> Option<String> {
        self.unfinished().find_map(|rank| {
            let r = &self.ranks[rank as usize];
            let why = r.way_back().err()?;
            let refused = r.refused.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
            Some(format!("rank {rank} could not come back: {why}{refused}"))
        })
    }

    /// No rank has to be imaged any more: they are fenced, as if they had died.
    pub(super) fn stop_ranks(&mut self) {
        if let Some(why) = self.no_way_back() {
            return self.give_up_saving(&why);
        }
        let all: Vec<Rank> = self.unfinished().collect();
        let waiting = all.iter().copied().filter(|rank| !self.is_fenced(*rank)).collect();
        self.set_phase(Phase::Fences { waiting });
        all.into_iter().for_each(|rank| self.stop_rank(rank));
    }

    /// The rank is stopped as if it had died: no older incarnation of it speaks any more. Nothing
    /// happens while it is being fenced.
    pub(super) fn stop_rank(&mut self, rank: Rank) {
        let node = self.ranks[rank as usize].node;
        let Some((instance, capture)) = self.replace(rank, Death::Outside, None) else { return };
        self.commands.push(Command::Kill { node, instance });
        self.drop_capture(rank, capture, "the rank was stopped meanwhile");
        self.commands.push(Command::Fence(self.ranks[rank as usize].instance()));
    }

    /// Every router refuses older incarnations of the rank.
    pub(super) fn fenced_for_saving(&mut self, rank: Rank) {
        if let Some(Saving { phase: Phase::Fences { waiting }, .. }) = &mut self.saving {
            waiting.remove(&rank);
        }
    }

    fn is_fenced(&self, rank: Rank) -> bool {
        let state = &self.ranks[rank as usize].state;
        matches!(state, RankState::Lost { fence, .. } if fence.waiting.is_empty())
    }

    pub(super) fn router_saved(&mut self, router: RouterId, saved: Result<u64, String>) {
        let until = self.now + WRITE_TIMEOUT;
        let Some(Saving { phase: Phase::Routers { waiting, bytes, .. }, .. }) = &mut self.saving
        else {
            return;
        };
        match saved {
            Err(why) => self.give_up_saving(&format!("router {router}: {why}")),
            Ok(more) => {
                waiting.remove(&router);
                *bytes += more;
                let (whole, bytes) = (waiting.is_empty(), *bytes);
                if whole {
                    // Images may have been lost with their store meanwhile.
                    if let Some(why) = self.no_way_back() {
                        return self.give_up_saving(&why);
                    }
                    self.set_phase(Phase::Rest { bytes, until });
                    self.commands.push(Command::SaveJob);
                }
            }
        }
    }

    pub(super) fn job_saved(&mut self, saved: Result<String, String>) {
        let Some(Saving { phase: Phase::Rest { bytes, .. }, .. }) = &self.saving else { return };
        let bytes = *bytes;
        match saved {
            Err(why) => self.give_up_saving(&why),
            Ok(dir) => {
                let users = self.saving.take().map(|saving| saving.users);
                let cause = format!("it is saved: `eyrie run --resume-from {dir}` goes on with it");
                self.record(Record::Saved { dir, bytes });
                for request in users.into_iter().flatten() {
                    self.answer(request, Answer::Accepted);
                }
                self.end(SAVED_CODE, Some(cause));
            }
        }
    }

    /// The job cannot be saved, and goes on.
    pub(super) fn give_up_saving(&mut self, why: &str) {
        let Some(saving) = self.saving.take() else { return };
        let text = format!("the job could not be saved, and goes on: {why}");
        for request in saving.users {
            self.answer(request, Answer::Refused(text.clone()));
        }
        self.record(Record::Note { text });
        for rank in 0..self.ranks.len() as Rank {
            if self.is_fenced(rank) && !self.ended {
                self.bring_back(self.ranks[rank as usize].instance(), Mark::default());
            }
        }
    }
}
