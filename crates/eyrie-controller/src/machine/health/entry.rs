//! What is known of the health of one node: what rules find, the state that follows from it, and
//! what was done. Pure.

use super::muting::{Firing, Muting};
use eyrie_interface::options::Precaution;
use eyrie_wire::health::{Finding, HealthState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Most things that are found at a time, and most that are remembered to have been done.
const MAX_FOUND: usize = 256;
const MAX_DONE: usize = 16;

/// What a rule finds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    pub state: HealthState,
    pub said: String,
    pub since: Duration,
}

/// A node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct NodeHealth {
    /// By the rule and what it is about.
    found: BTreeMap<(String, String), Found>,
    muting: Muting,
    /// The worst that rules find which are not muted, and since when.
    state: HealthState,
    since: Duration,
    /// The most that was done since the node was well.
    taken: Precaution,
    /// It was drained for its health.
    drained: bool,
    /// When something was done, and what, in words.
    done: VecDeque<(Duration, String)>,
    /// Windows in a row in which its ranks took longer than their equals, or not; and whether it is
    /// called slow.
    windows: u32,
    slow: bool,
}

/// From which time on ranks are slow, and up to which they are not any more, in thousandths of what
/// their equals take; and for how many windows in a row. A quarter more is above what unequal parts
/// of a mesh and noise make (ours).
const SLOW: u32 = 1250;
const QUICK: u32 = 1100;
const WINDOWS: u32 = 3;

impl NodeHealth {
    pub fn state(&self) -> HealthState {
        self.state
    }

    /// Since when it has been in this state.
    pub fn since(&self) -> Duration {
        self.since
    }

    /// What rules find, by the rule and what it is about.
    pub fn found(&self) -> impl Iterator<Item = (&str, &str, &Found)> {
        self.found.iter().map(|((rule, what), found)| (rule.as_str(), what.as_str(), found))
    }

    /// Until when a rule is muted, if it is.
    pub fn muted(&self, rule: &str, now: Duration) -> Option<Duration> {
        self.muting.until(rule, now)
    }

    /// What was done lately, and when.
    pub fn done(&self) -> impl Iterator<Item = (Duration, &str)> {
        self.done.iter().map(|(at, what)| (*at, what.as_str()))
    }

    pub fn taken(&self) -> Precaution {
        self.taken
    }

    pub fn was_drained(&self) -> bool {
        self.drained
    }

    /// A rule has found something, or finds it no longer. Returns whether it counts if it got
    /// worse, and `None` when nothing has changed.
    pub fn take(&mut self, finding: &Finding, now: Duration) -> Option<Option<Firing>> {
        let key = (finding.rule.clone(), finding.what.clone());
        let before = self.found.get(&key).map_or(HealthState::Ok, |found| found.state);
        if before == finding.state {
            return None;
        }
        let firing = (finding.state > before).then(|| self.muting.fire(&finding.rule, now));
        if finding.state == HealthState::Ok {
            self.found.remove(&key);
        } else if self.found.contains_key(&key) || self.found.len() < MAX_FOUND {
            let Finding { state, ref said, .. } = *finding;
            self.found.insert(key, Found { state, said: said.clone(), since: now });
        }
        self.judge(now);
        Some(firing)
    }

    /// The state follows from what is found.
    fn judge(&mut self, now: Duration) {
        let counts = |rule: &str| self.muting.until(rule, now).is_none();
        let counting = self.found().filter(|(rule, ..)| counts(rule));
        let state = counting.map(|(.., found)| found.state).max().unwrap_or_default();
        if state != self.state {
            self.state = state;
            self.since = now;
        }
        if state == HealthState::Ok {
            self.taken = Precaution::Nothing;
        }
    }

    /// A user lets ranks come to it again.
    pub fn undrain(&mut self) {
        self.drained = false;
    }

