//! Targets that bring memory, files and kernel state into every form worth restoring, capture
//! themselves in between, and then print what they see. The original and the restored process must
//! see the same.

use super::target::{report, take_image, Random, CONNECTIONS, DROPPED_FD, SLOT_FD};
use eyrie_image::{Mode, Outcome};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub fn run(name: &str, dir: &Path, args: &[String]) {
    let mode = match args.first().map(String::as_str) {
        Some("sync") => Mode::Sync,
        _ => Mode::Async,
    };
    match name {
        "memory" => memory(dir, mode),
        "sparse" => sparse(dir, mode, Path::new(&args[1])),
        "state" => state(mode),
        "files" => files(dir, mode),
        "kernel files" => kernel_files(mode),
        "settings" => settings(mode),
        "setting of the kernel" => setting_of_the_kernel(mode),
        "within" => super::within::of_every_kind(mode, dir),
        "locks" => locks(dir, mode),
        "timers" => timers(mode),
        "inherits" => inherits(mode),
        "threads" => super::threads::of_every_kind(mode, &args[1]),
        "clocks" => super::threads::clocks(mode),
        "deaf" => super::threads::deaf(dir),
        "carried" => carried(dir, mode, &args[1]),
        "database" => database(dir, mode, &args[1]),
        "device" => super::holders::device(mode, &args[1..]),
        "hooks" => super::threads::hooks(dir),
        "holder first" => super::threads::holder_first(&args[0]),
        "first thread" => super::threads::without_the_first(mode),
        "rotates" => rotates(dir, mode),
        "renames" => renames(dir, mode),
        "nowhere" => nowhere(dir, mode),
        "shm" => shm(Path::new(&args[1]), mode),
        "blocked" => blocked(&args[0]),
        "big" => big(args[0].parse().unwrap(), args[1] == "huge"),
        "refused" => refused(&args[0], dir),
        "exclude" => exclude(dir),
        _ => panic!("no target {name}"),
    }
}

pub fn must_capture(mode: Mode) -> Outcome {
    let outcome = take_image(mode);
    if let Outcome::Refused(_) = outcome {
        std::process::exit(3);
    }
    outcome
}

