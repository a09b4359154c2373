//! The proven connections of a gateway's loop: what is queued is written, and epoll reports what
//! can be read. It must never wait for a peer.

use eyrie_router::conn::{Conn, Stage};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;

/// The number of a connection. Numbers are not reused.
pub type Token = u64;

/// A connection, and what it is for.
struct Socket<P> {
    conn: Conn,
    peer: P,
}

/// All connections; `P`: what one is for.
pub struct Sockets<P> {
    epoll: OwnedFd,
    all: FxHashMap<Token, Socket<P>>,
    next: Token,
    /// Those with something to write.
    touched: Vec<Token>,
    /// Bytes queued since all was written.
    queued_bytes: usize,
    /// Those that could not be written.
    broken: Vec<Token>,
}

impl<P: Copy> Sockets<P> {
    /// None yet; the first has the number `first`.
    ///
    /// # Errors
    /// When the kernel has no epoll for it.
    pub fn new(first: Token) -> io::Result<Sockets<P>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Sockets {
            epoll,
            all: FxHashMap::default(),
            next: first,
            touched: Vec::new(),
            queued_bytes: 0,
            broken: Vec::new(),
        })
    }

    pub fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Adds a connection.
    ///
    /// # Errors
    /// When epoll does not take it.
    pub fn add(&mut self, conn: Conn, peer: P) -> io::Result<Token> {
        let token = self.next;
        self.next += 1;
        epoll::add(&self.epoll, &conn, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        self.all.insert(token, Socket { conn, peer });
        Ok(token)
    }

    pub fn get(&mut self, token: Token) -> Option<(&mut Conn, P)> {
        self.all.get_mut(&token).map(|socket| (&mut socket.conn, socket.peer))
    }

    /// Changes what a connection is for.
    pub fn set_peer(&mut self, token: Token, peer: P) {
        if let Some(socket) = self.all.get_mut(&token) {
            socket.peer = peer;
        }
    }

    /// The connections that are for this.
    pub fn of(&self, holds: impl Fn(P) -> bool) -> Vec<Token> {
        let which = self.all.iter().filter(|(_, socket)| holds(socket.peer));
        which.map(|(token, _)| *token).collect()
    }

    /// Removes a connection; returns what it was for.
    pub fn remove(&mut self, token: Token) -> Option<P> {
        let Socket { conn, peer } = self.all.remove(&token)?;
        let _ = epoll::delete(&self.epoll, &conn);
        Some(peer)
    }

    /// Queues something.
    pub fn queue(&mut self, token: Token, put: impl FnOnce(&mut Conn)) {
        let Some(Socket { conn, .. }) = self.all.get_mut(&token) else { return };
        let before = conn.out.len();
        put(conn);
        self.queued_bytes += conn.out.len() - before;
        if !conn.touched {
            conn.touched = true;
            self.touched.push(token);
        }
    }

    pub fn has_room(&self, token: Token) -> bool {
        self.all.get(&token).is_some_and(|socket| socket.conn.has_room())
    }

    /// How much is queued, about.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Writes what is queued.
    pub fn write_touched(&mut self) {
        self.queued_bytes = 0;
        while let Some(token) = self.touched.pop() {
            self.write(token);
        }
    }

    /// Writes what is queued for a connection.
    pub fn write(&mut self, token: Token) {
        let Some(Socket { conn, .. }) = self.all.get_mut(&token) else { return };
        conn.touched = false;
        if conn.flush().is_err() || matches!(conn.stage, Stage::Closing) && !conn.blocked {
            self.broken.push(token);
            return;
        }
        if conn.blocked != conn.watched {
            conn.watched = conn.blocked;
            let data = epoll::EventData::new_u64(token);
            let _ = epoll::modify(&self.epoll, &*conn, data, interest(conn));
        }
    }

    /// A connection that could not be written, or is written to its end.
    pub fn next_broken(&mut self) -> Option<Token> {
        self.broken.pop()
    }
}

fn interest(conn: &Conn) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::IN;
    flags.set(epoll::EventFlags::OUT, conn.blocked);
    flags
}
