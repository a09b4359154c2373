//! What a store promises while it is not killed: deduplication, order, bounds, detection of damage,
//! concurrency.

use eyrie_wire::{ImageId, Incarnation, Rank};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD};
use eyrie_store::{ImageInfo, Options, ReceiveError, SendError, Store, StoreError, StreamError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod common;
use common::{ImageStream, Process, PAGES_PER_WINDOW};

/// A store in a directory that is removed with it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }
    fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }
    fn create(&self) -> Store {
        Store::create(self.path(), Options { keep: 2, sync: false, ..Options::default() }).unwrap()
    }
    fn open(&self) -> Store {
        Store::open(self.path()).unwrap()
    }
    fn files(&self, dir: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path().join(dir)).unwrap();
        let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }
}

fn info(incarnation: u32) -> ImageInfo {
    ImageInfo {
        incarnation: Incarnation(incarnation),
        clock: 3,
        rsn: 4,
        meta: b"fingerprint".to_vec(),
    }
}

fn sent(store: &Store, rank: u32, image: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let bytes = store.send(Rank(rank), ImageId(image), &mut out).unwrap();
    assert_eq!(bytes, out.len() as u64);
    out
}

fn numbers(store: &Store, rank: u32) -> Vec<u64> {
    store.images(Rank(rank)).iter().map(|i| i.image.0).collect()
}

#[test]
fn an_image_comes_back_byte_for_byte_also_after_opening_again() {
    let place = Place::new();
    let store = place.create();
    let stream = Process::new(1, 1000).stream(5);
    let done = store.receive(Rank(1), ImageId(5), info(2), stream.as_slice()).unwrap();
    assert_eq!(done.bytes, stream.len() as u64);
    assert_eq!((done.new_bytes, done.new_chunks), (done.bytes, done.chunks));
    assert_eq!(sent(&store, 1, 5), stream);
    let before = store.images(Rank(1));
    drop(store);
    let store = place.open();
    assert_eq!(store.images(Rank(1)), before);
    assert_eq!((before[0].info.clone(), before[0].bytes), (info(2), done.bytes));
    assert_eq!(sent(&store, 1, 5), stream);
    assert!(store.verify().unwrap().damaged.is_empty());
    assert!(store.recovery().lost.is_empty());
}

#[test]
fn nothing_is_read_beyond_the_trailer() {
    let place = Place::new();
    let store = place.create();
    let mut bytes = Process::new(0, 3).stream(1);
    bytes.extend_from_slice(b"the next message");
    let mut reader = bytes.as_slice();
    store.receive(Rank(0), ImageId(1), info(0), &mut reader).unwrap();
    assert_eq!(reader, b"the next message");
}

#[test]
fn an_image_with_one_percent_changed_stores_one_percent() {
    let place = Place::new();
    let store = place.create();
    let windows = 200;
    let mut process = Process::new(0, windows * PAGES_PER_WINDOW);
    store.receive(Rank(0), ImageId(1), info(0), process.stream(1).as_slice()).unwrap();
    for page in [0, 100 * PAGES_PER_WINDOW + 7] {
        process.pages[page] |= 1 << 50;
    }
    let second = process.stream(2);
    let done = store.receive(Rank(0), ImageId(2), info(0), second.as_slice()).unwrap();
    // At most the two changed windows, the records before the pages, and the trailer.
    assert_eq!(done.new_chunks, 3);
    let share = done.new_bytes as f64 / done.bytes as f64;
    assert!((0.0099..0.0102).contains(&share), "{share}");
    let same = store.receive(Rank(0), ImageId(3), info(0), second.as_slice()).unwrap();
    assert_eq!((same.new_bytes, same.new_chunks), (0, 0));
    assert_eq!(sent(&store, 0, 3), second);
}

#[test]
fn equal_memory_of_different_ranks_is_stored_once() {
    let place = Place::new();
    let store = place.create();
    let process = Process::new(0, 4 * PAGES_PER_WINDOW);
    for rank in 0..4 {
        let done =
            store.receive(Rank(rank), ImageId(1), info(0), process.stream(1).as_slice()).unwrap();
        assert_eq!(done.new_chunks > 0, rank == 0);
    }
    store.discard_rank(Rank(0)).unwrap();
    assert_eq!(sent(&store, 3, 1), process.stream(1));
}