fn map(len: usize, prot: i32, flags: i32, fd: i32) -> *mut u8 {
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn fill(at: *mut u8, len: usize, seed: u64) {
    let mut random = Random(seed);
    // SAFETY: callers pass a writable mapping of at least `len` bytes, which only this function
    // uses now.
    let words = unsafe { std::slice::from_raw_parts_mut(at.cast::<u64>(), len / 8) };
    for word in words {
        *word = random.next();
    }
}

fn sum(at: *const u8, len: usize) -> u64 {
    // SAFETY: callers pass a readable mapping of at least `len` bytes.
    let words = unsafe { std::slice::from_raw_parts(at.cast::<u64>(), len / 8) };
    words.iter().fold(7, |s, w| s.rotate_left(5) ^ w)
}

/// The permissions and flags of the mapping at an address, from smaps.
fn flags_at(at: *const u8) -> String {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", at as usize);
    let mut lines = smaps.lines().skip_while(|l| !l.starts_with(&start));
    let first = lines.next().unwrap_or("absent").split(' ').nth(1).unwrap_or("absent").to_string();
    let flags = lines.find(|l| l.starts_with("VmFlags")).unwrap_or("");
    // Accounting and soft-dirty tracking are the kernel's own.
    let kept: Vec<&str> =
        flags.split(' ').filter(|f| !["VmFlags:", "sd", "ac", ""].contains(f)).collect();
    format!("{first} {}", kept.join(" "))
}

fn memory(dir: &Path, mode: Mode) {
    const LEN: usize = 4 << 20;
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut all: BTreeMap<&str, *mut u8> = BTreeMap::new();
    for (i, (name, advice)) in [
        ("plain", -1),
        ("huge", libc::MADV_HUGEPAGE),
        ("small", libc::MADV_NOHUGEPAGE),
        ("unforked", libc::MADV_DONTFORK),
        ("beside unforked", -1),
        ("wiped", libc::MADV_WIPEONFORK),
        ("beside wiped", -1),
        ("undumped", libc::MADV_DONTDUMP),
        ("sequential", libc::MADV_SEQUENTIAL),
    ]
    .into_iter()
    .enumerate()
    {
        let at = map(LEN, RW, PRIVATE, -1);
        // SAFETY: the range is the mapping made above, and the advice keeps its content in this
        // process.
        assert!(advice < 0 || unsafe { libc::madvise(at.cast(), LEN, advice) } == 0, "{name}");
        fill(at, LEN, i as u64);
        all.insert(name, at);
    }
    let sparse = map(1 << 36, RW, PRIVATE | libc::MAP_NORESERVE, -1);
    // SAFETY: both pages are within the mapping of 1 << 36 bytes.
    unsafe {
        fill(sparse.add(1 << 30), 4096, 77);
        fill(sparse.add((1 << 36) - 4096), 4096, 78);
    }
    let hidden = map(LEN, RW, PRIVATE, -1);
    fill(hidden, LEN, 9);
    let shared = map(LEN, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    fill(shared, LEN / 2, 10);
    std::fs::write(dir.join("data"), vec![b'd'; 3 * 4096 + 100]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(dir.join("data")).unwrap();
    let private_file = map(4 * 4096, RW, libc::MAP_PRIVATE, file.as_raw_fd());
    // SAFETY: the bytes are in the second page of the mapping, which is private and writable.
    unsafe { private_file.add(5000).write_bytes(b'm', 300) };
    // A file that is gone, so that no path leads to it.
    std::fs::write(dir.join("gone"), vec![b'g'; 2 * 4096]).unwrap();
    let gone_file = File::open(dir.join("gone")).unwrap();
    let gone = map(2 * 4096, libc::PROT_READ, libc::MAP_PRIVATE, gone_file.as_raw_fd());
    std::fs::remove_file(dir.join("gone")).unwrap();
    drop((file, gone_file));
    // The heap, and zero pages that were touched.
    let blocks: Vec<Vec<u8>> = (1..2000).map(|i| vec![i as u8; i * 7 % 5000]).collect();
    let zeros = map(LEN, RW, PRIVATE, -1);
    fill(zeros, LEN, 11);
    // SAFETY: the mapping has LEN bytes and is writable.
    unsafe { zeros.write_bytes(0, LEN) };
    // SAFETY: the range is a mapping made above; it is only read after it was made readable again.
    assert_eq!(unsafe { libc::mprotect(hidden.cast(), LEN, libc::PROT_NONE) }, 0);
    let guarded = map(LEN, RW, PRIVATE, -1);
    fill(guarded, LEN, 12);
    let guarded_share = map(LEN, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    fill(guarded_share, LEN, 13);
    let placed = map(LEN, RW, PRIVATE, -1);
    let sealed = map(LEN, RW, PRIVATE, -1);
    const GUARD: i32 = 102;
    // What this kernel does not support has no effect in either process.
    // SAFETY: all ranges are pages of mappings made above, and the sealed one is never unmapped.
    unsafe {
        libc::madvise(guarded.add(8 * 4096).cast(), 3 * 4096, GUARD);
        libc::madvise(guarded_share.add(4096).cast(), 4096, GUARD);
        let node = 1u64;
        libc::syscall(libc::SYS_mbind, placed, LEN, libc::MPOL_PREFERRED, &node, 64, 0);
        fill(placed, LEN, 14);
        fill(sealed, LEN, 15);
        libc::syscall(libc::SYS_mseal, sealed, LEN, 0);
    }

    must_capture(mode);

    let touched = |at: *mut u8| {
        in_child(|| {
            // SAFETY: the address is within a mapping. If the page cannot be read, the signal ends
            // this child.
            unsafe { at.read_volatile() as i32 & 0x7f }
        })
    };
    for page in [7, 8, 10, 11] {
        // SAFETY: the page is within the mapping.
        println!("guarded {page} {:?}", touched(unsafe { guarded.add(page * 4096) }));
    }
    for page in [0, 1, 2] {
        // SAFETY: the page is within the mapping.
        println!("guarded share {page} {:?}", touched(unsafe { guarded_share.add(page * 4096) }));
    }
    // SAFETY: the calls write into local variables, or try to unmap a sealed mapping that is not
    // used any more.
    unsafe {
        let mut policy = 0;
        let mut nodes = 0u64;
        libc::syscall(libc::SYS_get_mempolicy, &mut policy, &mut nodes, 64, placed, 2);
        println!("placed {policy} {nodes:b} {:x}", sum(placed, LEN));
        println!("sealed {:x} {}", sum(sealed, LEN), flags_at(sealed));
        println!("sealed {}", libc::mprotect(sealed.cast(), LEN, libc::PROT_NONE));
    }

    for (name, at) in &all {
        println!("{name} {:x} {}", sum(*at, LEN), flags_at(*at));
    }
    // Advice still keeps memory from the program's own children.
    let child_sees = |at: *mut u8| in_child(|| sum(at, LEN) as i32 & 0x7f);
    let wiped = all["wiped"];
    println!("a child of it: {:?} {:?}", child_sees(wiped), child_sees(all["beside wiped"]));
    println!("a child of it: {:?}", child_sees(all["unforked"]));
    // SAFETY: all addresses are within mappings made above.
    unsafe {
        println!("sparse {:x}", sum(sparse.add(1 << 30), 4096));
        println!("sparse end {:x} {}", sum(sparse.add((1 << 36) - 4096), 4096), flags_at(sparse));
        println!("hidden {}", flags_at(hidden));
        assert_eq!(libc::mprotect(hidden.cast(), LEN, RW), 0);
    }
    println!("hidden {:x}", sum(hidden, LEN));
    println!("shared {:x} {}", sum(shared, LEN), flags_at(shared));
    println!("private file {:x} {}", sum(private_file, 4 * 4096), flags_at(private_file));
    println!("gone {:x}", sum(gone, 2 * 4096));
    println!("zeros {:x}", sum(zeros, LEN));
    println!("blocks {}", blocks.iter().flatten().map(|b| *b as u64).sum::<u64>());
    // The heap and the stack must still grow.
    let more: Vec<Vec<u8>> = (0..20000).map(|i| vec![i as u8; 400]).collect();
    println!("grown {}", more.iter().flatten().map(|b| *b as u64).sum::<u64>());
    println!("deep {}", deep(6000));
    // SAFETY: sbrk(0) only returns the end of the heap.
    println!("brk {:p}", unsafe { libc::sbrk(0) });
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let named = |name: &str| maps.lines().find(|l| l.ends_with(name)).unwrap_or("").to_string();
    println!("{}", named("[vdso]"));
    println!("{}", named("[heap]").split('-').next().unwrap());
    println!("{}", named("[stack]").split(' ').next().unwrap().split('-').nth(1).unwrap());
}

/// Mappings that are far larger than their content. Reading them whole would need more memory than
/// there is, and reading a hole through a mapping would fill it.
fn sparse(dir: &Path, mode: Mode, shm: &Path) {
    const GIB: usize = 1 << 30;
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let private = libc::MAP_PRIVATE;
    let memfd = |name: &std::ffi::CStr, len: usize| {
        // SAFETY: the name ends in a NUL, and the new descriptor belongs to nothing else.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(name.as_ptr(), 0)) };
        file.set_len(len as u64).unwrap();
        file
    };
    let create = |path: &Path, len: usize| {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(len as u64).unwrap();
        file
    };
    // Each with its file, its address and its length.
    let mut all: Vec<(&str, Option<File>, *mut u8, usize)> = Vec::new();
    let anonymous = map(GIB, RW, shared | libc::MAP_ANONYMOUS, -1);
    all.push(("anonymous", None, anonymous, GIB));
    let file = memfd(c"open", 200 * GIB);
    let at = map(200 * GIB, RW, shared, file.as_raw_fd());
    all.push(("open memfd", Some(file), at, 200 * GIB));
    let file = memfd(c"closed", GIB);
    all.push(("closed memfd", None, map(GIB, RW, shared, file.as_raw_fd()), GIB));
    all.push(("the same once more", None, map(GIB, RW, shared, file.as_raw_fd()), GIB));
    let file = create(&dir.join("disk"), 64 * GIB);
    let at = map(64 * GIB, RW, shared, file.as_raw_fd());
    all.push(("file on a disk", Some(file), at, 64 * GIB));
    // Only its second half is mapped.
    let file = create(shm, 2 * GIB);
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let at = unsafe {
        let fd = file.as_raw_fd();
        let offset = GIB as i64;
        libc::mmap(std::ptr::null_mut(), GIB, RW, shared, fd, offset).cast::<u8>()
    };
    all.push(("file in /dev/shm", Some(file.try_clone().unwrap()), at, GIB));
    let gone = shm.with_extension("gone");
    let at = map(GIB, RW, shared, create(&gone, GIB).as_raw_fd());
    std::fs::remove_file(&gone).unwrap();
    all.push(("deleted file in /dev/shm", None, at, GIB));
    let at = map(GIB, RW, shared | libc::MAP_ANONYMOUS, -1);
    all.push(("hidden", None, at, GIB));
    for (_, _, at, len) in &all {
        // SAFETY: each page is within its mapping, which is at least 1 GiB long.
        unsafe {
            fill(at.add((1 << 20) - 4096), 4096, *len as u64);
            fill(at.add(len / 2), 4096, *len as u64 + 1);
        }
    }
    file.write_all_at(b"not mapped", 12345).unwrap();
    // SAFETY: the range is a mapping made above.
    assert_eq!(unsafe { libc::mprotect(at.cast(), GIB, libc::PROT_NONE) }, 0);
    // A private mapping of 200 GiB of a file without a name, some of it changed in this mapping.
    let below = memfd(c"below", 200 * GIB);
    below.write_all_at(b"in the file", 150 << 30).unwrap();
    let at = map(200 * GIB, RW, private | libc::MAP_NORESERVE, below.as_raw_fd());
    drop(below);
    // SAFETY: both pages are within the private mapping of 200 GiB.
    unsafe { fill(at.add(7 * GIB), 8192, 5) };
    all.push(("private", None, at, 200 * GIB));

    let blocks = |file: &Option<File>| {
        use std::os::unix::fs::MetadataExt;
        file.as_ref().map_or(0, |f| f.metadata().unwrap().blocks())
    };
    let before: Vec<u64> = all.iter().map(|(_, file, ..)| blocks(file)).collect();

    must_capture(mode);

    for ((name, file, ..), before) in all.iter().zip(before) {
        println!("{name}: holes are still holes: {}", blocks(file) <= before + 64);
    }
    // SAFETY: the range is a mapping made above.
    assert_eq!(unsafe { libc::mprotect(all[7].2.cast(), GIB, RW) }, 0);
    for (name, _, at, len) in &all {
        // SAFETY: the pages are within the mapping of `len` bytes.
        let sums = unsafe {
            [(1 << 20) - 4096, 1 << 20, len / 2, len - 4096].map(|place| sum(at.add(place), 4096))
        };
        println!("{name}: {sums:x?} {}", flags_at(*at));
    }
    // SAFETY: the pages are within the private mapping of 200 GiB.
    unsafe {
        println!("private {:x} {:x}", sum(at.add(7 * GIB), 8192), sum(at.add(150 << 30), 4096))
    };
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 12345).unwrap();
    println!("{}", String::from_utf8_lossy(&text));
    // SAFETY: both words are at the beginning of shared mappings of the same file.
    unsafe {
        all[2].2.cast::<u64>().write(77);
        println!("one file: {}", all[3].2.cast::<u64>().read());
    }
}

/// How a child ends that only does `work`: its exit code, or the signal that killed it.
fn in_child(work: impl FnOnce() -> i32) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: the child only runs `work` and ends by _exit; the kernel writes `status`, a local
    // variable.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(work());
        }
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    if libc::WIFSIGNALED(status) {
        return Err(libc::WTERMSIG(status));
    }
    Ok(libc::WEXITSTATUS(status))
}

/// Uses about 1 KiB of stack for each level.
#[inline(never)]
fn deep(n: usize) -> usize {
    let room = std::hint::black_box([n as u8; 1024]);
    if n == 0 {
        return room[5] as usize;
    }
    deep(n - 1) + std::hint::black_box(&room)[7] as usize
}

thread_local! {
    static LOCAL: std::cell::Cell<u64> = const { std::cell::Cell::new(5) };
}

fn state(mode: Mode) {
    LOCAL.set(99);
    // SAFETY: the calls only change settings of this process and access local variables.
    unsafe {
        libc::umask(0o027);
        assert_eq!(libc::chdir(c"/usr/lib".as_ptr()), 0);
        let limit = libc::rlimit { rlim_cur: 300, rlim_max: 4000 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        libc::prctl(libc::PR_SET_NAME, c"odd name".as_ptr());
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGWINCH);
        libc::sigaddset(&mut set, 50);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
        let stack = Box::leak(vec![0u8; 65536].into_boxed_slice());
        let alt =
            libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        libc::sigaltstack(&alt, std::ptr::null_mut());
        set_rounding(0x7f80 & !0x6000 | 0x4000, 0x0f7f); // towards plus infinity, all masked
        let timer = libc::itimerval {
            it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
            it_value: libc::timeval { tv_sec: 0, tv_usec: 400_000 },
        };
        libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut());
    }
    // SAFETY: the calls only change settings of this process and send it signals that are blocked.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let last = (0..1024).rev().find(|cpu| libc::CPU_ISSET(*cpu, &allowed)).unwrap();
        libc::CPU_ZERO(&mut allowed);
        libc::CPU_SET(last, &mut allowed);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&allowed), &allowed), 0);
        let parameters = libc::sched_param { sched_priority: 0 };
        assert_eq!(libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters), 0);
        assert_eq!(libc::setpriority(libc::PRIO_PROCESS, 0, 3), 0);
        assert_eq!(libc::syscall(libc::SYS_ioprio_set, 1, 0, 2 << 13 | 6), 0);
        libc::prctl(libc::PR_SET_TIMERSLACK, 123_456);
        for value in [3usize, 1, 2] {
            let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
            assert_eq!(libc::sigqueue(libc::getpid(), 50, value), 0);
        }
        libc::kill(libc::getpid(), libc::SIGWINCH);
    }
    // Held mutexes that know their owner.
    let mut held = [libc::PTHREAD_MUTEX_ERRORCHECK, libc::PTHREAD_MUTEX_RECURSIVE].map(|kind| {
        // SAFETY: the mutexes are initialised here before use, and are boxed, so they do not move.
        unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_mutexattr_init(&mut attributes);
            libc::pthread_mutexattr_settype(&mut attributes, kind);
            let mut mutex = Box::new(std::mem::zeroed());
            libc::pthread_mutex_init(&mut *mutex, &attributes);
            assert_eq!(libc::pthread_mutex_lock(&mut *mutex), 0);
            mutex
        }
    });
    let before = std::time::Instant::now();

    must_capture(mode);

    for mutex in &mut held {
        // SAFETY: the mutexes were initialised and locked above.
        println!("held {}", unsafe { libc::pthread_mutex_unlock(&mut **mutex) });
    }
    assert!(before.elapsed().as_secs() < 60);
    while !ALARMED.load(std::sync::atomic::Ordering::Relaxed) {
        // SAFETY: no descriptors are passed; the call waits for time or the alarm.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 50) };
    }
    println!("local {}", LOCAL.get());
    // SAFETY: the calls read settings into local variables, or take blocked signals from the queue.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let last = (0..1024).rev().find(|cpu| libc::CPU_ISSET(*cpu, &allowed));
        println!("processors {} {last:?}", libc::CPU_COUNT(&allowed));
        println!("policy {}", libc::sched_getscheduler(0));
        println!("nice {}", libc::getpriority(libc::PRIO_PROCESS, 0));
        println!("io priority {:x}", libc::syscall(libc::SYS_ioprio_get, 1, 0));
        println!("timer slack {}", libc::prctl(libc::PR_GET_TIMERSLACK));
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGWINCH);
        libc::sigaddset(&mut set, 50);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut info: libc::siginfo_t = std::mem::zeroed();
        loop {
            let signal = libc::sigtimedwait(&set, &mut info, &at_once);
            if signal < 0 {
                break;
            }
            let value = if signal == 50 { info.si_value().sival_ptr as usize } else { 0 };
            println!("pending {signal} code {} value {value}", info.si_code);
        }
    }
    println!("{:?}", rounding());
    println!("third {:.20}", std::hint::black_box(1.0f64) / 3.0);
    println!("cwd {:?}", std::env::current_dir());
    println!("arguments {:?}", std::fs::read("/proc/self/cmdline").unwrap().len());
    println!("environment {:?}", std::fs::read("/proc/self/environ").unwrap().len());
    println!("auxv {:x}", hash(&std::fs::read("/proc/self/auxv").unwrap()));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let wanted = ["Name:", "Umask:", "SigBlk:", "SigIgn:", "SigCgt:", "Threads:", "NoNewPrivs:"];
    for line in status.lines().filter(|l| wanted.iter().any(|w| l.starts_with(w))) {
        println!("{line}");
    }
    // SAFETY: the calls read settings into local variables.
    unsafe {
        let mut limit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        println!("limit {} {}", limit.rlim_cur, limit.rlim_max);
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut stack);
        println!("altstack {} {}", stack.ss_size, stack.ss_flags);
        let mut death = 0;
        libc::prctl(libc::PR_GET_PDEATHSIG, &mut death);
        println!("parent death {death}");
        println!("cpu is known {}", libc::sched_getcpu() >= 0);
        let pid = libc::getpid();
        println!("thread id fits {}", libc::syscall(libc::SYS_gettid) == pid as libc::c_long);
        // glibc's own record of the thread's id, used by pthread_kill and recursive mutexes.
        println!("raise {}", libc::pthread_kill(libc::pthread_self(), libc::SIGHUP));
        let mut attributes = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attributes);
        libc::pthread_mutexattr_settype(&mut attributes, libc::PTHREAD_MUTEX_ERRORCHECK);
        let mut mutex = std::mem::zeroed();
        libc::pthread_mutex_init(&mut mutex, &attributes);
        println!("lock {}", libc::pthread_mutex_lock(&mut mutex));
        println!("unlock {}", libc::pthread_mutex_unlock(&mut mutex));
    }
    // It must still be possible to start a child and a thread.
    let child = std::process::Command::new("/bin/echo").arg("child").output().unwrap();
    println!("{}", String::from_utf8_lossy(&child.stdout));
    println!("thread {}", std::thread::spawn(|| 5).join().unwrap());
}

