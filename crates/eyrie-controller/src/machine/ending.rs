//! How ranks, and with them the job, come to their end.

use super::io::Command;
use super::rank::{Death, Step};
use super::reactor::Machine;
use super::signal;
use crate::record::Record;
use eyrie_wire::control::{is_to_end, Ending, MpiStage};
use eyrie_wire::{Rank, RankInstance};

/// What is told of a program that has ended without a word of PMI.
const WITHOUT_MPI: &str = "the program ended without MPI_Init: nothing of it was protected. If it has \
     computed, its MPI library does not start under Eyrie: use MPICH 4.3 or newer, Intel MPI or Open MPI 5";

impl Machine {
    /// The job is over, for this cause if it is no good end.
    pub(super) fn end(&mut self, code: i32, cause: Option<String>) {
        if self.ended {
            return;
        }
        self.ended = true;
        let cause = cause.map(|cause| cause + &self.who_is_silent());
        self.miss_all_faults();
        let summary = self.summary();
        self.record(Record::JobEnded { code, cause, summary });
        self.commands.push(Command::End { code });
    }

    pub(super) fn exited(&mut self, instance: RankInstance, ending: Ending, stage: MpiStage) {
        if self.current(instance).is_none() {
            return;
        }
        let rank = instance.rank;
        if stage != MpiStage::Before {
            self.spoke_pmi(rank);
        }
        let spoke_pmi = self.ranks[rank as usize].spoke_pmi;
        match ending {
            Ending::Signal(signal) if self.was_sent(signal) => self.end_by_signal(signal),
            Ending::Signal(signal) => {
                let cause = format!("killed by {}", signal::in_words(signal));
                self.fail(rank, Death::Signal(signal), cause, None);
            }
            Ending::Code(code) if !spoke_pmi || stage == MpiStage::After => {
                self.finished(rank, code);
            }
            Ending::Code(code) => {
                let text = format!(
                    "rank {rank} ended with code {code} without MPI_Finalize: the job ends"
                );
                self.end(code.max(1), Some(text));
            }
        }
    }

    /// All ranks get a signal that `eyrie run` was sent, those that come back as well.
    pub(super) fn send_signal(&mut self, signal: u8) {
        if self.ended {
            return;
        }
        let n = self.signals.len() as u64;
        self.signals.push(signal);
        if is_to_end(signal.into()) {
            let words = signal::in_words(signal.into());
            self.note(format!(
                "all ranks get {words}; the job ends when they do, and by another one at once"
            ));
        }
        self.commands.push(Command::Signal { n, signal });
    }

    /// The signals that were sent to all ranks.
    pub fn signals(&self) -> &[u8] {
        &self.signals
    }

    /// Whether ranks were sent a signal that is to end them.
    pub fn is_told_to_end(&self) -> bool {
        self.signals.iter().any(|signal| is_to_end((*signal).into()))
    }

    pub(super) fn was_sent(&self, signal: i32) -> bool {
        self.signals.iter().any(|sent| i32::from(*sent) == signal)
    }

    /// A rank has died of a signal that all were sent: that is no failure.
    pub(super) fn end_by_signal(&mut self, signal: i32) {
        self.end(128 + signal, Some(format!("ended by {}", signal::in_words(signal))));
    }

    /// Some incarnation of the rank has spoken PMI.
    pub(super) fn spoke_pmi(&mut self, rank: Rank) {
        let before = std::mem::replace(&mut self.ranks[rank as usize].spoke_pmi, true);
        self.counts.spoke_pmi += u32::from(!before);
    }

    /// The rank's program has ended by itself; whatever was under way with it is over too.
    fn finished(&mut self, rank: Rank, code: i32) {
        if !self.ranks[rank as usize].advance(Step::Exited { code }) {
            return;
        }
        self.notes.overdue.remove(&rank);
        self.counts.finished += 1;
        self.counts.finished_silent += u32::from(!self.ranks[rank as usize].spoke_pmi);
        self.record(Record::RankFinished { rank, code });
        self.end_move(rank, None);
        if self.end_if_somebody_never_joined() {
            return;
        }
        if self.counts.finished == self.config.ranks {
            let code = self.code();
            self.end(code, None);
        }
    }

    /// The job's exit code as mpiexec makes it: every bit that any rank has set.
    fn code(&self) -> i32 {
        self.ranks.iter().filter_map(|r| r.code()).fold(0, |code, of_rank| code | of_rank)
    }

    /// Ends the job when a rank has ended without a word of PMI, and all have, or others speak it:
    /// these would wait for that rank for ever. Returns whether it did.
    pub(super) fn end_if_somebody_never_joined(&mut self) -> bool {
        if self.counts.finished_silent == 0 {
            return false;
        }
        let never_joined = self.ranks.iter().find(|r| r.code().is_some() && !r.spoke_pmi);
        let Some((rank, code)) = never_joined.and_then(|r| Some((r.rank, r.code()?))) else {
            return false;
        };
        let text = if self.counts.spoke_pmi > 0 {
            format!(
                "rank {rank} ended with code {code} without MPI_Init, and the others would wait for it: the job ends"
            )
        } else if self.counts.finished == self.config.ranks {
            // As with mpiexec: `./solver --version` is no failure.
            self.note(WITHOUT_MPI.into());
            self.end(self.code(), None);
            return true;
        } else {
            return false;
        };
        self.end(self.code().max(1), Some(text));
        true
    }

    /// A rank's MPI library does not come through our provider.
    pub(super) fn end_for_library(&mut self, library: &str, remedy: &str) {
        let library = named(library);
        let text = format!(
            "{library} does not use Eyrie's libfabric provider, so that the job would run unprotected: {remedy}"
        );
        self.end(1, Some(text));
    }

    /// A rank's MPI library has not asked which rank of how many it is.
    pub(super) fn end_for_lonely_ranks(&mut self, library: &str, remedy: &str) {
        let library = named(library);
        let text = format!(
            "{library} did not ask through PMI-1 which rank of how many it is: each process would compute alone, \
             as rank 0 of 1; {remedy}"
        );
        self.end(1, Some(text));
    }
}

fn named(library: &str) -> &str {
    match library {
        "" => "the program's MPI library",
        known => known,
    }
}
