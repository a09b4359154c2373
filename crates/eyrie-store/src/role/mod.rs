//! The store as a role of a job: agents hand images in and fetch them over connections of their
//! own, other stores copy them; the controller says what it wants and hears what came of it. It
//! runs as threads of the controller, or as a process. An agent must never hear that its image is
//! stored before the controller has.

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

/// Images of a rank that a store keeps by itself: two that count, two that the job was saved with,
/// one that does not count yet, and one more, since what names the needless ones and what brings
/// new ones come by different ways.
const KEPT: usize = 6;
/// How long either end of an image's stream may send nothing, and the controller may take to hear
/// of an image.
const STALL: Duration = Duration::from_secs(60);
/// How long the rest of a refused image is taken.
const LINGER: Duration = Duration::from_secs(10);

/// Hears events; called from many threads.
type Tell = Box<dyn Fn(StoreEvent) + Send + Sync>;

/// A running store.
pub struct StoreRole {
    store: Store,
    secret: Secret,
    orders: Orders,
    state: Mutex<RoleState>,
    /// The controller has heard of an image.
    heard: Condvar,
    tell: Tell,
}

#[derive(Default)]
struct RoleState {
    newest: BTreeMap<Rank, Incarnation>,
    unheard: BTreeSet<(RankInstance, ImageId)>,
}

impl StoreRole {
    /// Makes the store, or goes on with the one that is there, and listens.
    ///
    /// # Errors
    /// When the directory or the address cannot be had, or the images there are another job's.
    pub fn start(
        config: &Config,
        secret: Secret,
        tell: impl Fn(StoreEvent) + Send + Sync + 'static,
    ) -> Result<Arc<StoreRole>, StoreError> {
        let options = Options { job: config.job.clone(), keep: KEPT, sync: config.sync };
        let role = Arc::new(StoreRole {
            store: Store::open_or_create(&config.dir, options)?,
            secret,
            orders: Orders::new(),
            state: Mutex::default(),
            heard: Condvar::new(),
            tell: Box::new(tell),
        });
        let place = config.listen.to_string();
        let addr = server::listen(&config.listen, Arc::clone(&role))
            .map_err(IoError::at("listen at", Path::new(&place)))?;
        role.make_copies();
        (role.tell)(StoreEvent::Listening(addr));
        for (rank, image, reason) in &role.store.recovery().lost {
            let dir = config.dir.display();
            let text = format!("image {image} of rank {rank} in {dir} is lost: {reason}");
            (role.tell)(StoreEvent::Note(text));
        }
        Ok(role)
    }

    /// Does what the controller asks for.
    ///
    /// # Errors
    /// What could not be done, for users.
    pub fn command(&self, command: StoreCommand) -> Result<(), String> {
        match command {
            StoreCommand::Present(RankInstance { rank, incarnation }) => {
                self.state().newest.insert(rank, incarnation);
            }
            StoreCommand::Heard { instance, image } => {
                self.state().unheard.remove(&(instance, image));
                self.heard.notify_all();
            }
            StoreCommand::Copy { instance, image, from } => {
                self.order_copy(Order { instance, image, from });
            }
            StoreCommand::Inventory => {
                let images = self.store.all_images();
                let images = images.iter().filter_map(|image| self.stored(image).ok()).collect();
                (self.tell)(StoreEvent::Inventory { images });
            }
            // It is not asked for again, and the store gives it up for later ones.
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
        // A store that was started late was not told of earlier deaths.
        let newest = self.state().newest.get(&instance.rank).copied();
        newest.is_none_or(|newest| newest == instance.incarnation)
    }

    /// Takes an image in.
    fn receive(&self, instance: RankInstance, image: ImageId, mut stream: Stream) {
        let taken = self.take_in(instance, image, &mut stream);
        let heard = taken.and_then(|stored| self.tell_and_wait(instance, stored));
        match heard {
            Ok(()) => {
                // The agent may be gone.
                let _ = frame::write(&mut stream, &ImageAnswer::Stored);
            }
            Err(Refusal { reason, full_wanted }) => {
                // The agent tells the controller, with the rank's own reason if there is one.
                let answer = ImageAnswer::Refused { reason: reason.clone(), full_wanted };
                match frame::write(&mut stream, &answer) {
                    Ok(()) => linger(stream),
                    Err(_) => (self.tell)(StoreEvent::Failed { instance, image, reason }),
                }
            }
        }
    }

    /// What the controller is to know of an image.
    ///
    /// # Errors
    /// When what its agent said cannot be read: then it cannot be restored, either.
    fn stored(&self, image: &ImageSummary) -> Result<(RankInstance, Stored), String> {
        let ImageSummary { rank, image, ref info, bytes } = *image;
        let meta: ImageMeta = postcard::from_bytes(&info.meta)
            .map_err(|e| format!("image {image} of rank {rank}, what its agent said: {e}"))?;
        let instance = RankInstance { rank, incarnation: meta.incarnation };
        let ImageMeta { clock, rsn, observed, stream_offsets: [stdin, ..], .. } = meta;
        Ok((instance, Stored { image, clock, rsn, observed, stdin, bytes }))
    }

    fn tell_stored(&self, instance: RankInstance, stored: Stored) {
        let live_bytes = self.store.live_bytes();
        (self.tell)(StoreEvent::Stored { instance, stored, live_bytes });
    }

    /// Tells the controller, and waits until it has heard: what the agent says of the image must
    /// come after this.
    fn tell_and_wait(&self, instance: RankInstance, stored: Stored) -> Result<(), Refusal> {
        let key = (instance, stored.image);
        self.state().unheard.insert(key);
        self.tell_stored(instance, stored);
        let waiting = |state: &mut RoleState| state.unheard.contains(&key);
        let waited = self.heard.wait_timeout_while(self.state(), STALL, waiting);
        let (mut state, _) = waited.unwrap_or_else(|e| e.into_inner());
        match state.unheard.remove(&key) {
            false => Ok(()),
            true => Err(format!("the controller has not heard of it within {STALL:?}").into()),
        }
    }

    fn take_in(
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
        (self.tell)(StoreEvent::Begun { instance, image });
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
            self.tell_if_full(source);
        }
        let stored = stored?;
        // The agent ends its stream when the rank has: by then it has told the pause as well.
        // Nothing depends on it.
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

    /// The controller hears it when the disk is full, before what comes of the image.
    fn tell_if_full(&self, error: &IoError) {
        if error.is_full() {
            (self.tell)(StoreEvent::Full { reason: error.to_string() });
        }
    }

    /// Hands an image out; the stream ends early when a piece of it does not verify.
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
            (self.tell)(StoreEvent::Note(format!("image {image} of rank {rank}: {reason}")));
        }
    }
}