static ALARMED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

extern "C" fn on_alarm(_: i32) {
    ALARMED.store(true, std::sync::atomic::Ordering::Relaxed);
}

unsafe fn set_rounding(mxcsr: u32, x87: u16) {
    // SAFETY: both are valid control words with all exceptions masked.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &mxcsr, in(reg) &x87);
    }
}

fn rounding() -> (u32, u16) {
    let mut mxcsr = 0u32;
    let mut x87 = 0u16;
    // SAFETY: the instructions store the two control words into local variables.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &mut mxcsr, in(reg) &mut x87);
    }
    (mxcsr & !0x3f, x87) // without the sticky flags
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf29ce484222325, |h, b| (h ^ *b as u64).wrapping_mul(0x100000001b3))
}

fn files(dir: &Path, mode: Mode) {
    std::fs::write(dir.join("in"), (0..=255).collect::<Vec<u8>>()).unwrap();
    let mut input = File::open(dir.join("in")).unwrap();
    input.seek(SeekFrom::Start(100)).unwrap();
    let mut twin = input.try_clone().unwrap();
    let mut other = File::open(dir.join("in")).unwrap();
    other.seek(SeekFrom::Start(100)).unwrap();
    let open = || {
        let mut o = OpenOptions::new();
        o.read(true).write(true).create(true);
        o
    };
    let mut appended = OpenOptions::new().append(true).create(true).open(dir.join("app")).unwrap();
    appended.write_all(b"before;").unwrap();
    let mut tail = open().open(dir.join("tail")).unwrap();
    tail.write_all(b"kept;").unwrap();
    let pieces = open().open(dir.join("pieces")).unwrap();
    pieces.write_all_at(b"mine", 100).unwrap();
    let empty = open().open(dir.join("empty")).unwrap();
    let mut begun = open().open(dir.join("begun")).unwrap();
    let joined = open().open(dir.join("joined")).unwrap();
    let common =
        (open().open(dir.join("common")).unwrap(), File::open(dir.join("common")).unwrap());
    let mut deleted = open().open(dir.join("deleted")).unwrap();
    deleted.write_all(b"deleted but open").unwrap();
    std::fs::remove_file(dir.join("deleted")).unwrap();
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let mut temporary =
        open().create(false).mode(0o640).custom_flags(libc::O_TMPFILE).open(dir).unwrap();
    temporary.write_all(b"never had a name").unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    let removed = File::open(dir.join("sub")).unwrap();
    std::fs::remove_dir(dir.join("sub")).unwrap();
    let directory = File::open(dir).unwrap();
    let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let mut random = File::open("/dev/urandom").unwrap();
    let (slot, peer) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(peer);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: memfd_create and fcntl take a name that ends in a NUL, and numbers. The new
    // descriptor belongs to nothing else.
    let sealed = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, 100), 0);
        libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
        File::from_raw_fd(fd)
    };
    // SAFETY: the calls take descriptors and numbers. The new descriptors belong to nothing else.
    let (event, event_twin, high, out) = unsafe {
        let event = libc::eventfd(5, libc::EFD_NONBLOCK);
        let event_twin = libc::dup(event);
        let high = libc::fcntl(null.as_raw_fd(), libc::F_DUPFD, 200);
        (event, event_twin, high, libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 50))
    };
    // SAFETY: the calls take descriptors and numbers. Descriptors from 300 on are free.
    let dropped = unsafe {
        let first = libc::fcntl(listener.as_raw_fd(), libc::F_DUPFD, 300);
        for n in 1..CONNECTIONS {
            assert_eq!(libc::fcntl(first, libc::F_DUPFD, first + n), first + n);
        }
        first
    };
    drop(listener);
    SLOT_FD.store(slot.as_raw_fd(), std::sync::atomic::Ordering::Relaxed);
    DROPPED_FD.store(dropped, std::sync::atomic::Ordering::Relaxed);

    let outcome = must_capture(mode);

    let mut piece = [0; 4];
    input.read_exact(&mut piece).unwrap();
    println!("input {piece:?}");
    twin.read_exact(&mut piece).unwrap();
    println!("shared offset {piece:?}");
    other.read_exact(&mut piece).unwrap();
    println!("own offset {piece:?}");
    appended.write_all(b"after;").unwrap();
    tail.write_all(b"new;").unwrap();
    pieces.write_all_at(b"more", 104).unwrap();
    begun.seek(SeekFrom::End(0)).unwrap();
    begun.write_all(b"first;").unwrap();
    joined.write_all_at(b"mine;", 0).unwrap();
    common.0.write_all_at(b"mine;", 0).unwrap();
    println!("empty {}", empty.metadata().unwrap().len());
    let mut text = String::new();
    deleted.rewind().unwrap();
    deleted.read_to_string(&mut text).unwrap();
    println!("{text}");
    println!("directory {}", directory.metadata().unwrap().is_dir());
    let of = |file: &File| file.metadata().unwrap();
    text.clear();
    temporary.rewind().unwrap();
    temporary.read_to_string(&mut text).unwrap();
    println!("{text} {} {:o}", of(&temporary).nlink(), of(&temporary).mode());
    println!("where it was: {}", of(&temporary).dev() == of(&directory).dev());
    println!(
        "where it was: {} {}",
        of(&deleted).dev() == of(&directory).dev(),
        of(&deleted).nlink()
    );
    let link = std::ffi::CString::new(format!("/proc/self/fd/{}", temporary.as_raw_fd())).unwrap();
    let name = std::ffi::CString::new(dir.join("named").to_str().unwrap()).unwrap();
    // SAFETY: both paths end in a NUL, and the descriptor is open.
    unsafe {
        let follow = libc::AT_SYMLINK_FOLLOW;
        let here = libc::AT_FDCWD;
        println!("named {}", libc::linkat(here, link.as_ptr(), here, name.as_ptr(), follow));
        println!("named {:?}", std::fs::read_to_string(dir.join("named")));
        std::fs::remove_file(dir.join("named")).unwrap();
        let above = libc::openat(removed.as_raw_fd(), c"..".as_ptr(), libc::O_PATH);
        let above = File::from_raw_fd(above);
        println!("removed {} {}", of(&removed).nlink(), of(&above).ino() == of(&directory).ino());
        let made = libc::openat(removed.as_raw_fd(), c"x".as_ptr(), libc::O_CREAT, 0o600);
        println!("nothing can be made in it: {}", made < 0);
    }
    println!("random {:?}", random.read_exact(&mut [0; 8]).is_ok());
    println!("null {:?}", (&null).write(b"x").is_ok());
    let mut count = [0u8; 8];
    // SAFETY: the descriptors are those made above, and the buffers are as long as the calls say.
    unsafe {
        libc::write(event_twin, 7u64.to_ne_bytes().as_ptr().cast(), 8);
        println!("event {} {count:?}", libc::read(event, count.as_mut_ptr().cast(), 8));
        println!("{count:?}");
        println!("seals {:x}", libc::fcntl(sealed.as_raw_fd(), libc::F_GET_SEALS));
        println!("sealed {}", libc::ftruncate(sealed.as_raw_fd(), 200));
        count = [0; 8];
        println!("event again {}", libc::read(event, count.as_mut_ptr().cast(), 8));
        println!("high {} {}", high, libc::fcntl(high, libc::F_GETFD));
        println!("out {} {}", out, libc::fcntl(out, libc::F_GETFD));
        libc::write(out, b"through the copy\n".as_ptr().cast(), 17);
        if matches!(outcome, Outcome::Restored) {
            // After a restore the slot is the harness's socket, and the listener is a dead socket.
            let mut slot = std::os::unix::net::UnixStream::from_raw_fd(slot.into_raw_fd());
            slot.write_all(b"from the restored\n").unwrap();
            let mut b = 0u8;
            let flags = libc::MSG_NOSIGNAL;
            let is_dead = |dropped: i32| {
                let end = libc::read(dropped, (&raw mut b).cast(), 1);
                let broken = libc::send(dropped, (&raw const b).cast(), 1, flags);
                (end, broken, *libc::__errno_location()) == (0, -1, libc::EPIPE)
            };
            let dead = (dropped..dropped + CONNECTIONS).map(is_dead).filter(|is| *is).count();
            report(format_args!("dropped: {dead}"));
        }
    }
}

