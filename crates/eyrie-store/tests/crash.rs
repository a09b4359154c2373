//! A process that uses a store is killed at random moments: while it receives, commits, frees space
//! or opens the store. The store must then open, hold exactly what was committed, and waste
//! nothing.

use eyrie_wire::{ImageId, Rank};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use eyrie_store::{ImageInfo, Options, Store};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

mod common;
use common::{short_or_full, Process, PAGES_PER_WINDOW};

const RANKS: u32 = 3;
/// Memory of a rank in pages, in turn. Kills hit large images while they arrive, and small ones
/// while they are committed and older ones are freed.
const PAGES: [usize; 2] = [8 * PAGES_PER_WINDOW, 40];

/// The memory of a rank at an image. Each part changes at its own pace, and some is the same in all
/// ranks.
fn process(rank: u32, image: u64, pages: usize) -> Process {
    let mut process = Process::new(rank, pages);
    for (number, page) in process.pages.iter_mut().enumerate() {
        let window = number * 8 / pages;
        let owner = if window < 3 { 1000 } else { u64::from(rank) + 1 };
        let generation = image >> (window % 4);
        *page = if number % 7 == 0 { 0 } else { owner << 48 | generation << 24 | number as u64 };
    }
    process
}

/// What the parent knows of a rank from the child's lines.
#[derive(Default, Clone, Debug)]
struct Known {
    /// Committed for certain and not discarded, oldest first.
    done: Vec<u64>,
    /// Begun, and perhaps committed.
    begun: Option<u64>,
    /// A discard has begun, and perhaps happened.
    discarding: bool,
    next: u64,
}

impl Known {
    fn record(&mut self, verb: &str, image: u64) {
        match verb {
            "begin" => (self.begun, self.next) = (Some(image), image + 1),
            "done" => {
                self.begun = None;
                self.done.push(image);
            }
            "discard" => self.discarding = true,
            "discarded" => (self.done, self.discarding) = (Vec::new(), false),
            _ => panic!("the child said {verb}"),
        }
    }

    /// Every list of images, newest first, that the store may have now.
    fn allowed(&self) -> Vec<Vec<u64>> {
        let last_two = |images: &[u64]| images.iter().rev().take(2).copied().collect::<Vec<_>>();
        let mut allowed = vec![last_two(&self.done)];
        if let Some(begun) = self.begun {
            allowed.push(last_two(&[self.done.as_slice(), &[begun]].concat()));
        }
        if self.discarding {
            // Manifests are removed one after the other.
            allowed.extend([vec![], allowed[0].iter().take(1).copied().collect()]);
            allowed.push(allowed[0].iter().skip(1).copied().collect());
        }
        allowed
    }
}

