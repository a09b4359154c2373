//! A question of users to all routers, and the users who wait until all of them have answered. What
//! they answer is not kept here. Nothing here waits.

use super::peers::RolePeers;
use crossbeam_channel::Sender;
use eyrie_router::RouterCommand;
use eyrie_wire::RouterId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long users wait for a router that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A question that is asked again and again.
pub struct Question {
    command: RouterCommand,
    /// Those that have not answered since they were asked, and since when.
    missing: BTreeSet<RouterId>,
    asked: Instant,
    /// Users who wait for these answers.
    waiting: Vec<Sender<String>>,
    /// Users who have come since: routers are asked once more for them, so that no answer is older
    /// than its question.
    next: Vec<Sender<String>>,
}

impl Question {
    /// The question, which no user has asked yet.
    pub fn new(command: RouterCommand) -> Question {
        Question {
            command,
            missing: BTreeSet::new(),
            asked: Instant::now(),
            waiting: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Asks the routers, unless an answer is on its way.
    pub fn ask(&mut self, roles: &RolePeers) {
        if self.missing.is_empty() {
            self.missing = roles.routers().into_iter().collect();
            self.asked = Instant::now();
            roles.ask_routers(&self.command);
        }
    }

    /// Whether all routers have answered, or had long enough to.
    pub fn is_answered(&self) -> bool {
        self.missing.is_empty()
    }

    /// A user waits for the answers.
    pub fn wait(&mut self, roles: &RolePeers, user: Sender<String>) {
        if self.missing.is_empty() {
            self.waiting.push(user);
            self.ask(roles);
        } else {
            self.next.push(user);
        }
    }

    /// A router has answered, or will not: another one has its place.
    pub fn answered(&mut self, id: RouterId) {
        self.missing.remove(&id);
    }

    /// Users who waited, when all routers have answered, or had long enough to.
    pub fn ready(&mut self, roles: &RolePeers) -> Vec<Sender<String>> {
        if self.asked.elapsed() > ANSWER_TIMEOUT {
            self.missing.clear();
        }
        if !self.missing.is_empty() {
            return Vec::new();
        }
        let ready = std::mem::take(&mut self.waiting);
        if !self.next.is_empty() {
            self.waiting = std::mem::take(&mut self.next);
            self.ask(roles);
        }
        ready
    }
}
