//! CPU clocks and kept-open statm: two short system calls for each process. It is the best reader
//! for an ordinary user, but knows only the sum of user and system time.

use super::kind::Kind;
use super::roster::Roster;
use super::tick::{Reader, Tally, Tick};
use crate::ages::LASTING;
use crate::clock::cpu_of;
use crate::sample::{Process, UNKNOWN};
use eyrie_proc::kept::{again, page_size};
use eyrie_proc::text::numbers;

pub struct Clocks {
    roster: Roster,
    page: u64,
}

impl Clocks {
    pub fn new(capacity: usize) -> Result<Clocks, String> {
        Ok(Clocks { roster: Roster::new(capacity, true)?, page: page_size() })
    }
}

/// Reads one process; false when it is gone.
fn read_one(roster: &mut Roster, at: usize, tick: &Tick, page: u64) -> bool {
    if (at as u64 + tick.number) % u64::from(LASTING) == 0 && !roster.reread(at) {
        return false;
    }
    let entry = &mut roster.entries[at];
    let Some(cpu_ns) = cpu_of(entry.process.pid) else { return false };
    // The kept-open file fails when the process is gone, even if its number is in use again.
    let mut buffer = [0; 128];
    let Some(Ok(text)) = entry.statm.as_ref().map(|f| again(f, &mut buffer)) else {
        return false;
    };
    let ([_, resident], _) = numbers::<2>(text);
    entry.process.cpu_ns = cpu_ns;
    entry.process.user_ns = UNKNOWN;
    entry.process.system_ns = UNKNOWN;
    entry.process.rss_bytes = resident * page;
    true
}

impl Reader for Clocks {
    fn kind(&self) -> Kind {
        Kind::Clocks
    }

    fn read(&mut self, tick: &Tick, out: &mut Vec<Process>) -> Tally {
        let looked = self.roster.update(tick);
        let page = self.page;
        self.roster.sample(looked, tick, out, |roster, at| read_one(roster, at, tick, page))
    }
}
