//! Copies from store to store: what is sent, what is refused, what a failure leaves behind.

use eyrie_wire::{ImageId, Incarnation, Rank};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use eyrie_image_format::stream::{Kind, MAX_PAYLOAD};
use eyrie_store::{Copied, CopyError, ImageInfo, Options, SendError, Store};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod common;
use common::{fill, ImageStream, Process, PAGES_PER_WINDOW};

fn info(incarnation: u32) -> ImageInfo {
    ImageInfo {
        incarnation: Incarnation(incarnation),
        clock: 3,
        rsn: 4,
        meta: b"what the agent said".to_vec(),
    }
}

fn options(keep: usize) -> Options {
    Options { keep, sync: false, ..Options::default() }
}

/// Two stores, each in a directory of its own.
fn two(dir: &tempfile::TempDir) -> (Store, Store) {
    let make = |name| Store::create(dir.path().join(name), options(3)).unwrap();
    (make("a"), make("b"))
}

/// One end of a connection that counts what it reads.
struct Counted(UnixStream, u64);

impl Read for Counted {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(room)?;
        self.1 += n as u64;
        Ok(n)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

struct Outcome {
    given: Result<u64, SendError>,
    taken: Result<Copied, CopyError>,
    /// Bytes that were sent from the one store to the other.
    wire: u64,
}

fn copy(from: &Store, to: &Store, rank: u32, image: u64, incarnation: u32) -> Outcome {
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    for end in [&theirs, &ours] {
        end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    std::thread::scope(|scope| {
        let giving = scope.spawn(move || from.copy_to(Rank(rank), ImageId(image), &mut theirs));
        let mut ours = Counted(ours, 0);
        let taken = to.copy_from(Rank(rank), ImageId(image), Incarnation(incarnation), &mut ours);
        let wire = ours.1;
        drop(ours);
        Outcome { given: giving.join().unwrap(), taken, wire }
    })
}

fn sent(store: &Store, rank: u32, image: u64) -> Vec<u8> {
    let mut out = Vec::new();
    store.send(Rank(rank), ImageId(image), &mut out).unwrap();
    out
}

fn numbers(store: &Store, rank: u32) -> Vec<u64> {
    store.images(Rank(rank)).iter().map(|i| i.image.0).collect()
}

fn assert_empty(store: &Store) {
    assert_eq!(store.usage().unwrap(), eyrie_store::Usage { on_disk: 0, live: 0 });
}

#[test]
fn a_copy_is_the_image_byte_for_byte_also_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    let mut zeros = Process::new(2, 5 * PAGES_PER_WINDOW);
    for page in zeros.pages.iter_mut().step_by(3) {
        *page = 0;
    }
    let mut twice = ImageStream::default();
    twice.push(Kind::Header, 0, b"header");
    let mut window = vec![0; MAX_PAYLOAD];
    fill(&mut window, 7);
    for _ in 0..9 {
        twice.push(Kind::Mapping, 0, &window);
    }
    let mut nothing = ImageStream::default();
    nothing.push(Kind::Header, 0, &[]);
    let streams = [
        nothing.finish(),
        Process::new(1, 1).stream(1),
        zeros.stream(1),
        twice.finish(),
        Process::new(4, 40 * PAGES_PER_WINDOW + 17).stream(1),
    ];
    for (rank, stream) in (0..).zip(&streams) {
        a.receive(Rank(rank), ImageId(1), info(2), stream.as_slice()).unwrap();
        let Outcome { given, taken, .. } = copy(&a, &b, rank, 1, 2);
        let taken = taken.unwrap();
        assert_eq!(given.unwrap(), taken.bytes);
        // The same chunk is sent once.
        assert!(rank != 3 || taken.chunks == 3, "{taken:?}");
        assert_eq!(taken.image, a.images(Rank(rank))[0]);
        assert_eq!(&sent(&b, rank, 1), stream, "rank {rank}");
    }
    drop(b);
    let b = Store::open(dir.path().join("b")).unwrap();
    for (rank, stream) in (0..).zip(&streams) {
        assert_eq!(b.images(Rank(rank)), a.images(Rank(rank)));
        assert_eq!(&sent(&b, rank, 1), stream, "rank {rank}");
        b.discard_rank(Rank(rank)).unwrap();
    }
    assert_empty(&b);
}

#[test]
fn only_missing_chunks_go_over_the_wire() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    let windows = 400; // 100 MiB
    let mut process = Process::new(0, windows * PAGES_PER_WINDOW);
    let first = process.stream(1);
    b.receive(Rank(0), ImageId(1), info(0), first.as_slice()).unwrap();
    // Every second window changes.
    process.touch(1, 5, 2 * PAGES_PER_WINDOW);
    let second = process.stream(2);
    a.receive(Rank(0), ImageId(2), info(0), second.as_slice()).unwrap();
    let Outcome { given, taken, wire } = copy(&a, &b, 0, 2, 0);
    let given = given.unwrap();
    let taken = taken.unwrap();
    let half = windows as u64 / 2 * MAX_PAYLOAD as u64;
    assert!((half..half + 40_000).contains(&given), "{given} of {}", second.len());
    assert_eq!(given, taken.bytes);
    // The manifest and the lengths of pieces.
    assert!(wire < given + 60_000, "{wire} for {given}");
    assert_eq!(sent(&b, 0, 2), second);
    // An image that differs only in its number costs its manifest.
    a.receive(Rank(0), ImageId(3), info(0), second.as_slice()).unwrap();
    let Outcome { taken, wire, .. } = copy(&a, &b, 0, 3, 0);
    assert_eq!((taken.unwrap().chunks, numbers(&b, 0)), (0, vec![3, 2, 1]));
    assert!(wire < 60_000, "{wire}");
}

