//! Which processes are read less often, as the user chooses.

use eyrie_units::share;
use serde::Serialize;
use std::str::FromStr;

/// The share of a core of [`Policy::Threshold`] and of [`Policy::Error`], where none was said.
const USUAL_THRESHOLD: f64 = 0.1;
const USUAL_ERROR: f64 = 0.01;

/// Decides whether a process is read (where reading costs something) and written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "policy")]
pub enum Policy {
    /// Every process at every sample.
    Off,
    /// Processes below this share of a core wait, unless a new process has appeared (OPT1 of
    /// Kamoshida and Taura, with 10 %).
    Threshold { share: f64 },
    /// A process waits twice as long whenever its CPU time was within `share` of a core of a
    /// straight line. When it was not, it is read at every sample again.
    Error { share: f64 },
}

/// off, busy, busy=10%, error, error=1%.
impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        match text.split_once('=').unwrap_or((text, "")) {
            ("off", "") => Ok(Policy::Off),
            ("busy", "") => Ok(Policy::Threshold { share: USUAL_THRESHOLD }),
            ("busy", limit) => Ok(Policy::Threshold { share: share(limit)? }),
            ("error", "") => Ok(Policy::Error { share: USUAL_ERROR }),
            ("error", limit) => Ok(Policy::Error { share: share(limit)? }),
            _ => Err(format!(
                "unknown policy {text:?}: choose off, busy, busy=10%, error or error=1%"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_as_users_write_them() {
        assert_eq!("off".parse(), Ok(Policy::Off));
        assert_eq!("busy".parse(), Ok(Policy::Threshold { share: 0.1 }));
        assert_eq!("error=5%".parse(), Ok(Policy::Error { share: 0.05 }));
        assert!("error=5".parse::<Policy>().is_err() && "lazy".parse::<Policy>().is_err());
    }
}
