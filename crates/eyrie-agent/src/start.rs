//! Starts ranks: programs anew, and processes from images that come from the store.

use crate::capture::image_pipe;
use crate::family::{can_be_collected, is_ending};
use crate::launch::{launch, From, Launched};
use crate::node::{Agent, Done, Opened};
use crate::prepare::InPlace;
use crate::process::{Process, Restore};
use crate::refusal::Refusal;
use crate::transfer::Uploaded;
use crate::{guards, shared, transfer};
use anyhow::Context;
use eyrie_wire::addr::Addr;
use eyrie_wire::control::{FromAgent, ImageAt, ImageMeta, RankReport, StartFault, StartRank};
use eyrie_wire::{ImageId, RankInstance};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process that has closed its descriptors may take to end.
const WRITER_ENDS: Duration = Duration::from_millis(500);

impl Agent {
    pub fn start(&mut self, start: Box<StartRank>) {
        shared::remove(&start.leftovers);
        tracing::info!(instance = %start.instance, image = ?start.image, "starting");
        let Some(ImageAt { image, ref store }) = start.image else {
            return self.launch(start, ImageMeta::default(), None);
        };
        let addr = match store.reached_at() {
            Ok(addr) => addr.clone(),
            Err(reason) => return self.start_failed(start.instance, reason, StartFault::Attempt),
        };
        let in_place = match self.is_in_place(&start) {
            InPlace::Later => return self.start_later(start),
            InPlace::Image(image) => image,
        };
        let secret = self.secret.clone();
        let since = Instant::now();
        self.in_background(move || {
            let result = transfer::open(&addr, &secret, start.instance.rank, image, in_place);
            Done::Opened { start, since, in_place, result }
        });
    }

    /// Starts the process; from an image when its stream is given. `meta`: what the image says.
    pub fn launch(
        &mut self,
        start: Box<StartRank>,
        meta: ImageMeta,
        image: Option<(eyrie_transport::Stream, Instant)>,
    ) {
        let instance = start.instance;
        if self.killed.remove(&instance) {
            let reason = "killed before it was started".to_string();
            return self.start_failed(instance, reason, StartFault::Killed(libc::SIGKILL));
        }
        let launched = match image {
            None => self.launch_from(&start, From::Program).map(|l| (l, None)),
            Some((stream, since)) => self.launch_image(&start, stream, since),
        };
        if let Some(text) = guards::note() {
            self.connection.send(&FromAgent::Note { text });
        }
        match launched {
            Ok((launched, restore)) => {
                if let Some(sweeper) = &mut self.sweeper {
                    sweeper.started(launched.pid);
                }
                let mut process = Process::new(instance, launched, &meta);
                process.signals_until = (!start.signals.is_empty()).then(Instant::now);
                process.restore = restore;
                let path = shared::predicted_segment(process.session.kvsname(), instance.rank);
                if process.shared.insert(path.clone()) {
                    self.connection.send(&FromAgent::Shared { rank: instance.rank, path });
                }
                if process.restore.is_none() {
                    self.connection.report(
                        instance,
                        RankReport::Started { fetched: Duration::ZERO, restored: Duration::ZERO },
                    );
                }
                if let Some(input) = &process.stdin {
                    self.connection
                        .report(instance, RankReport::StdinWanted { offset: input.wanted_from() });
                }
                self.processes.insert(instance, process);
            }
            Err(e) => self.start_failed(instance, format!("{e:#}"), StartFault::Attempt),
        }
    }

    pub fn launch_image(
        &mut self,
        start: &StartRank,
        stream: eyrie_transport::Stream,
        since: Instant,
    ) -> anyhow::Result<(Launched, Option<Restore>)> {
        let image = start.image.as_ref().map_or(0, |at| at.image);
        let (mut launched, image_in) = match self.take_incoming(start) {
            Some((launched, into)) => {
                let (epoch, directory) = self.newest_directory()?;
                launched.hand_directory(epoch, directory)?;
                launched.page.set_signals(&start.signals);
                (launched, into)
            }
            None => {
                let (image_out, image_in) = image_pipe()?;
                let held = self.holds.displaced(start.instance.rank, image);
                let from = From::Image { stream: image_out, held };
                (self.launch_from(start, from)?, image_in)
            }
        };
        let instance = start.instance;
        self.in_background(move || Done::Fed {
            instance,
            result: transfer::feed(stream, image_in),
        });
        let stderr = launched.restorer_stderr.take();
        Ok((launched, Some(Restore { image, started: since, fetched: None, stderr })))
    }

