//! One incarnation of a rank on this node: its process, its descriptors, and how far a capture or a
//! restore of it is.

use crate::channel::tell;
use crate::family::{death_of, Death};
use crate::launch::{self, said, Launched};
use crate::page::{Directories, Page};
use crate::pmi::Session;
use crate::slow::Slowed;
use crate::streams::{Input, Output};
use crate::transfer::Line;
use crate::writer::Writer;
use eyrie_image::format::exit;
use eyrie_transport::Addr;
use eyrie_wire::agent::ToRank;
use eyrie_wire::control::{Ending, ImageMeta, MpiStage, StartFault};
use eyrie_wire::page::Endpoint;
use eyrie_wire::{ImageId, RankInstance};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How far a rank has come, as it says itself.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Of its progress calls.
    pub clock: u64,
    /// Receive sequence number of the last message.
    pub rsn: u64,
    /// Bytes that it has observed besides messages.
    pub observed: u64,
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
    /// The rank was asked; the stream will come out of `stream`, and goes to `store`. Unless the
    /// rank stands still until `again`, it is asked for the second time; at `look` it is looked
    /// whether it ever will, by the processor time that it had `used`; at `until` it is refused.
    Asked {
        stream: OwnedFd,
        store: Addr,
        again: Option<Instant>,
        look: Instant,
        until: Instant,
        used: Duration,
    },
    /// The rank stood still and was let go; the upload runs on its own thread.
    Uploading(Line),
}

/// A restore under way: from the restorer's start until the rank speaks.
#[derive(Debug)]
pub struct Restore {
    pub image: ImageId,
    pub started: Instant,
    pub fetched: Option<Duration>,
    /// Where the restorer says why it failed.
    pub stderr: Option<OwnedFd>,
}

impl Restore {
    /// What the restorer has said so far, line by line.
    pub fn said(&self) -> Vec<String> {
        self.stderr.as_ref().map(said).unwrap_or_default()
    }

    /// Why there is no restored process, and what is at fault; `said` is what the rank itself wrote
    /// last to its standard error.
    pub fn failure(&self, ending: Ending, said: Option<String>) -> (String, StartFault) {
        let said = said.map_or(String::new(), |line| format!("; its last words: {line}"));
        let reason = self.said().pop().unwrap_or_else(|| match ending {
            Ending::Signal(signal) => {
                format!("killed by signal {signal} while it was restored{said}")
            }
            Ending::Code(code) => format!("the restorer ended with code {code}"),
        });
        let fault = match ending {
            Ending::Signal(signal) => StartFault::Killed(signal),
            // The store verifies images: one that ends early was cut off on its way.
            Ending::Code(exit::FILE | exit::MALFORMED) => StartFault::Image,
            Ending::Code(_) => StartFault::Attempt,
        };
        (reason, fault)
    }
}

pub struct Process {
    pub instance: RankInstance,
    /// Shared with the rank: what it did last.
    pub page: Page,
    /// Where it learns who is where.
    directories: Directories,
    pub pid: u32,
    /// The process that takes the capture signal: `pid`, or a child of it when that is a wrapper.
    pub speaker: Option<u32>,
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
    /// The last image that counts for its agent, and the store that has it: the next may build on
    /// it.
    pub base: Option<(ImageId, Addr)>,
    pub restore: Option<Restore>,
    /// While it writes too fast to be moved.
    pub slowed: Option<Slowed>,
    /// How long it has to take signals by itself.
    pub signals_until: Option<Instant>,
    pub shared: BTreeSet<String>,
    /// How it ended; the rest of its output may still be on the way.
    pub ending: Option<Ending>,
}

impl Process {
    /// The one place where what an image says of its rank is taken over, whichever way the process
    /// was started: anew (nothing is said), from an image, or before its image was known. All that
    /// it says stands here ([`Process::meta`] is the way back).
    pub fn new(instance: RankInstance, launched: Launched, meta: &ImageMeta) -> Process {
        // What the rank itself carries: its incarnation is a new one, clock and rsn are in it.
        let ImageMeta { stream_offsets, barriers, shared, .. } = meta;
        let Launched { mut session, mut stdout, mut stderr, mut stdin, .. } = launched;
        session.begins_at(*barriers);
        let [stdin_offset, stdout_offset, stderr_offset] = *stream_offsets;
        stdin.iter_mut().for_each(|stdin| stdin.begins_at(stdin_offset));
        stdout.begins_at(stdout_offset);
        stderr.begins_at(stderr_offset);
        Process {
            instance,
            page: launched.page,
            directories: launched.directories,
            pid: launched.pid,
            speaker: None,
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
            ending: None,
        }
    }

