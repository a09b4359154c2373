//! How ranks are to move. Plain data: the machine carries it out. The documentation of the options
//! and choices is what `--help` says of them.

#[cfg(feature = "clap")]
use eyrie_units::duration;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The pause budget of a rank that moves, as an option has it.
pub const PAUSE_BUDGET: &str = "50ms";

/// How ranks are to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct Manner {
    /// When a round takes no longer, the rank stands still for the next one, which is the last
    #[cfg_attr(
        feature = "clap",
        arg(long, default_value = PAUSE_BUDGET, value_parser = duration, value_name = "TIME")
    )]
    pub pause_budget: Duration,
    /// What to do with a rank that writes so fast that its rounds do not get that short
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t, value_name = "WHAT"))]
    pub if_slow: IfSlow,
    /// How its memory goes over
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t, value_name = "WAY"))]
    pub way: Way,
}

/// How the memory of a rank that moves goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Way {
    /// In rounds, while the rank computes
    #[default]
    Live,
    /// The rank stands still for all of it: for one that writes nearly all of its memory in each
    /// step, whose rounds would bring all of it again and again
    Stop,
}

impl Default for Manner {
    fn default() -> Manner {
        let (if_slow, way) = Default::default();
        Manner { pause_budget: Duration::from_millis(50), if_slow, way }
    }
}

/// What becomes of a rank that writes faster than its memory goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum IfSlow {
    /// It moves all the same, and stands still for longer
    #[default]
    Accept,
    /// It is slowed step by step, at most to a fifth of its speed, until they do; if they never do,
    /// it moves all the same
    SlowDown,
    /// It stays where it is
    GiveUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_the_option_says() {
        assert_eq!(eyrie_units::duration(PAUSE_BUDGET), Ok(Manner::default().pause_budget));
    }
}
