//! Kinds of calls by which files are observed and changed, each by all of its functions: what they
//! gave is given again, what they did is not done again.

use super::{again, another, close, new, open, read, take, tree, write};
use eyrie_calls::for_provider::{eyrie_calls_enter, eyrie_calls_leave};
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;

pub const CASES: [(&str, fn()); 10] = [
    ("directories", directories_are_listed_again),
    ("places", a_rank_is_where_it_was),
    ("attributes", attributes_are_told_again_and_set_once),
    ("nodes", pipes_with_names_are_made_once),
    ("space", free_space_is_told_again),
    ("host", a_host_is_called_as_it_was),
    ("asynchronous", what_is_begun_is_done_at_once),
    ("copied", what_is_copied_past_memory_is_copied_once),
    ("numbers", calls_by_their_numbers_are_known),
    ("waits", waits_for_helpers_are_told_again),
];

/// Runs `look`, then what another does, and `look` again, which must find the same, until it does
/// something new.
fn seen_again<R: PartialEq + Debug>(look: impl Fn() -> R, another_does: impl FnOnce() + Send) {
    take();
    let first = look();
    let bytes = take();
    another(another_does);
    again(&bytes);
    assert_eq!(look(), first);
    new();
    assert_ne!(look(), first, "what another has done cannot be seen");
}

type Compare = unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int;

extern "C" {
    fn scandir(
        path: *const c_char,
        to: *mut *mut *mut libc::dirent,
        filter: Option<extern "C" fn(*const libc::dirent) -> c_int>,
        order: Compare,
    ) -> c_int;
    fn scandirat64(
        at: c_int,
        path: *const c_char,
        to: *mut *mut *mut libc::dirent,
        filter: Option<extern "C" fn(*const libc::dirent) -> c_int>,
        order: Compare,
    ) -> c_int;
    fn alphasort(a: *mut *const libc::dirent, b: *mut *const libc::dirent) -> c_int;
    fn ftw(
        path: *const c_char,
        visit: extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int,
        most: c_int,
    ) -> c_int;
    fn nftw(
        path: *const c_char,
        visit: extern "C" fn(*const c_char, *const libc::stat, c_int, *const [c_int; 2]) -> c_int,
        most: c_int,
        how: c_int,
    ) -> c_int;
    fn getdents64(fd: c_int, to: *mut c_void, room: usize) -> isize;
    fn readdir_r(dir: *mut libc::DIR, to: *mut libc::dirent, at: *mut *mut libc::dirent) -> c_int;
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char;
    fn get_current_dir_name() -> *mut c_char;
}

fn text(at: *const c_char) -> String {
    // SAFETY: each caller has a C string.
    unsafe { CStr::from_ptr(at) }.to_str().unwrap().to_owned()
}

/// The same of memory that the program frees.
fn given(at: *mut c_char) -> Option<String> {
    // SAFETY: a C string of malloc(3), or null.
    (!at.is_null()).then(|| unsafe {
        let text = text(at);
        libc::free(at.cast());
        text
    })
}

// Directories.

extern "C" fn not_hidden(entry: *const libc::dirent) -> c_int {
    // SAFETY: scandir(3) gives an entry, which stays through the call.
    c_int::from(unsafe { (*entry).d_name[0] } != b'.' as c_char)
}

/// The names that scandir(3) or its kin gives.
fn scanned(scan: impl Fn(*mut *mut *mut libc::dirent) -> c_int) -> (c_int, Vec<String>) {
    let mut all = std::ptr::null_mut();
    let n = scan(&mut all);
    // SAFETY: as many entries as it says, which the program frees.
    unsafe {
        let entries: Vec<_> = (0..n.max(0) as usize).map(|i| *all.add(i)).collect();
        let names = entries.iter().map(|entry| text((**entry).d_name.as_ptr())).collect();
        entries.iter().for_each(|entry| libc::free((*entry).cast()));
        libc::free(all.cast());
        (n, names)
    }
}

fn globbed(pattern: &CStr) -> (c_int, Vec<String>) {
    // SAFETY: what glob(3) gives is given back.
    unsafe {
        let mut found: libc::glob_t = std::mem::zeroed();
        let value = libc::glob(pattern.as_ptr(), libc::GLOB_MARK, None, &mut found);
        let paths = (0..found.gl_pathc).map(|i| text(*found.gl_pathv.add(i))).collect();
        libc::globfree(&mut found);
        (value, paths)
    }
}

static WALKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

extern "C" fn visit(path: *const c_char, st: *const libc::stat, kind: c_int) -> c_int {
    // SAFETY: ftw(3) gives the structure, which stays through the call.
    let size = if kind == 0 { unsafe { (*st).st_size } } else { 0 };
    WALKED.lock().unwrap().push(format!("{}: {kind}, {size}", text(path)));
    0
}

extern "C" fn visit_more(
    path: *const c_char,
    st: *const libc::stat,
    kind: c_int,
    place: *const [c_int; 2],
) -> c_int {
    visit(path, st, kind);
    // SAFETY: nftw(3) gives both numbers, which stay through the call.
    let [base, level] = unsafe { *place };
    WALKED.lock().unwrap().push(format!("at {base}, {level} deep"));
    const SKIP_SUBTREE: c_int = 2;
    if text(path).ends_with("skipped") && kind == 1 && base > 0 {
        SKIP_SUBTREE
    } else {
        0
    }
}

/// What is walked through, in this order.
fn walked(walk: impl Fn() -> c_int) -> (c_int, Vec<String>) {
    WALKED.lock().unwrap().clear();
    let value = walk();
    (value, std::mem::take(&mut *WALKED.lock().unwrap()))
}

fn walked_in_all_ways() -> Vec<(c_int, Vec<String>)> {
    let [physical, one_system, depth_first, actions] = [1, 2, 8, 16];
    let hows = [0, physical, depth_first, one_system | physical | depth_first, physical | actions];
    let by_ftw = [c"d", c"d///", c"none", c"d/one", c"d/broken"].map(|path| {
        // SAFETY: a C string and a function as it is wanted.
        walked(|| unsafe { ftw(path.as_ptr(), visit, 8) })
    });
    let by_nftw = hows.iter().flat_map(|how| {
        [c"d", c"./d/", c"none", c"d/broken"].map(|path| {
            // SAFETY: a C string and a function as it is wanted.
            walked(|| unsafe { nftw(path.as_ptr(), visit_more, 8, *how) })
        })
    });
    by_ftw.into_iter().chain(by_nftw).collect()
}

fn scanned_in_all_ways() -> Vec<(c_int, Vec<String>)> {
    let here = libc::AT_FDCWD;
    // SAFETY: C strings, and functions as they are wanted.
    let scan = |path: &CStr| unsafe {
        [
            scanned(|to| scandir(path.as_ptr(), to, Some(not_hidden), alphasort)),
            scanned(|to| scandirat64(here, path.as_ptr(), to, None, alphasort)),
        ]
    };
    [c"d", c"none", c"d/one"].into_iter().flat_map(scan).collect()
}

fn globbed_in_all_ways() -> Vec<(c_int, Vec<String>)> {
    [c"d/*", c"d/*/t*", c"*/one", c"none*", c"d/l?nk", c"d/one"].map(globbed).into()
}

/// By getdents64(2) and readdir_r(3).
fn listed() -> (u64, Vec<String>) {
    let file = open("d", libc::O_RDONLY | libc::O_DIRECTORY);
    let mut room = vec![0u8; 4096];
    let mut names = Vec::new();
    // SAFETY: a room of that size; a directory that is open, and room for an entry.
    unsafe {
        let n = getdents64(file, room.as_mut_ptr().cast(), room.len());
        assert!(n > 0);
        assert_eq!(getdents64(file, room.as_mut_ptr().cast::<u8>().add(2048).cast(), 2048), 0);
        close(file);
        let dir = libc::opendir(c"d".as_ptr());
        let mut entry = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        while readdir_r(dir, &mut entry, &mut found) == 0 && !found.is_null() {
            names.push(text(entry.d_name.as_ptr()));
        }
        libc::closedir(dir);
    }
    // Both are long, and only whether they are the same is asked.
    let sum = room.iter().fold(0, |sum: u64, byte| sum.rotate_left(5) ^ u64::from(*byte));
    (sum, names)
}