    /// Whether the rank is in the middle of a PMI request: it waits, or has not read the answer
    /// yet.
    pub fn awaits_pmi(&self) -> bool {
        let mut unread: libc::c_int = 0;
        if let Some(fd) = &self.pmi {
            // SAFETY: SIOCOUTQ writes one int: what the other end has not read.
            unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &mut unread) };
        }
        self.session.waits() || unread > 0
    }

    /// Whether this image was asked for, and the rank has not stood still for it yet.
    pub fn is_asked_for(&self, image: ImageId) -> bool {
        self.capture
            .as_ref()
            .is_some_and(|c| c.image == image && matches!(c.phase, CapturePhase::Asked { .. }))
    }

    /// It is to stand still for this share of time, in percent. One that cannot be watched runs on
    /// as it is: its last round is longer.
    pub fn slow(&mut self, share: u8) {
        match (&self.slowed, share) {
            (_, 0) => self.slowed = None,
            (Some(slowed), _) => slowed.set(share),
            (None, _) => {
                self.slowed = self.speaker.and_then(|pid| Slowed::begin(pid, share).ok());
            }
        }
    }

    /// The provider has been loaded by this process.
    pub fn spoken_by(&mut self, pid: u32) {
        self.speaker = Some(pid);
        self.death = Death::Unknown;
        let wrapped = (pid != self.pid).then(|| Pid::from_raw(pid as i32)).flatten();
        // Without the descriptor the wrapper's exit code must tell.
        self.watch = wrapped.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    }

    /// Looks how the process behind a wrapper has ended, when it has.
    pub fn learn_death(&mut self) {
        if let (Some(speaker), Some(watch), Death::Unknown) =
            (self.speaker, &self.watch, self.death)
        {
            self.death = death_of(speaker, watch.as_fd());
        }
    }

    /// How the rank ended, when its process ended like this: a wrapper tells of the signal that
    /// killed the process behind it by its exit code.
    pub fn ending_of(&mut self, ending: Ending) -> Ending {
        self.learn_death();
        let wrapped = self.speaker.is_some_and(|speaker| speaker != self.pid);
        let guess = wrapped && self.death == Death::Unknown && !self.session.finalized();
        match (ending, self.death) {
            (_, Death::Killed(signal)) => Ending::Signal(signal),
            // As a shell says it, and as Python's sys.exit does with subprocess's return code.
            (Ending::Code(code @ 129..=192), _) if guess => Ending::Signal(code - 128),
            (Ending::Code(code @ 193..=255), _) if guess => Ending::Signal(256 - code),
            // Nothing has come through the provider yet: nobody but a wrapper ends with the codes
            // of SIGKILL.
            (Ending::Code(137 | 247), _) if self.speaker.is_none() => Ending::Signal(libc::SIGKILL),
            _ => ending,
        }
    }

    /// How far it has come with MPI. Some libraries say by PMI that they are through only when the
    /// program calls exit(3), which one that ends by _exit(2) or executes another program never
    /// does: the end of the endpoint says it, too.
    pub fn stage(&self) -> MpiStage {
        match self.page.endpoint() {
            _ if self.session.finalized() => MpiStage::After,
            Endpoint::Closed => MpiStage::After,
            Endpoint::Open => MpiStage::Within,
            Endpoint::None if self.session.spoke() || self.session.barriers_passed() > 0 => {
                MpiStage::Within
            }
            Endpoint::None => MpiStage::Before,
        }
    }

    /// What an image of this moment must be accompanied by.
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
        }
    }

    /// Hands the rank a directory, unless it has one with that epoch or a higher one.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn hand_directory(&self, epoch: u64, directory: &[u8]) -> std::io::Result<()> {
        launch::hand_directory((&self.page, &self.directories), epoch, directory)
    }

    /// Sends a message to the rank, with the descriptors that go along.
    ///
    /// # Errors
    /// When the rank does not take it at once.
    pub fn tell(&self, message: ToRank, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        tell(self.channel.as_ref().ok_or(Errno::PIPE)?, message, fds)
    }

    /// Kills the process and all that it started.
    pub fn kill(&self) {
        if self.ending.is_none() {
            kill_group(self.pid);
        }
    }
}

/// Kills a process group with SIGKILL.
pub fn kill_group(leader: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(leader as i32) {
        // It may just have ended.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::auth::Secret;
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
            session: Session::new(3, 4, "k".into()),
            stdout: Output::new(pipe().0),
            stderr: Output::new(pipe().0),
            stdin: Some(Input::new(stdin, peek)),
            restorer_stderr: None,
        }
    }

    #[test]
    fn all_that_an_image_says_is_said_by_the_next_one_as_well() {
        let said = ImageMeta {
            incarnation: 2,
            clock: 11,
            rsn: 12,
            observed: 17,
            stream_offsets: [13, 14, 15],
            barriers: 16,
            shared: vec!["/dev/shm/a".into(), "/dev/shm/b".into()],
        };
        for meta in [ImageMeta::default(), said] {
            let instance = RankInstance { rank: 3, incarnation: meta.incarnation };
            let process = Process::new(instance, launched(), &meta);
            let ImageMeta { clock, rsn, observed, .. } = meta;
            assert_eq!(process.meta(Position { clock, rsn, observed }), meta);
        }
    }
}
