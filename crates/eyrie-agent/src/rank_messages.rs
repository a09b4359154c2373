//! What ranks send: messages over their channels, and PMI requests. Each may have to wait for what
//! the rank has sent before over the other socket.

use crate::mpi;
use crate::node::Agent;
use crate::rank::mapped;
use crate::rank::process::{CapturePhase, Position, Refusal};
use crate::requests::{pmi_peer, Wanted};
use eyrie_wire::agent::{FromRank, ToRank, MAX_MESSAGE};
use eyrie_wire::control::{FromAgent, Library, RankReport};
use eyrie_wire::{Rank, RankInstance};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// Receives the next message on a channel, without waiting for it. It has 0 bytes when the other
/// end is closed and all messages have been read.
fn receive(channel: &impl AsFd, bytes: &mut [u8; MAX_MESSAGE]) -> rustix::io::Result<usize> {
    loop {
        match rustix::net::recv(channel, &mut bytes[..], RecvFlags::DONTWAIT) {
            // The other end was closed before it had read all of ours. The kernel reports that
            // once, before the messages that are still in the queue.
            Err(Errno::CONNRESET) => {}
            received => return received.map(|(n, _)| n.min(MAX_MESSAGE)),
        }
    }
}

impl Agent {
    pub fn receive_from_rank(&mut self, instance: RankInstance) {
        loop {
            let Some(p) = self.processes.get_mut(&instance) else { return };
            let Some(channel) = &p.channel else { return };
            let mut bytes = [0u8; MAX_MESSAGE];
            let len = match receive(channel, &mut bytes) {
                Ok(0) => {
                    p.channel = None;
                    return;
                }
                Ok(n) => n,
                Err(_) => return,
            };
            // A message that does not decode is dropped: the rank waits with a bound for its
            // answer.
            if let Some(message) = FromRank::decode(&bytes[..len]) {
                self.handle_rank_message(instance, message);
            }
        }
    }

