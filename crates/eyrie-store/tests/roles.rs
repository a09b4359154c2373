//! Two stores of a job, as roles. Agents send images to one, and the other copies them. Checks what
//! the controller receives.

use crossbeam_channel::{unbounded, Receiver};
use eyrie_store::role::{StoreCommand, StoreEvent, StoreRole, Stored};
use eyrie_store::{IoError, StoreError};
use eyrie_transport::{role, Listener};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::{Claim, ImageAnswer, StoreAt};
use eyrie_wire::role_address::{Addr, Bind};
use eyrie_wire::{ImageId, Incarnation, Rank, RankInstance, StoreId};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[path = "common/mod.rs"]
mod common;
#[path = "common/role.rs"]
mod shared;
use common::{Process, PAGES_PER_WINDOW};
use shared::{config, fetch, sealed, upload, SECRET};

const PATIENCE: Duration = Duration::from_secs(60);

/// A store, and the events that the controller receives from it.
struct Running {
    role: Arc<StoreRole>,
    addr: Addr,
    dir: PathBuf,
    events: Receiver<StoreEvent>,
}

impl Running {
    fn start(dir: PathBuf, listen: Bind) -> Running {
        let (told, events) = unbounded();
        let tell = move |event| drop(told.send(event));
        let role = StoreRole::start(&config(&dir, listen), SECRET, tell).unwrap();
        let StoreEvent::Listening(addr) = events.recv().unwrap() else { panic!() };
        Running { role, addr, dir, events }
    }

    fn send(&self, command: StoreCommand) {
        self.role.command(command).unwrap();
    }

    fn next_event(&self) -> StoreEvent {
        self.events.recv_timeout(PATIENCE).unwrap()
    }

    /// Receives an image from an agent, as the controller sees it.
    fn take(&self, instance: RankInstance, image: ImageId, bytes: &[u8]) -> Stored {
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| upload(&self.addr, instance, image.0, bytes).unwrap());
            assert_eq!(self.next_event(), StoreEvent::Begun { instance, image });
            let heard = self.next_event();
            let StoreEvent::Stored { stored, .. } = heard else { panic!("{heard:?}") };
            self.send(StoreCommand::Heard { instance, image });
            assert_eq!(agent.join().unwrap(), ImageAnswer::Stored);
            stored
        })
    }

    fn copy(&self, instance: RankInstance, image: ImageId, from: &Addr) -> Result<Stored, String> {
        let from = StoreAt { store: StoreId(0), addr: Some(from.clone()) };
        self.send(StoreCommand::Copy { instance, image, from });
        match self.next_event() {
            StoreEvent::Stored { instance: of, stored, .. } if of == instance => Ok(stored),
            StoreEvent::Failed { instance: of, image: failed, reason }
                if (of, failed) == (instance, image) =>
            {
                Err(reason)
            }
            other => panic!("{other:?}"),
        }
    }

    fn inventory(&self) -> Vec<(RankInstance, Stored)> {
        self.send(StoreCommand::Inventory);
        match self.next_event() {
            StoreEvent::Inventory { images } => images,
            other => panic!("{other:?}"),
        }
    }
}

fn unix(dir: &Path, name: &str) -> Bind {
    Bind::Unix(dir.join(format!("{name}.sock")))
}

/// Two stores that are reached over Unix sockets, or over sealed TCP.
fn two(dir: &Path, tcp: bool) -> (Running, Running) {
    let start = |name| {
        let listen = if tcp { sealed() } else { unix(dir, name) };
        Running::start(dir.join(name), listen)
    };
    (start("a"), start("b"))
}

fn rank(rank: u32, incarnation: u32) -> RankInstance {
    RankInstance { rank: Rank(rank), incarnation: Incarnation(incarnation) }
}

#[test]
fn the_controller_learns_of_a_copied_image_as_of_any_other() {
    for tcp in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = two(dir.path(), tcp);
        let mut process = Process::new(1, 50 * PAGES_PER_WINDOW);
        for image in 1..=2 {
            process.touch(image, 100, 7 * PAGES_PER_WINDOW);
            let bytes = process.stream(image);
            let stored = a.take(rank(1, 3), ImageId(image), &bytes);
            assert_eq!((stored.clock, stored.rsn, stored.stdin), (10 * image, 100 * image, image));
            // No acknowledgement is sent, and the next copy is made all the same.
            assert_eq!(b.copy(rank(1, 3), ImageId(image), &a.addr), Ok(stored));
            assert_eq!(fetch(&b.addr, 1, image).unwrap(), bytes);
        }
        let all = a.inventory();
        assert_eq!(
            all.iter().map(|(of, i)| (*of, i.image)).collect::<Vec<_>>(),
            [(rank(1, 3), ImageId(1)), (rank(1, 3), ImageId(2))]
        );
        assert_eq!(b.inventory(), all);
        // The store already has it, so it does not matter where it is to come from.
        let missing = Addr::Unix("/missing".into());
        assert_eq!(b.copy(rank(1, 3), ImageId(2), &missing), Ok(all[1].1));
        for image in [1, 2, 7] {
            b.send(StoreCommand::Discard { rank: Rank(1), image: ImageId(image) });
            b.send(StoreCommand::Discard { rank: Rank(1), image: ImageId(image) });
        }
        assert_eq!((b.inventory(), a.inventory()), (vec![], all));
        assert!(b.events.is_empty());
    }
}

#[test]
fn many_copies_at_once_are_all_made() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    for r in 0..40 {
        a.take(rank(r, 1), ImageId(1), &Process::new(r, 100).stream(1));
    }
    for r in 0..40 {
        let from = StoreAt { store: StoreId(0), addr: Some(a.addr.clone()) };
        b.send(StoreCommand::Copy { instance: rank(r, 1), image: ImageId(1), from });
    }
    for _ in 0..40 {
        let heard = b.next_event();
        assert!(matches!(heard, StoreEvent::Stored { .. }), "{heard:?}");
    }
    assert_eq!(b.inventory(), a.inventory());
}

