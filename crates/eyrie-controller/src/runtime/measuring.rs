//! What ranks send each other is asked for from time to time, where the network of the nodes is
//! known: the machine places ranks by it. What the machine hears is in the journal, so it is
//! bounded.

use super::options::JobOptions;
use super::roles::figures::Figures;
use super::roles::peers::RolePeers;
use super::roles::traffic::Traffic;
use crate::machine::traffic::MeasuredTraffic;
use eyrie_wire::traffic::PairSent;
use std::time::Duration;

/// How long a measurement takes, at least.
const EVERY: Duration = Duration::from_secs(10);
/// Most pairs of ranks that the journal takes a second, on average.
const PAIRS_A_SECOND: usize = 1000;

/// The measurements of a job.
pub struct Measuring {
    is_wanted: bool,
    /// When routers are to be asked, and since when they have been.
    next: Duration,
    asked: Option<Duration>,
    /// All that was known at the last measurement, and when that was.
    before: Traffic,
    before_at: Duration,
    /// What the machine has heard last.
    heard: Vec<PairSent>,
}

impl Measuring {
    pub fn new(options: &JobOptions) -> Measuring {
        Measuring {
            is_wanted: options.network.is_some(),
            next: EVERY,
            asked: None,
            before: Traffic::default(),
            before_at: Duration::ZERO,
            heard: Vec::new(),
        }
    }

    /// Asks the routers when it is time. Returns what ranks have sent each other since the last
    /// measurement, when routers have answered and it is not the same as then.
    pub fn look(
        &mut self,
        now: Duration,
        figures: &mut Figures,
        roles: &RolePeers,
    ) -> Option<MeasuredTraffic> {
        if !self.is_wanted {
            return None;
        }
        let Some(asked) = self.asked else {
            if now >= self.next {
                figures.ask_for_traffic(roles);
                self.asked = Some(now);
            }
            return None;
        };
        if !figures.has_traffic() {
            return None;
        }
        self.asked = None;
        let pairs = figures.sent().since(&self.before);
        self.before = figures.sent().clone();
        let over = asked.saturating_sub(std::mem::replace(&mut self.before_at, asked));
        let pause = Duration::from_secs((pairs.len() / PAIRS_A_SECOND) as u64);
        self.next = now + EVERY.max(pause);
        let is_new = !pairs.is_empty() && pairs != self.heard;
        is_new.then(|| {
            self.heard.clone_from(&pairs);
            MeasuredTraffic { over, pairs }
        })
    }
}
