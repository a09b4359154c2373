//! A connection, and what accepts connections, whatever the kind of address.

use crate::addr::Addr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    Unix(UnixStream),
}

impl Stream {
    /// Connects. The stream blocks, for at most `timeout` at each step.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(addr: &Addr, timeout: Duration) -> io::Result<Stream> {
        let stream = match addr {
            Addr::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        };
        stream.set_timeout(Some(timeout))?;
        Ok(stream)
    }

    /// How long a step of reading or writing may take.
    ///
    /// # Errors
    /// When the descriptor does not take it.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Unix(s) => {
                s.set_read_timeout(timeout)?;
                s.set_write_timeout(timeout)
            }
        }
    }

    /// # Errors
    /// When the descriptor does not take it.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.set_nonblocking(nonblocking),
        }
    }

    /// The same connection by another descriptor.
    ///
    /// # Errors
    /// When there is no descriptor to be had.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
        })
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    /// When the connection is gone already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Unix(s) => s.shutdown(how),
        }
    }

    /// Moves all that `from` gives to the other side, within the kernel where it can.
    ///
    /// # Errors
    /// When either end breaks.
    pub fn send_all(&mut self, from: &mut File) -> io::Result<u64> {
        match self {
            Stream::Unix(s) => io::copy(from, s),
        }
    }

    /// Moves all that the other side sends to `to`, within the kernel where it can.
    ///
    /// # Errors
    /// When either end breaks.
    pub fn receive_all(&mut self, to: &mut File) -> io::Result<u64> {
        match self {
            Stream::Unix(s) => io::copy(s, to),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(s) => s.as_fd(),
        }
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        match stream {
            Stream::Unix(s) => s.into(),
        }
    }
}

/// What accepts connections.
#[derive(Debug)]
pub enum Listener {
    Unix(UnixListener),
}

impl Listener {
    /// # Errors
    /// When the address is taken or cannot be had.
    pub fn bind(addr: &Addr) -> io::Result<Listener> {
        Ok(match addr {
            Addr::Unix(path) => Listener::Unix(UnixListener::bind(path)?),
        })
    }

    /// # Errors
    /// When the descriptor does not take it.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Listener::Unix(l) => l.set_nonblocking(nonblocking),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The listener's; `WouldBlock` when it does not block and there is none.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix(l) => Ok(Stream::Unix(l.accept()?.0)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(l) => l.as_fd(),
        }
    }
}
