//! One incarnation of a rank on this node: its process, its descriptors, and the state of its
//! capture or restore.

use crate::controller::connection::Connection;
use crate::images::transfer::Line;
use crate::images::writer::Writer;
use crate::rank::channel;
use crate::rank::launch::{self, stderr_lines, Launched};
use crate::rank::page::{Directories, Page};
use crate::rank::pmi::Session;
use crate::rank::slow::Slowed;
use crate::rank::streams::{Input, Output};
use eyrie_image_format::exit;
use eyrie_supervision::{death_of, kill_group, Death};
use eyrie_wire::agent::ToRank;
use eyrie_wire::control::{
    CheckpointMode, Ending, FromAgent, ImageMeta, MpiStage, RankReport, StandardStream, StartFault,
};
use eyrie_wire::page::Endpoint;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, RankInstance};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How far a rank has come, as the rank reports it.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The number of its progress calls.
    pub clock: u64,
    /// Receive sequence number of the last message.
    pub rsn: u64,
    /// Bytes that it has observed other than by messages.
    pub observed: u64,
}

/// What an image is taken for, and what it has.
pub struct CaptureOptions {
    pub mode: CheckpointMode,
    /// The rank stands still from then on.
    pub hold: bool,
    /// The image has the content of the program and its libraries.
    pub self_contained: bool,
}

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    pub image: ImageId,
    pub phase: CapturePhase,
    pub writer: Writer,
}

#[derive(Debug)]
pub enum CapturePhase {
    /// The rank was asked. The image will come out of `stream` and goes to `store`. If the rank
    /// does not stand still by `again`, it is asked for the second time. At `look` the agent checks
    /// whether the rank ever will, from the processor time that it had `used`. At `until` the image
    /// is refused. `self_contained`: the image has the content of the program and its libraries.
    Asked {
        stream: OwnedFd,
        store: Addr,
        again: Option<Instant>,
        look: Instant,
        until: Instant,
        used: Duration,
        self_contained: bool,
    },
    /// The rank stood still and goes on; the upload runs on its own thread.
    Uploading(Line),
}

/// Why a rank is not captured.
pub struct Refusal {
    pub reason: String,
    /// The next capture may well succeed, and the user need not act.
    pub passing: bool,
}

impl Refusal {
    pub fn lasting(reason: impl std::fmt::Display) -> Refusal {
        Refusal { reason: reason.to_string(), passing: false }
    }
}

/// A restore under way: from the start of the restorer to the rank's first message.
#[derive(Debug)]
pub struct Restore {
    pub image: ImageId,
    /// The image has the content of the program and its libraries.
    pub self_contained: bool,
    pub started: Instant,
    pub fetched: Option<Duration>,
    /// Where the restorer says why it failed.
    pub stderr: Option<OwnedFd>,
}

impl Restore {
    /// What the restorer has written so far, line by line.
    pub fn stderr_lines(&self) -> Vec<String> {
        self.stderr.as_ref().map(stderr_lines).unwrap_or_default()
    }

    /// Why there is no restored process, and what is at fault. `last_line`: the last one that the
    /// rank itself wrote to its standard error.
    pub fn failure(&self, ending: Ending, last_line: Option<String>) -> (String, StartFault) {
        let last_line = last_line.map_or(String::new(), |line| format!("; its last line: {line}"));
        let reason = self.stderr_lines().pop().unwrap_or_else(|| match ending {
            Ending::Signal(signal) => {
                format!("killed by signal {signal} while it was restored{last_line}")
            }
            Ending::Code(code) => format!("the restorer ended with code {code}"),
        });
        let fault = match ending {
            Ending::Signal(signal) => StartFault::Killed(signal),
            // The store verifies images. One that ends early was cut off on the way.
            Ending::Code(exit::FILE | exit::MALFORMED) => StartFault::Image,
            Ending::Code(_) => StartFault::Attempt,
        };
        (reason, fault)
    }
}

pub struct Process {
    pub instance: RankInstance,
    /// Shared with the rank: the record of what it did last.
    pub page: Page,
    /// Where the rank reads the directories.
    directories: Directories,
    pub pid: u32,
    /// The process with the provider, which takes the capture signal: `pid`, or a child of it when
    /// `pid` is a wrapper.
    pub mpi_pid: Option<u32>,
    /// Readable when the process behind a wrapper has ended.
    pub watch: Option<OwnedFd>,
    /// How the process behind a wrapper has ended, as far as is known.
    pub death: Death,
    pub channel: Option<OwnedFd>,
    pub pmi: Option<OwnedFd>,
    pub session: Session,
    pub stdout: Output,
    pub stderr: Output,
    pub stdin: Option<Input>,
    pub capture: Option<Capture>,
    /// The last image that the agent has found usable, and the store that has it: the next image
    /// may build on it.
    pub base: Option<(ImageId, Addr)>,
    pub restore: Option<Restore>,
    /// Set while the rank writes too fast to be moved.
    pub slowed: Option<Slowed>,
    /// Until when the rank may take pending signals by itself.
    pub signals_until: Option<Instant>,
    pub shared: BTreeSet<String>,
    /// Memory that it may share with other ranks, as it was when it had returned from MPI_Init.
    pub common: BTreeSet<String>,
    /// How it ended; the rest of its output may still be on the way.
    pub ending: Option<Ending>,
}