fn directories_are_listed_again() {
    fs::create_dir_all("d/below").unwrap();
    fs::create_dir_all("d/skipped/deep").unwrap();
    for path in ["d/one", "d/two", "d/below/three", "d/skipped/deep/four"] {
        fs::write(path, path).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", "d/broken").unwrap();
    std::os::unix::fs::symlink("one", "d/link").unwrap();
    std::os::unix::fs::symlink("below", "d/there").unwrap();
    let all = || (scanned_in_all_ways(), globbed_in_all_ways(), walked_in_all_ways());
    let entered = eyrie_calls_enter();
    let theirs = all();
    eyrie_calls_leave(entered);
    assert_eq!(all(), theirs, "the C library's own functions find something else");
    seen_again(
        || (listed(), all()),
        || {
            fs::write("d/two", "longer than before").unwrap();
            fs::remove_file("d/one").unwrap();
            fs::rename("d/below", "d/above").unwrap();
            fs::write("d/three", "").unwrap();
        },
    );
}

// Where a rank is.

fn here() -> Option<String> {
    let mut room = [0 as c_char; 4096];
    // SAFETY: a room of that size.
    let told = unsafe { libc::getcwd(room.as_mut_ptr(), room.len()) };
    (!told.is_null()).then(|| text(room.as_ptr()))
}

fn go(path: &CStr) -> c_int {
    // SAFETY: a C string, which lives through the call.
    unsafe { libc::chdir(path.as_ptr()) }
}

/// A directory is made and used from within, and then gets another name or goes.
fn a_rank_is_where_it_was() {
    let use_it = || {
        let made = super::mkdir("new");
        let went = [go(c"new"), go(c"none")];
        super::print("result", c"w", "whole");
        let found = (read("result"), here(), Path::new("result").exists());
        super::mkdir("below");
        let below = (go(c"below"), here(), go(c".."), here());
        let file = open(".", libc::O_RDONLY | libc::O_DIRECTORY);
        let back = (go(c".."), here().map(|path| path.ends_with("places")));
        // SAFETY: a descriptor, and a C string, which lives through the call.
        let by_open = unsafe { (libc::fchdir(file), libc::rmdir(c"below".as_ptr()), here()) };
        close(file);
        // SAFETY: C strings; paths that are freed.
        let paths = unsafe {
            let real = |path: &CStr| given(libc::realpath(path.as_ptr(), std::ptr::null_mut()));
            let also = given(canonicalize_file_name(c"../new/result".as_ptr()));
            (real(c"result"), real(c"none"), also, given(get_current_dir_name()))
        };
        (made, went, found, below, back, by_open, paths, go(c".."))
    };
    for gone in [false, true] {
        take();
        let first = use_it();
        assert!(first.6 .0.as_ref().unwrap().ends_with("places/new/result"), "{first:?}");
        assert_eq!(first.6 .0, first.6 .2);
        let what_next = || {
            if gone {
                fs::remove_dir_all("new").unwrap()
            } else {
                assert_eq!(super::rename("new", "old"), 0)
            }
        };
        what_next();
        let bytes = take();
        let before = tree();
        again(&bytes);
        assert_eq!(use_it(), first);
        what_next();
        new();
        assert_eq!(tree(), before);
        if !gone {
            assert_eq!(read("old/result"), "whole");
            fs::remove_dir_all("old").unwrap();
        }
    }
    // It dies while it is in a directory that another has given another name.
    fs::create_dir_all("a/b").unwrap();
    fs::write("a/b/file", "of a").unwrap();
    take();
    let from = here().unwrap();
    let look = || (go(c"a"), go(c"b"), read("file"));
    let first = look();
    let bytes = take();
    another(|| fs::rename(format!("{from}/a"), format!("{from}/c")).unwrap());
    std::env::set_current_dir(&from).unwrap();
    again(&bytes);
    assert_eq!((here().is_some(), look()), (true, first));
    new();
    assert_eq!(go(c"../../c"), 0);
    assert_eq!(here().unwrap(), format!("{from}/c"));
    std::env::set_current_dir(&from).unwrap();
}

// Attributes.

const ATTRIBUTE: &CStr = c"user.eyrie-test";

fn attribute(path: &CStr) -> (isize, isize, [u8; 16], isize) {
    let mut room = [0u8; 16];
    let path = path.as_ptr();
    let name = ATTRIBUTE.as_ptr();
    // SAFETY: C strings and as much room as said.
    unsafe {
        let asked = libc::getxattr(path, name, std::ptr::null_mut(), 0);
        let value = libc::getxattr(path, name, room.as_mut_ptr().cast(), room.len());
        (asked, value, room, libc::listxattr(path, std::ptr::null_mut(), 0))
    }
}

fn set_attribute(path: &CStr, value: &str, flags: c_int) -> c_int {
    let path = path.as_ptr();
    let name = ATTRIBUTE.as_ptr();
    // SAFETY: C strings and as many bytes as said.
    unsafe { libc::setxattr(path, name, value.as_ptr().cast(), value.len(), flags) }
}

fn attributes_are_told_again_and_set_once() {
    let file = c"file";
    fs::write("file", "").unwrap();
    if set_attribute(file, "first", 0) != 0 {
        println!("  no attributes here: {}", std::io::Error::last_os_error());
        return;
    }
    seen_again(|| attribute(file), || assert_eq!(set_attribute(c"file", "second", 0), 0));
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let change = || {
        let made = set_attribute(file, "mine", libc::XATTR_CREATE);
        let set =
            [set_attribute(file, "mine", 0), set_attribute(file, "mine", libc::XATTR_REPLACE)];
        let fd = open("file", libc::O_RDWR);
        // SAFETY: a descriptor, C strings, and times that are there.
        let of_open = unsafe {
            let times = [libc::timespec { tv_sec: 1000, tv_nsec: 0 }; 2];
            let name = ATTRIBUTE.as_ptr();
            [
                libc::fsetxattr(fd, name, c"open".as_ptr().cast(), 4, 0),
                libc::fremovexattr(fd, name),
                libc::fremovexattr(fd, name),
                libc::fsetxattr(fd, name, c"last".as_ptr().cast(), 4, libc::XATTR_CREATE),
                libc::fchmod(fd, 0o600),
                libc::futimens(fd, times.as_ptr()),
            ]
        };
        close(fd);
        (made, set, of_open)
    };
    take();
    let first = change();
    assert_eq!(first, (-1, [0, 0], [0, 0, -1, 0, 0, 0]));
    let bytes = take();
    another(|| {
        assert_eq!(set_attribute(c"file", "another's", 0), 0);
        fs::set_permissions("file", fs::Permissions::from_mode(0o640)).unwrap();
    });
    again(&bytes);
    assert_eq!(change(), first);
    new();
    assert_eq!((&attribute(file).2[..9], mode("file")), (&b"another's"[..], 0o640));
    // It died after it had set or removed one, but before that was recorded.
    take();
    // SAFETY: C strings, which live through the call.
    let removed = || unsafe { libc::removexattr(file.as_ptr(), ATTRIBUTE.as_ptr()) };
    assert_eq!((removed(), set_attribute(file, "new", libc::XATTR_CREATE)), (0, 0));
    let bytes = take();
    again(&bytes[..bytes.len() - 8]);
    assert_eq!((removed(), set_attribute(file, "new", libc::XATTR_CREATE)), (0, 0));
    assert_eq!(attribute(file).1, 3);
    take();
}

fn pipes_with_names_are_made_once() {
    // SAFETY: a C string, which lives through the call.
    assert_eq!(unsafe { libc::mkfifo(c"named".as_ptr(), 0o600) }, 0);
    // SAFETY: C strings, which live through the call.
    let make =
        || unsafe { [libc::mkfifo(c"pipe".as_ptr(), 0o600), libc::mkfifo(c"pipe".as_ptr(), 0)] };
    take();
    let first = make();
    assert_eq!(first, [0, -1]);
    let bytes = take();
    another(|| fs::remove_file("pipe").unwrap());
    again(&bytes);
    assert_eq!(make(), first);
    new();
    assert!(!Path::new("pipe").exists(), "it was made a second time");
    // Another has made one when it was about to.
    take();
    assert_eq!(make()[0], 0);
    let bytes = take();
    fs::remove_file("pipe").unwrap();
    another(|| {
        // SAFETY: a C string, which lives through the call.
        assert_eq!(unsafe { libc::mkfifo(c"pipe".as_ptr(), 0o600) }, 0);
    });
    take();
    again(&bytes[..bytes.len() / 2 - 2]);
    assert_eq!(make(), [-1, -1]);
    fs::remove_file("pipe").unwrap();
    take();
}

fn free_space_is_told_again() {
    let look = || {
        // SAFETY: structures that are there, C strings, and a descriptor.
        unsafe {
            let mut fs: libc::statfs = std::mem::zeroed();
            let mut vfs: libc::statvfs = std::mem::zeroed();
            let here = c".".as_ptr();
            let none = c"none".as_ptr();
            let values = [
                libc::statfs(here, &mut fs),
                libc::statvfs(here, &mut vfs),
                libc::statfs(none, &mut fs),
            ];
            let mut of_open: libc::statvfs = std::mem::zeroed();
            let fd = open(".", libc::O_RDONLY | libc::O_DIRECTORY);
            libc::fstatvfs(fd, &mut of_open);
            close(fd);
            (values, fs.f_bfree, vfs.f_bfree, of_open.f_bfree)
        }
    };
    seen_again(look, || fs::write("large", vec![1; 32 << 20]).unwrap());
    fs::remove_file("large").unwrap();
}

/// A rank is executed again on another host.
fn a_host_is_called_as_it_was() {
    // SAFETY: from now on this thread, and those that it starts, have a name of their own.
    if unsafe { libc::unshare(libc::CLONE_NEWUTS) } != 0 {
        return println!("the host cannot get another name: not tried");
    }
    let look = || {
        let mut room = [0u8; 256];
        // SAFETY: room of these sizes, and structures that are there.
        unsafe {
            let [mut name, mut by_number]: [libc::utsname; 2] = std::mem::zeroed();
            let value = libc::gethostname(room.as_mut_ptr().cast(), room.len());
            let values = [value, libc::gethostname(room[200..].as_mut_ptr().cast(), 1)];
            libc::uname(&mut name);
            libc::syscall(libc::SYS_uname, &raw mut by_number);
            (values, room, name.nodename, by_number.nodename)
        }
    };
    let called = |name: &str| {
        // SAFETY: a name as long as said.
        assert_eq!(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }, 0);
    };
    called("first");
    assert_eq!(look().0, [0, -1]);
    seen_again(look, || called("another"));
}

