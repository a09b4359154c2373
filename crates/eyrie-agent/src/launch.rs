//! Brings a rank's process to life: descriptors at fixed numbers, an environment and an address space that
//! are the same in every life of the rank, death with the agent. Must be called from the agent's main thread,
//! whose end is what PR_SET_PDEATHSIG watches.

use crate::streams::{Input, Output};
use anyhow::Context;
use eyrie_wire::agent::{self, ToRank, MAX_MESSAGE};
use eyrie_wire::control::{ImageMeta, StartRank};
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};
use rustix::net::{send, socketpair, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::{pipe_with, PipeFlags};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the restorer finds the image stream.
const IMAGE_FD: RawFd = 202;
/// Our copies of what a rank inherits lie from here on, so that moving them to their fixed numbers never
/// overwrites another.
const BEYOND_FIXED: RawFd = 400;

/// Holds the fixed numbers in the agent itself, so that nothing of its own ever gets one of them.
pub struct Reserved(#[allow(dead_code)] Vec<OwnedFd>);

/// Reserves the fixed numbers; to be called first in the agent.
///
/// # Errors
/// When the limit of open files is too low.
pub fn reserve_fixed_numbers() -> anyhow::Result<Reserved> {
    let null = File::open("/dev/null")?;
    let mut held = Vec::new();
    for fd in [agent::AGENT_FD, agent::PMI_FD, IMAGE_FD] {
        // SAFETY: duplicates a descriptor that lives through the call.
        let got = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, fd) };
        anyhow::ensure!(got == fd, "descriptor {fd} is not free: raise `ulimit -n`");
        // SAFETY: `got` is new and owned by nobody else.
        held.push(unsafe { OwnedFd::from_raw_fd(got) });
    }
    Ok(Reserved(held))
}

/// The agent's ends of a new process.
pub struct Launched {
    pub pid: u32,
    pub channel: OwnedFd,
    pub pmi: OwnedFd,
    pub stdout: Output,
    pub stderr: Output,
    pub stdin: Option<Input>,
}

/// How to come to life.
pub enum From {
    /// The program from its beginning.
    Program,
    /// An image: the restorer's executable, and the stream.
    Image { restorer: OwnedFd, stream: OwnedFd },
}

fn beyond(fd: OwnedFd) -> std::io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, BEYOND_FIXED)?)
}

fn nonblocking(fd: &OwnedFd) -> std::io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

fn pair(kind: SocketType) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    nonblocking(&ours)?;
    Ok((ours, beyond(theirs)?))
}

/// Starts a process for a rank; `meta` is what is known of its image, all zero for a program's beginning.
///
/// # Errors
/// When a resource is lacking or the program cannot be executed.
pub fn launch(
    start: &StartRank,
    meta: &ImageMeta,
    from: From,
    dir: &Path,
) -> anyhow::Result<Launched> {
    let (channel, their_channel) = pair(SocketType::SEQPACKET)?;
    let (pmi, their_pmi) = pair(SocketType::STREAM)?;
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    nonblocking(&stdout)?;
    nonblocking(&stderr)?;

    let mut welcome = [0; MAX_MESSAGE];
    let n = ToRank::Welcome { incarnation: start.incarnation }.encode(&mut welcome);
    send(&channel, &welcome[..n], SendFlags::NOSIGNAL)?;

    let mut command = match &from {
        From::Program => program(start),
        From::Image { restorer, .. } => restorer_command(restorer),
    };
    let (stdin, their_stdin) = if start.stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        nonblocking(&ours)?;
        let peek = rustix::io::fcntl_dupfd_cloexec(&theirs, 0)?;
        (Some(Input::new(ours, peek, meta.stream_offsets[0])), Stdio::from(theirs))
    } else {
        (None, Stdio::null())
    };
    command
        .env_clear()
        .envs(start.program.env.iter().map(|(k, v)| (k, v)))
        .envs(rank_environment(start, dir))
        .current_dir(&start.program.cwd)
        .stdin(their_stdin)
        .stdout(their_stdout)
        .stderr(their_stderr);
    let mut fixed = vec![(their_channel, agent::AGENT_FD), (their_pmi, agent::PMI_FD)];
    if let From::Image { stream, .. } = from {
        fixed.push((beyond(stream)?, IMAGE_FD));
    }
    let moves: Vec<(RawFd, RawFd)> = fixed.iter().map(|(fd, to)| (fd.as_raw_fd(), *to)).collect();
    let agent_pid = std::process::id();
    // SAFETY: the closure only makes system calls and allocates nothing.
    unsafe { command.pre_exec(move || prepare(agent_pid, &moves)) };
    let child = command
        .spawn()
        .with_context(|| format!("cannot start {}", start.program.exe.to_string_lossy()))?;
    Ok(Launched {
        pid: child.id(),
        channel,
        pmi,
        stdout: Output::new(stdout, meta.stream_offsets[1]),
        stderr: Output::new(stderr, meta.stream_offsets[2]),
        stdin,
    })
}

fn program(start: &StartRank) -> Command {
    let mut command = Command::new(&start.program.exe);
    if let Some((name, rest)) = start.program.argv.split_first() {
        command.arg0(name).args(rest);
    }
    command
}

fn restorer_command(restorer: &OwnedFd) -> Command {
    let mut command = Command::new(format!("/proc/self/fd/{}", restorer.as_raw_fd()));
    command.arg0("eyrie-restorer").arg(IMAGE_FD.to_string());
    for slot in [0, 1, 2, agent::AGENT_FD, agent::PMI_FD] {
        command.arg(slot.to_string());
    }
    command
}

/// What differs from rank to rank, and what the agent alone knows.
fn rank_environment(start: &StartRank, dir: &Path) -> [(&'static str, std::ffi::OsString); 8] {
    [
        ("PMI_FD", agent::PMI_FD.to_string().into()),
        ("PMI_RANK", start.rank.to_string().into()),
        ("PMI_SIZE", start.size.to_string().into()),
        (agent::ENV_AGENT_FD, agent::AGENT_FD.to_string().into()),
        (agent::ENV_DIR, dir.into()),
        (agent::ENV_RANK, start.rank.to_string().into()),
        (agent::ENV_SIZE, start.size.to_string().into()),
        (agent::ENV_ROUTERS, start.routers.to_string().into()),
    ]
}

/// Runs in the child between fork and exec.
fn prepare(agent_pid: u32, moves: &[(RawFd, RawFd)]) -> std::io::Result<()> {
    let check = |result: libc::c_int| {
        if result < 0 {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: plain system calls on this process; the signal set is initialised before its use.
    unsafe {
        // A group of its own: it can be killed with all that it started.
        check(libc::setpgid(0, 0))?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0))?;
        if libc::getppid() as u32 != agent_pid {
            // The agent died before the line above.
            libc::_exit(1);
        }
        // A restarted rank must find everything at the addresses of its first life.
        check(libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong))?;
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()))?;
        for (fd, to) in moves {
            check(libc::dup2(*fd, *to))?;
        }
        // Not closed but marked: the pipe that reports a failing exec is among them.
        let mark = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
        let first = agent::AGENT_FD as libc::c_uint;
        check(libc::close_range(3, first - 1, mark))?;
        let last = moves.iter().map(|m| m.1).max().unwrap_or(2) as libc::c_uint;
        check(libc::close_range(last + 1, libc::c_uint::MAX, mark))
    }
}
