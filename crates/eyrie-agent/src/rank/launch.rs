//! Starts a rank's process: descriptors at fixed numbers, an environment and an address space that
//! are the same in every incarnation of the rank, and death with the agent. Must be called from the
//! agent's main thread: PR_SET_PDEATHSIG watches the thread that calls it.

use crate::rank::channel::{self, send_bytes};
use crate::rank::guards;
use crate::rank::page::{Directories, Page};
use crate::rank::pmi::Session;
use crate::rank::streams::{Input, Output};
use eyrie_supervision::{dies_with_starter, with_no_signal_blocked};
use eyrie_wire::agent::{self, ToRank};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{JobOnHost, Program, StartRank};
use eyrie_wire::Rank;
use rustix::fs::{fcntl_getfl, fcntl_setfl, memfd_create, MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::Signal;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The agent's copies of what a rank inherits have this number or a higher one, so that moving them
/// to their fixed numbers never overwrites another.
const BEYOND_FIXED: RawFd = 400;

/// Holds the fixed numbers in the agent itself, so that no descriptor of its own gets one of them.
pub struct Reserved(#[allow(dead_code)] Vec<OwnedFd>);

/// Reserves the fixed numbers. The agent calls it before it opens anything.
///
/// # Errors
/// When the limit of open files is too low.
pub fn reserve_fixed_numbers() -> anyhow::Result<Reserved> {
    // SAFETY: only sets the close-on-exec flag: ranks do not inherit what the agent inherited.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    let null = File::open("/dev/null")?;
    let mut held = Vec::new();
    for fd in [agent::AGENT_FD, agent::PMI_FD] {
        // SAFETY: `null` is open through the call, which duplicates it.
        let got = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, fd) };
        anyhow::ensure!(got == fd, "descriptor {fd} is not free: raise `ulimit -n`");
        // SAFETY: `got` is a new descriptor, which nothing else owns.
        held.push(unsafe { OwnedFd::from_raw_fd(got) });
    }
    Ok(Reserved(held))
}

/// The agent's ends of a new process, about which nothing is known yet. Only
/// [`crate::rank::process::Process::new`] uses what an image says about its rank.
pub struct Launched {
    pub pid: u32,
    pub page: Page,
    pub directories: Directories,
    pub channel: OwnedFd,
    pub pmi: OwnedFd,
    pub session: Session,
    pub stdout: Output,
    pub stderr: Output,
    pub stdin: Option<Input>,
    /// The restorer's standard error, to which it writes why it failed.
    pub restorer_stderr: Option<OwnedFd>,
}

impl Launched {
    /// Gives the process a directory, unless it has one with that epoch or a higher one.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn hand_directory(&self, epoch: u64, directory: &[u8]) -> std::io::Result<()> {
        hand_directory((&self.page, &self.directories), epoch, directory)
    }

    /// Why the restorer has ended: its last line.
    pub fn last_line(&self) -> String {
        let lines = self.restorer_stderr.as_ref().map(stderr_lines).unwrap_or_default();
        lines.into_iter().next_back().unwrap_or_else(|| "the restorer has ended".into())
    }
}

/// As [`Launched::hand_directory`].
pub fn hand_directory(
    (page, directories): (&Page, &Directories),
    epoch: u64,
    directory: &[u8],
) -> std::io::Result<()> {
    if page.directory() < epoch {
        directories.add(directory)?;
        page.set_directory(epoch);
    }
    Ok(())
}

