//! What goes on beside a job in the process of its controller: processes that the job has not
//! started and must not end, and reasons from outside to end the job. It knows nothing of the job.

use super::inbound::Inbound;
use crate::machine::Event;
use crossbeam_channel::Sender as Inlet;
use rustix::process::Pid;
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender};

/// Why the job is to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Its exit code.
    pub code: i32,
    pub cause: String,
}

/// What goes on beside a job.
pub struct Beside {
    /// Children of this process that go on without the job.
    pub spared: HashSet<Pid>,
    /// Where the end of one of them is told, with its exit code; none: a signal has ended it.
    pub ended: Sender<(Pid, Option<i32>)>,
    /// What comes here ends the job.
    pub stops: Receiver<Stop>,
}

/// Ends the job by what comes.
pub fn hear(stops: Receiver<Stop>, inbound: Inlet<Inbound>) {
    std::thread::spawn(move || {
        for Stop { code, cause } in stops {
            // The main thread receives no more only while the job ends.
            let _ = inbound.send(Inbound::Heard(Event::Stop { code, cause }.into()));
        }
    });
}
