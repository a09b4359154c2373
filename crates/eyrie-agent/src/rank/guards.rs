//! Gives a program that starts the random bytes of its rank in place of the kernel's (AT_RANDOM of
//! getauxval(3)). The C library makes the guards of stack frames and of stored addresses from them.
//! Such guards remain in uninitialized memory, which MPI libraries send as padding, and a rank that
//! is executed again must send the same. Must be called from the thread that starts programs.

use std::io::{Error, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes at AT_RANDOM (`create_elf_tables` in the kernel).
const RANDOM_BYTES: usize = 16;
/// The error that says that a program must not be traced here; exec has no such error.
const FORBIDDEN: i32 = libc::ENOTSUP;
const WORD: usize = size_of::<u64>();
/// Most words on the stack from the number of arguments to the end of the auxiliary vector.
const WORDS_MAX: usize = 1 << 20;

/// Set once it is known that programs cannot be traced here.
static FORBIDDEN_HERE: AtomicBool = AtomicBool::new(false);
/// A program runs with the kernel's bytes, and the user was not told yet.
static NOTE_PENDING: AtomicBool = AtomicBool::new(false);

/// The note for the user, once, when a program runs with the kernel's bytes.
pub fn note() -> Option<String> {
    NOTE_PENDING.swap(false, Ordering::Relaxed).then(|| {
        "the random bytes that programs start with cannot be fixed: ptrace(2) or \
         process_vm_readv(2) fails, perhaps because a sandbox forbids it. The job runs on. What is \
         lost: a rank that dies before its first image may come back with other guards of stack \
         frames, and a program that sends uninitialized memory (MPICH does for MPI_Win) may \
         diverge. To allow it, let the sandbox's seccomp profile permit both; for containers, for \
         instance, --cap-add SYS_PTRACE"
            .to_string()
    })
}

/// The bytes for a rank, from the job's key.
pub fn bytes_of(key: &[u8], rank: eyrie_wire::Rank) -> [u8; RANDOM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"AT_RANDOM").update(&rank.0.to_le_bytes()).update(key);
    let mut bytes = [0; RANDOM_BYTES];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Starts a program with these bytes, or with the kernel's where programs cannot be traced.
///
/// # Errors
/// When it cannot be started.
pub fn spawn(command: &mut Command, bytes: [u8; RANDOM_BYTES]) -> std::io::Result<Child> {
    // SAFETY: the closure makes at most one system call, and allocates nothing, as is required
    // between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if FORBIDDEN_HERE.load(Ordering::Relaxed) {
                Ok(())
            } else {
                stop_at_exec()
            }
        })
    };
    let child = match command.spawn() {
        Err(e) if e.raw_os_error() == Some(FORBIDDEN) => {
            FORBIDDEN_HERE.store(true, Ordering::Relaxed);
            NOTE_PENDING.store(true, Ordering::Relaxed);
            command.spawn()?
        }
        result => result?,
    };
    let pid = child.id() as libc::pid_t;
    if !FORBIDDEN_HERE.load(Ordering::Relaxed) && stopped(pid)? {
        // The child may also be killed at any moment.
        if put(pid, &bytes).is_none() {
            NOTE_PENDING.store(true, Ordering::Relaxed);
        }
        // SAFETY: `pid` is a stopped child of this thread, which is not reaped; no signal is
        // passed.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    }
    Ok(child)
}

/// Runs in the child between fork and exec: the child stops once the program is loaded.
fn stop_at_exec() -> std::io::Result<()> {
    // SAFETY: PTRACE_TRACEME ignores the other arguments.
    match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(Error::from_raw_os_error(FORBIDDEN)),
    }
}

/// Waits until the child stops. Exec has succeeded, so it stops at once. False: it has died; it is
/// left to be reaped.
fn stopped(pid: libc::pid_t) -> std::io::Result<bool> {
    loop {
        // SAFETY: a siginfo_t of zeros is valid, and `info` lives through the call.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let what = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
            if libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, what) == 0 {
                return Ok(matches!(info.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED));
            }
        }
        let e = Error::last_os_error();
        if e.kind() != ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// Puts the bytes where the auxiliary vector of the stopped process says.