/// What a restorer has written so far to its standard error, line by line.
pub fn stderr_lines(fd: &OwnedFd) -> Vec<String> {
    let mut all = Vec::new();
    let mut bytes = [0; 4096];
    // It does not wait for more: the restorer writes before the agent learns of the restore's end.
    loop {
        match rustix::io::read(fd, &mut bytes) {
            Ok(n) if n > 0 => all.extend_from_slice(&bytes[..n]),
            Err(Errno::INTR) => {}
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&all);
    let lines = text.lines().map(|l| l.trim().trim_start_matches("eyrie-restorer: "));
    lines.filter(|line| !line.is_empty()).map(str::to_string).collect()
}

/// What a process is started from.
pub enum From {
    /// The program from its beginning.
    Program,
    /// An image that arrives on `stream`. `held`: files that it needs and whose names lead
    /// elsewhere by now.
    Image { stream: OwnedFd, held: Vec<Arc<OwnedFd>> },
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

/// Starts a process for a rank. `directory` is the newest one, `open_files` the rank's limit.
///
/// # Errors
/// When a resource is lacking or the program cannot be executed.
pub fn launch(
    job: &JobOnHost,
    start: &StartRank,
    from: From,
    (epoch, directory): (u64, &[u8]),
    secret: &Secret,
    open_files: libc::rlimit,
) -> anyhow::Result<Launched> {
    let (channel, their_channel) = pair(SocketType::SEQPACKET)?;
    let (pmi, their_pmi) = pair(SocketType::STREAM)?;
    let (stdout, their_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, their_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    nonblocking(&stdout)?;
    nonblocking(&stderr)?;

    if !start.beginning.is_empty() {
        let file = File::from(memfd_create(c"eyrie-beginning", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&start.beginning, 0)?;
        send_bytes(&channel, &[agent::BEGINNING], &[file.as_fd()])?;
    }
    let page = Page::create(secret, epoch)?;
    let directories = Directories::create(directory)?;
    let welcome = ToRank::Welcome { incarnation: start.instance.incarnation };
    channel::send(&channel, welcome, &[page.as_fd(), directories.as_fd()])?;

    let (stdin, their_stdin) = if start.stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        nonblocking(&ours)?;
        let peek = rustix::io::fcntl_dupfd_cloexec(&theirs, 0)?;
        (Some(Input::new(ours, peek)), theirs)
    } else {
        (None, File::open("/dev/null")?.into())
    };
    let mut restorer_stderr = None;
    let mut moves = Vec::new();
    let mut command = match &from {
        From::Program => {
            moves.push((their_channel.as_raw_fd(), agent::AGENT_FD));
            moves.push((their_pmi.as_raw_fd(), agent::PMI_FD));
            let mut command = program(job, start.instance.rank);
            command
                .stdin(Stdio::from(their_stdin))
                .stdout(Stdio::from(their_stdout))
                .stderr(Stdio::from(their_stderr));
            command
        }
        From::Image { stream, held } => {
            // Not `stderr`: that pipe is the rank's.
            let (errors, restorer_errors) = pipe_with(PipeFlags::CLOEXEC)?;
            nonblocking(&errors)?;
            restorer_stderr = Some(errors);
            let held: Vec<_> = held.iter().map(|fd| fd.as_fd()).collect();
            let slots = [&their_stdin, &their_stdout, &their_stderr, &their_channel, &their_pmi]
                .map(|fd| Some(fd.as_fd()));
            let mut command = eyrie_image::restore::command(stream.as_fd(), &slots, &held)?;
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(Stdio::from(restorer_errors));
            command
        }
    };
    with_no_signal_blocked(dies_with_starter(&mut command, Signal::KILL));
    // SAFETY: between fork and exec `prepare` only makes system calls, and allocates nothing.
    unsafe { command.pre_exec(move || prepare(&moves, &open_files)) };
    let child = match (&from, random_key(&job.program)) {
        (From::Program, Some(key)) => {
            guards::spawn(&mut command, guards::bytes_of(key, start.instance.rank))
        }
        _ => command.spawn(),
    };
    let child = child.map_err(|e| {
        let hint = match e.raw_os_error() {
            Some(libc::EAGAIN) => {
                ": raise the limit on processes (`ulimit -u`), or that of the control group \
                 (pids.max)"
            }
            _ => "",
        };
        anyhow::anyhow!("cannot start {}: {e}{hint}", job.program.exe.to_string_lossy())
    })?;
    Ok(Launched {
        pid: child.id(),
        page,
        directories,
        channel,
        pmi,
        session: Session::new(start.instance.rank, job.ranks, job.kvsname.clone()),
        stdout: Output::new(stdout),
        stderr: Output::new(stderr),
        stdin,
        restorer_stderr,
    })
}

/// The key from which ranks of the job draw random numbers.
fn random_key(program: &Program) -> Option<&[u8]> {
    let mut env = program.env.iter();
    let (_, key) = env.find(|(name, _)| name == agent::ENV_RANDOM)?;
    Some(key.as_encoded_bytes())
}

fn program(job: &JobOnHost, rank: Rank) -> Command {
    let Program { exe, argv, env, cwd } = &job.program;
    let mut command = Command::new(exe);
    if let Some((name, rest)) = argv.split_first() {
        command.arg0(name).args(rest);
    }
    command
        .env_clear()
        .envs(env.iter().map(|(k, v)| (k, v)))
        .envs(rank_environment(rank, job.ranks))
        .env(agent::ENV_DIR, &job.dir)
        .current_dir(cwd);
    command
}

/// The variables that differ from rank to rank, and those that only the agent knows.
fn rank_environment(rank: Rank, ranks: u32) -> [(&'static str, std::ffi::OsString); 6] {
    [
        ("PMI_FD", agent::PMI_FD.to_string().into()),
        ("PMI_RANK", rank.to_string().into()),
        ("PMI_SIZE", ranks.to_string().into()),
        (agent::ENV_AGENT_FD, agent::AGENT_FD.to_string().into()),
        (agent::ENV_RANK, rank.to_string().into()),
        (agent::ENV_SIZE, ranks.to_string().into()),
    ]
}

/// Runs in the child between fork and exec.
fn prepare(moves: &[(RawFd, RawFd)], open_files: &libc::rlimit) -> std::io::Result<()> {
    let check = |result: libc::c_int| {
        if result < 0 {
            Err(std::io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: system calls on this process. `open_files` lives through the call.
    unsafe {
        // A group of its own, so that it can be killed with all that it started.
        check(libc::setpgid(0, 0))?;
        for (fd, to) in moves {
            check(libc::dup2(*fd, *to))?;
        }
        check(libc::setrlimit(libc::RLIMIT_NOFILE, open_files))?;
        // Eyrie's own processes ignore the signal and get an error instead, as from a full disk.
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
        Ok(())
    }
}
