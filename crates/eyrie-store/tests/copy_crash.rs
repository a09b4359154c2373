//! Two stores in processes of their own, one of which copies the images of the other. Either is
//! killed at random moments. The store that copies must have all images that it reported and
//! nothing else, and the source must be unchanged.

use crossbeam_channel::unbounded;
use eyrie_store::role::{StoreCommand, StoreEvent, StoreRole};
use eyrie_store::{ImageInfo, Options, Store};
use eyrie_wire::control::{ImageMeta, StoreAt};
use eyrie_wire::role_address::{Addr, Bind};
use eyrie_wire::{ImageId, Incarnation, Rank, RankInstance, StoreId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

#[path = "common/mod.rs"]
mod common;
#[path = "common/role.rs"]
mod shared;
use common::{short_or_full, Process, PAGES_PER_WINDOW};
use shared::{config, fetch, sealed, SECRET};

const RANKS: u32 = 6;
const IMAGES: u64 = 2;

/// An image's stream, made once.
fn stream(rank: u32, image: u64) -> &'static [u8] {
    static MADE: OnceLock<BTreeMap<(u32, u64), Vec<u8>>> = OnceLock::new();
    let all = || (0..RANKS).flat_map(|rank| (1..=IMAGES).map(move |image| (rank, image)));
    let make = || all().map(|(rank, image)| ((rank, image), make_stream(rank, image))).collect();
    &MADE.get_or_init(make)[&(rank, image)]
}

fn make_stream(rank: u32, image: u64) -> Vec<u8> {
    let mut process = Process::new(rank, (1 + 6 * rank as usize) * PAGES_PER_WINDOW);
    // Part of the memory is the same in all ranks.
    let shared = Process::new(1000, PAGES_PER_WINDOW);
    process.pages[..PAGES_PER_WINDOW].copy_from_slice(&shared.pages);
    process.touch(image, 0, 5 * PAGES_PER_WINDOW);
    process.stream(image)
}

/// Both images of all ranks; of some ranks only the older one.
fn fill(dir: &Path, all: bool) {
    let options = Options { job: "the job".into(), keep: 4, sync: false };
    let store = Store::create(dir, options).unwrap();
    for rank in 0..RANKS {
        for image in 1..=IMAGES {
            if all || (image == 1 && rank % 2 == 0) {
                let meta = ImageMeta { incarnation: Incarnation(1), ..ImageMeta::default() };
                let meta = postcard::to_stdvec(&meta).unwrap();
                let info = ImageInfo { incarnation: Incarnation(1), meta, ..ImageInfo::default() };
                store.receive(Rank(rank), ImageId(image), info, stream(rank, image)).unwrap();
            }
        }
    }
}

/// A store in a process, and what it prints.
struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Lines that `next` has not yet returned.
    heard: VecDeque<String>,
    addr: Addr,
}

