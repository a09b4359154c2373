//! Connections from outside whose preamble has not come: it says what they are for. Of a stranger
//! never more is kept than a preamble, and never for longer than a moment.

use crate::dial;
use crate::preamble::{Preamble, PREAMBLE_LEN};
use crate::sockets::Token;
use eyrie_transport::{Listener, Stream};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use std::io::{self, ErrorKind, Read};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long a preamble and a handshake may take.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Most connections whose preamble has not come.
const MAX_STRANGERS: usize = 256;
/// They have this bit in their number.
const STRANGER: Token = 1 << 63;

struct Stranger {
    stream: Stream,
    bytes: [u8; PREAMBLE_LEN],
    filled: usize,
    since: Instant,
}

/// The listener, and what has come there.
pub struct Strangers {
    listener: Listener,
    waiting: FxHashMap<Token, Stranger>,
    next: Token,
}

impl Strangers {
    /// What comes at this listener.
    ///
    /// # Errors
    /// When it cannot be made not to block.
    pub fn at(listener: Listener) -> io::Result<Strangers> {
        listener.set_nonblocking(true)?;
        Ok(Strangers { listener, waiting: FxHashMap::default(), next: STRANGER })
    }

    /// What epoll is to watch for new ones.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Whether a token is that of a stranger.
    pub fn is_one(token: Token) -> bool {
        token & STRANGER != 0
    }

    /// Takes all that have come, and has `epoll` watch them. When there are too many, the oldest
    /// one goes.
    pub fn accept(&mut self, epoll: BorrowedFd<'_>) {
        while let Ok(stream) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() || dial::prepare_line(&stream).is_err() {
                continue;
            }
            if self.waiting.len() >= MAX_STRANGERS {
                let oldest = self.waiting.iter().min_by_key(|(_, s)| s.since).map(|(t, _)| *t);
                oldest.map(|token| self.waiting.remove(&token));
            }
            let token = self.next;
            self.next += 1;
            let data = epoll::EventData::new_u64(token);
            if epoll::add(epoll, &stream, data, epoll::EventFlags::IN).is_ok() {
                let (bytes, since) = ([0; PREAMBLE_LEN], Instant::now());
                self.waiting.insert(token, Stranger { stream, bytes, filled: 0, since });
            }
        }
    }

    /// Reads what has come from one. Its preamble, when all of it is there, and its connection,
    /// which `epoll` watches no more.
    pub fn read(&mut self, token: Token, epoll: BorrowedFd<'_>) -> Option<(Preamble, Stream)> {
        let Stranger { stream, bytes, filled, .. } = self.waiting.get_mut(&token)?;
        match stream.read(&mut bytes[*filled..]) {
            Ok(n @ 1..) => *filled += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(0) | Err(_) => drop(self.waiting.remove(&token)),
        }
        if self.waiting.get(&token)?.filled < PREAMBLE_LEN {
            return None;
        }
        let Stranger { stream, bytes, .. } = self.waiting.remove(&token)?;
        let _ = epoll::delete(epoll, &stream);
        Some((Preamble::decode(&bytes)?, stream))
    }

    /// Those that take too long go.
    pub fn end_late(&mut self, now: Instant) {
        self.waiting.retain(|_, stranger| now - stranger.since < PATIENCE);
    }
}
