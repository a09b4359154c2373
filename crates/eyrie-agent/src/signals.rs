//! Signals that are sent to all ranks of a job. A rank that handles a signal gets it from its
//! provider at the end of an MPI call, and at the same place again when it is re-executed. A rank
//! that does not handle it, or makes no such call for a while, gets it from the agent. No rank may
//! get a signal twice.

use crate::controller::connection::Connection;
use crate::rank::obstacle::catches;
use crate::rank::process::Process;
use eyrie_wire::control::{is_to_end, FromAgent};
use eyrie_wire::{Incarnation, RankInstance};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a rank may make no MPI call before it gets a signal in the middle of its work.
const CALL_GRACE: Duration = Duration::from_secs(1);

/// The first incarnation of a rank. What it got before MPI began, a later one gets from its
/// provider.
const FIRST: u32 = 1;

/// Sends ranks their signals, and says what the user must know.
pub struct Signals<'a> {
    pub processes: &'a mut BTreeMap<RankInstance, Process>,
    pub connection: &'a mut Connection,
}

impl Signals<'_> {
    /// Sends all ranks a signal, the `n`th of the job (from 0).
    pub fn send_to_all(&mut self, n: u64, signal: u8) {
        let until = Instant::now() + CALL_GRACE;
        for p in self.processes.values_mut().filter(|p| p.ending.is_none()) {
            if !p.page.add_signal(n, signal) {
                let rank = p.instance.rank;
                let text = format!(
                    "rank {rank} does not get signal {signal}: 1024 others came since its last MPI call"
                );
                self.connection.send(&FromAgent::Note { text });
            }
            if p.mpi_pid.is_none() && p.instance.incarnation == Incarnation(FIRST) {
                // It has not begun with MPI: it may still be a script.
                send(-(p.pid as i32), signal);
            }
            p.signals_until.get_or_insert(until);
        }
        self.watch();
    }

    /// Gives ranks the signals that they do not handle, or have not taken in time.
    pub fn watch(&mut self) {
        let now = Instant::now();
        let mut notes = Vec::new();
        for p in self.processes.values_mut().filter(|p| p.ending.is_none() && p.restore.is_none()) {
            let (Some(until), Some(pid)) = (p.signals_until, p.mpi_pid) else { continue };
            while let Some((n, signal)) = p.page.next_signal() {
                let handled = catches(pid, signal.into());
                // A rank that is re-executed first gets what it got before; by then it handles it.
                let catches_up = p.instance.incarnation != Incarnation(FIRST) && !p.page.is_new();
                if catches_up || handled && (now < until || !p.page.is_new()) {
                    break;
                }
                if p.page.claim_signal(n) {
                    notes.extend(handled.then(|| in_the_middle(p, signal)));
                    send(pid as i32, signal);
                }
            }
            if now >= until {
                // It may still lack signals: then it is checked again.
                p.signals_until = p.page.lacks_signals().then_some(now + CALL_GRACE);
            }
        }
        for text in notes {
            self.connection.send(&FromAgent::Note { text });
        }
    }
}

fn in_the_middle(p: &Process, signal: u8) -> String {
    format!(
        "rank {} has made no MPI call for a second and got signal {signal} in the middle of its \
         work. If it is executed again from before that, it gets the signal at the end of its next \
         MPI call",
        p.instance.rank
    )
}

/// Sends a signal to a process or, when the number is negative, to a process group.
fn send(pid: i32, signal: u8) {
    // SAFETY: kill(2) takes no pointer. The number is that of a child of the agent, or of a process
    // below it, that is not reaped yet, so that no other process has it; it may just have ended.
    unsafe {
        libc::kill(pid, signal.into());
        if is_to_end(signal.into()) {
            // A stopped process is to get it, too.
            libc::kill(pid, libc::SIGCONT);
        }
    }
}
