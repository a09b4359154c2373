//! PMI requests of ranks, and whether their MPI library uses our provider.

use crate::mpi;
use crate::node::Agent;
use crate::pmi::Effect;
use crate::process::Process;
use crate::shared;
use eyrie_wire::control::{FromAgent, RankReport};
use eyrie_wire::RankInstance;
use std::path::Path;

impl Agent {
    pub fn serve_pmi(&mut self, instance: RankInstance) {
        let mut bytes = [0; 4096];
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let Some(fd) = &p.pmi else { return };
        match rustix::io::read(fd, &mut bytes) {
            Ok(0) => p.pmi = None,
            Ok(n) => {
                if let Err(reason) = p.session.receive(&bytes[..n]) {
                    p.pmi = None;
                    self.connection.report(instance, RankReport::Fatal { reason });
                }
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => p.pmi = None,
        }
        while let Some(p) = self.processes.get_mut(&instance) {
            let Some((reply, effect)) = p.session.next(&self.kvs) else { break };
            self.note_segments(instance);
            self.reply(instance, &reply);
            self.pmi_effect(instance, effect);
        }
    }

    pub fn reply(&mut self, instance: RankInstance, reply: &str) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        // A reply fits a socket's buffer, because the rank has one request at a time.
        let sent = p
            .pmi
            .as_ref()
            .map(|fd| rustix::net::send(fd, reply.as_bytes(), rustix::net::SendFlags::NOSIGNAL));
        if matches!(sent, Some(Err(_))) {
            p.pmi = None;
        }
    }

    pub fn pmi_effect(&mut self, instance: RankInstance, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Put { key, value } => {
                self.kvs.put(instance.rank, key.clone(), value.clone());
                self.connection.report(instance, RankReport::PmiPut { key, value });
            }
            Effect::Barrier(barrier) => {
                if self.may_use_provider(instance, barrier) {
                    self.connection.report(instance, RankReport::PmiBarrier { barrier });
                    self.release(instance);
                }
            }
            Effect::Finalized => {
                if self.uses_provider(instance) {
                    self.connection.report(instance, RankReport::PmiFinalized);
                }
            }
            Effect::Abort { code } => {
                // The user is to see the rank's output before the job ends.
                self.pass_output(instance, true);
                self.connection.report(instance, RankReport::PmiAbort { code });
                // MPICH relies on its launcher to kill the rank now: its MPI_Abort returns, and the
                // program would go on until the job has ended.
                if let Some(p) = self.processes.get(&instance) {
                    p.kill();
                }
            }
            Effect::Refused(what) => {
                self.connection
                    .send(&FromAgent::Note { text: format!("rank {}: {what}", instance.rank) });
            }
        }
    }

    pub fn release(&mut self, instance: RankInstance) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        if let Some(reply) = p.session.release(self.barriers) {
            self.reply(instance, &reply);
        }
    }

    /// Whether the rank's MPI library uses our provider, or may do so later: some libraries pass
    /// barriers before they load it.
    fn may_use_provider(&mut self, instance: RankInstance, barrier: u32) -> bool {
        self.receive_from_rank(instance);
        let Some(p) = self.processes.get(&instance) else { return false };
        if p.mpi_pid.is_none() {
            let library = shared::mpi_library(self.pmi_peer(p)).unwrap_or_default();
            if barrier <= mpi::meets_before(Path::new(&library)) {
                return true;
            }
        }
        self.uses_provider(instance)
    }

    /// Whether the rank's MPI library uses our provider. If the provider has not reported by now,
    /// it never will: then the controller learns which library it is. Nothing is known of a process
    /// that was killed since it sent its request; the agent reaps it soon.
    pub fn uses_provider(&mut self, instance: RankInstance) -> bool {
        self.receive_from_rank(instance);
        let Some(p) = self.processes.get(&instance) else { return false };
        if p.mpi_pid.is_some() {
            return true;
        }
        let library = shared::mpi_library(self.pmi_peer(p)).unwrap_or_default();
        if shared::has_ended(p.pid) {
            return false;
        }
        let remedy = mpi::remedy(Path::new(&library));
        self.connection.report(instance, RankReport::NotOurs { library, remedy });
        false
    }

    /// The process that sends PMI requests: the rank's, or a child of it when that is a wrapper
    /// script.
    pub fn pmi_peer(&self, p: &Process) -> u32 {
        if shared::mpi_library(p.pid).is_some() {
            return p.pid;
        }
        crate::family::descendants(p.pid)
            .into_iter()
            .find(|pid| shared::mpi_library(*pid).is_some())
            .unwrap_or(p.pid)
    }

    /// Reports the rank's segments in /dev/shm that are not known yet.
    pub fn note_segments(&mut self, instance: RankInstance) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let Some(pid) = p.mpi_pid else { return };
        for path in shared::segments(pid) {
            if p.shared.insert(path.clone()) {
                self.connection.send(&FromAgent::Shared { rank: instance.rank, path });
            }
        }
    }
}
