//! The result of a check, as one line for people and as a record for programs.

use eyrie_units::plain;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Ok,
    /// Jobs run, but with less than they could have.
    Warn,
    /// Jobs do not run, or are not protected.
    Fail,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        })
    }
}

/// One thing that was checked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    pub level: Level,
    /// What was checked, in a word or two.
    pub subject: String,
    /// The result.
    pub text: String,
    /// What to do; empty when there is nothing to do.
    pub remedy: String,
}

impl Finding {
    pub fn ok(subject: &str, text: impl Into<String>) -> Finding {
        let subject = subject.to_string();
        let remedy = String::new();
        Finding { level: Level::Ok, subject, text: text.into(), remedy }
    }

    pub fn warn(subject: &str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        let subject = subject.to_string();
        Finding { level: Level::Warn, subject, text: text.into(), remedy: remedy.into() }
    }

    pub fn fail(subject: &str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Fail, ..Finding::warn(subject, text, remedy) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        // Text from files and other programs may contain anything.
        let subject = plain::line(&self.subject);
        let text = plain::line(&self.text);
        write!(f, "{:<4}  {subject}: {text}", self.level)?;
        match self.remedy.as_str() {
            "" => Ok(()),
            remedy => write!(f, "; {}", plain::line(remedy)),
        }
    }
}
