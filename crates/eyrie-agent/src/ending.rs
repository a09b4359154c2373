//! The ends of ranks: found by reaping, and reported once all of their output has been passed on.

use crate::images::writer::Failure;
use crate::node::Agent;
use crate::rank::mapped;
use eyrie_host::finding::{Finding, Level};
use eyrie_supervision::{children, kill_group, segments, Death};
use eyrie_wire::control::{Ending, FromAgent, RankReport};
use eyrie_wire::{Rank, RankInstance};
use rustix::process::{waitid, waitpid, WaitId, WaitIdOptions, WaitOptions};

impl Agent {
    /// Reaps the children that have ended.
    pub fn reap(&mut self) {
        for pid in children() {
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::Pid(pid), peek), Ok(Some(_))) {
                continue;
            }
            let number = pid.as_raw_nonzero().get() as u32;
            if self.processes.values().any(|p| p.pid == number) {
                // What the rank started dies with it. The rank is not reaped yet, so that no other
                // group can have its number.
                kill_group(number);
                if let Some(sweeper) = &mut self.sweeper {
                    sweeper.ended(number);
                }
            }
            let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG) else { continue };
            if let Some(how) = Failure::of(status.terminating_signal(), status.exit_status()) {
                self.child_failed(number, how);
            }
            if let Some(ended) = self.roles.ended(number, status) {
                self.connection.send(&ended);
            }
            if let Some(start) = self.preparations().child_ended(number) {
                self.start(start);
            }
            let ended = self.processes.values_mut().find(|p| p.pid == number);
            if let Some(p) = ended {
                p.ending = Some(p.ending_of(match status.terminating_signal() {
                    Some(signal) => Ending::Signal(signal),
                    None => Ending::Code(status.exit_status().unwrap_or(0)),
                }));
                let instance = p.instance;
                self.receive_from_rank(instance);
                self.serve_pmi(instance);
                if let Some(p) = self.processes.get_mut(&instance) {
                    p.pass_output(&mut self.connection, false);
                }
            }
        }
    }

    /// A process that writes an image may have failed.
    fn child_failed(&mut self, number: u32, how: Failure) {
        let captures = self.processes.values_mut().filter_map(|p| p.capture.as_mut());
        captures.for_each(|capture| capture.writer.child_failed(number, how));
    }

    /// The process behind a wrapper has ended. If a signal killed it, the wrapper is killed, too:
    /// it would take the signal for the end of the program.
    pub fn mpi_process_ended(&mut self, instance: RankInstance) {
        self.receive_from_rank(instance);
        self.serve_pmi(instance);
        let Some(p) = self.processes.get_mut(&instance) else { return };
        p.learn_death();
        p.watch = None;
        if matches!(p.death, Death::Killed(_)) {
            p.kill();
        }
    }

    /// Reports the ranks that have ended and whose output has all been passed on.
    pub fn report_ended(&mut self) {
        let ended: Vec<RankInstance> = (self.processes.values())
            .filter(|p| p.ending.is_some() && p.stdout.is_drained() && p.stderr.is_drained())
            .map(|p| p.instance)
            .collect();
        for instance in ended {
            let Some(mut p) = self.processes.remove(&instance) else { continue };
            let Some(ending) = p.ending else { continue };
            if ending == Ending::Signal(libc::SIGBUS) {
                self.explain_bus_error(instance.rank);
            }
            segments::remove(&mapped::left_behind(&p.shared));
            self.segments.append(&mut p.shared);
            if let Some(restore) = &p.restore {
                let (reason, fault) = restore.failure(ending, p.stderr.last_line());
                self.start_failed(instance, reason, fault);
                continue;
            }
            if matches!(ending, Ending::Code(_)) {
                self.holds.drop_rank(instance.rank);
            }
            let stage = p.stage();
            self.connection.report(instance, RankReport::Exited { ending, stage });
        }
    }

    /// A rank that touches memory for which /dev/shm has no room dies of a bus error. The user is
    /// told once what to do about it.
    fn explain_bus_error(&mut self, rank: Rank) {
        let Finding { level, subject, text, remedy } = eyrie_host::checks::shared_memory();
        if level == Level::Ok || std::mem::replace(&mut self.bus_error_explained, true) {
            return;
        }
        let text = format!("rank {rank} died of a bus error, and {subject} has {text}: {remedy}");
        self.connection.send(&FromAgent::Note { text });
    }
}