/// Why an image was not taken in, and whether a full one instead would be.
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

/// Ends the stream of a rank that has got a later incarnation meanwhile.
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

/// Takes what still comes of a refused image and throws it away, until the agent has heard: over
/// TCP a connection that is closed before everything was read takes the answer back.
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
            _ => Err("this is the store: images only".into()),
        }
    }

    fn serve(&self, claim: Claim, stream: Stream) {
        match claim {
            Claim::ImageUpload { instance, image } => self.receive(instance, image, stream),
            Claim::ImageFetch { rank, image, since } => self.send(rank, (image, since), stream),
            Claim::ImageCopy { rank, image } => self.give(rank, image, stream),
            // Not admitted.
            _ => {}
        }
    }

    fn refused(&self, claim: Option<Claim>, error: HandshakeError) {
        // An image of a rank that has died meanwhile comes to nothing, as it should.
        let of_dead = |claim| match claim {
            Some(Claim::ImageUpload { instance, .. }) => !self.is_present(instance),
            _ => false,
        };
        // Nor is it news that a user has looked whether the socket is there.
        if !matches!(error, HandshakeError::Io(_)) && !of_dead(claim) {
            (self.tell)(StoreEvent::Note(format!("the store refused a connection: {error}")));
        }
    }
}

/// A store in a process of its own: serves until the connection to the controller ends and
/// there is no other to `follow`; the first message is the store's [`Config`].
///
/// # Errors
/// When the store cannot be made, or the controller says what cannot be.
pub fn serve(first: (Stream, Addr), follow: Option<Follow>, secret: Secret) -> io::Result<()> {
    role::serve(first, follow, |config: Config| {
        let (events, told) = bounded::<StoreEvent>(role::MAX_EVENTS);
        // Nobody listens any more only while the job ends.
        let tell = move |event| drop(events.send(event));
        let store = StoreRole::start(&config, secret, tell).map_err(io::Error::other)?;
        let command = move |command| {
            if let Err(text) = store.command(command) {
                (store.tell)(StoreEvent::Note(text));
            }
        };
        Ok((command, told.into_iter()))
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
        let (events, told) = unbounded();
        let tell = move |event| events.send(event).unwrap();
        let secret = Secret([7; eyrie_wire::auth::SECRET_LEN]);
        (StoreRole::start(&config, secret, tell).unwrap(), told)
    }

    #[test]
    fn images_of_older_incarnations_and_everybody_else_are_refused() {
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
    fn an_image_of_a_rank_that_has_died_is_no_news() {
        let dir = tempfile::tempdir().unwrap();
        let (role, told) = role(dir.path());
        assert!(matches!(told.recv().unwrap(), StoreEvent::Listening(_)));
        role.command(StoreCommand::Present(RankInstance { rank: 3, incarnation: 2 })).unwrap();
        let instance = RankInstance { rank: 3, incarnation: 1 };
        let upload = Claim::ImageUpload { instance, image: 1 };
        let refusal = || HandshakeError::Refused("because".into());
        role.refused(Some(upload), refusal());
        assert!(told.try_recv().is_err());
        role.refused(None, refusal());
        assert!(matches!(told.try_recv(), Ok(StoreEvent::Note(_))));
    }

    #[test]
    fn no_agent_hears_of_an_image_before_the_controller_has() {
        let dir = tempfile::tempdir().unwrap();
        let (role, told) = role(dir.path());
        let instance = RankInstance { rank: 0, incarnation: 1 };
        let image = 5;
        let stored = Stored { image, clock: 1, rsn: 2, observed: 3, stdin: 0, bytes: 9 };
        assert!(matches!(told.recv().unwrap(), StoreEvent::Listening(_)));
        let waiting = {
            let role = Arc::clone(&role);
            std::thread::spawn(move || role.tell_and_wait(instance, stored))
        };
        assert_eq!(told.recv().unwrap(), StoreEvent::Stored { instance, stored, live_bytes: 0 });
        assert!(!waiting.is_finished());
        // Another image is not meant.
        role.command(StoreCommand::Heard { instance, image: 4 }).unwrap();
        assert!(role.state().unheard.contains(&(instance, image)));
        role.command(StoreCommand::Heard { instance, image }).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }
}
