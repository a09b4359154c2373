//! PMI requests of ranks, and whether their MPI library comes through our provider.

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
        // A reply fits a socket's buffer, because the rank asks one thing at a time.
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
                if self.comes_through_us(instance, barrier) {
                    self.connection.report(instance, RankReport::PmiBarrier { barrier });
                    self.release(instance);
                }
            }
            Effect::Finalized => {
                if self.came_through_us(instance) {
                    self.connection.report(instance, RankReport::PmiFinalized);
                }
            }
            Effect::Abort { code } => {
                // What it said before is to be seen before the job ends.
                self.pass_output(instance, true);
                self.connection.report(instance, RankReport::PmiAbort { code });
                // MPICH takes it for granted that its launcher ends it now: its MPI_Abort returns,
                // and the program would go on until the job has ended.
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

    /// Whether the rank's MPI library uses our provider, or may still come to: some libraries meet
    /// before they load it.
    fn comes_through_us(&mut self, instance: RankInstance, barrier: u32) -> bool {
        self.hear(instance);
        let Some(p) = self.processes.get(&instance) else { return false };
        if p.speaker.is_none() {
            let library = shared::mpi_library(self.pmi_peer(p)).unwrap_or_default();
            if barrier <= mpi::meets_before(Path::new(&library)) {
                return true;
            }
        }
        self.came_through_us(instance)
    }

    /// Whether the rank's MPI library uses our provider. Where it has not told so by now, it never
    /// will: then the controller is told what library that is. Of a process that has been killed
    /// since it spoke nothing can be told; its end is about to be heard.
    pub fn came_through_us(&mut self, instance: RankInstance) -> bool {
        self.hear(instance);
        let Some(p) = self.processes.get(&instance) else { return false };
        if p.speaker.is_some() {
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

    /// The process that speaks PMI: the rank's, or a child of it when that is a wrapper script.
    pub fn pmi_peer(&self, p: &Process) -> u32 {
        if shared::mpi_library(p.pid).is_some() {
            return p.pid;
        }
        crate::family::descendants(p.pid)
            .into_iter()
            .find(|pid| shared::mpi_library(*pid).is_some())
            .unwrap_or(p.pid)
    }

    /// Looks for the rank's segments in /dev/shm, until one is known.
    pub fn note_segments(&mut self, instance: RankInstance) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let Some(pid) = p.speaker else { return };
        for path in shared::segments(pid) {
            if p.shared.insert(path.clone()) {
                self.connection.send(&FromAgent::Shared { rank: instance.rank, path });
            }
        }
    }
}
