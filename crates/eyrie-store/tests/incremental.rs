//! Incremental images: joined with its base, each holds what the full image does. A base that
//! cannot be used is refused, and a full image then helps.

use eyrie_wire::{ImageId, Incarnation, Rank};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};
use eyrie_image_format::PAGES_SAME;
use eyrie_store::{Committed, ImageInfo, Options, ReceiveError, Store, StreamError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod common;
use common::{short_or_full, ImageStream, Process, PAGES_PER_WINDOW};

fn store(dir: &Path) -> Store {
    Store::create(dir, Options { keep: 2, sync: false, ..Options::default() }).unwrap()
}

fn info(incarnation: u32) -> ImageInfo {
    ImageInfo { incarnation: Incarnation(incarnation), ..ImageInfo::default() }
}

fn take(store: &Store, image: u64, stream: &[u8]) -> Result<Committed, ReceiveError> {
    store.receive(Rank(0), ImageId(image), info(1), stream)
}

fn sent(store: &Store, image: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let bytes = store.send(Rank(0), ImageId(image), &mut out).unwrap();
    assert_eq!(bytes, out.len() as u64, "the length is known beforehand");
    out
}

type Records = Vec<(Kind, Vec<u8>)>;
type Pages<'a> = BTreeMap<u64, &'a [u8]>;

fn for_each_record<'a>(stream: &'a [u8], mut each: impl FnMut(&RecordHeader, &'a [u8])) {
    let mut at = 0;
    let mut records = 0;
    while at < stream.len() {
        let payload = at + RECORD_HEADER_LEN;
        let header = RecordHeader::decode(stream[at..payload].try_into().unwrap()).unwrap();
        if header.kind == Kind::Trailer {
            assert_eq!((header.a, header.b), (at as u64, records));
        }
        at = payload + header.len as usize;
        records += 1;
        each(&header, &stream[payload..at]);
    }
}

fn add_pages<'a>(header: &RecordHeader, payload: &'a [u8], pages: &mut Pages<'a>) {
    for (n, page) in payload.chunks(4096).enumerate() {
        assert!(pages.insert(header.a + n as u64 * 4096, page).is_none());
    }
}

/// The content of a stream: records of other kinds, and pages by address. A run of pages may be in
/// one record or in several; the trailer counts them.
fn content(stream: &[u8]) -> (Records, Pages<'_>) {
    let mut others = Vec::new();
    let mut pages = BTreeMap::new();
    for_each_record(stream, |header, payload| match header.kind {
        Kind::Pages => add_pages(header, payload, &mut pages),
        kind => others.push((kind, payload.to_vec())),
    });
    (others, pages)
}

fn is_same(stream: &[u8], full: &[u8]) -> bool {
    content(stream) == content(full)
}

fn difference(store: &Store, image: u64, since: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let bytes = store.send_since(Rank(0), ImageId(image), ImageId(since), &mut out).unwrap();
    assert_eq!(bytes, out.len() as u64);
    out
}

/// What a receiver has that had one image and applied what another has beyond it.
fn applied<'a>(difference: &'a [u8], before: &'a [u8], since: u64) -> (Records, Pages<'a>) {
    let mut others = Vec::new();
    let mut pages = BTreeMap::new();
    let (_, older) = content(before);
    for_each_record(difference, |header, payload| match header.kind {
        Kind::Pages if header.flags == PAGES_SAME => {
            for n in (0..64).filter(|n| header.b >> n & 1 != 0) {
                let page = header.a + n * 4096;
                // A page that is unchanged and was not there is zero.
                if let Some(content) = older.get(&page) {
                    assert!(pages.insert(page, *content).is_none());
                }
            }
        }
        Kind::Pages => add_pages(header, payload, &mut pages),
        Kind::Base => assert_eq!((header.a, others.len()), (since, 1)),
        kind => others.push((kind, payload.to_vec())),
    });
    (others, pages)
}

#[test]
fn a_difference_has_what_is_new_and_declares_only_private_memory_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let here = store(&dir.path().join("a"));
    let mut process = Process::new(0, 10 * PAGES_PER_WINDOW);
    take(&here, 1, &process.stream(1)).unwrap();
    process.touch(2, 3, 200);
    take(&here, 2, &process.stream(2)).unwrap();
    let all = sent(&here, 2);
    let new = difference(&here, 2, 1);
    assert!(new.len() < all.len(), "a window of which one page is new");
    // Memory outside of the mappings described may be shared, so no page of it is known.
    let mut beyond = process.clone();
    beyond.pages.truncate(2 * PAGES_PER_WINDOW);
    let short = process.stream_described_as(3, &beyond);
    take(&here, 3, &short).unwrap();
    let before = sent(&here, 2);
    let new = difference(&here, 3, 2);
    assert!(applied(&new, &before, 2) == content(&short));
    assert_eq!(content(&new).1.len(), 8 * PAGES_PER_WINDOW, "two windows are known");
    // For a base that is gone or was never here, the receiver gets the whole image.
    assert_eq!(difference(&here, 3, 1), sent(&here, 3));
    assert!(here.send_since(Rank(0), ImageId(9), ImageId(3), Vec::new()).is_err());
}

