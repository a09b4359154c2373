//! The store as a role of a job. Agents send and fetch images over connections of their own; other
//! stores copy images; the controller sends commands and receives events. It runs as threads of the
//! controller, or as a process. An agent must never learn that its image is stored before the
//! controller has.

mod copies;
mod messages;
mod orders;
pub mod serving;

pub use messages::{Config, StoreCommand, StoreEvent, Stored};

use crate::{ImageInfo, ImageSummary, IoError, ReceiveError, Store};
use eyrie_transport::{frame, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{ImageAnswer, ImageMeta};
use eyrie_wire::{ImageId, Incarnation, Rank, RankInstance};
use orders::Orders;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long either end of an image's stream may send nothing, and how long the controller may take
/// to acknowledge an image.
const STALL: Duration = Duration::from_secs(60);
/// Bytes of an image that are read at once: a small image has thousands of records of a page.
const READ_AHEAD: usize = 128 << 10;
/// How long the rest of a refused image is read.
const LINGER: Duration = Duration::from_secs(10);

/// Receives events; called from many threads.
type Report = Box<dyn Fn(StoreEvent) + Send + Sync>;

/// A running store.
pub struct StoreRole {
    store: Store,
    secret: Secret,
    orders: Orders,
    state: Mutex<RoleState>,
    /// Notified when the controller has acknowledged an image.
    acknowledged: Condvar,
    report: Report,
}

#[derive(Default)]
struct RoleState {
    newest: BTreeMap<Rank, Incarnation>,
    unacknowledged: BTreeSet<(RankInstance, ImageId)>,
}

impl StoreRole {
    fn state(&self) -> MutexGuard<'_, RoleState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn is_present(&self, instance: RankInstance) -> bool {
        // A store that started late does not know of earlier deaths.
        let newest = self.state().newest.get(&instance.rank).copied();
        newest.is_none_or(|newest| newest == instance.incarnation)
    }

    /// Receives an image from an agent.
    fn receive(&self, instance: RankInstance, image: ImageId, mut stream: Stream) {
        let taken = self.store_image(instance, image, &mut stream);
        let acknowledged = taken.and_then(|stored| self.report_and_wait(instance, stored));
        match acknowledged {
            Ok(()) => {
                // The agent may be gone.
                let _ = frame::write(&mut stream, &ImageAnswer::Stored);
            }
            Err(Refusal { reason, full_wanted }) => {
                // The agent tells the controller, with the rank's own reason if there is one.
                let answer = ImageAnswer::Refused { reason: reason.clone(), full_wanted };
                match frame::write(&mut stream, &answer) {
                    Ok(()) => linger(stream),
                    Err(_) => (self.report)(StoreEvent::Failed { instance, image, reason }),
                }
            }
        }
    }

    /// What the controller must know of an image.
    ///
    /// # Errors
    /// When the agent's metadata cannot be read. Then the image cannot be restored, either.
    fn stored(&self, image: &ImageSummary) -> Result<(RankInstance, Stored), String> {
        let ImageSummary { rank, image, ref info, bytes } = *image;
        let meta: ImageMeta = postcard::from_bytes(&info.meta).map_err(|e| {
            format!("image {image} of rank {rank}: cannot read the metadata of its agent: {e}")
        })?;
        let instance = RankInstance { rank, incarnation: meta.incarnation };
        Ok((instance, stored(image, &meta, bytes)))
    }

    fn report_stored(&self, instance: RankInstance, stored: Stored) {
        let live_bytes = self.store.live_bytes();
        (self.report)(StoreEvent::Stored { instance, stored, live_bytes });
    }

    /// Reports an image to the controller and waits for its acknowledgement: the agent must report
    /// the image after this.
    fn report_and_wait(&self, instance: RankInstance, stored: Stored) -> Result<(), Refusal> {
        let key = (instance, stored.image);
        self.state().unacknowledged.insert(key);
        self.report_stored(instance, stored);
        let waiting = |state: &mut RoleState| state.unacknowledged.contains(&key);
        let waited = self.acknowledged.wait_timeout_while(self.state(), STALL, waiting);
        let (mut state, _) = waited.unwrap_or_else(|e| e.into_inner());
        if state.unacknowledged.remove(&key) {
            Err(format!("the controller did not acknowledge it within {STALL:?}").into())
        } else {
            Ok(())
        }
    }

    fn store_image(
        &self,
        instance: RankInstance,
        image: ImageId,
        stream: &mut Stream,
    ) -> Result<Stored, Refusal> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        stream.set_timeout(Some(STALL)).map_err(|e| text(&e))?;
        let meta: ImageMeta = frame::read(stream).map_err(|e| text(&e))?;
        let RankInstance { rank, incarnation } = instance;
        if meta.incarnation != incarnation {
            let found = meta.incarnation;
            return Err(format!("it is of incarnation {found}, not {incarnation}").into());
        }
        (self.report)(StoreEvent::Begun { instance, image });
        let info = ImageInfo {
            incarnation,
            clock: meta.clock,
            rsn: meta.rsn,
            meta: postcard::to_stdvec(&meta).map_err(|e| text(&e))?,
        };
        let stream_of_it = stream.try_clone().map_err(|e| text(&e))?;
        let source = Present { stream: stream_of_it, role: self, instance };
        // Only the end of the stream comes after the image, so what is read ahead is the image's.
        let source = BufReader::with_capacity(READ_AHEAD, source);
        let stored = self.store.receive(rank, image, info, source);
        if let Err(ReceiveError::Storage { source, .. }) = &stored {
            self.report_if_full(source);
        }
        let stored = stored?;
        // The agent ends its stream when the rank has ended its own; by then it knows the pause. A
        // failure to read this end has no effect.
        let _ = stream.read(&mut [0]);
        Ok(self::stored(image, &meta, stored.bytes))
    }

    /// Tells the controller that the disk is full, before the outcome of the image.
    fn report_if_full(&self, error: &IoError) {
        if error.is_full() {
            (self.report)(StoreEvent::Full { reason: error.to_string() });
        }
    }

    /// Sends an image. The stream ends early when a chunk is damaged.
    fn send(&self, rank: Rank, (image, since): (ImageId, ImageId), mut stream: Stream) {
        let images = self.store.images(rank);
        let meta = (images.iter().find(|i| i.image == image))
            .and_then(|i| postcard::from_bytes::<ImageMeta>(&i.info.meta).ok());
        let Some(meta) = meta else {
            let reason = format!("the store has no image {image} of rank {rank}");
            // The agent may be gone.
            let refused = ImageAnswer::Refused { reason, full_wanted: false };
            let _ = frame::write(&mut stream, &refused);
            return;
        };
        let sent = stream
            .set_timeout(Some(STALL))
            .and_then(|()| frame::write(&mut stream, &ImageAnswer::Stream(meta)))
            .map_err(|e| e.to_string())
            .and_then(|()| {
                let mut out = BufWriter::with_capacity(1 << 20, &mut stream);
                let sent = match since {
                    ImageId(0) => self.store.send(rank, image, &mut out),
                    since => self.store.send_since(rank, image, since, &mut out),
                };
                sent.map_err(|e| e.to_string())?;
                out.flush().map_err(|e| e.to_string())?;
                drop(out);
                stream.shutdown(Shutdown::Write).map_err(|e| e.to_string())
            });
        if let Err(reason) = sent {
            (self.report)(StoreEvent::Note(format!("image {image} of rank {rank}: {reason}")));
        }
    }
}

