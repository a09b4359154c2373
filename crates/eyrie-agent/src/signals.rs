//! Signals that are sent to all ranks of a job. A rank that handles a signal gets it from its
//! provider at the end of an MPI call, and at the same place again when it is re-executed. A rank
//! that does not handle it, or makes no such call for a while, gets it from the agent. No rank may
//! get a signal twice, and none may miss one.

use crate::controller::connection::Connection;
use crate::rank::obstacle::catches;
use crate::rank::process::Process;
use eyrie_wire::control::{is_to_end, FromAgent};
use eyrie_wire::signals::Signals as RankSignals;
use eyrie_wire::{Incarnation, RankInstance};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a rank may make no MPI call before it gets a signal in the middle of its work.
const CALL_GRACE: Duration = Duration::from_secs(1);

/// The first incarnation of a rank. What it got before MPI began, a later one gets from its
/// provider.
const FIRST: u32 = 1;

/// Most signals of a job, each of which is one byte here.
const MOST: usize = 1 << 20;

/// The signals that were sent to all ranks of the job, from the first one on. A rank's page has the
/// next ones that the rank takes; here are those that have no room there yet, and those that a rank
/// lacks whose image is still on its way.
#[derive(Default)]
pub struct SentSignals(Vec<u8>);

impl SentSignals {
    /// Those that had been sent when a rank was to be started.
    pub fn learn(&mut self, all: &[u8]) {
        if let Some(more) = all.get(self.0.len()..) {
            self.0.extend(more.iter().take(MOST - self.0.len()));
        }
    }

    /// Adds the `n`th signal of the job (from 0), unless it is there. False: there is no room.
    fn add(&mut self, n: u64, signal: u8) -> bool {
        // Behind a gap there is nothing to add: this node has had no rank yet, and the start of its
        // first one brings all of them.
        if n == self.0.len() as u64 && self.0.len() < MOST {
            self.0.push(signal);
        }
        n < MOST as u64
    }

    /// Passes on to a rank what its page has room for. True: the rank has not got all.
    fn pass_on<const ROOM: usize>(&self, rank: &RankSignals<ROOM>) -> bool {
        for (n, signal) in self.0.iter().enumerate().skip(rank.sent() as usize) {
            if !rank.add(n as u64, *signal) {
                break;
            }
        }
        self.next(rank).is_some()
    }

    /// The next signal that the rank has not got.
    fn next<const ROOM: usize>(&self, rank: &RankSignals<ROOM>) -> Option<(u64, u8)> {
        let n = rank.got();
        self.0.get(n as usize).map(|signal| (n, *signal))
    }
}

/// Sends ranks their signals, and says what the user must know.
pub struct Signals<'a> {
    pub sent: &'a mut SentSignals,
    pub processes: &'a mut BTreeMap<RankInstance, Process>,
    pub connection: &'a mut Connection,
}

impl Signals<'_> {
    /// Sends all ranks a signal, the `n`th of the job (from 0).
    pub fn send_to_all(&mut self, n: u64, signal: u8) {
        if !self.sent.add(n, signal) {
            let text = format!("no rank of this node gets signal {signal}: {MOST} came before it");
            return self.connection.send(&FromAgent::Note { text });
        }
        for p in self.processes.values().filter(|p| p.ending.is_none()) {
            // It has not begun with MPI: it may still be a script.
            let begins = p.mpi_pid.is_none() && p.instance.incarnation == Incarnation(FIRST);
            if begins && p.page.signals().claim(n) {
                send(-(p.pid as i32), signal);
            }
        }
        self.watch();
    }

    /// Gives ranks the signals that they do not handle, or have not taken in time.
    pub fn watch(&mut self) {
        let now = Instant::now();
        let mut notes = Vec::new();
        for p in self.processes.values_mut().filter(|p| p.ending.is_none()) {
            if self.sent.pass_on(p.page.signals()) {
                p.signals_until.get_or_insert(now + CALL_GRACE);
            }
            let Some(until) = p.signals_until else { continue };
            if let Some(pid) = p.mpi_pid.filter(|_| p.restore.is_none()) {
                notes.extend(give(self.sent, p, pid, now >= until));
            }
            if now >= until {
                // It may still lack signals: then it is checked again.
                p.signals_until = self.sent.next(p.page.signals()).map(|_| now + CALL_GRACE);
            }
        }
        for text in notes {
            self.connection.send(&FromAgent::Note { text });
        }
    }
}