    /// In the last window its ranks took so long, in thousandths of what their equals took. Returns
    /// whether the node is slow from now on, when that has changed.
    pub fn compare(&mut self, permille: u32) -> Option<bool> {
        let other = if self.slow { permille <= QUICK } else { NodeHealth::is_slow(permille) };
        self.windows = if other { self.windows + 1 } else { 0 };
        if self.windows < WINDOWS {
            return None;
        }
        self.windows = 0;
        self.slow = !self.slow;
        Some(self.slow)
    }

    /// Whether a window counts as slow, of a node that was not slow before.
    pub fn is_slow(permille: u32) -> bool {
        permille >= SLOW
    }

    /// Whether the next windows matter: it is called slow, or was slow in the last one.
    pub fn is_compared(&self) -> bool {
        self.slow || self.windows > 0
    }

    /// This was done about it.
    pub fn take_precaution(
        &mut self,
        taken: Precaution,
        drained: bool,
        said: String,
        now: Duration,
    ) {
        self.taken = self.taken.max(taken);
        self.drained |= drained;
        if self.done.len() >= MAX_DONE {
            self.done.pop_front();
        }
        self.done.push_back((now, said));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HealthState::{Failing, Ok, Suspect};

    fn finding(rule: &str, what: &str, state: HealthState) -> Finding {
        Finding { rule: rule.into(), what: what.into(), state, said: "so".into() }
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_node_is_as_well_as_the_worst_that_is_found_and_well_again_without_it() {
        let mut node = NodeHealth::default();
        let take = |node: &mut NodeHealth, rule, what, state, at| {
            let firing = node.take(&finding(rule, what, state), s(at));
            (firing, node.state(), node.since())
        };
        let counts = Some(Some(Firing::Counts));
        assert_eq!(take(&mut node, "heat", "a", Suspect, 1), (counts, Suspect, s(1)));
        assert_eq!(take(&mut node, "heat", "a", Suspect, 2), (None, Suspect, s(1)));
        assert_eq!(take(&mut node, "disk", "b", Failing, 3), (counts, Failing, s(3)));
        node.take_precaution(Precaution::Drain, true, "drained".into(), s(3));
        assert_eq!(take(&mut node, "disk", "b", Ok, 4), (Some(None), Suspect, s(4)));
        assert_eq!(node.taken(), Precaution::Drain, "once is enough while it is not well");
        assert_eq!(take(&mut node, "heat", "a", Ok, 5), (Some(None), Ok, s(5)));
        assert_eq!((node.taken(), node.was_drained()), (Precaution::Nothing, true));
        assert_eq!(take(&mut node, "heat", "c", Ok, 6), (None, Ok, s(5)));
    }

    #[test]
    fn what_a_muted_rule_finds_is_known_and_does_not_count() {
        let mut node = NodeHealth::default();
        for at in 0..4 {
            node.take(&finding("heat", "a", Failing), s(2 * at));
            node.take(&finding("heat", "a", Ok), s(2 * at + 1));
        }
        node.take(&finding("heat", "a", Failing), s(9));
        assert_eq!((node.state(), node.found().count()), (Ok, 1));
        assert!(node.muted("heat", s(9)).is_some());
        assert_eq!(node.take(&finding("disk", "b", Suspect), s(10)), Some(Some(Firing::Counts)));
        assert_eq!(node.state(), Suspect);
    }

    #[test]
    fn a_node_is_slow_after_three_windows_in_a_row_and_so_it_is_over() {
        let mut node = NodeHealth::default();
        let windows = [1300, 1300, 1200, 1300, 1300, 1300, 1000, 1000, 1200, 1000, 1000, 1000];
        let changes: Vec<Option<bool>> = windows.map(|permille| node.compare(permille)).into();
        let changed: Vec<(usize, bool)> =
            changes.iter().enumerate().filter_map(|(n, slow)| Some((n, (*slow)?))).collect();
        assert_eq!(changed, [(5, true), (11, false)]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut node = NodeHealth::default();
        for n in 0..1000 {
            node.take(&finding("heat", &n.to_string(), Suspect), s(n * 1000));
            node.take_precaution(Precaution::Image, false, n.to_string(), s(n));
        }
        assert_eq!((node.found().count(), node.done().count()), (MAX_FOUND, MAX_DONE));
    }
}
