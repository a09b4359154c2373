//! Measures images: the pause of the captured process, the bandwidth of its stream and of a restore
//! from a pipe; the pause with a large, little-used shared mapping, beside that without one; the
//! pause of several threads; and the cost of an incremental image beside that of a full one. `cargo
//! run --release -p eyrie-image --example pause -- [MIB... | incremental]`: medians of several
//! turns, in which the variants alternate. Never a test: figures depend on the machine.

use eyrie_image::{capture, Mode, Outcome, Request, Track, Tracker};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::process::{Command, Stdio};
use std::time::Instant;

const TURNS: usize = 5;
/// The shared mappings, and how much of each is used.
const SPARSE_MIB: usize = 1024;
const USED_MIB: usize = 1;
/// Memory that the process with a shared mapping has besides.
const BESIDE_MIB: usize = 16;
/// Threads of a process.
const THREADS: [usize; 4] = [1, 2, 4, 16];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "--subject") {
        start_threads(args[4].parse().unwrap());
        return subject(args[1].parse().unwrap(), &args[2], args[3] == "sync");
    }
    if args.first().is_some_and(|a| a == "--tracked") {
        return tracked(&args[1], &args[2], args[3] == "incremental");
    }
    // The capture in the subject would refuse what the shell left open.
    // SAFETY: the call takes numbers and only sets a flag of descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 4) };
    if args == ["incremental"] {
        return incremental();
    }
    if args.iter().any(|a| a.parse::<usize>().is_err()) {
        eprintln!("usage: pause [MIB... | incremental]\n\nresident sizes in MiB, default 100 1024");
        std::process::exit(2);
    }
    let mut sizes: Vec<usize> = args.iter().map(|a| a.parse().unwrap()).collect();
    if sizes.is_empty() {
        sizes = vec![100, 1024];
    }
    println!("medians of {TURNS} turns (lowest to highest)");
    println!("size      pages  mode   pause ms             stream GB/s          restore GB/s");
    for mib in sizes {
        let variants = [("4k", "async"), ("huge", "async"), ("4k", "sync"), ("huge", "sync")];
        let mut results = vec![Vec::new(); variants.len()];
        for _ in 0..TURNS {
            for (result, (pages, mode)) in results.iter_mut().zip(variants) {
                result.push(turn(mib, pages, mode, 1));
            }
        }
        for (result, (pages, mode)) in results.iter().zip(variants) {
            let column = |i: usize| in_words(spread(result.iter().map(|r| r[i])));
            let pause = column(0);
            let stream = column(1);
            let restore = column(2);
            println!("{mib:5} MiB {pages:6} {mode:6} {pause:20} {stream:20} {restore:20}");
        }
    }
    sparse();
    threads();
    incremental();
}

/// The pause of a process with several threads.
fn threads() {
    println!(
        "\nthreads of a process of {BESIDE_MIB} MiB, all but one waiting\nthreads    pause ms"
    );
    let mut results = vec![Vec::new(); THREADS.len()];
    for _ in 0..TURNS {
        for (result, threads) in results.iter_mut().zip(THREADS) {
            result.push(turn(BESIDE_MIB, "4k", "async", threads)[0]);
        }
    }
    for (result, threads) in results.iter().zip(THREADS) {
        println!("{threads:<10} {}", in_words(spread(result.iter().copied())));
    }
}

/// Starts threads until there are `count`, including the calling one.
fn start_threads(count: usize) {
    for _ in 1..count {
        std::thread::spawn(std::thread::park);
    }
}

/// The pause with a shared mapping of which little is used, beside that without one.
fn sparse() {
    let kinds = ["none", "memfd", "shm", "disk", "anonymous"];
    println!("\na shared mapping of {SPARSE_MIB} MiB, {USED_MIB} MiB of it used");
    println!("mapping    pause ms             times that without one");
    let mut results = vec![Vec::new(); kinds.len()];
    for _ in 0..TURNS {
        for (result, kind) in results.iter_mut().zip(kinds) {
            result.push(turn(BESIDE_MIB, kind, "async", 1)[0]);
        }
    }
    let without = spread(results[0].iter().copied())[0];
    for (result, kind) in results.iter().zip(kinds) {
        let pause = spread(result.iter().copied());
        println!("{kind:10} {:20} {:.2}", in_words(pause), pause[0] / without);
    }
}

