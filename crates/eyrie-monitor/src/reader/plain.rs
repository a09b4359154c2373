//! Plain /proc: opens, reads and closes /proc/PID/stat of every process. Works everywhere, for everybody, and costs the most; without a
//! rate policy it is what most monitors do.

use super::roster::Roster;
use super::{Kind, Reader, Tally, Tick};
use crate::adapt::Policy;
use crate::sample::Process;

pub struct Plain {
    roster: Roster,
}

impl Plain {
    pub fn new(capacity: usize) -> Result<Plain, String> {
        Ok(Plain { roster: Roster::new(capacity, false)? })
    }
}

impl Reader for Plain {
    fn kind(&self) -> Kind {
        Kind::Proc
    }

    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally {
        // Without a policy the directory is listed each time: the baseline that the paper measures.
        let looked = match tick.policy {
            Policy::Off => self.roster.look(),
            _ => self.roster.update(tick),
        };
        let mut tally = Tally { beyond: self.roster.beyond, failed: looked.is_err().into() };
        let newcomers = self.roster.newcomers;
        let mut at = 0;
        while at < self.roster.entries.len() {
            let due = self.roster.entries[at].rate.wants(tick.policy, newcomers);
            if due && !self.roster.reread(at) {
                self.roster.entries.remove(at);
                continue;
            }
            let entry = &mut self.roster.entries[at];
            if due {
                entry.rate.observe(entry.process.cpu_ns, tick.now_ns, tick.policy);
            }
            if out.len() < out.capacity() {
                out.push(Process { age: entry.rate.age(), due, ..entry.process });
            } else {
                tally.beyond += 1;
            }
            at += 1;
        }
        tally
    }
}
