//! What others ask of a store: its start, the controller's commands, the connections of agents and
//! other stores. Nothing else in this folder may call what is here.

use super::orders::{Order, Orders};
use super::{Config, StoreCommand, StoreEvent, StoreRole};
use crate::{IoError, Options, Store, StoreError};
use crossbeam_channel::bounded;
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::role::{self, Follow};
use eyrie_transport::server::{self, Service};
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::Addr;
use eyrie_wire::RankInstance;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

/// Images of a rank that a store keeps: two checkpoints, two of a saved job, one that does not
/// count yet, and one more. The last is needed because discards and new images arrive over
/// different connections.
const KEPT: usize = 6;
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
        for (rank, image, reason) in &role.store.recovery().left {
            let dir = config.dir.display();
            let text = format!(
                "image {image} of rank {rank} in {dir} stays there with its space, but cannot be \
                 used: {reason}; go on with the version that took it, or remove it"
            );
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
            StoreCommand::Copy { instance, image, from } => match from.reached_at() {
                Ok(from) => self.order_copy(Order { instance, image, from: from.clone() }),
                Err(reason) => (self.report)(StoreEvent::Failed { instance, image, reason }),
            },
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
    use crate::role::Stored;
    use crossbeam_channel::{unbounded, Receiver};
    use eyrie_wire::role_address::Bind;
    use eyrie_wire::{ImageId, Incarnation, Rank};

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
            instance: RankInstance { rank: Rank(3), incarnation },
            image: ImageId(1),
        };
        assert!(role.admit(&upload(Incarnation(1))).is_ok());
        role.command(StoreCommand::Present(RankInstance {
            rank: Rank(3),
            incarnation: Incarnation(2),
        }))
        .unwrap();
        assert!(
            role.admit(&upload(Incarnation(1))).is_err()
                && role.admit(&upload(Incarnation(2))).is_ok()
        );
        assert!(role
            .admit(&Claim::ImageFetch { rank: Rank(3), image: ImageId(1), since: ImageId(0) })
            .is_ok());
        assert!(role.admit(&Claim::User).is_err());
    }

    #[test]
    fn a_refused_image_of_a_dead_rank_is_not_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (role, received) = role(dir.path());
        assert!(matches!(received.recv().unwrap(), StoreEvent::Listening(_)));
        role.command(StoreCommand::Present(RankInstance {
            rank: Rank(3),
            incarnation: Incarnation(2),
        }))
        .unwrap();
        let instance = RankInstance { rank: Rank(3), incarnation: Incarnation(1) };
        let upload = Claim::ImageUpload { instance, image: ImageId(1) };
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
        let instance = RankInstance { rank: Rank(0), incarnation: Incarnation(1) };
        let image = 5;
        let stored = Stored {
            image: ImageId(image),
            clock: 1,
            rsn: 2,
            observed: 3,
            stdin: 0,
            bytes: 9,
            file_bytes: 0,
        };
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
        role.command(StoreCommand::Heard { instance, image: ImageId(4) }).unwrap();
        assert!(role.state().unacknowledged.contains(&(instance, ImageId(image))));
        role.command(StoreCommand::Heard { instance, image: ImageId(image) }).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }
}