// Reads and writes that are begun.

/// A control block for so many bytes at a place.
fn control(fd: c_int, what: c_int, bytes: &mut [u8], at: i64) -> libc::aiocb {
    // SAFETY: all zero is a valid structure.
    let mut control: libc::aiocb = unsafe { std::mem::zeroed() };
    (control.aio_fildes, control.aio_lio_opcode) = (fd, what);
    (control.aio_buf, control.aio_nbytes) = (bytes.as_mut_ptr().cast(), bytes.len());
    (control.aio_offset, control.aio_sigevent.sigev_notify) = (at, libc::SIGEV_NONE);
    control
}

/// Waits for it, and says what became of it.
fn ended(control: &mut libc::aiocb) -> (c_int, isize) {
    // SAFETY: the control block was begun, and stays until it has ended.
    unsafe {
        let list = [&raw const *control];
        while libc::aio_error(control) == libc::EINPROGRESS {
            libc::aio_suspend(list.as_ptr(), 1, std::ptr::null());
        }
        (libc::aio_error(control), libc::aio_return(control))
    }
}

fn what_is_begun_is_done_at_once() {
    let program = || {
        let fd = open("file", libc::O_CREAT | libc::O_RDWR);
        let mut a = *b"written";
        let mut b = *b"LISTED";
        let mut c = [0u8; 9];
        let mut one = control(fd, 0, &mut a, 2);
        // SAFETY: control blocks that stay until they have ended.
        let begun = unsafe { libc::aio_write(&mut one) };
        let wrote = ended(&mut one);
        let mut two = control(fd, libc::LIO_WRITE, &mut b, 9);
        let mut three = control(fd, libc::LIO_READ, &mut c, 0);
        let list = [&raw mut two, &raw mut three];
        // SAFETY: control blocks that stay until they have ended, in a list that outlives the call.
        let listed =
            unsafe { libc::lio_listio(libc::LIO_WAIT, list.as_ptr(), 2, std::ptr::null_mut()) };
        let listed = (listed, ended(&mut two), ended(&mut three));
        close(fd);
        let fd = open("file", libc::O_WRONLY | libc::O_APPEND);
        let mut end = *b" end";
        let mut four = control(fd, 0, &mut end, 0);
        // SAFETY: a control block that stays until it has ended.
        let appended = unsafe { libc::aio_write(&mut four) };
        let appended = (appended, ended(&mut four));
        close(fd);
        (begun, wrote, listed, c, appended)
    };
    take();
    let first = program();
    let bytes = take();
    assert_eq!((first.1, &first.3), ((0, 7), b"\0\0written"));
    assert_eq!(fs::read("file").unwrap(), b"\0\0writtenLISTED end");
    another(|| fs::write("file", "another has written what is here now").unwrap());
    again(&bytes);
    assert_eq!(program(), first);
    new();
    assert_eq!(read("file"), "another has written what is here now");
}