impl Running {
    /// With `from`, the store copies all images from there.
    fn start(dir: &Path, socket: Option<PathBuf>, from: Option<&Addr>, sync: bool) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("EYRIE_STORE_DIR", dir)
            .env("EYRIE_STORE_SYNC", sync.to_string())
            .stdout(Stdio::piped());
        socket.map(|path| command.env("EYRIE_STORE_SOCKET", path));
        from.map(|addr| command.env("EYRIE_STORE_FROM", addr.to_string()));
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let heard = VecDeque::new();
        let mut running = Running { process, lines, heard, addr: Addr::Unix("/".into()) };
        let listens = running.next().expect("it listens");
        running.addr = listens.strip_prefix("listens ").unwrap().parse().unwrap();
        running
    }

    /// The next line; `None` when the store is dead.
    fn next(&mut self) -> Option<String> {
        self.heard.pop_front().or_else(|| self.read_line())
    }

    /// Waits until `count` lines are ready for `next` to return.
    fn await_said(&mut self, count: usize) {
        while self.heard.len() < count {
            let Some(said) = self.read_line() else { return };
            self.heard.push_back(said);
        }
    }

    fn read_line(&mut self) -> Option<String> {
        self.lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.split_once("store-child ").map(|(_, said)| said.to_string()))
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may be dead.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn after_a_kill_in_the_middle_of_copies_only_whole_images_are_left() {
    let seed: u64 = match std::env::var("EYRIE_STORE_SEED") {
        Ok(seed) => seed.parse().expect("EYRIE_STORE_SEED is a number"),
        Err(_) => rand::thread_rng().gen(),
    };
    println!("EYRIE_STORE_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let kills = short_or_full(40, 100);
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a");
    fill(&a, true);
    let mut hit = 0;
    let mut whole = 0;
    for kill in 0..kills {
        let b = dir.path().join(format!("b-{kill}"));
        fill(&b, false);
        let tcp: bool = rng.gen();
        let socket = |name: &str| (!tcp).then(|| dir.path().join(format!("{name}-{kill}.sock")));
        let mut source = Running::start(&a, socket("a"), None, false);
        let sync: bool = rng.gen();
        let mut taker = Running::start(&b, socket("b"), Some(&source.addr), sync);
        // On any machine, some of the copies are still to be made.
        taker.await_said(rng.gen_range(0..total()));
        std::thread::sleep(Duration::from_micros(rng.gen_range(0..3000)));
        let kill_source: bool = rng.gen();
        let victim = if kill_source { &mut source } else { &mut taker };
        victim.kill();
        let (stored, failed) = outcome(&mut taker, kill_source, kill);
        if kill_source {
            // The other store continues: it has no space for images that it does not have whole.
            let space = allocated(&b);
            taker.kill();
            drop(taker);
            let store = Store::open(&b).unwrap();
            assert!(space <= store.usage().unwrap().on_disk, "kill {kill}: {space} bytes are left");
        }
        hit += usize::from(failed || !kill_source && stored.len() < total());
        whole += stored.len();
        check(&b, &stored, kill_source, kill);
        drop(source);
        std::fs::remove_dir_all(&b).unwrap();
    }
    let source = Store::open(&a).unwrap();
    assert!(source.recovery().lost.is_empty());
    assert!(source.verify().unwrap().damaged.is_empty());
    println!("{kills} kills, {hit} before the last copy, {whole} images were copied");
    assert!(hit > kills / 4 && whole > kills, "{hit} {whole}");
}

fn total() -> usize {
    (RANKS as u64 * IMAGES) as usize
}

/// What the copying store reports until it is dead or has tried all copies: the images that are
/// stored, and whether some failed.
fn outcome(taker: &mut Running, to_the_end: bool, kill: usize) -> (BTreeSet<(u32, u64)>, bool) {
    let mut stored = BTreeSet::new();
    let mut failed = 0;
    while stored.len() + failed < total() || !to_the_end {
        let Some(said) = taker.next() else { break };
        let words: Vec<_> = said.split(' ').collect();
        match words[..] {
            ["stored", rank, image] => {
                stored.insert((rank.parse().unwrap(), image.parse().unwrap()));
            }
            ["failed", ..] => {
                assert!(to_the_end && said.contains(", from "), "kill {kill}: {said}");
                failed += 1;
            }
            _ => panic!("kill {kill}: the child said {said}"),
        }
    }
    let all = stored.len() + failed;
    assert!(!to_the_end || all == total(), "kill {kill}: only {all} answers");
    (stored, failed > 0)
}

/// Bytes that the packs and manifests of a store take.
fn allocated(dir: &Path) -> u64 {
    let files = ["packs", "images"].map(|name| std::fs::read_dir(dir.join(name)).unwrap());
    let blocks = files.into_iter().flatten().map(|f| f.unwrap().metadata().unwrap().blocks());
    blocks.sum::<u64>() * 512
}

/// Checks that the store holds what it has reported and wastes nothing. If it was killed itself, it
/// may hold more, which it had no time to report.
fn check(dir: &Path, stored: &BTreeSet<(u32, u64)>, reports_all: bool, kill: usize) {
    let store = Store::open(dir).unwrap();
    assert!(store.recovery().lost.is_empty(), "kill {kill}: {:?}", store.recovery());
    let there: BTreeSet<_> = store.all_images().iter().map(|i| (i.rank.0, i.image.0)).collect();
    assert!(there.is_superset(stored), "kill {kill}: {there:?} of {stored:?}");
    let from_before = |(rank, image): &(u32, u64)| *image == 1 && rank % 2 == 0;
    if reports_all {
        let more: Vec<_> = there.difference(stored).filter(|i| !from_before(i)).collect();
        assert!(more.is_empty(), "kill {kill}: {more:?} were not reported");
    }
    for &(rank, image) in &there {
        let mut out = Vec::new();
        store.send(Rank(rank), ImageId(image), &mut out).unwrap();
        assert!(out == stream(rank, image), "kill {kill}: rank {rank} {image}");
    }
    let report = store.verify().unwrap();
    assert!(report.damaged.is_empty(), "kill {kill}: {report:?}");
    let usage = store.usage().unwrap();
    let slack = (report.chunks + 1) * 8192 + report.images * 16_384;
    assert!(usage.on_disk <= usage.live + slack, "kill {kill}: {usage:?}");
    let left = std::fs::read_dir(dir.join("images")).unwrap().count();
    assert_eq!(left as u64, report.images, "kill {kill}: no unfinished manifest stays");
}

#[test]
fn a_source_that_stops_in_the_middle_can_be_replaced_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "c"].map(|name| dir.path().join(name));
    fill(&paths[0], true);
    let socket = |name: &str| Some(dir.path().join(format!("{name}.sock")));
    let source = Running::start(&paths[0], socket("a"), None, false);
    let mut second = Running::start(&paths[1], socket("b"), Some(&source.addr), false);
    assert_eq!(outcome(&mut second, true, 0).0.len(), total());
    drop(source);
    let mut third = Running::start(&paths[2], socket("c"), Some(&second.addr), false);
    assert_eq!(outcome(&mut third, true, 0).0.len(), total());
    drop(second);
    for rank in 0..RANKS {
        assert!(fetch(&third.addr, rank, 2).unwrap() == stream(rank, 2));
    }
}