    /// Starts the process with the newest directory that this node has.
    pub fn launch_from(&self, start: &StartRank, from: From) -> anyhow::Result<Launched> {
        let job = self.job.as_ref().context("the controller has not said what the job is")?;
        let directory = self.newest_directory()?;
        launch(job, start, from, directory, &self.secret, self.open_files)
    }

    /// The newest directory, and its epoch.
    fn newest_directory(&self) -> anyhow::Result<(u64, &[u8])> {
        let newest = self.directory.as_ref().map(|(epoch, directory)| (*epoch, &directory[..]));
        newest.context("the controller has not said where the routers are")
    }

    pub fn start_failed(&mut self, instance: RankInstance, reason: String, fault: StartFault) {
        tracing::info!(%instance, reason, "not started");
        self.connection.report(instance, RankReport::StartFailed { reason, fault });
    }

    pub fn in_background(&self, work: impl FnOnce() -> Done + Send + 'static) {
        let (done, waker) = (self.done.0.clone(), Arc::clone(&self.waker));
        std::thread::spawn(move || {
            // Both fail only when the agent ends.
            let _ = done.send(work());
            let _ = (&*waker).write_all(&[1]);
        });
    }

    /// An image was opened for a fetch, or could not be.
    pub fn opened(
        &mut self,
        start: Box<StartRank>,
        (since, in_place): (Instant, ImageId),
        result: Opened,
    ) {
        match result {
            Ok(_) if in_place != 0 && !self.incoming.contains_key(&start.instance) => {
                let reason = "the image that was in place is gone".to_string();
                self.start_failed(start.instance, reason, StartFault::Attempt);
            }
            Ok((stream, meta)) => self.launch(start, meta, Some((stream, since))),
            Err((reason, fault)) => self.start_failed(start.instance, reason, fault),
        }
    }

    /// The restorer has received its image. If it did not receive all of it, it ends and says why.
    pub fn fed(&mut self, instance: RankInstance, result: &std::io::Result<u64>) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        if let (Ok(_), Some(restore)) = (result, &mut p.restore) {
            restore.fetched = Some(restore.started.elapsed());
        }
    }

    /// The stream of an image has ended. If the process that writes it is about to end, waits until
    /// it is known how it ended.
    fn await_writer(&self, instance: RankInstance) {
        let capture = self.processes.get(&instance).and_then(|p| p.capture.as_ref());
        let Some(writer) = capture.and_then(|capture| capture.writer.pid()) else { return };
        let until = Instant::now() + WRITER_ENDS;
        while is_ending(writer) && !can_be_collected(writer) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// An image was uploaded to a store, or not. `output`: bytes of (stdout, stderr) that the rank
    /// had written before it.
    pub fn uploaded(
        &mut self,
        instance: RankInstance,
        image: ImageId,
        output: [u64; 2],
        store: Addr,
        result: anyhow::Result<Uploaded>,
    ) {
        // The rank says why it refuses before its stream ends, and knows better than the store. So
        // does the end of the process that wrote the image.
        self.receive_from_rank(instance);
        if result.is_err() {
            self.await_writer(instance);
            self.reap();
        }
        let Some(p) = self.processes.get_mut(&instance) else { return };
        if p.capture.as_ref().is_none_or(|c| c.image != image) {
            return;
        }
        let killed = p.capture.take().and_then(|capture| capture.writer.killed());
        match (result, killed) {
            (Ok(Uploaded::Stored), _) => self.check_image(instance, (image, store), output),
            (Ok(Uploaded::FullWanted(reason)), _) => self.want_full_image(instance, image, reason),
            // The stream ended with the rank, which says nothing about the image.
            (Err(_), _) if is_ending(p.mpi_pid.unwrap_or(p.pid)) => {
                let reason = "the rank died meanwhile".to_string();
                self.refuse_capture(instance, image, Refusal { reason, passing: true });
            }
            (Err(_), Some(signal)) => {
                let reason = format!(
                    "the process that wrote the image was killed by signal {signal} (perhaps for \
                     lack of memory: see the kernel's log)"
                );
                self.refuse_capture(instance, image, Refusal::lasting(reason));
            }
            (Err(e), None) => {
                self.refuse_capture(instance, image, Refusal::lasting(format!("{e:#}")));
            }
        }
    }
}
