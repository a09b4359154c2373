//! The output of the two kernels that print a line of JSON for each message size, by size and
//! round.

use anyhow::{bail, Context};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A line; other fields are not needed.
#[derive(Deserialize)]
struct Line {
    bytes: u64,
    median_us: f64,
}

/// Median times in microseconds, by size in bytes.
pub type BySize = BTreeMap<u64, f64>;

/// Reads what a kernel printed.
///
/// # Errors
/// When it is something else.
pub fn parse(text: &str) -> anyhow::Result<BySize> {
    let lines = text.lines().map(|text| {
        let line: Line = serde_json::from_str(text)
            .with_context(|| format!("the benchmark program printed {text:?}"))?;
        Ok((line.bytes, line.median_us))
    });
    let times = lines.collect::<anyhow::Result<BySize>>()?;
    if times.is_empty() || times.values().any(|us| us.is_nan() || *us <= 0.0) {
        bail!("the benchmark program printed no times");
    }
    Ok(times)
}

/// The times of one size, round by round.
pub fn at(rounds: &[BySize], bytes: u64) -> Vec<f64> {
    rounds.iter().filter_map(|times| times.get(&bytes).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_are_read() {
        let text = "{\"bench\":\"pingpong\",\"bytes\":8,\"median_us\":2.5}\n{\"bytes\":16,\"median_us\":3}\n";
        let times = parse(text).unwrap();
        assert_eq!(at(&[times.clone(), times], 8), [2.5, 2.5]);
        assert!(parse("").is_err() && parse("hello").is_err());
        assert!(parse("{\"bytes\":8,\"median_us\":0}").is_err());
    }
}
