//! Captures of ranks: the request, the wait, the upload, and whether the image can count.

use crate::background::{Background, Done};
use crate::controller::connection::Connection;
use crate::images::files::{self, Holds, WATCH_EVERY};
use crate::images::transfer;
use crate::images::write_back::FileSystems;
use crate::images::writer::Writer;
use crate::node::Agent;
use crate::rank::obstacle;
use crate::rank::process::{Capture, CaptureOptions, CapturePhase, Position, Process, Refusal};
use eyrie_wire::agent::{capture_signal, ToRank, FAR};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{CheckpointMode, RankReport, StoreAt};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, RankInstance};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a rank has to reach the end of an MPI call, which is the best moment for an image:
/// between calls a program may have closed a file that it is about to rename.
const CALL_GRACE: Duration = Duration::from_millis(20);
/// After this time, and then every `LOOK_EVERY`, the agent checks whether a rank will ever stand
/// still.
const LOOK_AFTER: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a rank that may only be slow has to stand still for a capture.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(600);
/// Wanted size of the pipe that an image goes through, in bytes; the kernel may allow less.
const IMAGE_PIPE: usize = 1 << 20;

/// Takes images of ranks.
pub struct Captures<'a> {
    processes: &'a mut BTreeMap<RankInstance, Process>,
    holds: &'a mut Holds,
    /// When the names of the files that images need are checked next.
    watch_at: &'a mut Instant,
    secret: &'a Secret,
    background: &'a Background,
    connection: &'a mut Connection,
}

impl Agent {
    pub fn captures(&mut self) -> Captures<'_> {
        let Agent { processes, holds, watch_at, attachment, background, connection, .. } = self;
        Captures { processes, holds, watch_at, secret: attachment.secret(), background, connection }
    }
}