/// Has files open that the kernel generates, as libraries leave them (MPICH one of Yama's, hwloc
/// those of /sys). Reads on at their offsets, and checks what they are about.
fn kernel_files(mode: Mode) {
    let pid = std::process::id();
    let mut begun: Vec<File> = [
        "/proc/sys/kernel/yama/ptrace_scope",
        "/proc/sys/kernel/osrelease",
        "/proc/version",
        "/proc/self/limits",
        "/proc/thread-self/cgroup",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/fs/cgroup/cgroup.controllers",
    ]
    .into_iter()
    .filter_map(|path| File::open(path).ok())
    .collect();
    for file in &mut begun {
        file.read_exact(&mut [0; 1]).unwrap();
    }
    let twin = begun[0].try_clone().unwrap();
    let directories = ["/proc/self/task", "/proc/self/fd", "/sys/devices/system/cpu", "/proc"];
    let directories = directories.map(|path| File::open(path).unwrap());

    must_capture(mode);

    let name = |file: &File| {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = std::fs::read_link(link).unwrap().to_string_lossy().into_owned();
        path.replace(&std::process::id().to_string(), "PID").replace(&pid.to_string(), "OLD")
    };
    let mut rest = String::new();
    (&twin).read_to_string(&mut rest).unwrap();
    println!("through another descriptor: {rest:?}");
    for mut file in begun {
        rest.clear();
        let path = name(&file);
        file.read_to_string(&mut rest).unwrap();
        println!("{path}: {rest:?}");
    }
    for file in &directories {
        println!("{}", name(file));
    }
}

