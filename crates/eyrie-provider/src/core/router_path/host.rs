//! What the way through routers needs of the process around it: connections and waiting. The real
//! one is `sockets.rs`. Tests have one in memory, with the routers' real protocol on the other
//! side.

use crate::core::path::ImagePoint;
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::{data, RouterId};
use std::io;
use std::time::Duration;

/// What a stream is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Read,
    Write,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum ConnectError {
    /// Another attempt may succeed.
    Unreachable(io::Error),
    Refused(String),
    Secret,
}

/// A file that holds payloads.
pub trait File {
    /// Reads `len` bytes from `offset` on to `to`.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes.
    ///
    /// # Errors
    /// The file's; `UnexpectedEof` when it is too short.
    unsafe fn read_to(&self, offset: u64, to: *mut u8, len: usize) -> io::Result<()>;

    /// # Errors
    /// The file's.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Its number, if it has one that an image must know.
    fn descriptor(&self) -> Option<i32>;
}

/// A connection to a router. Nothing here blocks but [`RouterStream::receive`] when asked to.
pub trait RouterStream {
    type File: File;

    /// Gives bytes; returns how many were taken.
    ///
    /// # Errors
    /// `WouldBlock` when none are taken at present; else the connection is gone.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Takes bytes, and the files that came with them. With `wait` it waits shortly for some.
    /// `None`: there are none.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end; else the connection is gone.
    fn receive(
        &mut self,
        into: &mut [u8],
        wait: bool,
        files: &mut dyn FnMut(Self::File),
    ) -> io::Result<Option<usize>>;

    /// Whether files come over it; else payloads go through it in pieces.
    fn passes_files(&self) -> bool;

    /// Its number, if it has one that an image must know.
    fn descriptor(&self) -> Option<i32>;
}

/// A process that reaches routers.
pub trait Host: ImagePoint {
    type File: File;
    type RouterStream: RouterStream<File = Self::File>;

    /// Connects to a router, proves who this rank is, and is let in.
    ///
    /// # Errors
    /// Why not.
    fn connect(
        &mut self,
        router: RouterId,
        stream: data::StreamKind,
    ) -> Result<Self::RouterStream, ConnectError>;

    /// The primary router of a rank, and how many routers there are.
    fn primary_router(&self, rank: eyrie_wire::Rank) -> RouterId;
    fn routers(&self) -> u32;

    /// Until when messages are kept by those who send them.
    fn kept_until(&self) -> KeptUntil;

    /// Whether this router runs on the rank's own host, and dies with it.
    fn is_beside(&self, router: RouterId) -> bool;

    /// Whether this router is that of all ranks of other domains.
    fn is_gateway(&self, router: RouterId) -> bool;

    /// Takes the newest directory, if there is a newer one than the last: the routers whose address
    /// has changed, or that serve other ranks. Cheap when there is none.
    fn changed_routers(&mut self) -> Vec<RouterId>;

    /// Waits until one of the streams can be read or written, at most `timeout`. It may come back
    /// earlier.
    fn wait<'a>(
        &mut self,
        streams: impl Iterator<Item = (&'a Self::RouterStream, Interest)>,
        timeout: Duration,
    ) where
        Self::RouterStream: 'a;

    /// Lets time pass between two attempts.
    fn pause(&mut self, time: Duration);
}
