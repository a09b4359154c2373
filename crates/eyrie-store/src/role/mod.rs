//! The store as a role of a job. Agents send and fetch images over connections of their own; other
//! stores copy images; the controller sends commands and receives events. It runs as threads of the
//! controller, or as a process. An agent must never learn that its image is stored before the
//! controller has.

mod copies;
mod messages;
mod orders;

pub use messages::{Config, StoreCommand, StoreEvent, Stored};

use crate::{ImageInfo, ImageSummary, IoError, Options, ReceiveError, Store, StoreError};
use crossbeam_channel::bounded;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::role::{self, Follow};
use eyrie_transport::server::{self, Service};
use eyrie_transport::{frame, Addr, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, ImageAnswer, ImageMeta};
use eyrie_wire::{ImageId, Incarnation, Rank, RankInstance};
use orders::{Order, Orders};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Images of a rank that a store keeps: two checkpoints, two of a saved job, one that does not
/// count yet, and one more. The last is needed because discards and new images arrive over
/// different connections.
const KEPT: usize = 6;
/// How long either end of an image's stream may send nothing, and how long the controller may take
/// to acknowledge an image.
const STALL: Duration = Duration::from_secs(60);
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
    /// Creates the store, or opens the one that is there, and listens.
    ///
    /// # Errors
    /// When the directory or the address cannot be used, or the images there are another job's.
    pub fn start(
        config: &Config,
        secret: Secret,
        report: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> Result<Arc<StoreRole>, StoreError> {
        let options = Options { job: config.job.clone(), keep: KEPT, sync: config.sync };
        let role = Arc::new(StoreRole {
            store: Store::open_or_create(&config.dir, options)?,
            secret,
            orders: Orders::new(),
            state: Mutex::default(),
            acknowledged: Condvar::new(),
            report: Box::new(report),
        });
        let place = config.listen.to_string();
        let addr = server::listen(&config.listen, Arc::clone(&role))
            .map_err(IoError::at("listen at", Path::new(&place)))?;
        role.make_copies();
        (role.report)(StoreEvent::Listening(addr));
        for (rank, image, reason) in &role.store.recovery().lost {
            let dir = config.dir.display();
            let text = format!("image {image} of rank {rank} in {dir} is lost: {reason}");
            (role.report)(StoreEvent::Note(text));
        }
        Ok(role)
    }

    /// Carries out a command of the controller.
    ///
    /// # Errors
    /// A sentence for users, when it could not be done.
    pub fn command(&self, command: StoreCommand) -> Result<(), String> {
        match command {
            StoreCommand::Present(RankInstance { rank, incarnation }) => {
                self.state().newest.insert(rank, incarnation);
            }
            StoreCommand::Heard { instance, image } => {
                self.state().unacknowledged.remove(&(instance, image));
                self.acknowledged.notify_all();
            }
            StoreCommand::Copy { instance, image, from } => {
                self.order_copy(Order { instance, image, from });
            }
            StoreCommand::Inventory => {
                let images = self.store.all_images();
                let images = images.iter().filter_map(|image| self.stored(image).ok()).collect();
                (self.report)(StoreEvent::Inventory { images });
            }
            // The controller does not ask again. The store later discards the image by itself.
            StoreCommand::Discard { rank, image } => {
                return self
                    .store
                    .discard(rank, image)
                    .map_err(|e| format!("image {image} of rank {rank} cannot be discarded: {e}"));
            }
        }
        Ok(())
    }

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
        let ImageMeta { clock, rsn, observed, stream_offsets: [stdin, ..], .. } = meta;
        Ok((instance, Stored { image, clock, rsn, observed, stdin, bytes }))
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
            incarnation: incarnation.into(),
            clock: meta.clock,
            rsn: meta.rsn,
            meta: postcard::to_stdvec(&meta).map_err(|e| text(&e))?,
        };
        let stream_of_it = stream.try_clone().map_err(|e| text(&e))?;
        let source = Present { stream: stream_of_it, role: self, instance };
        let stored = self.store.receive(rank, image, info, source);
        if let Err(ReceiveError::Storage { source, .. }) = &stored {
            self.report_if_full(source);
        }
        let stored = stored?;
        // The agent ends its stream when the rank has ended its own; by then it knows the pause. A
        // failure to read this end has no effect.
        let _ = stream.read(&mut [0]);
        Ok(Stored {
            image,
            clock: meta.clock,
            rsn: meta.rsn,
            observed: meta.observed,
            stdin: meta.stream_offsets[0],
            bytes: stored.bytes,
        })
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
                    0 => self.store.send(rank, image, &mut out),
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

impl Service for StoreRole {
    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn admit(&self, claim: &Claim) -> Result<(), String> {
        match *claim {
            Claim::ImageUpload { instance, .. } if !self.is_present(instance) => {
                Err(format!("{instance} is not its newest any more"))
            }
            Claim::ImageUpload { .. } | Claim::ImageFetch { .. } | Claim::ImageCopy { .. } => {
                Ok(())
            }
            _ => Err("this is a store, which serves images only".into()),
        }
    }

