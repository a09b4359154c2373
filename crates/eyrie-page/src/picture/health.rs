//! The health of a node in the picture: what rules find, since when, and what was done.

use eyrie_interface::health::{FindingStatus, NodeHealth, RankSampled, Sampled};
use eyrie_wire::health::HealthState;
use serde::Serialize;

/// What was done that is kept of a node.
const DONE: usize = 20;
/// What is said twice of a moment may differ by so much, in seconds.
const SAME: f64 = 1.5;

/// How a node is.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct HealthPicture {
    pub state: HealthState,
    /// Since when, in seconds of the job's time.
    pub since: f64,
    pub findings: Vec<FindingPicture>,
    /// The newest last.
    pub done: Vec<DonePicture>,
}

/// Something that a rule finds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FindingPicture {
    pub rule: String,
    /// The device, interface, file system ... that it is about.
    pub what: String,
    pub state: HealthState,
    pub said: String,
    pub since: f64,
    /// Nothing is done about it.
    pub muted: bool,
}

/// Something that was done, at a time of the job in seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DonePicture {
    pub at: f64,
    pub what: String,
}

impl HealthPicture {
    pub fn set_state(&mut self, state: HealthState, since: f64) {
        if self.state != state {
            (self.state, self.since) = (state, since);
        }
    }

    /// A rule finds this now, or that all is well.
    pub fn find(&mut self, found: FindingPicture) {
        let same = |known: &FindingPicture| known.rule == found.rule && known.what == found.what;
        let known = self.findings.iter().position(same).map(|at| self.findings.remove(at));
        if found.state != HealthState::Ok {
            let since = known.filter(|known| known.state == found.state).map(|known| known.since);
            self.findings.push(FindingPicture { since: since.unwrap_or(found.since), ..found });
        }
    }

    pub fn mute(&mut self, rule: &str) {
        let of_rule = self.findings.iter_mut().filter(|found| found.rule == rule);
        of_rule.for_each(|found| found.muted = true);
    }

    pub fn add_done(&mut self, at: f64, what: String) {
        self.done.push(DonePicture { at, what });
        if self.done.len() > DONE {
            self.done.remove(0);
        }
    }

    /// It is as its job says at this time.
    pub fn status(&mut self, status: &NodeHealth, at: f64) {
        let known = std::mem::take(self);
        let moment = |seconds_ago: f64, known: Option<f64>| {
            let then = (at - seconds_ago).max(0.0);
            known.filter(|known| (known - then).abs() < SAME).unwrap_or(then)
        };
        let finding = |of: &FindingStatus| {
            let same = |known: &&FindingPicture| known.rule == of.rule && known.what == of.what;
            let known = known.findings.iter().find(same).map(|known| known.since);
            FindingPicture {
                rule: of.rule.clone(),
                what: of.what.clone(),
                state: of.state,
                said: of.said.clone(),
                since: moment(of.seconds, known),
                muted: of.muted.is_some(),
            }
        };
        let newest = &status.done[status.done.len().saturating_sub(DONE)..];
        let done = newest.iter().map(|of| {
            let same = |known: &&DonePicture| {
                known.what == of.what && (known.at - (at - of.seconds_ago)).abs() < SAME
            };
            let known = known.done.iter().find(same).map(|known| known.at);
            DonePicture { at: moment(of.seconds_ago, known), what: of.what.clone() }
        });
        *self = HealthPicture {
            state: status.state,
            since: moment(status.seconds, (known.state == status.state).then_some(known.since)),
            findings: status.findings.iter().map(finding).collect(),
            done: done.collect(),
        };
    }
}

/// What was sampled of a node last. Figures are rounded: what hardly changes is not sent anew.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodeSample {
    /// How busy its processors are, in percent.
    pub busy: Option<u8>,
    pub memory: u64,
    pub available: u64,
}

impl NodeSample {
    pub fn of(sampled: &Sampled) -> NodeSample {
        let step = (sampled.memory_bytes / 100).max(1);
        NodeSample {
            busy: sampled.busy.map(|share| percent(share, 5)),
            memory: sampled.memory_bytes,
            available: sampled.available_bytes / step * step,
        }
    }
}

/// What was sampled of a rank last, rounded as well.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct RankSample {
    /// The share of its time in which it waited for messages, in percent.
    pub waiting: Option<u8>,
    /// Processors that it kept busy, in percent of one.
    pub busy: Option<u8>,
    pub memory: u64,
}

impl RankSample {
    pub fn of(sampled: &RankSampled) -> RankSample {
        let bytes = sampled.memory_bytes;
        let step = 1_u64 << bytes.checked_ilog2().unwrap_or(0).saturating_sub(5);
        RankSample {
            waiting: sampled.waiting.map(|share| percent(share, 10)),
            busy: sampled.busy.map(|share| percent(share, 10)),
            memory: bytes / step * step,
        }
    }
}

/// A share in percent, to the next multiple of `step`.
fn percent(share: f64, step: u8) -> u8 {
    let step = f64::from(step);
    ((share * 100.0 / step).round() * step).clamp(0.0, 250.0) as u8
}