#[test]
fn a_discarded_image_is_not_one_of_those_that_are_kept() {
    let place = Place::new();
    let store = place.create();
    let process = Process::new(0, 2 * PAGES_PER_WINDOW);
    for image in 1..=2 {
        store.receive(Rank(0), ImageId(image), info(0), process.stream(image).as_slice()).unwrap();
    }
    store.discard(Rank(0), ImageId(2)).unwrap();
    store.discard(Rank(0), ImageId(2)).unwrap();
    store.receive(Rank(0), ImageId(3), info(0), process.stream(3).as_slice()).unwrap();
    let kept: Vec<_> = store.images(Rank(0)).iter().map(|i| i.image.0).collect();
    assert_eq!(kept, [3, 1]);
    assert_eq!(sent(&store, 0, 1), process.stream(1));
}

#[test]
fn zero_pages_need_no_storage_and_come_back() {
    let place = Place::new();
    let store = place.create();
    let mut process = Process::new(0, 64 * PAGES_PER_WINDOW + 5);
    for seed in process.pages.iter_mut().skip(64) {
        *seed = 0;
    }
    process.pages[64 * 20 + 3] = 9;
    process.pages[64 * 20 + 5] = 9;
    let stream = process.stream(1);
    let done = store.receive(Rank(0), ImageId(1), info(0), stream.as_slice()).unwrap();
    let content = (64 + 2) * 4096;
    assert!(done.new_bytes < content + 10_000, "{}", done.new_bytes);
    assert_eq!(sent(&store, 0, 1), stream);
}

#[test]
fn small_records_gather_and_spoil_no_pages() {
    let place = Place::new();
    let store = place.create();
    let stream = |clock: u8| {
        let mut stream = ImageStream::default();
        stream.push(Kind::Header, 0, &[clock; 50]);
        for n in 0..10_000 {
            stream.push(Kind::Mapping, n, &[1; 64]);
        }
        for page in (0..200).step_by(2) {
            stream.push(Kind::Pages, page * 4096, &[page as u8 + 1; 4096]);
        }
        stream.finish()
    };
    let done = store.receive(Rank(0), ImageId(1), info(0), stream(1).as_slice()).unwrap();
    // 960,000 bytes of records before the pages, then 200 pages in 4 windows, then the trailer.
    assert_eq!(done.chunks, 4 + 4 + 1);
    let next = store.receive(Rank(0), ImageId(2), info(0), stream(2).as_slice()).unwrap();
    assert_eq!(next.new_chunks, 1);
    assert_eq!(sent(&store, 0, 2), stream(2));
}

#[test]
fn the_last_two_images_stay_and_the_space_of_older_ones_comes_back() {
    let place = Place::new();
    let store = place.create();
    let mut process = Process::new(0, 64 * PAGES_PER_WINDOW);
    let size = process.stream(0).len() as u64;
    for image in 1..=30 {
        process.touch(image, (image as usize % 3) * 64, 64 * 3);
        store.receive(Rank(0), ImageId(image), info(0), process.stream(image).as_slice()).unwrap();
        let usage = store.usage().unwrap();
        assert!(usage.live <= 2 * size, "image {image}: {usage:?}");
        let slack = 64 * 8192 + 200_000;
        assert!(usage.on_disk <= usage.live + slack, "image {image}: {usage:?}");
    }
    assert_eq!(numbers(&store, 0), [30, 29]);
    assert_eq!(sent(&store, 0, 30), process.stream(30));
    assert!(matches!(store.send(Rank(0), ImageId(28), io::sink()), Err(SendError::NoImage { .. })));
    store.discard_rank(Rank(0)).unwrap();
    assert_eq!(store.usage().unwrap(), eyrie_store::Usage { on_disk: 0, live: 0 });
    assert!(place.files("packs").is_empty() && place.files("images").is_empty());
}

#[test]
fn the_number_of_packs_stays_bounded_when_every_image_leaves_something_for_ever() {
    let place = Place::new();
    let store = place.create();
    let stream = |image: u64| {
        let mut stream = ImageStream::default();
        stream.push(Kind::Header, 0, b"always the same");
        for window in 0..image {
            let page = [window.to_le_bytes(); 512].concat();
            stream.push(Kind::Pages, window * MAX_PAYLOAD as u64, &page);
        }
        stream.finish()
    };
    for image in 1..=400 {
        store.receive(Rank(0), ImageId(image), info(0), stream(image + 1).as_slice()).unwrap();
        let packs = place.files("packs").len();
        assert!(packs <= 80, "image {image}: {packs} packs");
    }
    assert_eq!(sent(&store, 0, 400), stream(401));
}

