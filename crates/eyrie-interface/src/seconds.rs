//! Durations as numbers of seconds, to the microsecond; as they are where no human reads them.

use serde::{de::Error, Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

pub fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
    if s.is_human_readable() {
        s.serialize_f64(d.as_micros() as f64 / 1e6)
    } else {
        d.serialize(s)
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    if !d.is_human_readable() {
        return Duration::deserialize(d);
    }
    let micros = (f64::deserialize(d)? * 1e6).round();
    let known = (0.0..=u64::MAX as f64).contains(&micros).then_some(micros as u64);
    known.map(Duration::from_micros).ok_or_else(|| Error::custom("no duration in seconds"))
}