// From one open file to another.

fn what_is_copied_past_memory_is_copied_once() {
    fs::write("from", "what is copied").unwrap();
    let program = || {
        let from = open("from", libc::O_RDONLY);
        let to = open("to", libc::O_CREAT | libc::O_RDWR);
        let mut ends = [0; 2];
        let nothing = std::ptr::null_mut();
        // SAFETY: room for two descriptors; the other calls take no address but null.
        let copied = unsafe {
            libc::pipe(ends.as_mut_ptr());
            let through = [
                libc::splice(from, nothing, ends[1], nothing, 5, 0),
                libc::splice(ends[0], nothing, to, nothing, 5, 0),
            ];
            (through, libc::sendfile(to, from, nothing, 3), libc::lseek(from, 0, libc::SEEK_CUR))
        };
        write(to, "!");
        // SAFETY: FIONREAD writes one number, which is ours; the other call takes numbers only.
        let (left, at) = unsafe {
            let mut left = 0;
            libc::ioctl(ends[0], libc::FIONREAD, &mut left);
            (left, libc::lseek(to, 0, libc::SEEK_CUR))
        };
        for fd in [from, to, ends[0], ends[1]] {
            close(fd);
        }
        (copied, left, at)
    };
    take();
    let first = program();
    let bytes = take();
    assert_eq!((first.0, read("to").as_str()), (([5, 5], 3, 8), "what is !"));
    another(|| fs::write("to", "another's").unwrap());
    again(&bytes);
    assert_eq!(program(), first);
    new();
    assert_eq!(read("to"), "another's");
}