#[test]
fn older_images_and_older_incarnations_are_refused() {
    let place = Place::new();
    let store = place.create();
    let stream = Process::new(0, 10).stream(1);
    store.receive(Rank(0), ImageId(7), info(3), stream.as_slice()).unwrap();
    for (image, incarnation) in [(7, 3), (6, 3), (8, 2)] {
        let refused = store.receive(Rank(0), ImageId(image), info(incarnation), stream.as_slice());
        assert!(
            matches!(refused, Err(ReceiveError::Superseded { newest: ImageId(7), .. })),
            "{refused:?}"
        );
    }
    store.receive(Rank(0), ImageId(8), info(3), stream.as_slice()).unwrap();
}

/// Returns half of a stream, then lets the test act, then returns the rest.
struct Interrupted<'a, F: FnMut()> {
    bytes: &'a [u8],
    half: usize,
    act: F,
}

impl<F: FnMut()> Read for Interrupted<'_, F> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let before = self.bytes.len();
        let count = self.bytes.read(room)?;
        if before >= self.half && self.bytes.len() < self.half {
            (self.act)();
        }
        Ok(count)
    }
}

#[test]
fn a_slow_incarnation_does_not_commit_after_its_successor() {
    let place = Place::new();
    let store = place.create();
    let process = Process::new(0, 500);
    let old = process.stream(1);
    let new = process.stream(2);
    let act = || {
        store.receive(Rank(0), ImageId(2), info(2), new.as_slice()).unwrap();
    };
    let slow = Interrupted { bytes: &old, half: old.len() / 2, act };
    let refused = store.receive(Rank(0), ImageId(3), info(1), slow);
    assert!(
        matches!(refused, Err(ReceiveError::Superseded { newest: ImageId(2), .. })),
        "{refused:?}"
    );
    assert_eq!(numbers(&store, 0), [2]);
    // This image builds on chunks of the refused one, which stay.
    assert_eq!(sent(&store, 0, 2), new);
    drop(store);
    assert_eq!(sent(&place.open(), 0, 2), new);
}

#[test]
fn an_image_can_be_sent_while_it_is_discarded() {
    let place = Place::new();
    let store = place.create();
    let stream = Process::new(0, 500).stream(1);
    store.receive(Rank(0), ImageId(1), info(0), stream.as_slice()).unwrap();
    struct Discarding<'a>(&'a Store, Vec<u8>);
    impl io::Write for Discarding<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.discard_rank(Rank(0)).unwrap();
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut out = Discarding(&store, Vec::new());
    store.send(Rank(0), ImageId(1), &mut out).unwrap();
    assert_eq!(out.1, stream);
    assert!(place.files("packs").is_empty());
}