/// Has a setting of the kernel open, and says where it is and what a read of it gives.
fn setting_of_the_kernel(mode: Mode) {
    let mut file = File::open("/proc/sys/kernel/osrelease").unwrap();
    file.read_exact(&mut [0; 1]).unwrap();

    must_capture(mode);

    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let error = file.read(&mut [0; 8]).err().map(|e| e.kind());
    println!("{} {error:?}", path.display());
}

/// Has settings of every kind that a process may change for itself, and prints them. Settings that
/// this kernel or processor does not have, or this user may not change, are the same in both
/// processes.
fn settings(mode: Mode) {
    const REGISTER: i32 = 1 << 4;
    const EXPEDITED: i32 = 1 << 3;
    const WHOLE_SECONDS: u64 = 0x200_0000;
    const TILES: i32 = 18;
    // SAFETY: the calls only change settings of this process and take numbers or local variables.
    unsafe {
        libc::personality(libc::personality(0xffff_ffff) as u64 | WHOLE_SECONDS);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_MCE_KILL, 1, 1, 0, 0);
        libc::prctl(53, 0, 4, 0, 0); // PR_SET_SPECULATION_CTRL: no store bypass
        libc::prctl(65, 1, 0, 0, 0); // PR_SET_MDWE
        libc::syscall(libc::SYS_membarrier, REGISTER, 0, 0);
        let node = 1u64;
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, &node, 64);
        libc::syscall(libc::SYS_arch_prctl, 0x1023, TILES); // ARCH_REQ_XCOMP_PERM
        if libc::geteuid() == 0 {
            assert_eq!(libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT), 0);
        }
    }
    std::fs::write("/proc/self/coredump_filter", "0x7f").unwrap();
    std::fs::write("/proc/self/oom_score_adj", "321").unwrap();

    must_capture(mode);

    // SAFETY: the calls read settings into local variables.
    unsafe {
        println!("personality {:x}", libc::personality(0xffff_ffff));
        println!("no new privileges {}", libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
        println!("memory failure {}", libc::prctl(libc::PR_MCE_KILL_GET, 0, 0, 0, 0));
        println!("speculation {}", libc::prctl(52, 0, 0, 0, 0));
        println!("write or execute {}", libc::prctl(66, 0, 0, 0, 0));
        println!("membarrier {}", libc::syscall(libc::SYS_membarrier, EXPEDITED, 0, 0));
        let mut policy = 0;
        let mut nodes = 0u64;
        libc::syscall(libc::SYS_get_mempolicy, &mut policy, &mut nodes, 64, 0, 0);
        println!("memory policy {policy} {nodes:b}");
        let mut parts = 0u64;
        libc::syscall(libc::SYS_arch_prctl, 0x1022, &mut parts);
        println!("register state {parts:x}");
    }
    let fresh = map(
        1 << 20,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
    );
    println!("fresh memory {}", flags_at(fresh));
    for file in ["coredump_filter", "oom_score_adj"] {
        println!("{file} {}", std::fs::read_to_string(format!("/proc/self/{file}")).unwrap());
    }
}

