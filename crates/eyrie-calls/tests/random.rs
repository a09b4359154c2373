//! A rank draws the same again in each of its incarnations, no two ranks draw the same, and what a
//! rank starts draws from the kernel. This program runs itself as such a process: it has our
//! functions linked in instead of preloaded.

use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

extern "C" {
    fn mktemp(template: *mut libc::c_char) -> *mut libc::c_char;
    fn tmpnam(to: *mut libc::c_char) -> *mut libc::c_char;
    fn tempnam(dir: *const libc::c_char, front: *const libc::c_char) -> *mut libc::c_char;
    fn arc4random() -> u32;
    fn arc4random_uniform(bound: u32) -> u32;
}

fn draw() -> String {
    let mut bytes = [0u8; 24];
    // SAFETY: each buffer has room for the bytes that are asked for.
    unsafe {
        assert_eq!(libc::getrandom(bytes.as_mut_ptr().cast(), 7, 0), 7);
        assert_eq!(libc::getrandom(bytes[7..].as_mut_ptr().cast(), 9, libc::GRND_NONBLOCK), 9);
        assert_eq!(libc::getentropy(bytes[16..].as_mut_ptr().cast(), 8), 0);
        let ten = arc4random_uniform(10);
        assert!(ten < 10);
        let device = libc::open(c"/dev/urandom".as_ptr(), libc::O_RDONLY);
        let mut more = [0u8; 16];
        assert_eq!(libc::read(device, more.as_mut_ptr().cast(), 8), 8);
        libc::close(device);
        // The same number for something else.
        let zero = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
        let mut zeros = [1u8; 8];
        assert_eq!((zero, libc::read(zero, zeros.as_mut_ptr().cast(), 8)), (device, 8));
        assert_eq!(zeros, [0; 8]);
        libc::close(zero);
        let stream = libc::fopen(c"/dev/random".as_ptr(), c"rb".as_ptr());
        assert_eq!(libc::fread(more[8..].as_mut_ptr().cast(), 1, 8, stream), 8);
        libc::fclose(stream);
        format!("{bytes:02x?} {more:02x?} {:x} {ten} {}", arc4random(), names())
    }
}

/// Names that no file has.
fn names() -> String {
    let mut template = *b"name-XXXXXX\0";
    // SAFETY: C strings, of which one is freed.
    unsafe {
        let name = |at: *mut libc::c_char| {
            assert!(!at.is_null());
            CStr::from_ptr(at).to_str().unwrap().to_owned()
        };
        let in_dir = tempnam(c"/tmp".as_ptr(), c"a long front".as_ptr());
        let all =
            [name(mktemp(template.as_mut_ptr().cast())), name(tmpnam(null_mut())), name(in_dir)];
        libc::free(in_dir.cast());
        assert!(all[1].starts_with("/tmp/file") && all[2].contains("/a lon"), "{all:?}");
        all.join(" ")
    }
}

/// What such a process draws, and a forked child of it.
fn drawn_by_a_rank() {
    // Something of the library must be used, or the linker leaves all of it out.
    assert_eq!(eyrie_calls::our_arc4random_uniform(1), 0);
    println!("{}", draw());
    // SAFETY: the child draws, prints, and ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            println!("{}", draw());
            std::process::exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        assert_eq!(status, 0);
    }
    println!("{}", draw());
}

/// Three lines: drawn, drawn by the child, drawn after that.
fn run(rank: u32, key: char) -> Vec<String> {
    // Both ends are made by this process: it is the agent.
    let (ours, theirs) = UnixStream::pair().unwrap();
    // SAFETY: the descriptor lives until the process has started.
    unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) };
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("rank")
        .env("EYRIE_AGENT_FD", theirs.as_raw_fd().to_string())
        .env("EYRIE_RANK", rank.to_string())
        .env("EYRIE_RANDOM", key.to_string().repeat(64))
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    drop((ours, theirs));
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_string).collect()
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("rank") {
        return drawn_by_a_rank();
    }
    println!("\nrunning 1 test");
    let first = run(0, 'a');
    let again = run(0, 'a');
    let other_rank = run(1, 'a');
    let other_job = run(0, 'b');
    assert_eq!(first.len(), 3);
    assert_eq!((&first[0], &first[2]), (&again[0], &again[2]), "drawn again");
    assert_ne!(first[0], first[2], "a stream does not stand still");
    assert_ne!(first[1], again[1], "children draw from the kernel");
    assert_ne!(first[0], other_rank[0]);
    assert_ne!(first[0], other_job[0]);
    println!("test result: ok. 1 passed; 0 failed;");
}
