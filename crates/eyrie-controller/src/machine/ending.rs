//! How ranks, and with them the job, come to their end.

use super::outbox::consequence::Consequence;
use super::outbox::Outbox;
use super::ranks::phases::Death;
use super::ranks::Ranks;
use super::sent_signals::Signals;
use super::signal_names;
use crate::record::Record;
use eyrie_wire::control::{Ending, MpiStage};
use eyrie_wire::{Rank, RankInstance};

/// What is said of a program that has ended without having spoken PMI.
const WITHOUT_MPI: &str = "the program ended without MPI_Init: nothing of it was protected. If it has \
     computed, its MPI library does not start under Eyrie: use MPICH 4.3 or newer, Intel MPI or Open MPI 5";

pub struct EndOfRanks<'a> {
    pub out: &'a mut Outbox,
    pub ranks: &'a mut Ranks,
    pub signals: &'a Signals,
}

impl EndOfRanks<'_> {
    /// The process of a rank has ended.
    pub fn exited(&mut self, instance: RankInstance, ending: Ending, stage: MpiStage) {
        if self.ranks.current(instance).is_none() {
            return;
        }
        let rank = instance.rank;
        if stage != MpiStage::Before {
            self.ranks.spoke_pmi(rank);
        }
        let spoke_pmi = self.ranks[rank].has_spoken_pmi();
        match ending {
            Ending::Signal(signal) if self.signals.has_sent(signal) => self.end_by_signal(signal),
            Ending::Signal(signal) => {
                let cause = format!("killed by {}", signal_names::in_words(signal));
                let death = Death::Signal(signal);
                let unheard = None;
                self.out.follows(Consequence::RankLost { rank, death, cause, unheard });
            }
            Ending::Code(code) if !spoke_pmi || stage == MpiStage::After => {
                self.finished(rank, code);
            }
            Ending::Code(code) => {
                let text = format!(
                    "rank {rank} ended with code {code} without MPI_Finalize: the job ends"
                );
                self.out.end(code.max(1), Some(text));
            }
        }
    }

    /// A rank has died of a signal that all were sent: that is no failure.
    fn end_by_signal(&mut self, signal: i32) {
        self.out.end(128 + signal, Some(format!("ended by {}", signal_names::in_words(signal))));
    }

    /// The rank's program has ended by itself; whatever was under way with it is over too.
    fn finished(&mut self, rank: Rank, code: i32) {
        if self.ranks.finish(rank, code) {
            self.out.record(Record::RankFinished { rank, code });
            self.out.follows(Consequence::RankFinished(rank));
        }
    }

    /// Ends the job when all programs have ended: those of other domains, too.
    pub fn end_if_all_have(&mut self) {
        if !self.end_if_one_never_joined() && self.ranks.have_all_finished() {
            self.out.follows(Consequence::AllFinished);
        }
    }

    /// Ends the job when a rank has ended without having spoken PMI, and all have, or others speak
    /// it: these would wait for that rank for ever. Returns whether it did.
    pub fn end_if_one_never_joined(&mut self) -> bool {
        if self.ranks.counts().finished_silent == 0 {
            return false;
        }
        let never_joined = self.ranks.iter().find(|r| r.code().is_some() && !r.has_spoken_pmi());
        let Some((rank, code)) = never_joined.and_then(|r| Some((r.rank(), r.code()?))) else {
            return false;
        };
        let text = if self.ranks.counts().spoke_pmi > 0 {
            format!(
                "rank {rank} ended with code {code} without MPI_Init, and the others would wait for it: the job ends"
            )
        } else if self.ranks.have_all_finished() {
            // As with mpiexec: `./solver --version` is no failure.
            self.out.note(WITHOUT_MPI.into());
            self.out.follows(Consequence::AllFinished);
            return true;
        } else {
            return false;
        };
        self.out.end(self.ranks.code().max(1), Some(text));
        true
    }

    /// A rank's MPI library does not come through our provider.
    pub fn end_for_library(&mut self, library: &str, remedy: &str) {
        let library = named(library);
        let text = format!(
            "{library} does not use Eyrie's libfabric provider, so that the job would run unprotected: {remedy}"
        );
        self.out.end(1, Some(text));
    }

    /// A rank's MPI library has not asked which rank of how many it is.
    pub fn end_for_lonely_ranks(&mut self, library: &str, remedy: &str) {
        let library = named(library);
        let text = format!(
            "{library} did not ask through PMI-1 which rank of how many it is: each process would compute alone, \
             as rank 0 of 1; {remedy}"
        );
        self.out.end(1, Some(text));
    }
}

fn named(library: &str) -> &str {
    if library.is_empty() {
        "the program's MPI library"
    } else {
        library
    }
}
