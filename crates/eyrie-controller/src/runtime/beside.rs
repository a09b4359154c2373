//! What goes on beside a job in the process of its controller: processes that the job has not
//! started and must not end, what is told of lines to other domains, and what comes from outside to
//! the job. It knows nothing of the job.

use eyrie_interface::request::NewDomain;
use eyrie_wire::domains::Domains;
use eyrie_wire::DomainId;
use rustix::process::Pid;
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};

/// Why the job is to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Its exit code.
    pub code: i32,
    pub cause: String,
}

/// What comes from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FromOutside {
    /// The job is to end.
    Stop(Stop),
    /// The controller of another domain is gone, and is not brought back: the job is to end if the
    /// domain is a part of it.
    DomainLost { domain: DomainId, stop: Stop },
    /// The command that has started this controller sees it no more.
    Unwatched,
}

/// What becomes of the line to another domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineIs {
    Up,
    Down,
    /// The domain has ended, and the job goes on.
    Over,
    /// It was to join the job, and has not.
    Never,
}

/// A domain that joins the job, whose controller is to be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewSite {
    /// The domains as it is to know them.
    pub domains: Domains,
    pub new: NewDomain,
}

/// The line to another domain has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineChange {
    /// The name of that domain.
    pub domain: String,
    pub line: LineIs,
}

/// Children of this process that go on without the job. One is made while they are locked: so its
/// end is never seen before it is known.
#[derive(Clone, Debug, Default)]
pub struct Spared(Arc<Mutex<HashSet<Pid>>>);

impl Spared {
    /// Those that have not ended.
    pub fn lock(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// What goes on beside a job.
pub struct Beside {
    pub spared: Spared,
    /// Where the end of one of them is told, with its exit code; none: a signal has ended it.
    pub ended: Sender<(Pid, Option<i32>)>,
    /// Where it is told how the lines to other domains are.
    pub lines: Sender<LineChange>,
    /// Where domains that join are started; `None`: not from here.
    pub joins: Option<Sender<NewSite>>,
    pub from_outside: Receiver<FromOutside>,
}
