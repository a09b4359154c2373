//! Plain /proc: opens, reads and closes /proc/PID/stat of every process. It works everywhere and
//! for every user, and costs the most. Without a rate policy it does what most monitors do.

use super::kind::Kind;
use super::roster::Roster;
use super::tick::{Reader, Tally, Tick};
use crate::policy::Policy;
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
        // Without a policy the directory is listed each time: that is the baseline of the paper.
        let looked = match tick.policy {
            Policy::Off => self.roster.look(),
            _ => self.roster.update(tick),
        };
        self.roster.sample(looked, tick, out, Roster::reread)
    }
}
