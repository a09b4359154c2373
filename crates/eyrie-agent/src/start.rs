//! Starts ranks: programs anew, and processes from images that come from the store.

use crate::background::{Done, Opened};
use crate::images::capture::image_pipe;
use crate::images::prepare::InPlace;
use crate::images::transfer;
use crate::node::Agent;
use crate::rank::guards;
use crate::rank::launch::{From, Launched};
use crate::rank::process::{Process, Restore};
use eyrie_supervision::segments;
use eyrie_wire::control::{FromAgent, ImageAt, ImageMeta, RankReport, StartFault, StartRank};
use eyrie_wire::{ImageId, RankInstance};
use std::time::{Duration, Instant};

impl Agent {
    pub fn start(&mut self, start: Box<StartRank>) {
        segments::remove(&start.leftovers);
        self.sent_signals.learn(&start.signals);
        tracing::info!(instance = %start.instance, image = ?start.image, "starting");
        let Some(ImageAt { image, ref store }) = start.image else {
            return self.launch(start, ImageMeta::default(), None);
        };
        let addr = match store.reached_at() {
            Ok(addr) => addr.clone(),
            Err(reason) => return self.start_failed(start.instance, reason, StartFault::Attempt),
        };
        let in_place = match self.preparations().is_in_place(&start) {
            InPlace::Later => return self.preparations().start_later(start),
            InPlace::Image(image) => image,
        };
        let secret = self.attachment.secret().clone();
        let since = Instant::now();
        self.background.run(move || {
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
            None => self.setup.launch(&start, From::Program).map(|l| (l, None)),
            Some((stream, since)) => {
                self.launch_image(&start, stream, since, meta.file_bytes.is_some())
            }
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
                process.restore = restore;
                let path = segments::predicted_segment(process.session.kvsname(), instance.rank.0);
                process.shared.insert(path);
                // The controller of a job that was saved knows none of them yet.
                for path in process.shared.iter().cloned() {
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
        self_contained: bool,
    ) -> anyhow::Result<(Launched, Option<Restore>)> {
        let image = start.image.as_ref().map_or(ImageId(0), |at| at.image);
        let (mut launched, image_in) = match self.preparations().take(start) {
            Some((launched, into)) => {
                let (epoch, directory) = self.setup.newest_directory()?;
                launched.hand_directory(epoch, directory)?;
                (launched, into)
            }
            None => {
                let (image_out, image_in) = image_pipe()?;
                let held = self.holds.displaced(start.instance.rank, image);
                let from = From::Image { stream: image_out, held };
                (self.setup.launch(start, from)?, image_in)
            }
        };
        let instance = start.instance;
        self.background
            .run(move || Done::Fed { instance, result: transfer::feed(stream, image_in) });
        let stderr = launched.restorer_stderr.take();
        let fetched = None;
        let restore = Restore { image, self_contained, started: since, fetched, stderr };
        Ok((launched, Some(restore)))
    }

    pub fn start_failed(&mut self, instance: RankInstance, reason: String, fault: StartFault) {
        tracing::info!(%instance, reason, "not started");
        self.connection.report(instance, RankReport::StartFailed { reason, fault });
    }

    /// An image was opened for a fetch, or could not be.
    pub fn opened(
        &mut self,
        start: Box<StartRank>,
        (since, in_place): (Instant, ImageId),
        result: Opened,
    ) {
        match result {
            Ok(_) if in_place != ImageId(0) && !self.incoming.contains_key(&start.instance) => {
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
}