/// Full and incremental images of a process that writes to some of its pages between them.
fn incremental() {
    println!("\n{TRACKED_MIB} MiB, {CHANGED_PERCENT} % of the pages written between images");
    println!("pages  written    image        pause ms             processor ms         MiB");
    for (pages, written) in [("4k", "scattered"), ("4k", "together"), ("huge", "together")] {
        for kind in ["full", "incremental"] {
            let turns: Vec<_> = (0..3).map(|_| one_tracked(pages, written, kind)).collect();
            let column = |i: usize| spread(turns.iter().map(|t| t[i]));
            let pause = column(0);
            let processor = column(1);
            let mib = column(2)[0];
            let pause = in_words(pause);
            let processor = in_words(processor);
            println!("{pages:6} {written:10} {kind:12} {pause:20} {processor:20} {mib:.1}");
        }
    }
}

/// Returns the pause in ms, the processor time for the image in ms (of the process and its
/// image-writing process, including writes to marked pages), and the MiB sent.
fn one_tracked(pages: &str, written: &str, kind: &str) -> [f64; 3] {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--tracked", pages, written, kind])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut piece = vec![0; 1 << 20];
    let mut result = [0.0; 3];
    for _ in 0..IMAGES {
        input.write_all(b"go\n").unwrap();
        let mut header = [0; 32];
        let mut len = 0u64;
        loop {
            output.read_exact(&mut header).unwrap();
            let record = eyrie_image_format::stream::RecordHeader::decode(&header).unwrap();
            output.read_exact(&mut piece[..record.len as usize]).unwrap();
            len += 32 + record.len;
            if record.kind == eyrie_image_format::stream::Kind::Trailer {
                break;
            }
        }
        let said = words.next().unwrap().unwrap();
        let said: Vec<f64> = said.split(' ').map(|w| w.parse().expect(&said)).collect();
        // SAFETY: an all-zero rusage is valid, and wait4 writes it. The image-writing process is a
        // child of this process (CLONE_PARENT).
        let writer = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::wait4(said[2] as i32, std::ptr::null_mut(), 0, &mut usage);
            processor_ms(&usage)
        };
        result = [said[0] / 1e6, said[1] + writer, len as f64 / 1048576.0];
    }
    drop(input);
    child.wait().unwrap();
    result
}

fn processor_ms(usage: &libc::rusage) -> f64 {
    let ms = |t: libc::timeval| t.tv_sec as f64 * 1e3 + t.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}

/// Images of a turn. The last one is measured.
const IMAGES: u64 = 4;
const TRACKED_MIB: usize = 1024;
const CHANGED_PERCENT: usize = 5;
static TRACKER: Tracker = Tracker::new();

/// Fills memory. On each order it writes to some of it and captures itself into standard output. It
/// prints the pause, its processor time for both, and the id of the image-writing process.
fn tracked(pages: &str, written: &str, incremental: bool) {
    let len = TRACKED_MIB << 20;
    let memory = fill(len, pages == "huge");
    if incremental {
        TRACKER.start().unwrap();
    }
    let own = || {
        // SAFETY: an all-zero rusage is valid, and the kernel writes it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            processor_ms(&usage)
        }
    };
    let count = len / 4096 * CHANGED_PERCENT / 100;
    for image in 1..=IMAGES {
        std::io::stdin().lock().read_line(&mut String::new()).unwrap();
        let begun = own();
        for n in 0..count {
            let page = match written {
                "together" => n,
                _ => n * 7919 % (len / 4096),
            };
            memory[page * 512] += image;
        }
        let track = Track { tracker: &TRACKER, image, base: image - 1, marks: true };
        let track = incremental.then_some(track);
        let request = Request { track, ..Request::plain(1, Mode::Async) };
        // SAFETY: this process has one thread, and no process is restored from these images.
        match unsafe { capture(&request) } {
            Outcome::Captured { pause_ns, child_pid, .. } => {
                eprintln!("{pause_ns} {} {child_pid}", own() - begun)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Median, lowest, highest.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    [all[all.len() / 2], all[0], all[all.len() - 1]]
}

fn in_words([median, low, high]: [f64; 3]) -> String {
    format!("{median:.2} ({low:.2} to {high:.2})")
}

/// One capture and one restore: pause in ms, stream and restore bandwidth in GB/s.
fn turn(mib: usize, pages: &str, mode: &str, threads: usize) -> [f64; 3] {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--subject", &mib.to_string(), pages, mode, &threads.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(words.next().unwrap().unwrap(), "ready");
    let mut stream = child.stdout.take().unwrap();
    // SAFETY: the call takes a descriptor and numbers.
    unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    let mut image = vec![0u8; (mib + 64) << 20];
    image.fill(1); // touched, so that page faults of the reader are not measured
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let mut len = 0;
    let mut started = None;
    loop {
        let n = stream.read(&mut image[len..]).unwrap();
        started.get_or_insert_with(Instant::now);
        len += n;
        if n == 0 {
            break;
        }
    }
    let stream_s = started.unwrap().elapsed().as_secs_f64();
    image.truncate(len);
    let pause_ns: f64 = words.next().unwrap().unwrap().parse().unwrap();
    child.wait().unwrap();

    let (image_read, mut image_write) = pipe();
    let (out_read, out_write) = pipe();
    // SAFETY: the call takes a descriptor and numbers.
    unsafe { libc::fcntl(image_write.as_raw_fd(), libc::F_SETPIPE_SZ, 1 << 20) };
    let slots = [None, None, Some(out_write.as_fd())];
    let mut command = eyrie_image::restore::command(image_read.as_fd(), &slots, &[]).unwrap();
    let started = Instant::now();
    let mut child = command.stderr(Stdio::inherit()).spawn().unwrap();
    drop((command, image_read, out_write));
    image_write.write_all(&image).unwrap();
    let mut said = String::new();
    BufReader::new(out_read).read_line(&mut said).unwrap();
    let restore_s = started.elapsed().as_secs_f64();
    assert_eq!(said, "restored\n");
    child.wait().unwrap();
    let gb = len as f64 / 1e9;
    [pause_ns / 1e6, gb / stream_s, gb / restore_s]
}

fn pipe() -> (File, File) {
    let mut fds = [0; 2];
    // SAFETY: the kernel writes two descriptors into `fds`; nothing else owns them.
    unsafe {
        assert_eq!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1]))
    }
}