    fn handle_rank_message(&mut self, instance: RankInstance, message: FromRank<'_>) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        match message {
            FromRank::Loaded { pid } => {
                p.provider_loaded_by(pid);
                let restored = p.restore.is_some();
                if !restored && !self.admit(instance, pid) {
                    return;
                }
                let Some(p) = self.processes.get_mut(&instance) else { return };
                if let Some(restore) = p.restore.take() {
                    let self_contained = restore.self_contained;
                    self.holds.take(instance.rank, restore.image, pid, self_contained);
                    self.holds.counts(instance.rank, restore.image);
                    for line in restore.stderr_lines() {
                        self.connection.send(&FromAgent::Note {
                            text: format!("rank {}: {line}", instance.rank),
                        });
                    }
                    let all = restore.started.elapsed();
                    let fetched = restore.fetched.unwrap_or(all);
                    tracing::info!(%instance, ?all, ?fetched, "restored");
                    self.connection
                        .report(instance, RankReport::Started { fetched, restored: all - fetched });
                }
                self.connection.report(instance, RankReport::ProviderLoaded);
            }
            FromRank::Still { image, clock, rsn, observed, far } => {
                self.serve_pmi(instance);
                if let Some(p) = self.processes.get_mut(&instance) {
                    p.pass_output(&mut self.connection, true);
                }
                self.captures().stands_still(
                    instance,
                    image,
                    Position { clock, rsn, observed },
                    far,
                );
            }
            FromRank::Captured { image, child_pid, pause_ns } => {
                if let Some(capture) = p.capture.as_mut().filter(|c| c.image == image) {
                    capture.writer.named(child_pid);
                }
                self.connection.report(
                    instance,
                    RankReport::Captured { image, pause: Duration::from_nanos(pause_ns) },
                );
            }
            FromRank::Refused { image, reason } => {
                let Some(capture) = p.capture.as_ref().filter(|c| c.image == image) else { return };
                // A rank whose reader has left does not know why. The result of the upload says it.
                let broken = std::io::Error::from_raw_os_error(libc::EPIPE).to_string();
                let uploading = matches!(capture.phase, CapturePhase::Uploading(_));
                if !(uploading && reason.contains(&broken)) {
                    p.capture = None;
                    self.captures().refuse(instance, image, Refusal::lasting(reason));
                }
            }
            FromRank::Untracked { reason } => {
                if !std::mem::replace(&mut self.untracked, true) {
                    let text = format!("all images of ranks here are full ones: {reason}");
                    self.connection.send(&FromAgent::Note { text });
                }
            }
            FromRank::Exceeds { registers } => {
                if !std::mem::replace(&mut self.exceeds, true) {
                    let rank = instance.rank;
                    let text = format!(
                        "rank {rank} uses {registers} registers, which --cpu was to keep it from: \
                         images of such ranks are restored only where the CPU has all that this \
                         host's has. The program, or a library of it, was built for them or asks \
                         the processor itself: build it for the level (-march), or hold the \
                         library back by a setting of its own"
                    );
                    self.connection.send(&FromAgent::Note { text });
                }
            }
            FromRank::Library { threads, text } => self.mpi_is_up(instance, threads, text),
            FromRank::Fatal { reason } => {
                let reason = reason.to_string();
                self.send_trace(None, instance);
                self.connection.report(instance, RankReport::Fatal { reason });
            }
        }
    }

    /// Handles the PMI requests of a rank.
    pub fn serve_pmi(&mut self, instance: RankInstance) {
        self.requests().read(instance);
        while let Some(wanted) = self.requests().next(instance) {
            match wanted {
                Wanted::Barrier(barrier) => {
                    if self.may_use_provider(instance, barrier) {
                        self.connection.report(instance, RankReport::PmiBarrier { barrier });
                        self.requests().release(instance);
                    }
                }
                Wanted::Finalized => {
                    if self.uses_provider(instance) {
                        self.connection.report(instance, RankReport::PmiFinalized);
                    }
                }
                Wanted::Abort { code } => {
                    // The user is to see the rank's output before the job ends.
                    let Some(p) = self.processes.get_mut(&instance) else { return };
                    p.pass_output(&mut self.connection, true);
                    self.connection.report(instance, RankReport::PmiAbort { code });
                    // MPICH relies on its launcher to kill the rank now: its MPI_Abort returns, and
                    // the program would go on until the job has ended.
                    p.kill();
                }
            }
        }
    }

    /// Whether the rank's MPI library uses our provider, or may do so later: some libraries pass
    /// barriers before they load it.
    fn may_use_provider(&mut self, instance: RankInstance, barrier: u32) -> bool {
        self.receive_from_rank(instance);
        let Some(p) = self.processes.get(&instance) else { return false };
        if p.mpi_pid.is_none() {
            let library = mapped::mpi_library(pmi_peer(p)).unwrap_or_default();
            if barrier <= mpi::meets_before(Path::new(&library)) {
                return true;
            }
        }
        self.uses_provider(instance)
    }

    /// Whether the rank's MPI library uses our provider. If the provider has not reported by now,
    /// it never will: then the controller learns which library it is. Nothing is known of a process
    /// that was killed since it sent its request; the agent reaps it soon.
    fn uses_provider(&mut self, instance: RankInstance) -> bool {
        self.receive_from_rank(instance);
        let Some(p) = self.processes.get(&instance) else { return false };
        if p.mpi_pid.is_some() {
            return true;
        }
        let library = mapped::mpi_library(pmi_peer(p)).unwrap_or_default();
        if eyrie_supervision::has_ended(p.pid) {
            return false;
        }
        let remedy = mpi::remedy(Path::new(&library));
        self.connection.report(instance, RankReport::NotOurs { library, remedy });
        false
    }

    /// Sends the controller what a rank did last.
    pub fn send_trace(&mut self, request: Option<u64>, instance: RankInstance) {
        let process = self.processes.get(&instance);
        let records = process.map_or(Vec::new(), |p| p.page.trace());
        self.connection.send(&FromAgent::Trace { request, instance, records });
    }

    /// Admits a rank that has loaded the provider: it goes on in its start. It must have asked by
    /// PMI for its rank and the size of the job; with an MPI library that did not, it would compute
    /// alone.
    fn admit(&mut self, instance: RankInstance, pid: u32) -> bool {
        // The rank asked before it loaded the provider, but over another socket.
        self.serve_pmi(instance);
        let Some(p) = self.processes.get_mut(&instance) else { return false };
        if p.session.has_asked() {
            // Where the rank has ended, the agent reaps it.
            return p.send(ToRank::Admitted, &[]).is_ok();
        }
        self.report_alone(instance, pid);
        false
    }

    /// Reports that each rank computes by itself with the MPI library of this process.
    fn report_alone(&mut self, instance: RankInstance, pid: u32) {
        let library = mapped::mpi_library(pid).unwrap_or_default();
        let remedy = mpi::remedy(Path::new(&library));
        self.connection.report(instance, RankReport::Alone { library, remedy });
    }

    /// A rank has returned from MPI_Init. If it shares memory with another rank by now, messages
    /// can bypass the provider, and no log has them.
    fn mpi_is_up(&mut self, instance: RankInstance, threads: u32, text: &str) {
        let (name, version, tested) = mpi::describe(text);
        if let Some((other, path)) = self.shares_memory(instance) {
            let rank = instance.rank;
            let reason = format!(
                "{name} {version} shares memory with rank {other} ({path}): messages of ranks \
                 {rank} and {other} would go round Eyrie's log; unset the settings that ask for \
                 shared memory, or use MPICH 5 (`pip install mpich`)"
            );
            self.connection.report(instance, RankReport::Fatal { reason });
            return;
        }
        let Some(p) = self.processes.get(&instance) else { return };
        if p.session.barriers_passed() == 0 && self.setup.ranks().is_some_and(|ranks| ranks > 1) {
            // It asked for its rank and size, but passed no barrier with other ranks in MPI_Init.
            return self.report_alone(instance, pmi_peer(p));
        }
        let threads = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"].get(threads as usize);
        let threads = threads.map_or("of unknown level".into(), |l| format!("MPI_THREAD_{l}"));
        let library = Library { name, version, tested, threads };
        self.connection.report(instance, RankReport::Library(library));
    }

    /// A rank of this node that has memory in common with this one, and the path of that memory.
    /// The last of the two to return from MPI_Init is compared with the other one, so that each
    /// memory map is read once.
    fn shares_memory(&mut self, instance: RankInstance) -> Option<(Rank, String)> {
        let p = self.processes.get_mut(&instance)?;
        p.common = mapped::common_memory(p.mpi_pid?);
        let ours = &self.processes.get(&instance)?.common;
        let others = self.processes.values().filter(|p| p.instance.rank != instance.rank);
        others
            .into_iter()
            .find_map(|p| Some((p.instance.rank, ours.intersection(&p.common).next()?.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{send, socketpair, AddressFamily, SendFlags, SocketFlags, SocketType};

    #[test]
    fn the_last_message_of_a_rank_that_ends_with_unread_messages_is_received() {
        let family = AddressFamily::UNIX;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        send(&theirs, b"it cannot go on", SendFlags::empty()).unwrap();
        send(&ours, b"the rank never reads this", SendFlags::empty()).unwrap();
        drop(theirs);
        let mut bytes = [0; MAX_MESSAGE];
        let n = receive(&ours, &mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"it cannot go on");
        assert_eq!(receive(&ours, &mut bytes), Ok(0));
    }
}