#[test]
fn a_copy_may_be_older_than_images_that_are_there_but_not_too_old_to_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    let stream = |image: u64| Process::new(0, 70 + image as usize).stream(image);
    for image in 1..=3 {
        a.receive(Rank(0), ImageId(image), info(image as u32), stream(image).as_slice()).unwrap();
    }
    b.receive(Rank(0), ImageId(8), info(4), stream(8).as_slice()).unwrap();
    for image in [3, 1] {
        copy(&a, &b, 0, image, image as u32).taken.unwrap();
        assert_eq!(sent(&b, 0, image), stream(image));
    }
    assert_eq!(numbers(&b, 0), [8, 3, 1]);
    // A newer image replaces the oldest.
    copy(&a, &b, 0, 2, 2).taken.unwrap();
    assert_eq!(numbers(&b, 0), [8, 3, 2]);
    let Outcome { taken, wire, .. } = copy(&a, &b, 0, 1, 1);
    assert!(matches!(taken, Err(CopyError::Superseded { newer: 3 })), "{taken:?}");
    assert_eq!(wire, 0);
    assert!(matches!(copy(&a, &b, 0, 3, 3).taken, Err(CopyError::Present)));
    // Agents still cannot send older images.
    b.receive(Rank(0), ImageId(5), info(4), stream(5).as_slice()).unwrap_err();
    assert!(b.verify().unwrap().damaged.is_empty());
}

#[test]
fn an_image_that_the_source_lacks_or_has_of_another_incarnation_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    let Outcome { given, taken, .. } = copy(&a, &b, 3, 7, 1);
    assert!(matches!(given, Err(SendError::NoImage { rank: Rank(3), image: ImageId(7) })));
    assert_eq!(taken.unwrap_err().to_string(), "there is no image 7 of rank 3");
    a.receive(Rank(3), ImageId(7), info(2), Process::new(3, 300).stream(7).as_slice()).unwrap();
    let said = copy(&a, &b, 3, 7, 1).taken.unwrap_err().to_string();
    assert_eq!(said, "the other store sent image 7 of rank 3 (incarnation 2) instead");
    assert_empty(&b);
}

#[test]
fn a_damaged_chunk_at_the_source_is_named_by_both_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    a.receive(
        Rank(0),
        ImageId(1),
        info(0),
        Process::new(0, 30 * PAGES_PER_WINDOW).stream(1).as_slice(),
    )
    .unwrap();
    let pack = std::fs::read_dir(dir.path().join("a/packs")).unwrap().next().unwrap().unwrap();
    let mut bytes = std::fs::read(pack.path()).unwrap();
    let at = bytes.len() * 2 / 3;
    bytes[at] ^= 4;
    std::fs::write(pack.path(), &bytes).unwrap();
    let Outcome { given, taken, .. } = copy(&a, &b, 0, 1, 0);
    let given = given.unwrap_err();
    let taken = taken.unwrap_err();
    assert!(matches!(given, SendError::Damaged { .. }));
    assert_eq!(taken.to_string(), given.to_string());
    assert!(taken.to_string().contains("do not match its hash"), "{taken}");
    assert_empty(&b);
}

/// Records what a source sends, and drops what is written to it.
struct Recorded<'a>(&'a [u8]);

impl Read for Recorded<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for Recorded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Asks for all chunks, and records what arrives.
struct AsksForAll(Vec<u8>);

impl Read for AsksForAll {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        room.fill(0xff);
        Ok(room.len())
    }
}

