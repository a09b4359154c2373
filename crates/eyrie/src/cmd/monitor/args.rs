//! How values are written on the command line.

use anyhow::Context;
use eyrie_monitor::health::HealthState;
use eyrie_monitor::sync::Key;
use eyrie_units::size;
use std::path::Path;

/// RULE or RULE=STATE.
pub fn injection(text: &str) -> Result<(String, HealthState), String> {
    match text.split_once('=') {
        Some((rule, state)) => Ok((rule.into(), state.parse()?)),
        None => Ok((text.into(), HealthState::Failing)),
    }
}

/// Smallest and largest ring, in bytes.
const RING: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 36;

/// The size of the ring.
pub fn ring(text: &str) -> Result<usize, String> {
    match size(text)? {
        // A user does not mean so few bytes.
        _ if text.parse::<u64>().is_ok() => {
            Err(format!("{text} of what? The size of a ring needs a unit: {text}MiB"))
        }
        n if RING.contains(&n) => Ok(n as usize),
        _ => Err(format!("{text} is no size of a ring: 64KiB to 64GiB")),
    }
}

/// The secret in a file, or none.
pub fn key(file: Option<&Path>) -> anyhow::Result<Key> {
    match file {
        None => Ok(Key::default()),
        Some(path) => {
            let secret = std::fs::read(path)
                .with_context(|| format!("cannot read the secret in {}", path.display()))?;
            Ok(Key::from_secret(secret.trim_ascii()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_injections() {
        assert_eq!(ring("2MiB"), Ok(2 << 20));
        assert!(ring("2").unwrap_err().contains("2MiB"));
        assert!(ring("99999999GiB").is_err() && ring("MiB").is_err());
        assert_eq!(injection("clock=suspect"), Ok(("clock".into(), HealthState::Suspect)));
        assert_eq!(injection("clock").unwrap().1, HealthState::Failing);
    }
}