/// Has locks of every kind, and prints what another process sees of them.
fn locks(dir: &Path, mode: Mode) {
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).open(dir.join(name)).unwrap()
    };
    let files = ["flock", "shared", "posix", "mapped", "ofd"].map(open);
    let [flock, shared, posix, mapped, ofd] = &files;
    let part = |kind: i32, start: i64, len: i64| libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    let set = |file: &File, call: i32, part: libc::flock| {
        // SAFETY: the kernel reads struct flock, a local variable.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), call, &part) }, 0);
    };
    mapped.set_len(8192).unwrap();
    let at = map(8192, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, mapped.as_raw_fd());
    fill(at, 4096, 5);
    // SAFETY: flock takes descriptors and numbers.
    unsafe {
        assert_eq!(libc::flock(flock.as_raw_fd(), libc::LOCK_EX), 0);
        assert_eq!(libc::flock(shared.as_raw_fd(), libc::LOCK_SH), 0);
    }
    set(posix, libc::F_SETLK, part(libc::F_WRLCK, 100, 100));
    set(posix, libc::F_SETLK, part(libc::F_RDLCK, 500, 0));
    set(mapped, libc::F_SETLK, part(libc::F_WRLCK, 0, 0));
    set(ofd, libc::F_OFD_SETLK, part(libc::F_WRLCK, 7, 1));

    must_capture(mode);

    for name in ["flock", "shared"] {
        for how in [libc::LOCK_SH, libc::LOCK_EX] {
            let got = in_child(|| {
                // SAFETY: flock takes a descriptor and a number.
                let done = unsafe { libc::flock(open(name).as_raw_fd(), how | libc::LOCK_NB) };
                (done != 0) as i32
            });
            println!("{name}: refused to another process: {got:?}");
        }
    }
    for (name, start, len) in [
        ("posix", 100, 1),
        ("posix", 199, 1),
        ("posix", 200, 300),
        ("posix", 500, 1),
        ("ofd", 7, 1),
    ] {
        for kind in [libc::F_RDLCK, libc::F_WRLCK] {
            let got = in_child(|| {
                let part = part(kind, start, len);
                // SAFETY: the kernel reads struct flock, a local variable.
                (unsafe { libc::fcntl(open(name).as_raw_fd(), libc::F_SETLK, &part) } != 0) as i32
            });
            println!("{name} {start}: refused to another process: {got:?}");
        }
    }
    let got = in_child(|| {
        let part = part(libc::F_RDLCK, 0, 1);
        // SAFETY: the kernel reads struct flock, a local variable.
        (unsafe { libc::fcntl(open("mapped").as_raw_fd(), libc::F_SETLK, &part) } != 0) as i32
    });
    println!("mapped: refused to another process: {got:?} {:x}", sum(at, 8192));
}

static TICKS: [std::sync::atomic::AtomicU64; 65] =
    [const { std::sync::atomic::AtomicU64::new(0) }; 65];