fn reason(refused: Result<Committed, ReceiveError>) -> StreamError {
    match refused {
        Err(ReceiveError::Stream { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

/// Random changes: single pages, whole windows, pages that become zero, growth, shrinking.
fn change(process: &mut Process, image: u64, rng: &mut SmallRng) {
    for _ in 0..rng.gen_range(0..40) {
        let page = rng.gen_range(0..process.pages.len());
        process.pages[page] = if rng.gen_bool(0.2) { 0 } else { image << 48 | page as u64 };
    }
    if rng.gen_bool(0.3) {
        let window = rng.gen_range(0..process.pages.len() / PAGES_PER_WINDOW);
        let pages = &mut process.pages[window * PAGES_PER_WINDOW..][..PAGES_PER_WINDOW];
        for (n, page) in pages.iter_mut().enumerate() {
            *page = (image << 40) | (n as u64 + 1);
        }
    }
    if rng.gen_bool(0.2) {
        let len = process.pages.len().saturating_sub(rng.gen_range(0..100)).max(64);
        process.pages.truncate(len);
    }
    if rng.gen_bool(0.2) {
        let more = rng.gen_range(1..100);
        process.pages.extend((0..more).map(|n| (image << 44) | (n + 1)));
    }
}

#[test]
fn a_long_chain_gives_each_image_page_for_page() {
    let seed: u64 = rand::thread_rng().gen();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut here = store(&dir.path().join("a"));
    let mut process = Process::new(0, 30 * PAGES_PER_WINDOW + 5);
    take(&here, 1, &process.stream(1)).unwrap();
    let mut written = 0;
    for image in 2..short_or_full(150, 1000) as u64 {
        let older = process.clone();
        change(&mut process, image, &mut rng);
        let done = take(&here, image, &process.changes(image, &older, image - 1)).unwrap();
        written += done.new_bytes;
        let full = process.stream(image);
        let joined = sent(&here, image);
        assert_eq!(done.bytes, joined.len() as u64);
        assert!(is_same(&joined, &full), "image {image}");
        let difference = difference(&here, image, image - 1);
        assert!(difference.len() as u64 <= done.new_bytes + 100_000, "image {image}");
        let before = older.stream(image - 1);
        assert!(applied(&difference, &before, image - 1) == content(&full), "image {image}");
        if image % 40 == 0 {
            drop(here);
            here = Store::open(dir.path().join("a")).unwrap();
            assert!(here.recovery().lost.is_empty(), "{:?}", here.recovery());
            assert!(sent(&here, image) == joined, "image {image}, opened again");
        }
    }
    assert!(here.verify().unwrap().damaged.is_empty());
    let usage = here.usage().unwrap();
    let size = process.pages.len() as u64 * 4096;
    assert!(usage.live < 4 * size, "two images of {size} bytes take {usage:?}");
    println!("{written} bytes were written for images of {size}");
}

#[test]
fn a_copy_of_a_joined_image_is_byte_for_byte_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let a = store(&dir.path().join("a"));
    let b = store(&dir.path().join("b"));
    let mut process = Process::new(0, 10 * PAGES_PER_WINDOW);
    take(&a, 1, &process.stream(1)).unwrap();
    for image in 2..5 {
        let older = process.clone();
        process.touch(image, image as usize, 50);
        take(&a, image, &process.changes(image, &older, image - 1)).unwrap();
    }
    let (mut theirs, mut ours) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| a.copy_to(Rank(0), ImageId(4), &mut theirs).unwrap());
        b.copy_from(Rank(0), ImageId(4), Incarnation(1), &mut ours).unwrap();
    });
    assert!(sent(&b, 4) == process.stream(4));
    // Later images build on it.
    let older = process.clone();
    process.touch(5, 3, 70);
    take(&b, 5, &process.changes(5, &older, 4)).unwrap();
    assert!(sent(&b, 5) == process.stream(5));
}

