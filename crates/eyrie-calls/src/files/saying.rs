//! Says on the rank's standard error what cannot be recorded or kept, once for each reason. It must
//! never be silent, and never say a reason twice.

use super::kernel;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Reasons that were given.
static SAID: AtomicU32 = AtomicU32::new(0);

/// Says a sentence, of which `what` may be a path, unless one with this number was said.
fn say(number: u32, parts: [&[u8]; 3]) {
    if SAID.fetch_or(1 << number, Ordering::Relaxed) & 1 << number != 0 {
        return;
    }
    let mut line = [0u8; 1024];
    let mut len = 0;
    for part in [&b"eyrie: "[..], parts[0], parts[1], parts[2], b"\n"] {
        let n = part.len().min(line.len() - 1 - len);
        line[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    line[len.min(line.len()) - 1] = b'\n';
    kernel::write(libc::STDERR_FILENO, &line[..len]);
}

/// There is no room to record what was observed.
pub fn not_recorded() {
    let why =
        b"what this rank reads from files that have changed since the job began is more than \
        can be recorded here: if it fails before its next image, it may read something else";
    say(0, [why, b"", b""]);
}

/// Ends of the names of files that are executed, or that interpreters execute.
const PROGRAMS: [&[u8]; 8] = [b".py", b".pyc", b".so", b".sh", b".jl", b".R", b".pl", b".lua"];

/// Whether a file is a part of the program, by its name.
fn is_program(path: &[u8]) -> bool {
    PROGRAMS.iter().any(|end| path.ends_with(end)) || path.windows(4).any(|part| part == b".so.")
}

/// The program, a library or a script was replaced since the rank began: it ends.
pub fn program_changed(path: &[u8]) -> ! {
    let why = b" was replaced or changed after this rank had started with it: the rank cannot be \
        executed again with another one, and ends; put back what it was, or have images taken \
        (--checkpoint-every), which need it no more";
    say(9, [path, why, b""]);
    kernel::end(1)
}

/// Whether this process runs the program that has observed what it is told.
static IS_IT: AtomicBool = AtomicBool::new(true);

/// It does, or it is one that starts that program.
pub fn know_program(is_it: bool) {
    IS_IT.store(is_it, Ordering::Relaxed);
}

/// The provider is of another release, which says `why`: the rank ends.
pub fn other_provider(why: &[u8]) -> ! {
    say(25, [why, b"", b""]);
    kernel::end(1)
}

/// Of what the rank has observed before its library was ready not all is known: it ends.
pub fn beginning_is_lost() -> ! {
    let why = b"this rank has read more than 1 MiB before it was through with MPI_Init from files \
        that were changed then or just before the job, and cannot be executed again from its \
        beginning: it ends; read them after MPI_Init, or have images taken (--checkpoint-every)";
    say(20, [why, b"", b""]);
    kernel::end(1)
}

/// A file was read, and was changed later; its old state is not there any more.
pub fn changed_since(path: &[u8]) {
    if !IS_IT.load(Ordering::Relaxed) {
        return;
    }
    if is_program(path) {
        program_changed(path);
    }
    let why = b" was changed after this rank had read it, and what it was is not there any more: \
        the rank, which is executed again, reads what is there now";
    say(1, [path, why, b""]);
}

/// A file was read that its name does not lead to any more.
pub fn gone_since(path: &[u8]) {
    if !IS_IT.load(Ordering::Relaxed) {
        return;
    }
    let why = b" was read by this rank, which is executed again, and is not there any more: it was \
        removed, or is on the host only that the rank was on; what the rank computes without it may \
        be wrong";
    say(21, [path, why, b""]);
}

/// What is known to have been written is not there.
pub fn not_there(path: &[u8]) {
    let why =
        b" is shorter than this rank had written it: what its node had not written back when \
        it failed is lost";
    say(2, [path, why, b""]);
}

/// What is known to have been written was lost with a node, and is written again.
pub fn written_again() {
    let why = b"what this rank had written to a file server, and its node had not written back \
        when it failed, is written again";
    say(7, [why, b"", b""]);
}

/// A file on a server cannot be read that this rank is known to have written.
pub fn not_compared() {
    let why = b"a file on a file server cannot be read by this rank, which is executed again on \
        another node: if the one it was on had not written back what the rank had written there, \
        that is lost; open such files to read and write";
    say(22, [why, b"", b""]);
}

/// Files on more servers are mapped to be written than images wait for.
pub fn many_servers() {
    let why =
        b"this rank maps files on more than four file servers to be written: what its node has \
        not written back of the fifth and of others is lost with it; call msync there";
    say(19, [why, b"", b""]);
}

/// The file that a rank had open cannot be found by its name.
pub fn lost_its_name(path: &[u8]) {
    let why = b" was renamed or removed by another process: this rank, which was executed again, \
        goes on with a file of its own instead";
    say(3, [path, why, b""]);
}

/// A lock that the rank had is another process's now.
pub fn not_locked() {
    let why = b"another process has had a lock for a minute that this rank, which was executed \
        again, still needs: it goes on without it";
    say(4, [why, b"", b""]);
}

/// An old state stays when the rank ends.
pub fn left(path: &[u8]) {
    let why = b" and other old states of files stay there when this rank ends: it has changed too \
        many; remove them";
    say(14, [path, why, b""]);
}

/// A file that was mapped to be written has what the rank has stored there since.
pub fn mapped_before(path: &[u8]) {
    let why = b" is mapped to be written (SQLite's WAL mode and numpy.memmap do that) by several \
        ranks or with more than can be recorded, and has what was stored there since: if this rank, \
        which is executed again, reads that back, its results may be wrong; write such files by \
        write() instead";
    say(11, [path, why, b""]);
}

/// A file that was mapped to be written cannot be mapped again.
pub fn not_mapped(path: &[u8]) {
    let why =
        b" cannot be mapped again: what this rank, which was executed again, stores there from \
        now on is lost; write such files by write() instead";
    say(12, [path, why, b""]);
}

/// A helper that has ended may have stored in a file that is mapped.
pub fn helper_may_have_stored(path: &[u8]) {
    let why =
        b" is mapped to be written by a rank that has started a helper, and is executed again: \
        if the helper has stored there, too, the rank does not see that and its results may be \
        wrong; let helpers write such files by write() instead";
    say(13, [path, why, b""]);
}

/// Whether others map a file to write it, too, cannot be known.
pub fn not_marked() {
    let why =
        b"a file is mapped to be written on a file system without extended attributes: where \
        another rank maps it, too, images lose what that rank writes there";
    say(6, [why, b"", b""]);
}

/// A read or write is not made at once.
pub fn not_at_once() {
    let why = b"this rank reads or writes a file by aio with a thread that is told of the end \
        (SIGEV_THREAD), which is not recorded: if it fails before its next image, that is done \
        again; ask by aio_error or aio_suspend instead";
    say(8, [why, b"", b""]);
}

/// The kernel is asked past all functions.
pub fn no_ring() {
    let why = b"this rank uses io_uring, by which files are read and written past all that is \
        recorded: if it fails before its next image, that is done again; switch it off where the \
        program can do without";
    say(18, [why, b"", b""]);
}

/// Directories are walked through past what is recorded.
pub fn not_walked() {
    let why = b"this rank walks through directories by fts_open or by nftw with FTW_CHDIR, which \
        is not recorded: if it fails before its next image, it finds what is there by then; use \
        nftw without FTW_CHDIR, scandir or readdir";
    say(15, [why, b"", b""]);
}

/// The C library is not one whose streams are known.
pub fn no_streams() {
    let why = b"the C library's streams (fopen) are not as they are known here: what this rank \
        does by them is not recorded";
    say(5, [why, b"", b""]);
}

/// What a rank writes under a lock cannot be noted.
pub fn no_commit() {
    let why = b"a file that ranks read and change under a lock is on a file system without \
        extended attributes: a rank that fails in the middle of that may change it twice";
    say(16, [why, b"", b""]);
}

/// Of a file that was read under a lock others have changed the same bytes.
pub fn changed_under_lock() {
    let why = b"this rank failed while it had a lock, and others have changed what it had read \
        under it: what it writes there now may be wrong";
    say(17, [why, b"", b""]);
}

/// What another thread does to files is not recorded.
pub fn changed_by_other_thread(path: &[u8]) {
    let what = b"another thread of this rank than the one that has called MPI_Init changes ";
    let why = b", which is not recorded: the rank was executed again, and may have done it twice; \
        let the thread that calls MPI_Init do it";
    say(10, [what, path, why]);
}

/// The rank has more files open than are followed.
pub fn too_many_open() {
    let why = b"this rank has more than 64 files open: what it had written to the others when it \
        failed may be there twice; close some, or have images taken more often";
    say(23, [why, b"", b""]);
}

/// The rank has more locks, or has read more under one, than is followed.
pub fn too_much_locked() {
    let why =
        b"this rank has more than 64 locks, or reads more than 8 MiB or 16 pieces under one: \
        if it fails while it has them, what others change meanwhile may be lost; lock less at a \
        time";
    say(24, [why, b"", b""]);
}
