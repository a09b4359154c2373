//! How one domain shows after another one what the ranks of all domains print: how far the first
//! one is on its way out of the job, and what the successor knows of its predecessor. It decides
//! nothing.

use super::outgoing::{Outgoing, Window};
use crate::machine::users::answer::RequestId;
use eyrie_wire::DomainId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How far this domain is on its way out of the job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Stage {
    /// The successor has not said yet whether it can, and must have by then.
    Asked { until: Duration },
    /// The successor is told that it shows what is printed.
    Told,
    /// So are these, which may still have something to be shown here.
    OthersTold(BTreeSet<DomainId>),
    /// None has.
    Over,
}

/// This domain leaves the job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Leave {
    pub(super) to: DomainId,
    pub(super) request: Option<RequestId>,
    /// The file in which the successor has standard output, once that is known.
    pub(super) file: String,
    pub(super) stage: Stage,
}

/// The domain that has shown before what is printed, while it may not have written all of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Predecessor {
    pub(super) id: DomainId,
    /// What it was told.
    pub(super) outgoing: Outgoing,
}

/// How one domain shows what is printed after another one.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Succession {
    pub(super) leave: Option<Leave>,
    /// How often this domain has asked for a successor.
    pub(super) asked: u64,
    /// This domain has been asked whether it can, by this number, and stays in the job until it
    /// hears more.
    pub(super) is_asked: Option<u64>,
    pub(super) predecessor: Option<Predecessor>,
    /// Not the domain of `eyrie run` shows it.
    pub(super) has_happened: bool,
    /// This domain shows it in files, because its own standard output ends with the command that
    /// has started the job.
    pub(super) in_files: bool,
}

impl Succession {
    /// Whether this domain is about to leave the job with all that it shows.
    pub fn is_left(&self) -> bool {
        self.leave.is_some()
    }

    /// Whether that can be taken back.
    pub fn can_stay(&self) -> bool {
        matches!(self.leave, Some(Leave { stage: Stage::Asked { .. }, .. }))
    }

    /// Why ranks cannot leave this domain; `name` of a domain.
    pub fn forbids_moves(&self, name: impl Fn(DomainId) -> String) -> Option<String> {
        if self.is_asked.is_some() {
            return Some("this domain is about to show what all ranks print".into());
        }
        let id = self.predecessor.as_ref()?.id;
        Some(format!(
            "domain {} is about to end, and has shown what ranks print: try again when it has",
            name(id)
        ))
    }

    /// Whether the domain of `eyrie run` has left the job.
    pub fn has_happened(&self) -> bool {
        self.has_happened
    }

    /// Whether what ranks print is shown in files.
    pub fn is_in_files(&self) -> bool {
        self.in_files
    }

    /// The domain that shows it when this one has left, and its file.
    pub fn successor(&self) -> Option<(DomainId, &str)> {
        let leave = self.leave.as_ref().filter(|leave| matches!(leave.stage, Stage::Over))?;
        Some((leave.to, &leave.file))
    }

    /// The domain that has shown it before.
    pub fn predecessor(&self) -> Option<DomainId> {
        Some(self.predecessor.as_ref()?.id)
    }

    /// The predecessor has written so many bytes of what it was told. The windows that open.
    ///
    /// # Errors
    /// When it was not told so many.
    pub fn shown(&mut self, bytes: u64) -> Result<Vec<Window>, String> {
        self.predecessor.as_mut().map_or(Ok(Vec::new()), |before| before.outgoing.shown(bytes))
    }

    /// When something is to be looked at.
    pub fn next(&self) -> Option<Duration> {
        match self.leave.as_ref()?.stage {
            Stage::Asked { until } => Some(until),
            Stage::Told | Stage::OthersTold(_) | Stage::Over => None,
        }
    }
}
