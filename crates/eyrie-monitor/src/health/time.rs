//! Times in the rules file.

use serde::{Deserialize, Deserializer};
use std::fmt;
use std::time::Duration;

/// A time with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
        let text = String::deserialize(d)?;
        eyrie_units::positive_duration(&text).map(Time).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&eyrie_units::time(self.0))
    }
}
