//! Rules that fire too often on a node: they are muted for a while, since what comes and goes again
//! and again says little. Pure.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A rule may fire so often on a node within this time; after the next time it is muted for so
/// long.
pub const TIMES: usize = 3;
pub const WITHIN: Duration = Duration::from_secs(600);
pub const LONG: Duration = Duration::from_secs(3600);
/// Most rules of which it is known when they fired.
const MAX_RULES: usize = 256;

/// How often each rule has fired on a node lately.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Muting {
    fired: BTreeMap<String, VecDeque<Duration>>,
    /// Rules that are muted, and until when.
    muted: BTreeMap<String, Duration>,
}

/// Whether a rule that fires counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Firing {
    Counts,
    /// It fires too often: it is muted from now on.
    TooOften,
    Muted,
}

impl Muting {
    /// A rule fires.
    pub fn fire(&mut self, rule: &str, now: Duration) -> Firing {
        if self.until(rule, now).is_some() {
            return Firing::Muted;
        }
        self.muted.remove(rule);
        if !self.fired.contains_key(rule) && self.fired.len() >= MAX_RULES {
            return Firing::Muted;
        }
        let fired = self.fired.entry(rule.into()).or_default();
        while fired.front().is_some_and(|at| *at + WITHIN < now) {
            fired.pop_front();
        }
        if fired.len() < TIMES {
            fired.push_back(now);
            return Firing::Counts;
        }
        fired.clear();
        self.muted.insert(rule.into(), now + LONG);
        Firing::TooOften
    }

    /// Until when a rule is muted, if it is.
    pub fn until(&self, rule: &str, now: Duration) -> Option<Duration> {
        self.muted.get(rule).copied().filter(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_rule_that_fires_too_often_is_muted_for_a_while_and_no_other_one() {
        let mut muting = Muting::default();
        let fired: Vec<Firing> = (1..=5).map(|n| muting.fire("heat", n * S)).collect();
        use Firing::{Counts, Muted, TooOften};
        assert_eq!(fired, [Counts, Counts, Counts, TooOften, Muted]);
        assert_eq!(muting.until("heat", 5 * S), Some(4 * S + LONG));
        assert_eq!(muting.fire("disk", 5 * S), Counts);
        assert_eq!(muting.fire("heat", 4 * S + LONG), Counts);
    }

    #[test]
    fn a_rule_that_fires_seldom_is_never_muted() {
        let mut muting = Muting::default();
        for n in 0..100 {
            assert_eq!(muting.fire("heat", n * WITHIN / 2), Firing::Counts);
        }
    }
}