/// Maps shared memory and uses little of it. Returns the file that must stay open. A file in
/// /dev/shm or on a disk is created at `path`.
fn map_shared(kind: &str, path: &str) -> Option<File> {
    let file = match kind {
        // SAFETY: memfd_create returns a new descriptor that nothing else owns.
        "memfd" => Some(unsafe { File::from_raw_fd(libc::memfd_create(c"heap".as_ptr(), 0)) }),
        "shm" | "disk" => {
            Some(File::options().read(true).write(true).create_new(true).open(path).unwrap())
        }
        _ => None,
    };
    if let Some(file) = &file {
        file.set_len((SPARSE_MIB << 20) as u64).unwrap();
    }
    let flags = libc::MAP_SHARED | if file.is_none() { libc::MAP_ANONYMOUS } else { 0 };
    let fd = file.as_ref().map_or(-1, |f| f.as_raw_fd());
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; the writes stay within its
    // length.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), SPARSE_MIB << 20, prot, flags, fd, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().add(SPARSE_MIB << 19).write_bytes(7, USED_MIB << 20);
    }
    file
}

/// Fills memory, captures itself into standard output on order, and ends.
fn subject(mib: usize, pages: &str, sync: bool) {
    let dir = if pages == "shm" { "/dev/shm".into() } else { std::env::temp_dir() };
    let path = format!("{}/eyrie-pause-{}", dir.display(), std::process::id());
    let _shared = (!["4k", "huge", "none"].contains(&pages)).then(|| map_shared(pages, &path));
    fill(mib << 20, pages == "huge");
    eprintln!("ready");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let request = Request::plain(1, if sync { Mode::Sync } else { Mode::Async });
    // SAFETY: this process has one thread, and ends right after.
    match unsafe { capture(&request) } {
        Outcome::Captured { pause_ns, .. } => eprintln!("{pause_ns}"),
        Outcome::Restored => {
            // No process needs the file in /dev/shm or on the disk after this.
            let _ = std::fs::remove_file(path);
            eprintln!("restored")
        }
        Outcome::Refused(refusal) => eprintln!("{refusal}"),
    }
}

/// Memory with content that is zero nowhere.
fn fill(len: usize, huge: bool) -> &'static mut [u64] {
    // SAFETY: a new mapping, which is advised and filled before anything else uses it.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        libc::madvise(at, len, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
        let words = std::slice::from_raw_parts_mut(at.cast::<u64>(), len / 8);
        words
            .iter_mut()
            .enumerate()
            .for_each(|(i, w)| *w = (i as u64).wrapping_mul(0x9e3779b97f4a7c15));
        words
    }
}