impl Process {
    /// Makes the process from what an image says about its rank. This is the only place that does,
    /// whichever way the process was started: from the program (the image says nothing), from an
    /// image, or before its image was known. [`Process::meta`] is the way back.
    pub fn new(instance: RankInstance, launched: Launched, meta: &ImageMeta) -> Process {
        // Not used: the incarnation is a new one; clock and rsn are in the rank's memory.
        let ImageMeta { stream_offsets, barriers, shared, .. } = meta;
        let Launched { mut session, mut stdout, mut stderr, mut stdin, .. } = launched;
        session.begins_at(*barriers);
        let [stdin_offset, stdout_offset, stderr_offset] = *stream_offsets;
        if let Some(stdin) = &mut stdin {
            stdin.begins_at(stdin_offset);
        }
        stdout.begins_at(stdout_offset);
        stderr.begins_at(stderr_offset);
        Process {
            instance,
            page: launched.page,
            directories: launched.directories,
            pid: launched.pid,
            mpi_pid: None,
            watch: None,
            death: Death::Unknown,
            channel: Some(launched.channel),
            pmi: Some(launched.pmi),
            session,
            stdout,
            stderr,
            stdin,
            capture: None,
            base: None,
            restore: None,
            slowed: None,
            signals_until: None,
            shared: shared.iter().cloned().collect(),
            common: BTreeSet::new(),
            ending: None,
        }
    }