/// Why an image was not stored, and whether a full image would be accepted instead.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    reason: String,
    full_wanted: bool,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { reason, full_wanted: false }
    }
}

impl From<ReceiveError> for Refusal {
    fn from(error: ReceiveError) -> Refusal {
        Refusal { reason: error.to_string(), full_wanted: error.is_of_base() }
    }
}

/// Ends the stream of an image when its rank has a later incarnation.
struct Present<'a> {
    stream: Stream,
    role: &'a StoreRole,
    instance: RankInstance,
}

impl Read for Present<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buf)?;
        if !self.role.is_present(self.instance) {
            return Err(io::Error::other("the rank has died meanwhile"));
        }
        Ok(n)
    }
}

/// What the controller must know of an image of so many bytes, of which its agent says this.
fn stored(image: ImageId, meta: &ImageMeta, bytes: u64) -> Stored {
    let ImageMeta { clock, rsn, observed, stream_offsets: [stdin, ..], .. } = *meta;
    let file_bytes = meta.file_bytes.unwrap_or(0);
    Stored { image, clock, rsn, observed, stdin, bytes, file_bytes }
}

/// Reads and drops the rest of a refused image until the agent has the answer. Over TCP, closing a
/// connection with unread bytes can destroy the answer.
fn linger(mut stream: Stream) {
    if stream.passes_files() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let until = Instant::now() + LINGER;
    let mut bytes = vec![0; 1 << 16];
    while Instant::now() < until && matches!(stream.read(&mut bytes), Ok(1..)) {}
}
