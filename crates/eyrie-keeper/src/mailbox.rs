//! What the threads of connections, and the controller, give to the thread that owns the ledgers.

use crate::core::ConnId;
use crate::process::Process;
use crossbeam_channel::Sender;
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_transport::Stream;
use eyrie_wire::keeper::ToKeeper;
use eyrie_wire::RankInstance;
use rustix::event::{eventfd, EventfdFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

/// One of them.
pub enum Input {
    Command(RouterCommand),
    /// Whether this incarnation may connect.
    Admit(RankInstance, Sender<Result<(), String>>),
    Connected {
        id: ConnId,
        instance: RankInstance,
        stream: Stream,
        process: Process,
    },
    Message(ConnId, ToKeeper),
    Disconnected(ConnId),
    /// For the controller: what a connection's thread has found.
    Found(RouterEvent),
    Stop,
}

/// A queue, and the descriptor that wakes the thread.
pub struct Mailbox {
    /// `None`: the thread has ended.
    inputs: Mutex<Option<Vec<Input>>>,
    wake: OwnedFd,
}

impl Mailbox {
    /// # Errors
    /// When no descriptor is free.
    pub fn new() -> io::Result<Mailbox> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { inputs: Mutex::new(Some(Vec::new())), wake })
    }

    fn inputs(&self) -> MutexGuard<'_, Option<Vec<Input>>> {
        self.inputs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives an input. False: the thread has ended.
    pub fn put(&self, input: Input) -> bool {
        let mut inputs = self.inputs();
        let Some(inputs) = inputs.as_mut() else { return false };
        inputs.push(input);
        // The counter cannot overflow: the thread resets it.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        true
    }

    /// All that was given since the last time.
    pub fn take(&self) -> Vec<Input> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.inputs().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nothing more is taken.
    pub fn end(&self) {
        *self.inputs() = None;
    }
}

/// Can be read when there is something to take.
impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
