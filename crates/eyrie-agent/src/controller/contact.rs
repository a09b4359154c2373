//! An agent's contact with the controller, and how long the agent goes on without one.

use eyrie_supervision::saver;
use eyrie_wire::NodeId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How an agent's refusal of another controller begins; the address of its own controller follows.
pub const HAS_CONTROLLER: &str = "it has a controller at ";

/// The state of an agent that can go on without its controller.
pub struct Waiting {
    pub timeout: Duration,
    /// Shared with the agent's threads.
    pub contact: Arc<Contact>,
    /// When the agent ends.
    pub until: Option<Instant>,
    /// Whether the job can be saved before that.
    pub save: bool,
    /// When this host saves it.
    pub save_at: Option<Instant>,
}

/// The agent's contact with its controller.
pub struct Contact {
    /// Whether there is none at present.
    pub lost: AtomicBool,
    /// When the last message of the controller came, in milliseconds since `since`.
    last_ms: AtomicU64,
    since: Instant,
    /// When the controller has been silent for so long, another one may come.
    heartbeat_timeout: Duration,
    /// Where the controller listens.
    addr: Mutex<String>,
}

impl Contact {
    /// A contact with the controller at `addr`, which may be replaced when it is silent for longer
    /// than `heartbeat_timeout`.
    pub fn new(heartbeat_timeout: Duration, addr: String) -> Contact {
        Contact {
            lost: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
            since: Instant::now(),
            heartbeat_timeout,
            addr: Mutex::new(addr),
        }
    }

    /// Another controller has come, which listens at `addr`.
    pub fn found(&self, addr: String) {
        *self.addr.lock().unwrap_or_else(|e| e.into_inner()) = addr;
        self.lost.store(false, Ordering::SeqCst);
    }

    /// Where the last controller listens.
    pub fn addr(&self) -> String {
        self.addr.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn now_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    /// When another controller may come if this one stays silent; `None`: it may come now.
    pub fn opens_at(&self) -> Option<Instant> {
        let last = Duration::from_millis(self.last_ms.load(Ordering::SeqCst));
        let silent = self.heartbeat_timeout + Duration::from_millis(1);
        (!self.is_open()).then(|| self.since + last + silent)
    }

    /// Whether another controller may come.
    pub fn is_open(&self) -> bool {
        let silent_ms = self.now_ms().saturating_sub(self.last_ms.load(Ordering::SeqCst));
        self.lost.load(Ordering::SeqCst)
            || u128::from(silent_ms) > self.heartbeat_timeout.as_millis()
    }
}

impl Waiting {
    /// Its time without a controller begins, unless it has begun before.
    pub fn begin(&mut self, node: NodeId) {
        if self.until.is_none() {
            let end = Instant::now() + self.timeout;
            let patience = if self.save { saver::PATIENCE } else { Duration::ZERO };
            self.until = Some(end + patience);
            self.save_at = self.save.then(|| end + saver::turn(node));
        }
    }

    /// Another controller has come.
    pub fn end(&mut self) {
        (self.until, self.save_at) = (None, None);
    }

    /// The controller has sent something.
    pub fn contacted(&self) {
        self.contact.last_ms.store(self.contact.now_ms(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(save: bool) -> Waiting {
        let contact = Arc::new(Contact::new(Duration::ZERO, "x".into()));
        Waiting { timeout: Duration::from_secs(9), contact, until: None, save, save_at: None }
    }

    #[test]
    fn an_agent_waits_longer_when_its_job_can_be_saved_and_hosts_take_turns() {
        let mut without = waiting(false);
        without.begin(NodeId(1));
        assert!(without.save_at.is_none());
        let [mut first, mut second] = [waiting(true), waiting(true)];
        first.begin(NodeId(0));
        second.begin(NodeId(1));
        assert!(without.until < first.save_at && first.save_at < second.save_at);
        assert!(second.save_at < first.until);
        // Another call does not prolong its time.
        let until = first.until;
        first.begin(NodeId(0));
        assert_eq!(first.until, until);
        first.end();
        assert_eq!((first.until, first.save_at), (None, None));
    }

    #[test]
    fn a_controller_may_be_replaced_when_it_is_silent_for_too_long_or_is_lost() {
        let before = Instant::now();
        let contact = Contact::new(Duration::from_secs(1000), "x".into());
        let opens_at = contact.opens_at().unwrap();
        assert!(!contact.is_open() && opens_at >= before + Duration::from_secs(1000));
        contact.lost.store(true, Ordering::SeqCst);
        assert!(contact.is_open() && contact.opens_at().is_none());
        contact.found("y".into());
        assert_eq!((contact.is_open(), contact.addr().as_str()), (false, "y"));
    }
}