#[test]
fn bad_streams_are_refused_by_name_and_leave_nothing() {
    let place = Place::new();
    let store = place.create();
    let good = Process::new(0, 300).stream(1);
    let refuse = |bytes: &[u8]| match store.receive(Rank(0), ImageId(1), info(0), bytes) {
        Err(ReceiveError::Stream { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    for len in [0, 1, 31, 32, 100, good.len() / 2, good.len() - 33, good.len() - 1] {
        assert!(matches!(refuse(&good[..len]), StreamError::Truncated { .. }), "{len}");
    }
    assert!(matches!(refuse(&good[132..]), StreamError::NoHeader));
    let twice = [&good[..132], &good[..]].concat();
    assert!(matches!(refuse(&twice), StreamError::SecondHeader { record: 1 }));
    let mut bad = good.clone();
    let last = bad.len() - 32;
    bad[last + 8] ^= 1;
    assert!(matches!(refuse(&bad), StreamError::BadTrailer { .. }));
    let mut long = good[..132].to_vec();
    long.extend_from_slice(
        &RecordHeader { kind: Kind::Pages, flags: 0, a: 0, b: 0, len: MAX_PAYLOAD as u64 + 1 }
            .encode(),
    );
    assert!(matches!(refuse(&long), StreamError::BadRecord { record: 1, bytes: 132 }));
    let mut crumbs = ImageStream::default();
    crumbs.push(Kind::Header, 0, &[]);
    for n in 0..100_000 {
        crumbs.push(Kind::Pages, n * MAX_PAYLOAD as u64, &[]);
    }
    assert!(matches!(refuse(&crumbs.finish()), StreamError::Fragmented { .. }));
    assert_eq!(store.usage().unwrap(), eyrie_store::Usage { on_disk: 0, live: 0 });
    let much = ImageInfo { meta: vec![0; 64 * 1024 + 1], ..info(0) };
    let refused = store.receive(Rank(0), ImageId(1), much, good.as_slice());
    assert!(matches!(refused, Err(ReceiveError::MetaTooLong { .. })));
}

#[test]
fn random_streams_never_panic_and_what_is_accepted_comes_back() {
    let place = Place::new();
    let store = place.create();
    let good = Process::new(0, 3).stream(1);
    let seed: u64 = rand::thread_rng().gen();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut accepted = 0;
    for image in 1..=20_000 {
        let mut bytes = good.clone();
        for _ in 0..rng.gen_range(1..4) {
            let at = rng.gen_range(0..bytes.len());
            bytes[at] = rng.gen();
        }
        if store.receive(Rank(0), ImageId(image), info(0), bytes.as_slice()).is_ok() {
            accepted += 1;
            assert_eq!(sent(&store, 0, image), bytes);
        }
    }
    // Most flips hit page contents, which may be anything.
    assert!(accepted > 1000);
}

#[test]
fn a_flipped_bit_on_disk_is_named_never_sent_and_never_built_upon() {
    let place = Place::new();
    let store = place.create();
    let mut process = Process::new(0, 10 * PAGES_PER_WINDOW);
    let first = process.stream(1);
    store.receive(Rank(0), ImageId(1), info(0), first.as_slice()).unwrap();
    process.touch(1, 64, 10_000);
    let second = process.stream(2);
    store.receive(Rank(0), ImageId(2), info(0), second.as_slice()).unwrap();
    // The second image's own pack: its chunks are not part of the first image.
    let pack = place.files("packs").pop().unwrap();
    flip(&pack, 150_000);
    let mut out = Vec::new();
    match store.send(Rank(0), ImageId(2), &mut out) {
        Err(SendError::Damaged { file, hash, .. }) => {
            assert_eq!(file, pack);
            assert_eq!(hash.len(), 64);
        }
        other => panic!("{other:?}"),
    }
    assert!(second.starts_with(&out) && out.len() < second.len());
    assert_eq!(sent(&store, 0, 1), first, "the image before is what remains");
    let report = store.verify().unwrap();
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(
        (&report.damaged[0].file, &report.damaged[0].images),
        (&pack, &vec![(Rank(0), ImageId(2))])
    );
    let again = store.receive(Rank(0), ImageId(3), info(0), second.as_slice()).unwrap();
    assert_eq!(again.new_chunks, 1, "the damaged chunk is stored anew");
    assert_eq!(sent(&store, 0, 3), second);
}

#[test]
fn any_flipped_bit_of_any_file_is_found() {
    let seed: u64 = rand::thread_rng().gen();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let place = Place::new();
    let store = place.create();
    let process = Process::new(0, 10 * PAGES_PER_WINDOW);
    store.receive(Rank(0), ImageId(1), info(0), process.stream(1).as_slice()).unwrap();
    let files = [place.files("packs"), place.files("images")].concat();
    assert_eq!(files.len(), 2);
    for _ in 0..100 {
        let file = &files[rng.gen_range(0..2)];
        let at = rng.gen_range(0..fs::metadata(file).unwrap().len());
        flip(file, at);
        let damaged = store.verify().unwrap().damaged;
        assert_eq!(damaged.len(), 1, "byte {at} of {file:?}");
        assert_eq!(&damaged[0].file, file);
        flip(file, at);
    }
    assert!(store.verify().unwrap().damaged.is_empty());
}

#[test]
fn torn_files_lose_the_image_they_belong_to_and_no_other() {
    let place = Place::new();
    let streams: Vec<_> = (0..2).map(|rank| Process::new(rank, 300).stream(1)).collect();
    for victim in ["packs", "images"] {
        for keep_bytes in [0, 1, 70, 200] {
            let _ = fs::remove_dir_all(place.path());
            let store = place.create();
            for (rank, stream) in streams.iter().enumerate() {
                store.receive(Rank(rank as u32), ImageId(1), info(0), stream.as_slice()).unwrap();
            }
            drop(store);
            let file = &place.files(victim)[1];
            let open = fs::OpenOptions::new().write(true).open(file).unwrap();
            open.set_len(keep_bytes).unwrap();
            let store = place.open();
            let lost = &store.recovery().lost;
            assert_eq!(lost.len(), 1, "{victim} {keep_bytes}: {lost:?}");
            assert_eq!((lost[0].0, lost[0].1), (Rank(1), ImageId(1)));
            assert!(numbers(&store, 1).is_empty());
            assert_eq!(sent(&store, 0, 1), streams[0]);
            assert_eq!(place.files("packs").len(), 1, "the rest of the lost image is freed");
        }
    }
}

/// A manifest of version 2 began as an image does. This version must leave such an image as it is,
/// for the version that can read it.
#[test]
fn images_of_another_version_are_left_alone() {
    let place = Place::new();
    let streams: Vec<_> = (0..3).map(|rank| Process::new(rank, 300).stream(1)).collect();
    let store = place.create();
    for (rank, stream) in streams[..2].iter().enumerate() {
        store.receive(Rank(rank as u32), ImageId(1), info(0), stream.as_slice()).unwrap();
    }
    drop(store);
    let file = place.path().join("images/1-1");
    let manifest = fs::read(&file).unwrap();
    let mut old = manifest.clone();
    old[..8].copy_from_slice(b"EYRIEIMG");
    old[8..12].copy_from_slice(&2u32.to_le_bytes());
    fs::write(&file, &old).unwrap();
    for _ in 0..2 {
        let store = place.open();
        assert!(store.recovery().lost.is_empty(), "{:?}", store.recovery());
        let reason = "it is of another version of Eyrie: version 2, this program reads 3";
        assert_eq!(store.recovery().left, [(Rank(1), ImageId(1), reason.to_owned())]);
        assert!(numbers(&store, 1).is_empty());
        assert_eq!(sent(&store, 0, 1), streams[0]);
        store.receive(Rank(2), ImageId(1), info(0), streams[2].as_slice()).unwrap();
        store.discard_rank(Rank(2)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), old);
    }
    // The version that can read it finds all of it.
    fs::write(&file, &manifest).unwrap();
    assert_eq!(sent(&place.open(), 1, 1), streams[1]);
}

#[test]
fn files_that_are_not_ours_are_left_alone() {
    let place = Place::new();
    drop(place.create());
    for name in ["packs/readme", "images/1-x", "images/007-1", "packs/12"] {
        fs::write(place.path().join(name), b"mine").unwrap();
    }
    let store = place.open();
    assert!(store.recovery().lost.is_empty());
    assert_eq!(place.files("packs").len() + place.files("images").len(), 4);
}

#[test]
fn ranks_are_received_sent_and_discarded_at_the_same_time() {
    let place = Place::new();
    let store = place.create();
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let store = &store;
            scope.spawn(move || {
                // Half of the memory is the same in all ranks.
                let mut process = Process::new(rank, 20 * PAGES_PER_WINDOW);
                let shared = Process::new(1000, 10 * PAGES_PER_WINDOW);
                process.pages[..shared.pages.len()].copy_from_slice(&shared.pages);
                for image in 1..=20 {
                    process.touch(image, 15 * PAGES_PER_WINDOW, 300);
                    let stream = process.stream(image);
                    store.receive(Rank(rank), ImageId(image), info(0), stream.as_slice()).unwrap();
                    assert_eq!(sent(store, rank, image), stream);
                    if image % 7 == 0 {
                        store.discard_rank(Rank(rank)).unwrap();
                    }
                }
            });
        }
    });
    assert!(store.verify().unwrap().damaged.is_empty());
    let live = store.usage().unwrap().live;
    drop(store);
    let store = place.open();
    assert_eq!(store.usage().unwrap().live, live, "counted the same from disk");
    for rank in 0..8 {
        assert_eq!(numbers(&store, rank), [20, 19]);
        store.discard_rank(Rank(rank)).unwrap();
    }
    assert_eq!(store.usage().unwrap(), eyrie_store::Usage { on_disk: 0, live: 0 });
}

