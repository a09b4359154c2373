//! How ranks are to move. Plain data: the machine carries it out. The documentation of each choice
//! is what `--help` says of it.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a rank is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manner {
    /// The last round begins when one took no longer than this: the pause is shorter than a round.
    pub pause_budget: Duration,
    /// What becomes of a rank whose rounds do not get that short.
    pub if_slow: IfSlow,
    pub way: Way,
}

/// How the memory of a rank that moves goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Way {
    /// In rounds, while the rank computes
    Live,
    /// The rank stands still for all of it: for one that writes nearly all of its memory in each
    /// step, whose rounds would bring all of it again and again
    Stop,
}

impl Default for Manner {
    fn default() -> Manner {
        let (if_slow, way) = (IfSlow::Accept, Way::Live);
        Manner { pause_budget: Duration::from_millis(50), if_slow, way }
    }
}

/// What becomes of a rank that writes faster than its memory goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum IfSlow {
    /// It moves all the same, and stands still for longer
    Accept,
    /// It is slowed step by step, at most to a fifth of its speed, until they do; if they never do,
    /// it moves all the same
    SlowDown,
    /// It stays where it is
    GiveUp,
}