impl Write for AsksForAll {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn anything_other_than_the_image_is_refused_and_leaves_nothing() {
    let seed: u64 = match std::env::var("EYRIE_STORE_SEED") {
        Ok(seed) => seed.parse().expect("EYRIE_STORE_SEED is a number"),
        Err(_) => rand::thread_rng().gen(),
    };
    println!("EYRIE_STORE_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    let mut process = Process::new(0, 7 * PAGES_PER_WINDOW);
    process.pages[70] = 0;
    a.receive(Rank(0), ImageId(1), info(0), process.stream(1).as_slice()).unwrap();
    let mut record = AsksForAll(Vec::new());
    a.copy_to(Rank(0), ImageId(1), &mut record).unwrap();
    let good = record.0;
    for round in 0..3000 {
        let mut bytes = good.clone();
        match rng.gen_range(0..4) {
            0 => bytes.truncate(rng.gen_range(0..good.len())),
            1 => bytes[rng.gen_range(0..good.len())] ^= 1 << rng.gen_range(0..8),
            2 => bytes[rng.gen_range(0..900)] ^= 1 << rng.gen_range(0..8),
            _ => {
                let at = rng.gen_range(0..good.len() - 4);
                bytes[at..at + 4].copy_from_slice(&rng.gen::<u32>().to_le_bytes());
            }
        }
        let taken = b.copy_from(Rank(0), ImageId(1), Incarnation(0), &mut Recorded(&bytes));
        assert!(taken.is_err() || bytes == good, "round {round}: {taken:?}");
        if taken.is_ok() {
            b.discard(Rank(0), ImageId(1)).unwrap();
        }
        assert_empty(&b);
    }
    for len in [u32::MAX, 1 << 28, (1 << 20) + 1] {
        let manifest = 4 + u32::from_le_bytes(good[..4].try_into().unwrap()) as usize;
        for at in [0, manifest] {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
            b.copy_from(Rank(0), ImageId(1), Incarnation(0), &mut Recorded(&bytes)).unwrap_err();
        }
    }
    b.copy_from(Rank(0), ImageId(1), Incarnation(0), &mut Recorded(&good)).unwrap();
    assert_eq!(sent(&b, 0, 1), process.stream(1));
}

#[test]
fn a_receiver_that_stops_or_sends_nonsense_harms_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let (a, _) = two(&dir);
    a.receive(Rank(0), ImageId(1), info(0), Process::new(0, 2000).stream(1).as_slice()).unwrap();
    for says in [&b""[..], b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff"] {
        let (mut theirs, mut ours) = UnixStream::pair().unwrap();
        ours.write_all(says).unwrap();
        drop(ours);
        assert!(
            matches!(a.copy_to(Rank(0), ImageId(1), &mut theirs), Err(SendError::Write { .. })),
            "{says:?}"
        );
    }
    a.discard(Rank(0), ImageId(1)).unwrap();
    assert_empty(&a);
}

#[test]
fn images_are_copied_received_sent_and_discarded_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = two(&dir);
    std::thread::scope(|scope| {
        for rank in 0..6 {
            let a = &a;
            let b = &b;
            scope.spawn(move || {
                let mut process = Process::new(rank, 12 * PAGES_PER_WINDOW);
                let shared = Process::new(1000, 6 * PAGES_PER_WINDOW);
                process.pages[..shared.pages.len()].copy_from_slice(&shared.pages);
                for image in 1..=15 {
                    process.touch(image, 9 * PAGES_PER_WINDOW, 100);
                    let stream = process.stream(image);
                    // Both directions, so that either store sends and receives.
                    let (from, to) =
                        if (u64::from(rank) + image) % 2 == 0 { (a, b) } else { (b, a) };
                    from.receive(Rank(rank), ImageId(image), info(0), stream.as_slice()).unwrap();
                    if image % 5 == 0 {
                        std::thread::scope(|two| {
                            let copying = two.spawn(|| copy(from, to, rank, image, 0));
                            from.discard(Rank(rank), ImageId(image)).unwrap();
                            match copying.join().unwrap().taken {
                                Ok(_) => assert_eq!(sent(to, rank, image), stream),
                                Err(e) => assert!(matches!(e, CopyError::Refused(_)), "{e}"),
                            }
                        });
                        continue;
                    }
                    copy(from, to, rank, image, 0).taken.unwrap();
                    assert_eq!(sent(to, rank, image), stream);
                }
            });
        }
    });
    for (store, name) in [(a, "a"), (b, "b")] {
        assert!(store.verify().unwrap().damaged.is_empty());
        let live = store.usage().unwrap().live;
        drop(store);
        let store = Store::open(dir.path().join(name)).unwrap();
        assert_eq!(store.usage().unwrap().live, live, "counted the same from disk");
        for rank in 0..6 {
            store.discard_rank(Rank(rank)).unwrap();
        }
        assert_empty(&store);
    }
}

#[test]
fn a_copy_that_finds_the_disk_full_says_so_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs"]).arg(&small);
    if !mount.output().is_ok_and(|out| out.status.success()) {
        println!("no right to mount a small tmpfs");
        return;
    }
    let a = Store::create(dir.path().join("a"), options(3)).unwrap();
    let b = Store::create(small.join("b"), options(3)).unwrap();
    a.receive(Rank(0), ImageId(1), info(0), Process::new(0, 900).stream(1).as_slice()).unwrap();
    a.receive(Rank(0), ImageId(2), info(0), Process::new(0, 9000).stream(2).as_slice()).unwrap();
    copy(&a, &b, 0, 1, 0).taken.unwrap();
    let before = b.usage().unwrap();
    let Outcome { given, taken, .. } = copy(&a, &b, 0, 2, 0);
    let said = taken.unwrap_err().to_string();
    assert!(said.contains("packs/") && said.contains("free space"), "{said}");
    assert!(matches!(given, Err(SendError::Write { .. })));
    assert_eq!((b.usage().unwrap(), numbers(&b, 0)), (before, vec![1]));
    assert_eq!(sent(&b, 0, 1), sent(&a, 0, 1));
    drop(b);
    assert!(Command::new("umount").arg("-l").arg(&small).status().unwrap().success());
}