    fn serve(&self, claim: Claim, stream: Stream) {
        match claim {
            Claim::ImageUpload { instance, image } => self.receive(instance, image, stream),
            Claim::ImageFetch { rank, image, since } => self.send(rank, (image, since), stream),
            Claim::ImageCopy { rank, image } => self.give(rank, image, stream),
            // `admit` refuses these.
            _ => {}
        }
    }

    fn refused(&self, claim: Option<Claim>, error: HandshakeError) {
        // It is no news that an image of a dead rank is refused.
        let of_dead = |claim| match claim {
            Some(Claim::ImageUpload { instance, .. }) => !self.is_present(instance),
            _ => false,
        };
        // Nor that a user checked whether the socket exists.
        if !matches!(error, HandshakeError::Io(_)) && !of_dead(claim) {
            (self.report)(StoreEvent::Note(format!("the store refused a connection: {error}")));
        }
    }
}

/// A store in a process of its own. It serves until the connection to the controller ends and there
/// is no other to `follow`. The first message is the store's [`Config`].
///
/// # Errors
/// When the store cannot be created, or the controller sends an invalid message.
pub fn serve(first: (Stream, Addr), follow: Option<Follow>, secret: Secret) -> io::Result<()> {
    role::serve(first, follow, |config: Config| {
        let (events, receiver) = bounded::<StoreEvent>(role::MAX_EVENTS);
        // The receiver is gone only while the job ends.
        let report = move |event| drop(events.send(event));
        let store = StoreRole::start(&config, secret, report).map_err(io::Error::other)?;
        let command = move |command| {
            if let Err(text) = store.command(command) {
                (store.report)(StoreEvent::Note(text));
            }
        };
        Ok((command, receiver.into_iter()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{unbounded, Receiver};
    use eyrie_transport::Bind;

    fn role(dir: &Path) -> (Arc<StoreRole>, Receiver<StoreEvent>) {
        let listen = Bind::Unix(dir.join("store.sock"));
        let config = Config { job: "j".into(), dir: dir.join("store"), sync: false, listen };
        let (events, receiver) = unbounded();
        let report = move |event| events.send(event).unwrap();
        let secret = Secret([7; eyrie_wire::auth::SECRET_LEN]);
        (StoreRole::start(&config, secret, report).unwrap(), receiver)
    }

    #[test]
    fn images_of_older_incarnations_and_other_claims_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (role, _told) = role(dir.path());
        let upload = |incarnation| Claim::ImageUpload {
            instance: RankInstance { rank: 3, incarnation },
            image: 1,
        };
        assert!(role.admit(&upload(1)).is_ok());
        role.command(StoreCommand::Present(RankInstance { rank: 3, incarnation: 2 })).unwrap();
        assert!(role.admit(&upload(1)).is_err() && role.admit(&upload(2)).is_ok());
        assert!(role.admit(&Claim::ImageFetch { rank: 3, image: 1, since: 0 }).is_ok());
        assert!(role.admit(&Claim::User).is_err());
    }

    #[test]
    fn a_refused_image_of_a_dead_rank_is_not_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (role, received) = role(dir.path());
        assert!(matches!(received.recv().unwrap(), StoreEvent::Listening(_)));
        role.command(StoreCommand::Present(RankInstance { rank: 3, incarnation: 2 })).unwrap();
        let instance = RankInstance { rank: 3, incarnation: 1 };
        let upload = Claim::ImageUpload { instance, image: 1 };
        let refusal = || HandshakeError::Refused("because".into());
        role.refused(Some(upload), refusal());
        assert!(received.try_recv().is_err());
        role.refused(None, refusal());
        assert!(matches!(received.try_recv(), Ok(StoreEvent::Note(_))));
    }

    #[test]
    fn no_agent_learns_of_an_image_before_the_controller_does() {
        let dir = tempfile::tempdir().unwrap();
        let (role, received) = role(dir.path());
        let instance = RankInstance { rank: 0, incarnation: 1 };
        let image = 5;
        let stored = Stored { image, clock: 1, rsn: 2, observed: 3, stdin: 0, bytes: 9 };
        assert!(matches!(received.recv().unwrap(), StoreEvent::Listening(_)));
        let waiting = {
            let role = Arc::clone(&role);
            std::thread::spawn(move || role.report_and_wait(instance, stored))
        };
        assert_eq!(
            received.recv().unwrap(),
            StoreEvent::Stored { instance, stored, live_bytes: 0 }
        );
        assert!(!waiting.is_finished());
        // The acknowledgement of another image has no effect.
        role.command(StoreCommand::Heard { instance, image: 4 }).unwrap();
        assert!(role.state().unacknowledged.contains(&(instance, image)));
        role.command(StoreCommand::Heard { instance, image }).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }
}