extern "C" fn on_tick(signal: i32) {
    TICKS[signal as usize].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

/// Has periodic timers. The signal of one is pending when the image is taken.
fn timers(mode: Mode) {
    let every = |ms: i64| {
        let time = libc::timeval { tv_sec: 0, tv_usec: ms * 1000 };
        libc::itimerval { it_interval: time, it_value: time }
    };
    let all = [
        (libc::ITIMER_REAL, libc::SIGALRM),
        (libc::ITIMER_VIRTUAL, libc::SIGVTALRM),
        (libc::ITIMER_PROF, libc::SIGPROF),
    ];
    // SAFETY: the calls only change this process's timers and signals, and access local variables.
    unsafe {
        for (timer, signal) in all {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_tick as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
            assert_eq!(libc::setitimer(timer, &every(5), std::ptr::null_mut()), 0);
        }
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        let mut pending = std::mem::zeroed();
        while {
            libc::sigpending(&mut pending);
            libc::sigismember(&pending, libc::SIGALRM) == 0
        } {}
        must_capture(mode);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
    for (_, signal) in all {
        let ticks = || TICKS[signal as usize].load(std::sync::atomic::Ordering::Relaxed);
        let before = ticks();
        let begun = std::time::Instant::now();
        while ticks() < before + 10 {
            assert!(
                begun.elapsed() < std::time::Duration::from_secs(60),
                "signal {signal} has stopped"
            );
        }
        println!("signal {signal} comes again and again, as long as the process runs");
    }
}

/// Has not changed any of its scheduling.
fn inherits(mode: Mode) {
    // SAFETY: getppid takes no arguments and always succeeds.
    super::target::STARTER_PID
        .store(unsafe { libc::getppid() }, std::sync::atomic::Ordering::Relaxed);
    must_capture(mode);
    // SAFETY: the calls read settings into local variables.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        println!("processors {} nice {nice}", libc::CPU_COUNT(&allowed));
    }
}

/// Writes a log, rotates it and begins another.
fn rotates(dir: &Path, mode: Mode) {
    let path = |name: &str| dir.join(name);
    let open = |name: &str| File::options().append(true).create(true).open(path(name)).unwrap();
    let mut log = open("log");
    let other = open("other");
    log.write_all(b"one\n").unwrap();
    must_capture(mode);
    log.write_all(b"two\n").unwrap();
    for number in [2, 1] {
        let from = if number == 1 { path("log") } else { path("log.1") };
        if from.exists() {
            std::fs::rename(from, path(&format!("log.{number}"))).unwrap();
        }
    }
    let mut log = open("log");
    log.write_all(b"three\n").unwrap();
    println!("{:?} {}", std::fs::read_to_string(path("log.1")), other.metadata().unwrap().len());
    println!("{:?}", std::fs::read_to_string(path("log")));
}

/// Writes to a temporary name, closes and renames, three times. The image is taken in the first
/// turn.
fn renames(dir: &Path, mode: Mode) {
    let temporary = dir.join("result.new");
    let name = dir.join("result");
    for turn in 1..=3 {
        let mut file = File::create(&temporary).unwrap();
        write!(file, "the first half of {turn}, ").unwrap();
        if turn == 1 {
            must_capture(mode);
            // The harness holds the file now, as an agent does.
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        write!(file, "and the second").unwrap();
        drop(file);
        std::fs::rename(&temporary, &name).unwrap();
        println!("{:?}", std::fs::read_to_string(&name));
    }
}

/// Works in a directory that is removed, together with the one above it.
fn nowhere(dir: &Path, mode: Mode) {
    std::fs::write(dir.join("in"), b"from above").unwrap();
    std::fs::create_dir_all(dir.join("a/b")).unwrap();
    std::env::set_current_dir(dir.join("a/b")).unwrap();
    std::fs::remove_dir(dir.join("a/b")).unwrap();
    std::fs::remove_dir(dir.join("a")).unwrap();
    must_capture(mode);
    println!("the working directory: {:?}", std::env::current_dir().map_err(|e| e.kind()));
    println!("above it: {:?}", std::fs::read_to_string("../../in").map_err(|e| e.kind()));
    println!("made in it: {:?}", File::create("x").map(drop).map_err(|e| e.kind()));
    println!("{:?}", File::open("..").unwrap().metadata().unwrap().is_dir());
    println!("files in the directory: {:?}", super::harness::contents(dir).len());
    println!("entries in the directory: {:?}", std::fs::read_dir(dir).unwrap().count());
}

/// Pages that are mapped to be read, and changed by write(2).
fn database(dir: &Path, mode: Mode, names: &str) {
    use std::sync::atomic::Ordering::Relaxed;
    super::target::NAMES_STAY.store(names != "rolls back", Relaxed);
    super::target::MAPS_AGAIN.store(names == "names stay", Relaxed);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(dir.join("database")).unwrap();
    file.write_all_at(&[7; 16 * 4096], 0).unwrap();
    let pages = map(16 * 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: `n` is one of the 16 pages, which are mapped to be read.
    let first_of = |n: usize| unsafe { pages.add(n * 4096).read_volatile() };
    let _ = first_of(0);
    take_image(mode);
    println!("pages: {} {} {}", first_of(0), first_of(8), first_of(15));
    file.write_all_at(&[9; 2 * 4096], 0).unwrap();
    println!("written: {} {}", first_of(0), first_of(1));
}

/// A library that is loaded, and files that are mapped, two of their pages written to. The process
/// takes an image, and so does the restored one.
fn carried(dir: &Path, mode: Mode, what: &str) {
    use std::sync::atomic::Ordering::Relaxed;
    super::target::SELF_CONTAINED.store(what == "self-contained", Relaxed);
    let name = std::ffi::CString::new(dir.join("library.so").to_str().unwrap()).unwrap();
    // SAFETY: the name ends in a NUL, and so does that of the symbol.
    let function = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        libc::dlsym(library, c"eyrie_ctypes_sum".as_ptr())
    };
    assert!(!function.is_null());
    // SAFETY: the library has this function.
    let sum_of: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(function) };
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let archive = File::open(dir.join("archive")).unwrap();
    let len = archive.metadata().unwrap().len() as usize;
    let read = map(len, libc::PROT_READ, libc::MAP_PRIVATE, archive.as_raw_fd());
    // As the C library's table of conversions.
    let shared = map(len, libc::PROT_READ, libc::MAP_SHARED, archive.as_raw_fd());
    let written = map(len, rw, libc::MAP_PRIVATE, archive.as_raw_fd());
    drop(archive);
    let open = File::open(dir.join("open")).unwrap();
    let of_open = map(5000, libc::PROT_READ, libc::MAP_PRIVATE, open.as_raw_fd());
    // SAFETY: both are within the mapping, which is writable.
    unsafe {
        written.add(5).write(1);
        written.add(70_000).write(2);
    }
    let see = |n: u32| {
        println!("{n}: {:x} {:x}", sum(read, len / 8 * 8), sum(shared, len / 8 * 8));
        println!("{n}: {:x} {:x}", sum(written, len / 8 * 8), sum(of_open, 4096));
        println!("{n}: {} {}", sum_of(7), f64::from(n).sin());
    };
    let is_restored = matches!(must_capture(mode), Outcome::Restored);
    see(1);
    if is_restored {
        must_capture(mode);
    }
    see(2);
    // SAFETY: it is within the mapping, which is writable.
    unsafe { written.add(140_000).write(3) };
    println!("{:x}", sum(written, len / 8 * 8));
    // Nothing of it can be lost by being given back.
    for (at, len) in [(read, len), (shared, len)] {
        // SAFETY: the range is a mapping of this function.
        unsafe { libc::madvise(at.cast(), len, libc::MADV_RANDOM) };
    }
    println!("{:x}", sum(read, len / 8 * 8));
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        if let Some(name) = line.find(dir.to_str().unwrap()).map(|at| &line[at..]) {
            println!("mapped: {name}");
        }
    }
}

fn shm(path: &Path, mode: Mode) {
    const LEN: usize = 1 << 20;
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(LEN as u64).unwrap();
    let at = map(LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd());
    let again = map(LEN, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    fill(at, LEN / 4, 3);

    // Twice: a restored process must still know its file by name.
    must_capture(mode);
    std::io::stdin().read_line(&mut String::new()).unwrap();
    must_capture(mode);

    println!("{:x} {:x}", sum(at, LEN), sum(again, LEN));
    // SAFETY: the word is at the beginning of the mapping, which is writable.
    unsafe { at.cast::<u64>().write(12345) };
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0).unwrap();
    println!("{word:?} {}", sum(at, LEN) == sum(again, LEN));
    File::open(path).unwrap().read_exact_at(&mut word, 0).unwrap();
    println!("{word:?} {}", std::fs::metadata(path).unwrap().len());
}

/// Waits in one system call while the harness captures.
fn blocked(call: &str) {
    println!("ready");
    let mut bytes = [0u8; 16];
    // SAFETY: the calls take descriptors of this process and local variables.
    let got = unsafe {
        match call {
            "read" => libc::read(0, bytes.as_mut_ptr().cast(), 16),
            "sleep" => {
                let mut left = libc::timespec { tv_sec: 3, tv_nsec: 0 };
                let mut turns = 0;
                while libc::nanosleep(&left, &mut left) != 0 {
                    turns += 1;
                }
                turns
            }
            _ => {
                let mut poll = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
                while libc::poll(&mut poll, 1, 60_000) < 0 {}
                libc::read(0, bytes.as_mut_ptr().cast(), 16)
            }
        }
    };
    println!("{got} {:?}", String::from_utf8_lossy(&bytes));
}

