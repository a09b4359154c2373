//! Image streams between this node and the store, each on a thread and a connection of its own: the
//! control connection must never wait for an image.

use crate::controller::connection::connect;
use eyrie_image_format::stream::{Kind, RecordHeader};
use eyrie_transport::{frame, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, ImageAnswer, ImageMeta, StartFault};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, Rank, RankInstance};
use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long either end of a stream may be silent.
const STALL: Duration = Duration::from_secs(60);

/// The result of an upload that has come to its end.
#[derive(Debug)]
pub enum Uploaded {
    Stored,
    /// The store cannot join the image with the one that it builds on, for this reason.
    FullWanted(String),
}

/// The connection of an upload, through which another thread can cancel it.
#[derive(Clone, Debug, Default)]
pub struct Line(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    stream: Option<Stream>,
    given_up: bool,
}

impl Line {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Cancels the upload, which may wait for a store that is gone.
    pub fn give_up(&self) {
        let mut held = self.held();
        held.given_up = true;
        if let Some(stream) = held.stream.take() {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn hold(&self, stream: &Stream) -> anyhow::Result<()> {
        let mut held = self.held();
        anyhow::ensure!(!held.given_up, "another image of the rank was asked for");
        held.stream = Some(stream.try_clone()?);
        Ok(())
    }
}

/// Sends the image that arrives at `from` to the store; returns when it is stored.
///
/// # Errors
/// When the stream breaks, or the store refuses the image, with its reason.
pub fn upload(
    store: &Addr,
    secret: &Secret,
    (instance, image): (RankInstance, ImageId),
    meta: &ImageMeta,
    from: OwnedFd,
    line: &Line,
) -> anyhow::Result<Uploaded> {
    let mut stream = connect(store, secret, &Claim::ImageUpload { instance, image })?;
    stream.set_timeout(Some(STALL))?;
    line.hold(&stream)?;
    frame::write(&mut stream, meta)?;
    let copied = stream.send_all(&mut File::from(from));
    // Also after a failed copy: the store's answer says why.
    let ended = stream.shutdown(Shutdown::Write);
    let answer = match (frame::read(&mut stream), copied.as_ref().err(), ended.err()) {
        (Ok(answer), ..) => answer,
        (Err(_), Some(e), _) => anyhow::bail!("the image did not reach the store: {e}"),
        (Err(_), None, Some(e)) | (Err(e), None, None) => return Err(e.into()),
    };
    match answer {
        ImageAnswer::Stored => Ok(copied.map(|_| Uploaded::Stored)?),
        ImageAnswer::Refused { reason, full_wanted: true } => Ok(Uploaded::FullWanted(reason)),
        ImageAnswer::Refused { reason, .. } => anyhow::bail!("{reason}"),
        ImageAnswer::Stream(_) => anyhow::bail!("the store answered with a stream"),
    }
}

/// Opens an image in the store; the stream follows on the connection. If another image is in place
/// (`since`, 0: none), the stream has the difference to that one.
///
/// # Errors
/// When the store cannot be reached, or has no such whole image ([`StartFault::Image`]).
pub fn open(
    store: &Addr,
    secret: &Secret,
    rank: Rank,
    image: ImageId,
    since: ImageId,
) -> Result<(Stream, ImageMeta), (String, StartFault)> {
    let unreachable = |e: anyhow::Error| (format!("{e:#}"), StartFault::Attempt);
    let ask = || -> anyhow::Result<(Stream, ImageAnswer)> {
        let mut stream = connect(store, secret, &Claim::ImageFetch { rank, image, since })?;
        stream.set_timeout(Some(STALL))?;
        let answer = frame::read(&mut stream)?;
        Ok((stream, answer))
    };
    match ask().map_err(unreachable)? {
        (stream, ImageAnswer::Stream(meta)) => Ok((stream, meta)),
        (_, ImageAnswer::Refused { reason, .. }) => Err((reason, StartFault::Image)),
        (_, ImageAnswer::Stored) => {
            Err(("the store answered as to an upload".into(), StartFault::Attempt))
        }
    }
}

/// Copies an opened image to the restorer.
///
/// # Errors
/// When either end breaks.
pub fn feed(mut stream: Stream, to: OwnedFd) -> std::io::Result<u64> {
    stream.receive_all(&mut File::from(to))
}

/// Copies an opened image to the restorer, which then waits for another one.
///
/// # Errors
/// When either end breaks.
pub fn feed_and_wait(mut stream: Stream, image: ImageId, to: &OwnedFd) -> std::io::Result<u64> {
    let mut to = File::from(to.try_clone()?);
    let another = RecordHeader { kind: Kind::Prepared, flags: 0, a: image.0, b: 0, len: 0 };
    to.write_all(&another.encode())?;
    stream.receive_all(&mut to)
}
