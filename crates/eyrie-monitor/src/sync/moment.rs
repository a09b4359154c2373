//! The moment of a sample, and how nodes agree on it.

use serde::Serialize;
use std::str::FromStr;

/// How nodes agree on the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// They agree on a start once, then each uses its own clock, whose drift is corrected
    /// (SYNC_ONCE of Kamoshida and Taura).
    Once,
    /// A process on another node sends a tick for every sample (SYNC_ALWAYS).
    Always,
    /// Whole multiples of the interval on the clock that all nodes share.
    Clock,
    /// Each node has its own moments.
    Off,
}

impl FromStr for Mode {
    type Err = String;
    fn from_str(text: &str) -> Result<Mode, String> {
        Ok(match text {
            "once" => Mode::Once,
            "always" => Mode::Always,
            "clock" => Mode::Clock,
            "off" => Mode::Off,
            other => {
                return Err(format!(
                    "unknown way to agree {other:?}: choose once, always, clock or off"
                ))
            }
        })
    }
}

/// The moment of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds since 1970.
    pub intended_ns: u64,
    pub skew_ns: i64,
    /// Intervals since the moment before.
    pub step: u32,
    /// Whether the tick for it did not come.
    pub alone: bool,
}
