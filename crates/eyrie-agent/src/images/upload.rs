//! The end of the upload of an image: the image can count, or the reason why there is none.

use crate::images::transfer::Uploaded;
use crate::images::writer::Failure;
use crate::node::Agent;
use crate::rank::process::Refusal;
use eyrie_supervision::{can_be_collected, is_ending};
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, RankInstance};
use std::time::{Duration, Instant};

/// How long a process that has closed its descriptors may take to end.
const WRITER_ENDS: Duration = Duration::from_millis(500);

impl Agent {
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
        let failure = p.capture.take().and_then(|capture| capture.writer.failure());
        match (result, failure) {
            (Ok(Uploaded::Stored), _) => self.captures().check(instance, (image, store), output),
            (Ok(Uploaded::FullWanted(reason)), _) => {
                self.captures().want_full_image(instance, image, reason)
            }
            // The stream ended with the rank, which says nothing about the image.
            (Err(_), _) if is_ending(p.mpi_pid.unwrap_or(p.pid)) => {
                let reason = "the rank died meanwhile".to_string();
                self.captures().refuse(instance, image, Refusal { reason, passing: true });
            }
            (Err(_), Some(Failure::Killed(signal))) => {
                let reason = format!(
                    "the process that wrote the image was killed by signal {signal} (perhaps for \
                     lack of memory: see the kernel's log)"
                );
                self.captures().refuse(instance, image, Refusal::lasting(reason));
            }
            (Err(_), Some(Failure::LacksMemory)) => {
                let reason = "the program has since kept memory from its children (madvise)".into();
                self.captures().want_full_image(instance, image, reason);
            }
            (Err(e), None) => {
                self.captures().refuse(instance, image, Refusal::lasting(format!("{e:#}")));
            }
        }
    }
}