#[test]
fn directories_are_private_and_used_by_one_process() {
    let place = Place::new();
    let store = place.create();
    for dir in ["", "packs", "images"] {
        let mode = fs::metadata(place.path().join(dir)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700, "{dir}");
    }
    assert!(matches!(Store::open(place.path()), Err(StoreError::InUse(_))));
    drop(store);
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(Store::open(place.path()), Err(StoreError::Exposed(_))));
    assert!(matches!(Store::open(place.dir.path()), Err(StoreError::NotAStore { .. })));
    let options = Options::default;
    let taken = Store::create(place.path(), options());
    assert!(matches!(taken, Err(StoreError::NotEmpty(_))));
    let nothing = Store::create(place.path(), Options { keep: 0, ..options() });
    assert!(matches!(nothing, Err(StoreError::KeepNothing)));
    let odd = place.dir.path().join("odd");
    drop(Store::create(&odd, options()).unwrap());
    for text in
        ["", "eyrie-store 3\njob \nkeep 2\nsync true\n", "eyrie-store 2\njob \nkeep 0\nsync true\n"]
    {
        fs::write(odd.join("store"), text).unwrap();
        assert!(matches!(Store::open(&odd), Err(StoreError::NotAStore { .. })), "{text:?}");
    }
}

fn flip(file: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}
