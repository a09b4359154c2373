//! How fast a store receives and sends images, beside the cost of each step alone on the same
//! machine.
//!
//! `cargo run --release -p eyrie-store --example throughput [DIR [MIB]]`; DIR defaults to /dev/shm.
//! Each row is the median of the rounds, with the slowest and fastest. The rounds of all rows are
//! interleaved. The last column counts processor time instead of elapsed time: what an idle core
//! would reach.

use eyrie_wire::{ImageId, Incarnation, Rank};
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use eyrie_store::{ImageInfo, Options, Store};
use eyrie_transport::{handshake, role, Listener};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::{Bind, Interface, Ports, Security};
use rustix::time::{clock_gettime, ClockId};

#[path = "../tests/common/mod.rs"]
mod common;
use common::{Process, PAGE};

const ROUNDS: usize = 7;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| "/dev/shm".into());
    let mib: usize = args.next().map_or(1024, |n| n.parse().expect("MIB is a number"));
    let mut process = Process::new(0, mib * (1 << 20) / PAGE);
    let first = process.stream(1);
    // A tenth of the windows changes, each as a whole: a program's writes lie together.
    for window in (0..process.pages.len()).step_by(64 * 10) {
        let end = (window + 64).min(process.pages.len());
        for seed in &mut process.pages[window..end] {
            *seed |= 1 << 60;
        }
    }
    let changed = process.stream(3);

    let mut rows = Rows::default();
    for round in 0..ROUNDS {
        let place = tempfile::tempdir_in(&dir).expect("a temporary directory");
        let options = Options { keep: 2, sync: true, ..Options::default() };
        let store = Store::create(place.path().join("store"), options).expect("create");
        steps(&first, place.path(), &mut rows);
        let mut receive = |name, image, bytes: &[u8], socket| {
            let started = Start::now();
            let done = if socket {
                through_socket(bytes, |r| store.receive(Rank(0), image, ImageInfo::default(), r))
            } else {
                store.receive(Rank(0), image, ImageInfo::default(), bytes)
            };
            rows.add(name, bytes.len(), &started);
            let done = done.expect("receive");
            if round == 0 {
                println!("{name}: {} of {} bytes are new", done.new_bytes, done.bytes);
            }
        };
        receive("receive fresh", ImageId(1), &first, false);
        receive("receive unchanged", ImageId(2), &first, false);
        receive("receive 10 % changed", ImageId(3), &changed, false);
        receive("receive unchanged, through a socket", ImageId(4), &changed, true);
        let options = Options { keep: 2, sync: true, ..Options::default() };
        let other = Store::create(place.path().join("other"), options).expect("create");
        for (name, image, security) in [
            ("copy fresh, over TCP", 4, Security::Off),
            ("copy unchanged, over TCP", 3, Security::Off),
            ("copy fresh, over sealed TCP", 4, Security::Encrypted),
        ] {
            let started = Start::now();
            copy(&store, &other, image, security);
            rows.add(name, changed.len(), &started);
            if image == 3 {
                other.discard_rank(Rank(0)).expect("discard");
            }
        }
        drop(other);
        let started = Start::now();
        let sent = store.send(Rank(0), ImageId(3), io::sink()).expect("send");
        rows.add("send", sent as usize, &started);
        store.discard_rank(Rank(0)).expect("discard");
        let started = Start::now();
        let fresh = |r: UnixStream| store.receive(Rank(0), ImageId(5), ImageInfo::default(), r);
        through_socket(&first, fresh).expect("receive");
        rows.add("receive fresh, through a socket", first.len(), &started);
    }
    rows.print();
}

/// What the steps of a fresh receive cost by themselves.
fn steps(stream: &[u8], dir: &std::path::Path, rows: &mut Rows) {
    let chunk = 256 * 1024;
    let mut buffer = vec![0; chunk];
    let started = Start::now();
    for part in stream.chunks_exact(chunk) {
        buffer.copy_from_slice(part);
        black_box(&buffer);
    }
    rows.add("step: copy", stream.len(), &started);
    let started = Start::now();
    for part in stream.chunks(chunk) {
        black_box(blake3::hash(part));
    }
    rows.add("step: BLAKE3", stream.len(), &started);
    let mut file = tempfile::tempfile_in(dir).expect("a temporary file");
    let started = Start::now();
    for part in stream.chunks(chunk) {
        file.write_all(part).expect("write");
    }
    file.sync_data().expect("sync");
    rows.add("step: write and sync", stream.len(), &started);
}

/// Copies an image over the loopback interface; both stores are threads of this process.
fn copy(from: &Store, to: &Store, image: u64, security: Security) {
    let interface = Interface::LOOPBACK;
    let ports = Ports::ANY;
    let listener = Listener::bind(&Bind::Tcp { interface, ports, security }).expect("listen");
    let addr = listener.addr().expect("an address");
    let secret = Secret([1; SECRET_LEN]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().expect("accept");
            handshake::accept(&mut stream, &secret, |_| Ok(())).expect("a handshake");
            from.copy_to(Rank(0), ImageId(image), &mut stream).expect("give");
        });
        let claim = Claim::ImageCopy { rank: Rank(0), image: ImageId(image) };
        let mut stream = role::connect(&addr, &secret, &claim).expect("connect");
        to.copy_from(Rank(0), ImageId(image), Incarnation(0), &mut stream).expect("copy");
    });
}

fn through_socket<T>(bytes: &[u8], take: impl FnOnce(UnixStream) -> T) -> T {
    let (mut writer, reader) = UnixStream::pair().expect("a socket pair");
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(bytes).expect("write"));
        take(reader)
    })
}

/// The time and this thread's processor time at the start of a measurement.
struct Start(Instant, f64);

impl Start {
    fn now() -> Start {
        Start(Instant::now(), cpu_seconds())
    }
}

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// By name, for each round: GB per second of elapsed time and of processor time.
#[derive(Default)]
struct Rows(Vec<(&'static str, Vec<f64>, Vec<f64>)>);

impl Rows {
    fn add(&mut self, name: &'static str, bytes: usize, start: &Start) {
        let gb = bytes as f64 / 1e9;
        let rate = gb / start.0.elapsed().as_secs_f64();
        let busy = gb / (cpu_seconds() - start.1);
        match self.0.iter_mut().find(|(n, ..)| *n == name) {
            Some((_, rates, busys)) => {
                rates.push(rate);
                busys.push(busy);
            }
            None => self.0.push((name, vec![rate], vec![busy])),
        }
    }

    fn print(mut self) {
        println!(
            "{:36} {:>8} {:>8} {:>8} {:>8}",
            "GB/s", "median", "slowest", "fastest", "per CPU"
        );
        for (name, rates, busys) in &mut self.0 {
            rates.sort_by(f64::total_cmp);
            busys.sort_by(f64::total_cmp);
            let slowest = rates[0];
            let fastest = rates[rates.len() - 1];
            let median = rates[rates.len() / 2];
            let busy = busys[busys.len() / 2];
            println!("{name:36} {median:8.2} {slowest:8.2} {fastest:8.2} {busy:8.2}");
        }
    }
}