    /// Whether the rank is in the middle of a PMI request: it waits, or has not read the reply yet.
    pub fn awaits_pmi(&self) -> bool {
        let mut unread: libc::c_int = 0;
        if let Some(fd) = &self.pmi {
            // SAFETY: TIOCOUTQ (SIOCOUTQ) writes one int, the bytes that the peer has not read;
            // `unread` lives through the call.
            unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut unread) };
        }
        self.session.waits() || unread > 0
    }

    /// Whether the image is to be self-contained, if it was asked for and the rank has not stood
    /// still for it yet.
    pub fn asked_for(&self, image: ImageId) -> Option<bool> {
        let capture = self.capture.as_ref().filter(|c| c.image == image)?;
        match capture.phase {
            CapturePhase::Asked { self_contained, .. } => Some(self_contained),
            CapturePhase::Uploading(_) => None,
        }
    }

    /// Makes the rank stand still for this share of time, in percent. A rank that cannot be slowed
    /// runs on: the last round of its move takes longer.
    pub fn slow(&mut self, share: u8) {
        match (&self.slowed, share) {
            (_, 0) => self.slowed = None,
            (Some(slowed), _) => slowed.set(share),
            (None, _) => {
                self.slowed = self.mpi_pid.and_then(|pid| Slowed::begin(pid, share).ok());
            }
        }
    }

    /// The provider has been loaded by this process.
    pub fn provider_loaded_by(&mut self, pid: u32) {
        self.mpi_pid = Some(pid);
        self.death = Death::Unknown;
        let wrapped = (pid != self.pid).then(|| Pid::from_raw(pid as i32)).flatten();
        // Without the descriptor only the wrapper's exit code says how the process ended.
        self.watch = wrapped.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    }

    /// Finds out how the process behind a wrapper has ended, when it has.
    pub fn learn_death(&mut self) {
        if let (Some(mpi_pid), Some(watch), Death::Unknown) =
            (self.mpi_pid, &self.watch, self.death)
        {
            self.death = death_of(mpi_pid, watch.as_fd());
        }
    }

    /// How the rank ended, given how its process ended: the exit code of a wrapper may encode the
    /// signal that killed the process behind it.
    pub fn ending_of(&mut self, ending: Ending) -> Ending {
        self.learn_death();
        let wrapped = self.mpi_pid.is_some_and(|mpi_pid| mpi_pid != self.pid);
        let guess = wrapped && self.death == Death::Unknown && !self.session.finalized();
        match (ending, self.death) {
            (_, Death::Killed(signal)) => Ending::Signal(signal),
            // The code of a shell, and that of Python's sys.exit with subprocess's return code.
            (Ending::Code(code @ 129..=192), _) if guess => Ending::Signal(code - 128),
            (Ending::Code(code @ 193..=255), _) if guess => Ending::Signal(256 - code),
            // No process has loaded the provider yet: only a wrapper ends with the codes of
            // SIGKILL.
            (Ending::Code(137 | 247), _) if self.mpi_pid.is_none() => Ending::Signal(libc::SIGKILL),
            _ => ending,
        }
    }

    /// How far the rank has come with MPI. Some libraries report by PMI that they are through only
    /// when the program calls exit(3). A program that ends by _exit(2) or executes another one
    /// never does; its closed endpoint says the same.
    pub fn stage(&self) -> MpiStage {
        match self.page.endpoint() {
            _ if self.session.finalized() => MpiStage::After,
            Endpoint::Closed => MpiStage::After,
            Endpoint::Open => MpiStage::Within,
            Endpoint::None if self.session.has_asked() || self.session.barriers_passed() > 0 => {
                MpiStage::Within
            }
            Endpoint::None => MpiStage::Before,
        }
    }

    /// What accompanies an image of this moment.
    pub fn meta(&self, Position { clock, rsn, observed }: Position) -> ImageMeta {
        ImageMeta {
            incarnation: self.instance.incarnation,
            clock,
            rsn,
            observed,
            stream_offsets: [
                self.stdin.as_ref().map_or(0, Input::consumed),
                self.stdout.offset(),
                self.stderr.offset(),
            ],
            barriers: self.session.barriers_passed(),
            shared: self.shared.iter().cloned().collect(),
            file_bytes: None,
        }
    }

    /// Gives the rank a directory, unless it has one with that epoch or a higher one.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn hand_directory(&self, epoch: u64, directory: &[u8]) -> std::io::Result<()> {
        launch::hand_directory((&self.page, &self.directories), epoch, directory)
    }

    /// Passes output to the controller; all that is there with `beyond_window`.
    pub fn pass_output(&mut self, connection: &mut Connection, beyond_window: bool) {
        let instance = self.instance;
        let dead = self.ending.is_some();
        for (stream, output) in
            [(StandardStream::Stdout, &mut self.stdout), (StandardStream::Stderr, &mut self.stderr)]
        {
            for (offset, bytes) in output.take(beyond_window, dead) {
                connection.send(&FromAgent::Output { instance, stream, offset, bytes });
            }
        }
    }

    /// Passes standard input to the rank, and asks for more where there is room again.
    pub fn pass_input(&mut self, connection: &mut Connection) {
        let Some(input) = &mut self.stdin else { return };
        if input.push() {
            let offset = input.wanted_from();
            connection.report(self.instance, RankReport::StdinWanted { offset });
        }
    }

    /// Sends a message to the rank, with the descriptors that go along.
    ///
    /// # Errors
    /// When the rank's channel is closed, or has no room at present.
    pub fn send(&self, message: ToRank, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        channel::send(self.channel.as_ref().ok_or(Errno::PIPE)?, message, fds)
    }

    /// Kills the process and all that it started.
    pub fn kill(&self) {
        if self.ending.is_none() {
            kill_group(self.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::auth::Secret;
    use eyrie_wire::{Incarnation, Rank};
    use rustix::pipe::{pipe_with, PipeFlags};

    fn launched() -> Launched {
        let pipe = || pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let (peek, stdin) = pipe();
        Launched {
            pid: 1,
            page: Page::create(&Secret([7; 32]), 1).unwrap(),
            directories: Directories::create(&[]).unwrap(),
            channel: pipe().0,
            pmi: pipe().0,
            session: Session::new(Rank(3), 4, "k".into()),
            stdout: Output::new(pipe().0),
            stderr: Output::new(pipe().0),
            stdin: Some(Input::new(stdin, peek)),
            restorer_stderr: None,
        }
    }

    #[test]
    fn the_next_image_says_all_that_an_image_has_said() {
        let meta = ImageMeta {
            incarnation: Incarnation(2),
            clock: 11,
            rsn: 12,
            observed: 17,
            stream_offsets: [13, 14, 15],
            barriers: 16,
            shared: vec!["/dev/shm/a".into(), "/dev/shm/b".into()],
            file_bytes: None,
        };
        for meta in [ImageMeta::default(), meta] {
            let instance = RankInstance { rank: Rank(3), incarnation: meta.incarnation };
            let process = Process::new(instance, launched(), &meta);
            let ImageMeta { clock, rsn, observed, .. } = meta;
            assert_eq!(process.meta(Position { clock, rsn, observed }), meta);
        }
    }
}