/// Holds `mib` MiB until it is told to end.
fn big(mib: usize, huge: bool) {
    let len = mib << 20;
    let at =
        map(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    // SAFETY: the range is the mapping made above.
    unsafe { libc::madvise(at.cast(), len, advice) };
    fill(at, len, 1);
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    println!("{:x}", sum(at, len));
}

fn exclude(dir: &Path) {
    use eyrie_image::{capture, Request};
    let at = map(
        8 * 4096,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
    );
    fill(at, 8 * 4096, 4);
    let out = OpenOptions::new().write(true).open(dir.join("image")).unwrap();
    let hole = at as usize + 2 * 4096;
    let exclude = &[(hole, 2 * 4096)];
    let request = Request { exclude, ..Request::plain(out.as_raw_fd(), Mode::Async) };
    // SAFETY: this process has one thread, and can continue in another process.
    let outcome = unsafe { capture(&request) };
    let restored = matches!(outcome, Outcome::Restored);
    if restored {
        std::mem::forget(out);
        report(format_args!("restored"));
    } else {
        drop(out);
        report(format_args!("captured"));
    }
    // SAFETY: mincore writes one byte into the array; it returns ENOMEM for pages that are not
    // mapped.
    let mapped =
        |at: usize| unsafe { libc::mincore(at as *mut _, 4096, [0u8; 1].as_mut_ptr()) } == 0;
    assert_eq!([mapped(hole), mapped(hole + 4096)], [!restored; 2]);
    assert_eq!([mapped(hole - 4096), mapped(hole + 2 * 4096)], [true; 2]);
    println!("{:x}", sum(at, 2 * 4096));
}

/// Ends a target that cannot get into its state on this machine.
fn tried(result: i32, what: &str) {
    if result < 0 {
        report(format_args!("not here: {what}"));
        std::process::exit(0);
    }
}

/// Gets into a state that cannot be captured, tries to capture, and continues.
fn refused(what: &str, dir: &Path) {
    let mut keep: Vec<File> = Vec::new();
    // SAFETY: the calls take numbers, local variables and strings that end in a NUL; `keep` owns
    // the descriptors.
    unsafe {
        super::target::STARTER_PID.store(libc::getppid(), std::sync::atomic::Ordering::Relaxed);
        match what {
            "child" => {
                let parent = libc::getpid();
                if libc::fork() == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    // The parent may have died before the death signal was set.
                    while libc::getppid() == parent {
                        libc::pause();
                    }
                    libc::_exit(0);
                }
            }
            "udp" => keep.push(File::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0))),
            "tcp" => {
                keep.push(File::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)))
            }
            "unix" => {
                keep.push(File::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)))
            }
            _ if super::within::refused(what, dir, &mut keep) => {}
            "proc" => keep.push(File::open("/proc/1/status").unwrap()),
            "proc writable" => {
                keep.push(OpenOptions::new().write(true).open("/proc/self/comm").unwrap())
            }
            "deleted" => {
                let file = File::create(dir.join("large")).unwrap();
                (&file).write_all(&vec![1; 65 << 20]).unwrap();
                std::fs::remove_file(dir.join("large")).unwrap();
                keep.push(file);
            }
            "replaced" => {
                keep.push(File::create(dir.join("a")).unwrap());
                std::fs::create_dir(dir.join("sub")).unwrap();
                std::fs::hard_link(dir.join("a"), dir.join("sub/b")).unwrap();
                std::fs::remove_file(dir.join("a")).unwrap();
            }
            "timer" => {
                let mut timer: usize = 0;
                let made = libc::syscall(
                    libc::SYS_timer_create,
                    libc::CLOCK_MONOTONIC,
                    std::ptr::null_mut::<u8>(),
                    &raw mut timer,
                );
                assert_eq!(made, 0);
            }
            "groups" => tried(libc::setgroups(1, &54321), what),
            "capabilities" => tried(libc::prctl(libc::PR_CAPBSET_DROP, 5, 0, 0, 0), what),
            "securebits" => tried(libc::prctl(libc::PR_SET_SECUREBITS, 4, 0, 0, 0), what),
            "namespace" => tried(libc::unshare(libc::CLONE_NEWUTS), what),
            "seccomp" => {
                // One instruction: allow everything.
                let allow = [0x06u64 | 0x7fff_0000 << 32];
                let program = [1usize, allow.as_ptr() as usize];
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                tried(libc::prctl(libc::PR_SET_SECCOMP, 2, program.as_ptr()), what);
            }
            "keyring" => tried(libc::syscall(libc::SYS_keyctl, 0, -2, 1) as i32, what),
            "key" => tried(libc::syscall(libc::SYS_pkey_alloc, 0, 0) as i32, what),
            "segment" => {
                let desc = [0u32, 0x1000, 0xfff, 0x51];
                tried(libc::syscall(libc::SYS_modify_ldt, 1, desc.as_ptr(), 16) as i32, what);
            }
            "tls" => {
                let mut desc = [u32::MAX, 0x1000, 0xfff, 0x51];
                tried(libc::syscall(libc::SYS_set_thread_area, desc.as_mut_ptr()) as i32, what);
            }
            "aio" => {
                let mut context = 0usize;
                tried(libc::syscall(libc::SYS_io_setup, 4, &raw mut context) as i32, what);
            }
            "secret" => {
                let fd = libc::syscall(libc::SYS_memfd_secret, 0) as i32;
                tried(fd, what);
                keep.push(File::from_raw_fd(fd));
            }
            "queue" => {
                let name = std::ffi::CString::new(format!("/eyrie-{}", libc::getpid())).unwrap();
                let flags = libc::O_CREAT | libc::O_RDWR;
                let no_attributes = std::ptr::null_mut::<libc::mq_attr>();
                let queue = libc::mq_open(name.as_ptr(), flags, 0o600, no_attributes);
                tried(queue, what);
                libc::mq_unlink(name.as_ptr());
                keep.push(File::from_raw_fd(queue));
            }
            "async" => {
                let flags = libc::fcntl(0, libc::F_GETFL);
                tried(libc::fcntl(0, libc::F_SETFL, flags | libc::O_ASYNC), what);
            }
            "pidfd" => {
                let fd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as i32;
                tried(fd, what);
                keep.push(File::from_raw_fd(fd));
            }
            "ring" => {
                let mut parameters = [0u32; 64];
                let fd = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) as i32;
                tried(fd, what);
                keep.push(File::from_raw_fd(fd));
            }
            "faults" => {
                let fd = libc::syscall(libc::SYS_userfaultfd, 1 | libc::O_CLOEXEC) as i32;
                tried(fd, what);
                keep.push(File::from_raw_fd(fd));
            }
            "events" => {
                let mut attributes = [0u32; 32];
                (attributes[0], attributes[1]) = (1, 128); // PERF_TYPE_SOFTWARE, size
                let at = attributes.as_mut_ptr();
                let fd = libc::syscall(libc::SYS_perf_event_open, at, 0, -1, -1, 0) as i32;
                tried(fd, what);
                keep.push(File::from_raw_fd(fd));
            }
            "lease" => {
                let file = File::create(dir.join("leased")).unwrap();
                assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK), 0);
                keep.push(file);
            }
            "signals" => {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, 50);
                libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                for value in 0..600usize {
                    let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
                    assert_eq!(libc::sigqueue(libc::getpid(), 50, value), 0);
                }
            }
            "sysv" => {
                let id = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
                let at = libc::shmat(id, std::ptr::null(), 0);
                libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
                assert_ne!(at as isize, -1);
            }
            "window" => {
                let at = libc::mmap(
                    0x6500_0010_0000usize as *mut _,
                    4096,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                );
                assert_ne!(at, libc::MAP_FAILED);
            }
            _ => assert!(super::threads::refused(what), "no state {what}"),
        }
    }
    let before = std::fs::read_to_string("/proc/self/maps").unwrap().len();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    take_image(Mode::Async);
    // It continues as before: the attempt leaves no descriptor open.
    assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), fds);
    assert_eq!(std::fs::read_to_string("/proc/self/maps").unwrap().len(), before);
    println!("goes on");
    drop(keep);
    // SAFETY: _exit ends this process, and its children end by their death signal.
    unsafe { libc::_exit(0) };
}