#[test]
fn killed_at_any_moment_a_store_keeps_what_was_committed_and_nothing_else() {
    let seed: u64 = match std::env::var("EYRIE_STORE_SEED") {
        Ok(seed) => seed.parse().expect("EYRIE_STORE_SEED is a number"),
        Err(_) => rand::thread_rng().gen(),
    };
    println!("EYRIE_STORE_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let kills = short_or_full(100, 200);
    let dir = tempfile::tempdir().unwrap();
    let mut moments = BTreeMap::new();
    let mut known = vec![Known { next: 1, ..Known::default() }; RANKS as usize];
    let mut path = PathBuf::new();
    let mut pages = 0;
    for kill in 0..kills {
        if kill % 25 == 0 {
            path = dir.path().join(format!("store-{kill}"));
            pages = PAGES[kill / 25 % 2];
            let sync = kill % 100 < 50;
            drop(Store::create(&path, Options { keep: 2, sync, ..Options::default() }).unwrap());
            known.fill(Known { next: 1, ..Known::default() });
        }
        run_and_kill(&path, pages, &mut known, &mut rng);
        for rank in &known {
            let doing = match (rank.begun, rank.discarding) {
                (Some(_), _) => "receiving",
                (None, true) => "discarding",
                (None, false) => "between calls",
            };
            *moments.entry(doing).or_insert(0) += 1;
        }
        check(&path, pages, &mut known, kill);
    }
    println!("{kills} kills, ranks were {moments:?}");
    assert!(moments["receiving"] > kills, "the kills hit the work: {moments:?}");
}

/// Runs a child for a random time and records its lines until it is dead.
fn run_and_kill(path: &Path, pages: usize, known: &mut [Known], rng: &mut SmallRng) {
    let next: Vec<_> = known.iter().map(|k| k.next.to_string()).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env("EYRIE_STORE_DIR", path)
        .env("EYRIE_STORE_NEXT", next.join(","))
        .env("EYRIE_STORE_PAGES", pages.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let early = rng.gen_bool(0.2);
    if !early {
        // Wait until it works, so that the random time falls into the work.
        let opened = |line: &String| line.ends_with("store-child open");
        assert!(
            lines.by_ref().map(Result::unwrap).any(|l| opened(&l)),
            "the child opens the store"
        );
    }
    let most = if early { 6_000 } else { 80_000 };
    std::thread::sleep(Duration::from_micros(rng.gen_range(0..most)));
    child.kill().unwrap();
    for line in lines.map(Result::unwrap) {
        let Some((_, said)) = line.split_once("store-child ") else { continue };
        let words: Vec<_> = said.split(' ').collect();
        if let [verb, rank, image] = words[..] {
            known[rank.parse::<usize>().unwrap()].record(verb, image.parse().unwrap());
        }
    }
    let status = child.wait().unwrap();
    assert!(!status.success(), "killed, not finished");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(9), "the child failed by itself");
}

/// Opens the store, compares it with what is known, and updates what is known.
fn check(path: &Path, pages: usize, known: &mut [Known], kill: usize) {
    let store = Store::open(path).unwrap();
    assert!(store.recovery().lost.is_empty(), "kill {kill}: {:?}", store.recovery());
    for (rank, known) in known.iter_mut().enumerate() {
        let rank = rank as u32;
        let mut images: Vec<u64> = store.images(Rank(rank)).iter().map(|i| i.image.0).collect();
        let allowed = known.allowed();
        assert!(allowed.contains(&images), "kill {kill}, rank {rank}: {images:?} of {known:?}");
        for &image in &images {
            let mut out = Vec::new();
            store.send(Rank(rank), ImageId(image), &mut out).unwrap();
            assert!(
                out == process(rank, image, pages).stream(image),
                "kill {kill}: rank {rank} {image}"
            );
        }
        images.reverse();
        *known = Known { done: images, next: known.next, ..Known::default() };
    }
    let report = store.verify().unwrap();
    assert!(report.damaged.is_empty(), "kill {kill}: {report:?}");
    let usage = store.usage().unwrap();
    // Blocks at the ends of punched gaps, and manifests.
    let slack = (report.chunks + 1) * 8192 + report.images * 16_384;
    assert!(usage.on_disk <= usage.live + slack, "kill {kill}: {usage:?}");
    let left: Vec<_> = std::fs::read_dir(path.join("images")).unwrap().collect();
    assert_eq!(left.len() as u64, report.images, "kill {kill}: no unfinished manifest stays");
}

#[test]
#[ignore = "the process that the other test starts and kills"]
fn child() {
    let path = std::env::var("EYRIE_STORE_DIR").expect("started by the other test");
    let next = std::env::var("EYRIE_STORE_NEXT").expect("started by the other test");
    let next: Vec<u64> = next.split(',').map(|n| n.parse().unwrap()).collect();
    let pages = std::env::var("EYRIE_STORE_PAGES").expect("started by the other test");
    let pages: usize = pages.parse().unwrap();
    let store = Store::open(path).unwrap();
    say("open");
    std::thread::scope(|scope| {
        for (rank, first) in (0..RANKS).zip(next) {
            let store = &store;
            scope.spawn(move || {
                for image in first.. {
                    let process_now = process(rank, image, pages);
                    // Two of three build on the newest image, if there is one.
                    let newest = store.images(Rank(rank)).first().map(|i| i.image.0);
                    let stream = match newest.filter(|_| image % 3 != 0) {
                        Some(base) => process_now.changes(image, &process(rank, base, pages), base),
                        None => process_now.stream(image),
                    };
                    say(&format!("begin {rank} {image}"));
                    store
                        .receive(
                            Rank(rank),
                            ImageId(image),
                            ImageInfo::default(),
                            stream.as_slice(),
                        )
                        .unwrap();
                    say(&format!("done {rank} {image}"));
                    if image % 11 == u64::from(rank) {
                        say(&format!("discard {rank} {image}"));
                        store.discard_rank(Rank(rank)).unwrap();
                        say(&format!("discarded {rank} {image}"));
                    }
                }
            });
        }
    });
}

/// Writes a line in one write, so that the parent gets all of it or nothing.
fn say(what: &str) {
    let line = format!("store-child {what}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}