fn put(pid: libc::pid_t, bytes: &[u8; RANDOM_BYTES]) -> Option<()> {
    // SAFETY: registers of zeros are valid, and `registers` lives through the call. The child is
    // stopped and traced by this thread.
    let stack = unsafe {
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        let result = libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers);
        (result == 0).then_some(registers.rsp)?
    };
    let at = random_at(&mut |word| read(pid, stack + (word * WORD) as u64))?;
    for (n, chunk) in bytes.chunks_exact(WORD).enumerate() {
        let value = u64::from_ne_bytes(chunk.try_into().ok()?);
        // SAFETY: writes to memory of the stopped child only. A wrong address is an error.
        unsafe { libc::ptrace(libc::PTRACE_POKEDATA, pid, at + (n * WORD) as u64, value) };
    }
    Some(())
}

/// Where AT_RANDOM points, in the words of a new process's stack: the number of arguments, their
/// addresses and a zero, those of the environment and a zero, pairs of the auxiliary vector.
fn random_at(word: &mut dyn FnMut(usize) -> Option<u64>) -> Option<u64> {
    let mut at = usize::try_from(word(0)?).ok()?.checked_add(2)?;
    while at < WORDS_MAX && word(at)? != 0 {
        at += 1;
    }
    at += 1;
    while at < WORDS_MAX {
        match word(at)? {
            libc::AT_RANDOM => return word(at + 1),
            libc::AT_NULL => return None,
            _ => at += 2,
        }
    }
    None
}

fn read(pid: libc::pid_t, at: u64) -> Option<u64> {
    let mut value = 0u64;
    let here = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: WORD };
    let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: WORD };
    // SAFETY: `here` is `value`, one word, which lives through the call. A wrong address in the
    // child is an error.
    let n = unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) };
    (n == WORD as isize).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Rank;
    use std::process::Stdio;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Prints the bytes of this program at AT_RANDOM, for the test below, which starts it again.
    #[test]
    fn found() {
        // SAFETY: the kernel puts RANDOM_BYTES bytes at AT_RANDOM, which stay for the process's
        // life.
        let bytes = unsafe {
            let at = libc::getauxval(libc::AT_RANDOM) as *const [u8; RANDOM_BYTES];
            at.read_unaligned()
        };
        println!("found {}", hex(&bytes));
    }

    fn found_by_a_program(bytes: &[u8; RANDOM_BYTES]) -> String {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "rank::guards::tests::found", "--nocapture"])
            .stdout(Stdio::piped());
        let child = spawn(&mut command, *bytes).unwrap();
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let line = output.lines().find_map(|l| l.split_once("found "));
        line.unwrap_or_else(|| panic!("{output}")).1.to_string()
    }

    #[test]
    fn a_program_finds_the_bytes_of_its_rank() {
        let bytes = bytes_of(b"key", Rank(3));
        assert_ne!(bytes, bytes_of(b"key", Rank(4)));
        assert_ne!(bytes, bytes_of(b"another", Rank(3)));
        assert_eq!(found_by_a_program(&bytes), hex(&bytes));
    }

    #[test]
    fn a_stack_that_has_no_such_entry_is_left_alone() {
        let find = |words: &[u64]| random_at(&mut |n| words.get(n).copied());
        assert_eq!(find(&[1, 11, 0, 21, 22, 0, 6, 4096, 25, 77, 0, 0]), Some(77));
        assert_eq!(find(&[0, 0, 0, 25, 5]), Some(5));
        assert_eq!(find(&[1, 11, 0, 21, 0, 6, 4096, 0, 0]), None);
        assert_eq!(find(&[1, 11, 0, 21]), None);
        assert_eq!(find(&[u64::MAX]), None);
    }
}
