//! The job's routers: threads of this process, or processes of their own; and what they have told
//! of themselves. Nothing here waits for one.

use super::link::{encode_long, JournalProgress, Session};
use super::users::LogStatus;
use crossbeam_channel::Sender;
use eyrie_router::{Router, RouterCommand, Stats};
use eyrie_transport::RouterId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long users wait for the figures of a router that does not answer.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// A router from the controller's side.
pub enum JobRouter {
    /// A thread of this process.
    Here(Router),
    /// A process.
    Apart(Session),
}

/// All routers of the job.
pub struct Routers {
    routers: Vec<JobRouter>,
    /// What each has told last.
    stats: Vec<Stats>,
    /// Who has not told its figures since they were asked for, and since when.
    missing: BTreeSet<RouterId>,
    asked: Instant,
    /// Users who wait for them.
    waiting: Vec<Sender<String>>,
}

impl Routers {
    pub fn new(routers: Vec<JobRouter>) -> Routers {
        let stats = vec![Stats::default(); routers.len()];
        let (missing, waiting) = (BTreeSet::new(), Vec::new());
        Routers { routers, stats, missing, asked: Instant::now(), waiting }
    }

    /// Asks one router to do something; what comes of it is an event.
    pub fn command(&mut self, progress: JournalProgress, id: RouterId, command: RouterCommand) {
        match self.routers.get_mut(id as usize) {
            None => {}
            Some(JobRouter::Here(router)) => router.command(command),
            Some(JobRouter::Apart(session)) => session.send(progress, encode_long(&command)),
        }
    }

    /// Asks all of them.
    pub fn command_all(&mut self, progress: JournalProgress, command: &RouterCommand) {
        for id in 0..self.routers.len() {
            self.command(progress, id as RouterId, command.clone());
        }
    }

    /// What goes between the controller and a router in a process of its own.
    pub fn session(&mut self, id: RouterId) -> Option<&mut Session> {
        match self.routers.get_mut(id as usize) {
            Some(JobRouter::Apart(session)) => Some(session),
            _ => None,
        }
    }

    /// All those of routers in processes of their own.
    pub fn sessions(&mut self) -> impl Iterator<Item = &mut Session> {
        self.routers.iter_mut().filter_map(|router| match router {
            JobRouter::Apart(session) => Some(session),
            JobRouter::Here(_) => None,
        })
    }

    /// A router is started in a process of its own; it takes the place of an earlier one.
    pub fn replace(&mut self, id: RouterId, session: Session) {
        let id = id as usize;
        match self.routers.get_mut(id) {
            // Dropping the old one ends its connection.
            Some(router) => *router = JobRouter::Apart(session),
            None => self.routers.push(JobRouter::Apart(session)),
        }
        self.stats.resize(self.routers.len(), Stats::default());
        self.stats[id.min(self.routers.len() - 1)] = Stats::default();
        self.missing.remove(&(id as RouterId));
    }

    /// Asks for figures, unless an answer is on its way.
    pub fn ask_stats(&mut self) {
        if self.missing.is_empty() {
            self.missing = (0..self.routers.len() as RouterId).collect();
            self.asked = Instant::now();
            for router in &mut self.routers {
                match router {
                    JobRouter::Here(router) => router.command(RouterCommand::Stats),
                    // Nobody but this process asks.
                    JobRouter::Apart(session) => {
                        session.send_passing(encode_long(&RouterCommand::Stats));
                    }
                }
            }
        }
    }

    /// A user waits for figures.
    pub fn await_stats(&mut self, user: Sender<String>) {
        self.waiting.push(user);
        self.ask_stats();
    }

    /// A router has told its figures.
    pub fn told(&mut self, id: RouterId, stats: Stats) {
        if let Some(last) = self.stats.get_mut(id as usize) {
            *last = stats;
        }
        self.missing.remove(&id);
    }

    /// Users who waited, when all routers have told, or had long enough to.
    pub fn ready(&mut self) -> Vec<Sender<String>> {
        if self.asked.elapsed() > STATS_TIMEOUT {
            self.missing.clear();
        }
        match self.missing.is_empty() {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }

    /// What each router holds, as it was told last.
    pub fn logs(&self) -> impl Iterator<Item = LogStatus> + '_ {
        (0..).zip(&self.stats).map(|(router, stats)| LogStatus {
            router,
            memory_bytes: stats.memory_bytes,
            disk_bytes: stats.disk_bytes,
        })
    }

    /// Figures of all routers together, as they were told last; those of single ranks are left out.
    pub fn stats(&self) -> Stats {
        let sum = |of: fn(&Stats) -> u64| self.stats.iter().map(of).sum();
        Stats {
            memory_bytes: sum(|s| s.memory_bytes),
            disk_bytes: sum(|s| s.disk_bytes),
            messages: sum(|s| s.messages),
            bytes: sum(|s| s.bytes),
            log_bytes: Vec::new(),
        }
    }
}