impl Captures<'_> {
    /// Asks a rank for an image, which goes to this store.
    ///
    /// # Errors
    /// Why it cannot be asked, or not now.
    pub fn begin(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        store: &StoreAt,
        CaptureOptions { mode, hold, self_contained }: CaptureOptions,
    ) -> Result<(), Refusal> {
        let store = store.reached_at().map_err(Refusal::lasting)?.clone();
        let not_now = |reason| move || Refusal { reason: String::from(reason), passing: true };
        let p = self.processes.get_mut(&instance).ok_or_else(not_now("the rank is not here"))?;
        if p.ending.is_some() {
            return Err(not_now("the rank has ended")());
        }
        // The controller has cancelled that one, perhaps because it lost the store.
        if let Some(Capture { phase: CapturePhase::Uploading(line), .. }) = &p.capture {
            line.give_up();
            p.capture = None;
        }
        if p.capture.is_some() {
            return Err(not_now("another capture of it is under way")());
        }
        let yet = "the rank has not loaded the provider yet";
        let mpi_pid = p.mpi_pid.ok_or_else(not_now(yet))?;
        if !obstacle::catches(mpi_pid, capture_signal()) {
            return Err(not_now("the rank executes another program by now")());
        }
        let (stream, theirs) = image_pipe().map_err(Refusal::lasting)?;
        let sync = hold || mode == CheckpointMode::Sync;
        let base =
            p.base.as_ref().filter(|(_, at)| *at == store).map_or(ImageId(0), |(image, _)| *image);
        let order = ToRank::Capture { image, sync, base, hold, self_contained };
        p.send(order, &[theirs.as_fd()]).map_err(Refusal::lasting)?;
        ask_for_image(p).map_err(Refusal::lasting)?;
        let now = Instant::now();
        let phase = CapturePhase::Asked {
            stream,
            store,
            again: Some(now + CALL_GRACE),
            look: now + LOOK_AFTER,
            until: now + CAPTURE_TIMEOUT,
            used: p.mpi_pid.map(obstacle::used).unwrap_or_default(),
            self_contained,
        };
        p.capture = Some(Capture { image, phase, writer: Writer::default() });
        Ok(())
    }

    /// Lets a rank go on that stands still for its move. A rank that does not ignores it.
    pub fn go_on(&mut self, instance: RankInstance, image: ImageId) {
        if let Some(p) = self.processes.get(&instance) {
            // Where the rank has ended, the agent reaps it.
            let _ = p.send(ToRank::Go { image }, &[]);
        }
    }

    pub fn refuse(&mut self, instance: RankInstance, image: ImageId, refusal: Refusal) {
        self.holds.drop_image(instance.rank, image);
        let Refusal { reason, passing } = refusal;
        let refused = RankReport::CaptureFailed { image, reason, passing };
        self.connection.report(instance, refused);
    }

    /// Asks ranks that compute on for the second time, and refuses the images of ranks that never
    /// stand still.
    pub fn watch(&mut self) {
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
            self.refuse(instance, image, Refusal::lasting(reason));
        }
    }

    /// The ranks that will never stand still, or have not in time, with the reasons.
    fn refusing(&mut self, now: Instant) -> Vec<(RankInstance, ImageId, String)> {
        let mut refusing = Vec::new();
        for (instance, p) in self.processes.iter_mut() {
            let (Some(pid), Some(capture)) = (p.mpi_pid, &mut p.capture) else { continue };
            let CapturePhase::Asked { look, until, used, .. } = &mut capture.phase else {
                continue;
            };
            if *look > now {
                continue;
            }
            *look = now + LOOK_EVERY;
            let late = *until <= now;
            let waited = if late { CAPTURE_TIMEOUT } else { LOOK_AFTER };
            let obstacle = obstacle::of(pid, *used);
            if late || obstacle.is_some() {
                let why = obstacle.map(|why| format!(": {why}")).unwrap_or_default();
                let waited = eyrie_units::time(waited);
                let reason = format!("it did not stand still within {waited}{why}");
                refusing.push((*instance, capture.image, reason));
            }
        }
        refusing
    }

    /// Handles a rank that stands still, when all that it has sent before is handled: notes the
    /// offsets of its streams, lets it go on, and uploads the image. `far`: the file systems of
    /// servers to which it has written.
    pub fn stands_still(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        at: Position,
        far: [u64; FAR],
    ) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let mut meta = p.meta(at);
        if let (Some(pid), Some(self_contained)) = (p.mpi_pid, p.asked_for(image)) {
            self.holds.take(instance.rank, image, pid, self_contained);
            meta.file_bytes = self_contained.then(|| files::carried_bytes(pid));
        }
        if p.awaits_pmi() {
            // A restored process would wait for a reply that only this one gets.
            p.capture = None;
            let reason = "it waits for PMI, as in MPI_Init and MPI_Finalize".into();
            self.refuse(instance, image, Refusal { reason, passing: true });
        }
        let Some(p) = self.processes.get_mut(&instance) else { return };
        // Also when its capture was cancelled: then the rank finds the other end of the pipe closed
        // and goes on.
        if p.send(ToRank::Go { image }, &[]).is_err() {
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
                let pid = p.mpi_pid.unwrap_or(p.pid);
                self.background.run(move || {
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

    /// The store cannot join an image with the one that it builds on. The next image is a full one,
    /// since this one was not stored. It is asked for at once.
    pub fn want_full_image(&mut self, instance: RankInstance, image: ImageId, reason: String) {
        let refusal = Refusal { reason: reason.clone(), passing: true };
        self.refuse(instance, image, refusal);
        self.connection.report(instance, RankReport::ImageWanted { reason });
    }

    /// An image is stored. It can count if the files that it needs can still be found.
    pub fn check(
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

    /// Checks whether the names in the newest images still lead to their files. Where one does not,
    /// the agent asks for a new image: if the node failed now, the file might be lost.
    pub fn watch_files(&mut self) {
        let now = Instant::now();
        if now < *self.watch_at {
            return;
        }
        *self.watch_at = now + WATCH_EVERY;
        for (&instance, p) in self.processes.iter() {
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

/// Sends the signal that asks for an image. The rank handles the first one at the end of its next
/// MPI call, the second one at once.
fn ask_for_image(p: &Process) -> Result<(), rustix::io::Errno> {
    let mpi_pid =
        p.mpi_pid.and_then(|pid| Pid::from_raw(pid as i32)).ok_or(rustix::io::Errno::SRCH)?;
    // SAFETY: the signal is a valid real-time signal number, used by nothing else in the rank.
    let signal = unsafe { Signal::from_raw_unchecked(capture_signal()) };
    rustix::process::kill_process(mpi_pid, signal)
}

/// A pipe for an image: the reading and the writing end.
pub fn image_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller pipe is slower, but works.
    let _ = rustix::pipe::fcntl_setpipe_size(&into, IMAGE_PIPE);
    Ok((out, into))
}