#[test]
#[ignore = "the process that the other tests start and kill"]
fn child() {
    let env = |name| std::env::var(name).expect("started by the other test");
    let dir = env("EYRIE_STORE_DIR");
    let listen = std::env::var("EYRIE_STORE_SOCKET").map_or(sealed(), |s| Bind::Unix(s.into()));
    let from = std::env::var("EYRIE_STORE_FROM").ok().map(|addr| addr.parse::<Addr>().unwrap());
    let mut config = config(Path::new(&dir), listen);
    config.sync = env("EYRIE_STORE_SYNC") == "true";
    let (told, events) = unbounded();
    let tell = move |event| drop(told.send(event));
    let role = StoreRole::start(&config, SECRET, tell).unwrap();
    let StoreEvent::Listening(addr) = events.recv().unwrap() else { panic!() };
    say(&format!("listens {addr}"));
    // Newest first.
    for image in (1..=IMAGES).rev() {
        for rank in 0..RANKS {
            let instance = RankInstance { rank: Rank(rank), incarnation: Incarnation(1) };
            let Some(from) = from.clone() else { continue };
            let from = StoreAt { store: StoreId(0), addr: Some(from) };
            role.command(StoreCommand::Copy { instance, image: ImageId(image), from }).unwrap();
        }
    }
    for event in events {
        match event {
            StoreEvent::Stored { instance, stored, .. } => {
                say(&format!("stored {} {}", instance.rank, stored.image));
            }
            StoreEvent::Failed { instance, image, reason } => {
                say(&format!("failed {} {image}: {reason}", instance.rank));
            }
            // The other store or the parent has ended.
            StoreEvent::Note(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Writes a line in one write, so that the parent gets all of it or nothing.
fn say(what: &str) {
    let line = format!("store-child {what}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}
