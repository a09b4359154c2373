//! Captures of ranks: asked for, waited for, handed to the store, and whether the image can count.

use crate::family::directory_of;
use crate::files::WATCH_EVERY;
use crate::late;
use crate::node::{Agent, Done};
use crate::process::{Capture, CapturePhase, Position, Process};
use crate::refusal::Refusal;
use crate::transfer;
use crate::write_back::FileSystems;
use crate::writer::Writer;
use eyrie_transport::Addr;
use eyrie_wire::agent::{capture_signal, ToRank, FAR};
use eyrie_wire::control::{CheckpointMode, RankReport};
use eyrie_wire::{ImageId, RankInstance};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{Pid, Signal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a rank has to come to the end of a call of its MPI library, where an image is best
/// taken: in between a program may have closed a file that it is about to rename.
const CALL_GRACE: Duration = Duration::from_millis(20);
/// After this time, and again and again, it is looked whether a rank will ever stand still.
const LOOK_AFTER: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a rank that may only be slow has to stand still for a capture.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(600);
/// Wanted size of the pipe that an image goes through, in bytes; the kernel may allow less.
const IMAGE_PIPE: usize = 1 << 20;

impl Agent {
    pub fn capture(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        store: &str,
        (mode, hold): (CheckpointMode, bool),
    ) -> Result<(), Refusal> {
        let store = store.parse().map_err(Refusal::lasting)?;
        let not_now = |reason| move || Refusal { reason: String::from(reason), passing: true };
        let p = self.processes.get_mut(&instance).ok_or_else(not_now("the rank is not here"))?;
        if p.ending.is_some() {
            return Err(not_now("the rank has ended")());
        }
        // The controller has given that one up, with the store that it goes to, perhaps.
        if let Some(Capture { phase: CapturePhase::Uploading(line), .. }) = &p.capture {
            line.give_up();
            p.capture = None;
        }
        if p.capture.is_some() {
            return Err(not_now("another capture of it is under way")());
        }
        let yet = "the rank has not come through the provider yet";
        let speaker = p.speaker.ok_or_else(not_now(yet))?;
        if !catches(speaker, capture_signal()) {
            return Err(not_now("the rank executes another program by now")());
        }
        let (stream, theirs) = image_pipe().map_err(Refusal::lasting)?;
        let sync = hold || mode == CheckpointMode::Sync;
        let base = p.base.as_ref().filter(|(_, at)| *at == store).map_or(0, |(image, _)| *image);
        let order = ToRank::Capture { image, sync, base, hold };
        p.tell(order, &[theirs.as_fd()]).map_err(Refusal::lasting)?;
        ask_for_image(p).map_err(Refusal::lasting)?;
        let now = Instant::now();
        let (again, look) = (Some(now + CALL_GRACE), now + LOOK_AFTER);
        let (until, used) = (now + CAPTURE_TIMEOUT, p.speaker.map(late::used).unwrap_or_default());
        let phase = CapturePhase::Asked { stream, store, again, look, until, used };
        p.capture = Some(Capture { image, phase, writer: Writer::default() });
        Ok(())
    }

    /// A rank that stands still for its move stays. One that does not hears nothing of it.
    pub fn go_on(&mut self, instance: RankInstance, image: ImageId) {
        if let Some(p) = self.processes.get(&instance) {
            // One that is gone is found out by its end.
            let _ = p.tell(ToRank::Go { image }, &[]);
        }
    }

    pub fn refuse_capture(&mut self, instance: RankInstance, image: ImageId, refusal: Refusal) {
        self.holds.drop_image(instance.rank, image);
        let Refusal { reason, passing } = refusal;
        let refused = RankReport::CaptureFailed { image, reason, passing };
        self.connection.report(instance, refused);
    }

    /// Asks ranks for the second time that compute on, and refuses images of those that never stand
    /// still.
    pub fn watch_captures(&mut self) {
        let now = Instant::now();
        for p in self.processes.values_mut() {
            if let Some(Capture { phase: CapturePhase::Asked { again, .. }, .. }) = &mut p.capture {
                if again.is_some_and(|at| at <= now) {
                    *again = None;
                    // It may just have ended.
                    let _ = ask_for_image(p);
                }
            }
        }
        for (instance, image, reason) in self.refusing(now) {
            if let Some(p) = self.processes.get_mut(&instance) {
                p.capture = None;
            }
            self.refuse_capture(instance, image, Refusal::lasting(reason));
        }
    }

    /// The ranks that will not stand still, or have not for too long, with the reasons.
    fn refusing(&mut self, now: Instant) -> Vec<(RankInstance, ImageId, String)> {
        let mut refusing = Vec::new();
        for (instance, p) in &mut self.processes {
            let (Some(pid), Some(capture)) = (p.speaker, &mut p.capture) else { continue };
            let CapturePhase::Asked { look, until, used, .. } = &mut capture.phase else {
                continue;
            };
            if *look > now {
                continue;
            }
            *look = now + LOOK_EVERY;
            let late = *until <= now;
            let waited = if late { CAPTURE_TIMEOUT } else { LOOK_AFTER };
            let obstacle = late::obstacle(pid, *used);
            if late || obstacle.is_some() {
                let why = obstacle.map(|why| format!(": {why}")).unwrap_or_default();
                let waited = eyrie_units::time(waited);
                let reason = format!("it did not stand still within {waited}{why}");
                refusing.push((*instance, capture.image, reason));
            }
        }
        refusing
    }

    /// The rank stands still: fix the position of its streams, let it go, take the image. `far`:
    /// file systems of servers to which it has written.
    pub fn stands_still(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        at: Position,
        far: [u64; FAR],
    ) {
        self.serve_pmi(instance);
        self.pass_output(instance, true);
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let meta = p.meta(at);
        if let (Some(pid), true) = (p.speaker, p.is_asked_for(image)) {
            self.holds.take(instance.rank, image, pid);
        }
        if p.awaits_pmi() {
            // A restored process would wait for an answer that only this one gets.
            p.capture = None;
            let reason = "it waits for PMI, as in MPI_Init and MPI_Finalize".into();
            self.refuse_capture(instance, image, Refusal { reason, passing: true });
        }
        let Some(p) = self.processes.get_mut(&instance) else { return };
        // Also to one whose capture was ended: it finds nobody at the other end of the pipe, and
        // goes on.
        if p.tell(ToRank::Go { image }, &[]).is_err() {
            p.kill();
        }
        match p.capture.take() {
            Some(Capture {
                image: asked,
                phase: CapturePhase::Asked { stream, store, .. },
                ..
            }) if asked == image => {
                let line = transfer::Line::default();
                let phase = CapturePhase::Uploading(line.clone());
                p.capture = Some(Capture { image, phase, writer: Writer::default() });
                let secret = self.secret.clone();
                let output = [meta.stream_offsets[1], meta.stream_offsets[2]];
                let pid = p.speaker.unwrap_or(p.pid);
                self.in_background(move || {
                    let id = (instance, image);
                    let servers = FileSystems::open(pid, &far);
                    let result = transfer::upload(&store, &secret, id, &meta, stream, &line)
                        .and_then(|uploaded| servers?.write_back().map(|()| uploaded));
                    Done::Uploaded { instance, image, output, store, result }
                });
            }
            other => p.capture = other,
        }
    }

    /// The store cannot join an image with the one that it builds on. The next is a full one, since
    /// this one was not stored; it is asked for at once.
    pub fn want_full_image(&mut self, instance: RankInstance, image: ImageId, reason: String) {
        let refusal = Refusal { reason: reason.clone(), passing: true };
        self.refuse_capture(instance, image, refusal);
        self.connection.report(instance, RankReport::ImageWanted { reason });
    }

    /// An image is stored: it may count when the files that it needs can still be found.
    pub fn check_image(
        &mut self,
        instance: RankInstance,
        (image, store): (ImageId, Addr),
        output: [u64; 2],
    ) {
        let message = match self.holds.check(instance.rank, image) {
            Ok(()) => {
                self.holds.counts(instance.rank, image);
                if let Some(p) = self.processes.get_mut(&instance) {
                    p.base = Some((image, store));
                }
                RankReport::ImageUsable { image, output }
            }
            Err(reason) => {
                self.holds.drop_image(instance.rank, image);
                RankReport::ImageUnusable { image, reason }
            }
        };
        self.connection.report(instance, message);
    }

    /// Looks whether the names that the newest images have still lead to their files, and asks for
    /// a new image when one does not: should the node die now, the file might be lost.
    pub fn watch_files(&mut self) {
        let now = Instant::now();
        if now < self.watch_at {
            return;
        }
        self.watch_at = now + WATCH_EVERY;
        for (&instance, p) in &self.processes {
            if p.capture.is_some() || p.ending.is_some() || p.restore.is_some() {
                continue;
            }
            if let Some(path) = self.holds.moved(instance.rank, now) {
                self.connection.report(
                    instance,
                    RankReport::ImageWanted {
                        reason: format!("{} leads to another file by now", path.display()),
                    },
                );
            }
        }
    }
}

/// Sends the signal that asks for an image: the first time the rank takes it at the end of its next
/// call of the MPI library, the second time at once.
fn ask_for_image(p: &Process) -> Result<(), rustix::io::Errno> {
    let speaker =
        p.speaker.and_then(|pid| Pid::from_raw(pid as i32)).ok_or(rustix::io::Errno::SRCH)?;
    // SAFETY: the signal is a valid real-time signal number, used by nothing else in the rank.
    let signal = unsafe { Signal::from_raw_unchecked(capture_signal()) };
    rustix::process::kill_process(speaker, signal)
}

/// Whether a process handles a signal. One that has executed another program since the provider
/// spoke does not handle the one that asks for an image, and would die of it.
pub fn catches(pid: u32, signal: i32) -> bool {
    let status = std::fs::read_to_string(directory_of(pid).join("status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    // Where the kernel does not say it, it is taken for one that does.
    caught.is_none_or(|set| set >> (signal - 1) & 1 == 1)
}

/// A pipe for an image: the reading and the writing end.
pub fn image_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller pipe is slower, not wrong.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, IMAGE_PIPE);
    Ok((out, into))
}
