//! Whether a job whose controller has died on this host goes on with one on another host, or is
//! over: then nothing of it is needed here. Asks agents; changes nothing.

use super::resume::{agents_of, furthest, nothing_listens};
use eyrie_supervision::place::{is_locked, CONTROLLER};
use eyrie_transport::role;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often agents are asked.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long after the time in which they declare a controller dead they may not have noticed.
const NOTICE: Duration = Duration::from_secs(1);

/// What is asked of a job, from the death of its controller on.
pub struct Elsewhere {
    dir: PathBuf,
    secret: Secret,
    agents: Vec<Addr>,
    /// So long after a controller was here agents may take it to live.
    silence: Duration,
    next: Instant,
}

impl Elsewhere {
    /// Of the job in this directory; `None` when nothing in it says where its agents are.
    pub fn new(dir: &Path) -> Option<Elsewhere> {
        let (_, read, _) = furthest(dir).ok()?;
        let silence = read.head.beginning.options.heartbeat_timeout + NOTICE;
        Some(Elsewhere {
            dir: dir.into(),
            secret: eyrie_agent::read_secret(dir).ok()?,
            agents: agents_of(&read),
            silence,
            next: Instant::now() + silence,
        })
    }

    /// Whether it goes on elsewhere, or all of its agents have ended, as far as that is asked now.
    pub fn goes_on(&mut self) -> bool {
        if is_locked(&self.dir, CONTROLLER) {
            self.next = Instant::now() + self.silence;
        }
        if Instant::now() < self.next {
            return false;
        }
        let goes_on = self.ask();
        self.next = Instant::now() + ASK_EVERY;
        goes_on && !is_locked(&self.dir, CONTROLLER)
    }

    /// Asks one agent after another until one knows it.
    fn ask(&mut self) -> bool {
        for asked in 0..self.agents.len() {
            match role::connect(&self.agents[asked], &self.secret, &Claim::Attached) {
                Ok(_) => return true,
                // Its agent has ended: an agent without a controller listens.
                Err(e) if nothing_listens(&e) => {}
                // It waits, or nothing is known of it. Another one is asked next.
                Err(e) => {
                    tracing::debug!(agent = %self.agents[asked], "{e}");
                    self.agents.rotate_left(asked + 1);
                    return false;
                }
            }
        }
        !self.agents.is_empty()
    }
}
