//! What is asked of the gateway's loop by other threads, and what wakes it.

use crate::dial::Answer;
use crate::line::Peer;
use eyrie_wire::directory::Directory;
use eyrie_wire::domains::{Domains, Letter};
use eyrie_wire::DomainId;
use rustix::event::{eventfd, EventfdFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

/// What is asked of the loop.
pub enum Input {
    Directory(Directory),
    Letter {
        domain: DomainId,
        letter: Letter,
    },
    /// Ranks have gone from one domain to another, or there is another domain.
    Domains(Domains),
    /// Messages are fetched from now on, or are not.
    Fetch(bool),
    /// Figures are asked for.
    Figures,
    Answer(Answer<Peer>),
    Stop,
}

/// The queue of inputs and the descriptor that wakes the loop.
pub struct Mailbox {
    inputs: Mutex<Vec<Input>>,
    wake: OwnedFd,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// When no descriptor is free.
    pub fn new() -> io::Result<Mailbox> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { inputs: Mutex::new(Vec::new()), wake })
    }

    /// Asks this of the loop.
    pub fn put(&self, input: Input) {
        if let Ok(mut inputs) = self.inputs.lock() {
            inputs.push(input);
        }
        // The counter cannot overflow: the loop resets it.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// What epoll is to watch.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// All that was put since the last time.
    pub fn take(&self) -> Vec<Input> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.inputs.lock().map(|mut inputs| std::mem::take(&mut *inputs)).unwrap_or_default()
    }
}
