//! How values are written on the command line.

use anyhow::Context;
use eyrie_monitor::health::HealthState;
use eyrie_monitor::names::CommandLines;
use eyrie_monitor::policy::Policy;
use eyrie_monitor::sync::Key;
use eyrie_units::{share, size};
use std::path::Path;

/// off, busy, busy=10%, error=1%.
pub fn policy(text: &str) -> Result<Policy, String> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("off", "") => Ok(Policy::Off),
        ("busy", "") => Ok(Policy::Threshold { share: 0.1 }),
        ("busy", limit) => Ok(Policy::Threshold { share: share(limit)? }),
        ("error", "") => Ok(Policy::Error { share: 0.01 }),
        ("error", limit) => Ok(Policy::Error { share: share(limit)? }),
        _ => Err(format!("unknown policy {text:?}: choose off, busy, busy=10%, error or error=1%")),
    }
}

/// none, own, all.
pub fn command_lines(text: &str) -> Result<CommandLines, String> {
    match text {
        "none" => Ok(CommandLines::None),
        "own" => Ok(CommandLines::Own),
        "all" => Ok(CommandLines::All),
        _ => Err(format!("whose command lines? {text:?} is none of none, own and all")),
    }
}

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
    fn policies_sizes_and_injections() {
        assert_eq!(policy("busy"), Ok(Policy::Threshold { share: 0.1 }));
        assert!(policy("error=5").is_err() && policy("lazy").is_err());
        assert_eq!(ring("2MiB"), Ok(2 << 20));
        assert!(ring("2").unwrap_err().contains("2MiB"));
        assert!(ring("99999999GiB").is_err() && ring("MiB").is_err());
        assert_eq!(injection("clock=suspect"), Ok(("clock".into(), HealthState::Suspect)));
        assert_eq!(injection("clock").unwrap().1, HealthState::Failing);
    }
}