// Waits for what helpers say.

/// Starts a helper, of whose output a descriptor is returned, and its number.
fn helper(command: &CStr) -> (c_int, libc::pid_t) {
    let mut ends = [0; 2];
    // SAFETY: the child becomes another program, or ends at once.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let child = libc::fork();
        if child == 0 {
            libc::dup2(ends[1], 1);
            let sh = c"sh".as_ptr();
            let c = c"-c".as_ptr();
            let end = std::ptr::null::<c_char>();
            libc::execl(c"/bin/sh".as_ptr(), sh, c, command.as_ptr(), end);
            libc::_exit(1);
        }
        close(ends[1]);
        (ends[0], child)
    }
}

/// How a rank waits until a descriptor can be read: what that gave, and whether it can.
type Wait = fn(c_int) -> (c_int, bool);

fn by_select(fd: c_int) -> (c_int, bool) {
    // SAFETY: sets and descriptors that are there.
    unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        for fd in [0, fd] {
            libc::FD_SET(fd, &mut set);
        }
        let none = std::ptr::null_mut();
        let mut time = libc::timeval { tv_sec: 20, tv_usec: 0 };
        libc::FD_CLR(0, &mut set);
        let n = libc::select(fd + 1, &mut set, none, none, &mut time);
        (n, libc::FD_ISSET(fd, &set))
    }
}

fn by_pselect(fd: c_int) -> (c_int, bool) {
    // SAFETY: sets and a time that are there, and a descriptor that fits in a set.
    unsafe {
        let mut reads: libc::fd_set = std::mem::zeroed();
        let mut fails: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &mut reads);
        libc::FD_SET(fd, &mut fails);
        let none = std::ptr::null_mut();
        let time = libc::timespec { tv_sec: 20, tv_nsec: 0 };
        let n = libc::pselect(fd + 1, &mut reads, none, &mut fails, &time, std::ptr::null());
        (n, libc::FD_ISSET(fd, &reads) && !libc::FD_ISSET(fd, &fails))
    }
}

fn by_ppoll(fd: c_int) -> (c_int, bool) {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let time = libc::timespec { tv_sec: 20, tv_nsec: 0 };
    // SAFETY: one descriptor and a time, which live through the call.
    let n = unsafe { libc::ppoll(&mut one, 1, &time, std::ptr::null()) };
    (n, one.revents & (libc::POLLIN | libc::POLLHUP) != 0)
}