#[test]
fn a_copy_that_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(dir.path(), true);
    a.take(rank(0, 1), ImageId(1), &Process::new(0, 3000).stream(1));
    let said = |instance, image, from: &Addr| b.copy(instance, image, from).unwrap_err();
    let text = said(rank(0, 1), ImageId(2), &a.addr);
    let named = format!("image 2 of rank 0, from {}: there is no image 2 of rank 0", a.addr);
    assert_eq!(text, named);
    let text = said(rank(0, 2), ImageId(1), &a.addr);
    assert!(
        text.ends_with("the other store sent image 1 of rank 0 (incarnation 1) instead"),
        "{text}"
    );
    let text = said(rank(0, 1), ImageId(1), &Addr::Unix(dir.path().join("missing")));
    assert!(text.contains("missing: No such file"), "{text}");
    // A listener that accepts and closes.
    let listener = Listener::bind(&sealed()).unwrap();
    let addr = listener.addr().unwrap();
    let stranger = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let text = said(rank(0, 1), ImageId(1), &addr);
    assert!(text.starts_with(&format!("image 1 of rank 0, from {addr}: ")), "{text}");
    stranger.join().unwrap();
    // A chunk is damaged: both stores say so.
    let pack = std::fs::read_dir(a.dir.join("packs")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&pack).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&pack, &bytes).unwrap();
    let text = said(rank(0, 1), ImageId(1), &a.addr);
    assert!(text.contains("do not match its hash"), "{text}");
    let StoreEvent::Note(noted) = a.next_event() else { panic!() };
    assert!(text.ends_with(&noted), "{text} {noted}");
    assert!(b.inventory().is_empty());
    // The store has another image of that number.
    b.take(rank(0, 2), ImageId(1), &Process::new(0, 30).stream(1));
    let text = said(rank(0, 1), ImageId(1), &a.addr);
    assert!(text.contains("is of incarnation 2 of rank 0, not of incarnation 1"), "{text}");
}

#[test]
fn a_peer_without_the_secret_gets_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _b) = two(dir.path(), true);
    a.take(rank(0, 1), ImageId(1), &Process::new(0, 30).stream(1));
    let claim = Claim::ImageCopy { rank: Rank(0), image: ImageId(1) };
    assert!(role::connect(&a.addr, &Secret([8; SECRET_LEN]), &claim).is_err());
    let noted = a.next_event();
    assert!(matches!(&noted, StoreEvent::Note(text) if text.contains("secret")), "{noted:?}");
}

#[test]
fn a_directory_is_reopened_by_one_store_of_the_same_job() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let a = Running::start(dir.path().join("a"), unix(dir.path(), "a"));
    let streams: Vec<_> = (0..3).map(|r| Process::new(r, 500).stream(1)).collect();
    {
        // As a killed store leaves it. A role never ends by itself.
        let options = eyrie_store::Options { job: "the job".into(), keep: 4, sync: true };
        let store = eyrie_store::Store::create(&images, options).unwrap();
        for (r, stream) in (0..).zip(&streams) {
            a.take(rank(r, 1), ImageId(1), stream);
            let mut to = role::connect(
                &a.addr,
                &SECRET,
                &Claim::ImageCopy { rank: Rank(r), image: ImageId(1) },
            );
            store.copy_from(Rank(r), ImageId(1), Incarnation(1), to.as_mut().unwrap()).unwrap();
        }
        // It is in use now.
        let taken = StoreRole::start(&config(&images, unix(dir.path(), "x")), SECRET, |_| ());
        assert!(matches!(taken, Err(StoreError::InUse(_))));
    }
    let other = eyrie_store::role::Config {
        job: "another".into(),
        ..config(&images, unix(dir.path(), "y"))
    };
    let refused = StoreRole::start(&other, SECRET, |_| ()).err().unwrap();
    let named = format!(
        "{}: it holds the images of another job, the job; give this one a directory of its own",
        images.display()
    );
    assert_eq!(refused.to_string(), named);
    // The manifest of one image is torn, and a copy was under way.
    let torn = std::fs::OpenOptions::new().write(true).open(images.join("images/1-1")).unwrap();
    torn.set_len(100).unwrap();
    std::fs::write(images.join("images/2-2-0.new"), b"half").unwrap();
    std::fs::write(images.join("packs/00000000000000ff"), b"half").unwrap();
    let b = Running::start(images.clone(), unix(dir.path(), "b"));
    let StoreEvent::Note(text) = b.next_event() else { panic!() };
    assert!(text.starts_with("image 1 of rank 1 in ") && text.contains("is lost: "), "{text}");
    let there: Vec<_> = b.inventory().iter().map(|(of, _)| of.rank).collect();
    assert_eq!(there, [0, 2].map(Rank));
    for r in [0, 2] {
        assert_eq!(fetch(&b.addr, r, 1).unwrap(), streams[r as usize]);
    }
    let left = std::fs::read_dir(images.join("images")).unwrap().count();
    assert_eq!((left, images.join("packs/00000000000000ff").exists()), (2, false));
    // The lost image is copied again, and older incarnations are still refused.
    b.copy(rank(1, 1), ImageId(1), &a.addr).unwrap();
    assert_eq!(b.inventory(), a.inventory());
    // A path that is not a directory.
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let none = StoreRole::start(&config(&file, unix(dir.path(), "z")), SECRET, |_| ()).err();
    assert!(matches!(none, Some(StoreError::Io(IoError { .. }))), "{none:?}");
}
