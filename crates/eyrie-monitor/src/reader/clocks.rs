//! CPU clocks and kept-open statm: two short system calls for each process. The best reader for an ordinary user; knows user and system
//! time together only.

use super::roster::Roster;
use super::{Kind, Reader, Tally, Tick};
use crate::clock::cpu_of;
use crate::procfs::{again, numbers, page_size};
use crate::reader_ages::LASTING;
use crate::sample::{Process, UNKNOWN};

pub struct Clocks {
    roster: Roster,
    page: u64,
}

impl Clocks {
    pub fn new(capacity: usize) -> Result<Clocks, String> {
        Ok(Clocks { roster: Roster::new(capacity, true)?, page: page_size() })
    }

    /// Reads one process; false when it has gone.
    fn read_one(&mut self, at: usize, tick: &Tick) -> bool {
        if (at as u64 + tick.number) % u64::from(LASTING) == 0 && !self.roster.reread(at) {
            return false;
        }
        let entry = &mut self.roster.entries[at];
        let Some(cpu_ns) = cpu_of(entry.process.pid) else { return false };
        // Kept open, it fails when the process has gone, also when its number is used again.
        let mut buffer = [0; 128];
        let Some(Ok(text)) = entry.statm.as_ref().map(|f| again(f, &mut buffer)) else {
            return false;
        };
        let ([_, resident], _) = numbers::<2>(text);
        entry.process.cpu_ns = cpu_ns;
        entry.process.user_ns = UNKNOWN;
        entry.process.system_ns = UNKNOWN;
        entry.process.rss_bytes = resident * self.page;
        true
    }
}

impl Reader for Clocks {
    fn kind(&self) -> Kind {
        Kind::Clocks
    }

    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally {
        let looked = self.roster.update(tick);
        let mut tally = Tally { beyond: self.roster.beyond, failed: looked.is_err().into() };
        let newcomers = self.roster.newcomers;
        let mut at = 0;
        while at < self.roster.entries.len() {
            let due = self.roster.entries[at].rate.wants(tick.policy, newcomers);
            if due && !self.read_one(at, tick) {
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