#[test]
fn images_that_cannot_be_joined_are_refused_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let here = store(&dir.path().join("a"));
    let older = Process::new(0, 3 * PAGES_PER_WINDOW);
    let mut process = older.clone();
    process.touch(3, 0, 10);
    let changes = process.changes(3, &older, 1);
    assert_eq!(reason(take(&here, 3, &changes)), StreamError::NoBase { base: ImageId(1) });
    take(&here, 1, &older.stream(1)).unwrap();
    let of_a_restored_rank = here.receive(Rank(0), ImageId(3), info(2), changes.as_slice());
    assert_eq!(reason(of_a_restored_rank), StreamError::NoBase { base: ImageId(1) });

    let broken = |make: &dyn Fn(&mut ImageStream)| {
        let mut stream = ImageStream::default();
        stream.push(Kind::Header, 0, b"header");
        make(&mut stream);
        reason(take(&here, 3, &stream.finish()))
    };
    let window = 1 << 40;
    let misplaced = |error| assert!(matches!(error, StreamError::Misplaced { .. }), "{error}");
    let descending = |error| assert!(matches!(error, StreamError::Descending { .. }), "{error}");
    misplaced(broken(&|s| s.push_same(window, 1)));
    misplaced(broken(&|s| s.push(Kind::Base, 3, &[])));
    misplaced(broken(&|s| s.push(Kind::Base, 1, &[0; 8])));
    let based = |make: &dyn Fn(&mut ImageStream)| {
        broken(&|s| {
            s.push(Kind::Base, 1, &[]);
            make(s);
        })
    };
    misplaced(based(&|s| s.push(Kind::Base, 1, &[])));
    misplaced(based(&|s| s.push_same(window + 4096, 1)));
    misplaced(based(&|s| s.push_same(window, 0)));
    // One page from two records.
    misplaced(based(&|s| {
        s.push_same(window, 2);
        s.push(Kind::Pages, window + 4096, &[1; 4096]);
    }));
    misplaced(based(&|s| {
        s.push(Kind::Pages, window + 4096, &[1; 4096]);
        s.push_same(window, 2);
    }));
    descending(based(&|s| {
        s.push(Kind::Pages, window + MAX_PAYLOAD as u64, &[1; 4096]);
        s.push_same(window, 2);
    }));
    descending(broken(&|s| {
        s.push(Kind::Pages, window + 4096, &[1; 4096]);
        s.push(Kind::Pages, window, &[1; 4096]);
    }));
    let usage = here.usage().unwrap();
    assert_eq!(usage.live, older.stream(1).len() as u64, "what was refused left nothing");
    take(&here, 3, &changes).unwrap();
    assert!(sent(&here, 3) == process.stream(3));
}

/// Damage in shared chunks is found while the process still lives, and is gone after the next full
/// image.
#[test]
fn a_damaged_link_is_found_before_it_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let here = store(&dir.path().join("a"));
    let mut process = Process::new(0, 40 * PAGES_PER_WINDOW);
    take(&here, 1, &process.stream(1)).unwrap();
    let pack = std::fs::read_dir(dir.path().join("a/packs")).unwrap().next().unwrap();
    let pack = std::fs::File::options().write(true).open(pack.unwrap().path()).unwrap();
    pack.write_all_at(&[0xa5; 3], 23 * MAX_PAYLOAD as u64 + 9999).unwrap();
    let mut image = 1;
    let error = loop {
        image += 1;
        assert!(image < 40, "the damage was not found");
        let older = process.clone();
        process.pages[3] = image << 40;
        let changes = process.changes(image, &older, image - 1);
        match take(&here, image, &changes) {
            Ok(_) => {}
            refused => break reason(refused),
        }
    };
    assert_eq!(error, StreamError::DamagedBase { base: ImageId(image - 1) });
    // Now it is known: no image builds on it any more, and a full image does not share it.
    let older = process.clone();
    let again = process.changes(image, &older, image - 1);
    assert_eq!(
        reason(take(&here, image, &again)),
        StreamError::DamagedBase { base: ImageId(image - 1) }
    );
    take(&here, image, &process.stream(image)).unwrap();
    assert!(sent(&here, image) == process.stream(image));
    process.pages[5] = 77;
    take(&here, image + 1, &process.changes(image + 1, &older, image)).unwrap();
    assert!(sent(&here, image + 1) == process.stream(image + 1));
}

/// Changed pages that are scattered over all windows cost their own size, not that of the windows.
#[test]
fn scattered_pages_are_stored_alone() {
    let dir = tempfile::tempdir().unwrap();
    let here = store(&dir.path().join("a"));
    let mut process = Process::new(0, 64 * PAGES_PER_WINDOW);
    take(&here, 1, &process.stream(1)).unwrap();
    let older = process.clone();
    process.touch(2, 7, PAGES_PER_WINDOW);
    let done = take(&here, 2, &process.changes(2, &older, 1)).unwrap();
    assert!(done.new_bytes < 2 * 64 * 4096, "{done:?}");
    assert!(sent(&here, 2) == process.stream(2));
}
