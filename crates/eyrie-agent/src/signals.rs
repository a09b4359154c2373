//! Signals that are sent to all ranks of a job. A rank that handles one gets it from its provider
//! at the end of a call of MPI, and at the same place again when it is re-executed; one that does
//! not handle it, or makes no such call for a while, gets it from here. No rank may get one twice.

use crate::capture::catches;
use crate::node::Agent;
use crate::process::Process;
use eyrie_wire::control::{is_to_end, FromAgent};
use std::time::{Duration, Instant};

/// How long a rank may make no call of MPI until it gets a signal in the middle of what it does.
const CALL_GRACE: Duration = Duration::from_secs(1);

/// The first incarnation of a rank: a later one gets from its provider what the first has got
/// before MPI began.
const FIRST: u32 = 1;

impl Agent {
    /// All ranks get a signal, the `n`th of the job (from 0).
    pub fn signal(&mut self, n: u64, signal: u8) {
        let until = Instant::now() + CALL_GRACE;
        for p in self.processes.values_mut().filter(|p| p.ending.is_none()) {
            if !p.page.add_signal(n, signal) {
                let rank = p.instance.rank;
                let text =
                    format!("rank {rank} does not get signal {signal}: 1024 others wait for it");
                self.connection.send(&FromAgent::Note { text });
            }
            if p.speaker.is_none() && p.instance.incarnation == FIRST {
                // It has not begun with MPI: it may be a script yet.
                send(-(p.pid as i32), signal);
            }
            p.signals_until.get_or_insert(until);
        }
        self.watch_signals();
    }

    /// Gives ranks the signals that they do not handle, or have not taken in time.
    pub fn watch_signals(&mut self) {
        let now = Instant::now();
        let mut notes = Vec::new();
        for p in self.processes.values_mut().filter(|p| p.ending.is_none() && p.restore.is_none()) {
            let (Some(until), Some(pid)) = (p.signals_until, p.speaker) else { continue };
            while let Some((n, signal)) = p.page.next_signal() {
                let handled = catches(pid, signal.into());
                // One that is executed again gets first what it got before, and handles it by then.
                let catches_up = p.instance.incarnation != FIRST && !p.page.is_new();
                if catches_up || handled && (now < until || !p.page.is_new()) {
                    break;
                }
                if p.page.claim_signal(n) {
                    notes.extend(handled.then(|| in_the_middle(p, signal)));
                    send(pid as i32, signal);
                }
            }
            if now >= until {
                // It may be behind: then it is looked at again.
                p.signals_until = p.page.lacks_signals().then_some(now + CALL_GRACE);
            }
        }
        notes.into_iter().for_each(|text| self.connection.send(&FromAgent::Note { text }));
    }
}

fn in_the_middle(p: &Process, signal: u8) -> String {
    format!(
        "rank {} has made no call of MPI for a second and got signal {signal} in the middle of what it \
         does: should it be executed again from before that, it gets it at the end of its next call",
        p.instance.rank
    )
}

/// Sends a signal to a process or, when the number is negative, to a group.
fn send(pid: i32, signal: u8) {
    // SAFETY: our own child, or one below it, that is not collected; it may just have ended.
    unsafe {
        libc::kill(pid, signal.into());
        if is_to_end(signal.into()) {
            // One that stands still is to see it, too.
            libc::kill(pid, libc::SIGCONT);
        }
    }
}