/// Gives a rank the signals that it does not handle and, if its time is over, those that it has not
/// taken. Returns what the user must know. `pid`: its process with the provider.
fn give(sent: &SentSignals, p: &Process, pid: u32, is_over: bool) -> Vec<String> {
    let mut notes = Vec::new();
    while let Some((n, signal)) = sent.next(p.page.signals()) {
        let handled = catches(pid, signal.into());
        // A rank that is re-executed first gets what it got before; by then it handles it.
        let catches_up = p.instance.incarnation != Incarnation(FIRST) && !p.page.is_new();
        if catches_up || handled && !(is_over && p.page.is_new()) {
            break;
        }
        if p.page.signals().claim(n) {
            notes.extend(handled.then(|| in_the_middle(p, signal)));
            send(pid as i32, signal);
        }
    }
    notes
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rank takes at the end of one MPI call.
    fn taken<const ROOM: usize>(rank: &RankSignals<ROOM>, got: &mut u64) -> Vec<u8> {
        let mut given = Vec::new();
        while let Some((signal, claimed)) = rank.take(*got) {
            *got += 1;
            rank.note(*got);
            given.extend(claimed.then_some(signal));
        }
        given
    }

    fn page() -> RankSignals<2> {
        // SAFETY: all zero is valid, and says that there is no signal yet.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn a_rank_gets_more_signals_than_its_page_has_room_for() {
        let mut sent = SentSignals::default();
        let rank = page();
        for n in 0..5 {
            assert!(sent.add(n, 10 + n as u8) && sent.pass_on(&rank));
        }
        let mut got = 0;
        assert_eq!(taken(&rank, &mut got), [10, 11]);
        assert!(sent.pass_on(&rank) && sent.add(5, 15));
        assert_eq!(taken(&rank, &mut got), [12, 13]);
        assert!(sent.pass_on(&rank));
        assert_eq!(taken(&rank, &mut got), [14, 15]);
        assert!(!sent.pass_on(&rank));
    }

    #[test]
    fn what_has_no_room_is_given_in_the_middle_once() {
        let mut sent = SentSignals::default();
        let rank = page();
        sent.learn(&[10, 11, 12, 13]);
        assert!(sent.pass_on(&rank));
        for n in 0..3 {
            assert_eq!(sent.next(&rank), Some((n, 10 + n as u8)));
            assert!(rank.claim(n), "the agent gives it");
        }
        let mut got = 0;
        assert!(taken(&rank, &mut got).is_empty() && sent.pass_on(&rank));
        assert_eq!(taken(&rank, &mut got), [13]);
        assert!(!sent.pass_on(&rank));
    }

    #[test]
    fn a_signal_that_comes_while_a_rank_is_started_is_not_lost() {
        let mut sent = SentSignals::default();
        let rank = page();
        assert!(sent.add(7, 10) && sent.0.is_empty(), "a node that has had no ranks");
        sent.learn(&[10, 12]);
        assert!(sent.add(2, 15) && sent.add(1, 12), "its image is on its way; one comes again");
        sent.learn(&[10, 12]);
        rank.set_got(1);
        assert!(sent.pass_on(&rank));
        assert_eq!(taken(&rank, &mut 1), [12, 15]);
    }

    #[test]
    fn the_signals_that_are_kept_are_bounded() {
        let mut sent = SentSignals::default();
        sent.learn(&vec![10; MOST + 1]);
        assert!(!sent.add(MOST as u64, 12) && sent.0.len() == MOST);
        assert!(sent.add(3, 10), "it is there");
    }
}