fn by_epoll(fd: c_int) -> (c_int, bool) {
    // SAFETY: an event that is there, and room for four, as said.
    unsafe {
        let all = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 77 };
        assert_eq!(libc::epoll_ctl(all, libc::EPOLL_CTL_ADD, fd, &mut event), 0);
        let mut found = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let n = libc::epoll_wait(all, found.as_mut_ptr(), 4, 20_000);
        close(all);
        (n, found[0].u64 == 77)
    }
}

/// What a helper says, piece by piece, and how it ended.
fn heard(wait: Wait) -> (Vec<(c_int, bool, isize)>, String, c_int) {
    let (fd, child) = helper(c"echo run >> runs; echo said; exit 3");
    let mut pieces = Vec::new();
    let mut said = String::new();
    let mut status = 0;
    loop {
        let (n, ready) = wait(fd);
        let mut room = [0u8; 64];
        // SAFETY: as much room as said.
        let len = unsafe { libc::read(fd, room.as_mut_ptr().cast(), room.len()) };
        pieces.push((n, ready, len));
        if len <= 0 {
            break;
        }
        said += std::str::from_utf8(&room[..len as usize]).unwrap();
    }
    close(fd);
    // SAFETY: waitpid(2) writes one number, which is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    (pieces, said, status)
}

/// A helper that is not run again says nothing any more: what the rank found when it waited for it
/// is told, or it would wait for ever.
fn waits_for_helpers_are_told_again() {
    let ways: [Wait; 4] = [by_select, by_pselect, by_ppoll, by_epoll];
    for (n, wait) in ways.into_iter().enumerate() {
        take();
        let first = heard(wait);
        assert_eq!((first.1.as_str(), libc::WEXITSTATUS(first.2)), ("said\n", 3));
        let bytes = take();
        again(&bytes);
        assert_eq!(heard(wait), first, "{n}");
        new();
        assert_eq!(read("runs").lines().count(), n + 1);
        take();
    }
}

// syscall(2).

fn calls_by_their_numbers_are_known() {
    fs::write("input", "as it was").unwrap();
    let program = || {
        let here = libc::AT_FDCWD;
        // SAFETY: C strings, and as much room as said.
        unsafe {
            let (mut room, mut st): ([u8; 32], libc::statx) = std::mem::zeroed();
            let mut how: libc::open_how = std::mem::zeroed();
            how.flags = libc::O_RDONLY as u64;
            let how = &raw const how;
            let len = size_of::<libc::open_how>();
            let input = libc::syscall(libc::SYS_openat2, here, c"input".as_ptr(), how, len);
            let n = libc::syscall(libc::SYS_read, input, room.as_mut_ptr(), room.len());
            let none = libc::syscall(libc::SYS_openat2, here, c"none".as_ptr(), how, len);
            let to = &raw mut st;
            let looked = libc::syscall(libc::SYS_statx, here, c"input".as_ptr(), 0, 0xfff, to);
            libc::syscall(libc::SYS_close, input);
            let flags = libc::O_CREAT | libc::O_WRONLY;
            let out = libc::syscall(libc::SYS_openat, here, c"out".as_ptr(), flags, 0o644);
            let wrote = libc::syscall(libc::SYS_write, out, c"mine".as_ptr(), 4);
            libc::syscall(libc::SYS_close, out);
            let mut path = [0u8; 4096];
            let long = libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len());
            let made = libc::syscall(libc::SYS_mkdir, c"made".as_ptr(), 0o755);
            let gone = libc::syscall(libc::SYS_rmdir, c"made".as_ptr());
            let wrong = (libc::syscall(5000), std::io::Error::last_os_error().raw_os_error());
            let is_long = path.iter().position(|byte| *byte == 0) == Some(long as usize - 1);
            (n, room, none, (looked, st.stx_size), (wrote, is_long), (made, gone), wrong)
        }
    };
    take();
    let first = program();
    let bytes = take();
    assert_eq!((first.0, first.3, first.6), (9, (0, 9), (-1, Some(libc::ENOSYS))));
    another(|| {
        fs::write("input", "as another has made it").unwrap();
        fs::write("out", "another's").unwrap();
    });
    again(&bytes);
    assert_eq!(program(), first);
    new();
    assert_eq!((read("out"), Path::new("made").exists()), ("another's".into(), false));
}
