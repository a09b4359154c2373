//! The readers' names.

use serde::Serialize;
use std::str::FromStr;

/// The readers, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    BpfOpen,
    BpfIter,
    Taskstats,
    Clocks,
    Proc,
}

impl Kind {
    pub const ALL: [Kind; 5] =
        [Kind::BpfOpen, Kind::BpfIter, Kind::Taskstats, Kind::Clocks, Kind::Proc];

    pub fn name(self) -> &'static str {
        match self {
            Kind::BpfOpen => "bpf-open",
            Kind::BpfIter => "bpf-iter",
            Kind::Taskstats => "taskstats",
            Kind::Clocks => "clocks",
            Kind::Proc => "proc",
        }
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL.into_iter().find(|k| k.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
            format!("unknown reader {text:?}: choose one of {}", names.join(", "))
        })
    }
}
