//! PMI requests of ranks: reads and answers them. What needs more than an answer is for the caller:
//! nothing here reads what ranks send over their channels.

use crate::controller::connection::Connection;
use crate::exchange::Exchange;
use crate::node::Agent;
use crate::rank::mapped;
use crate::rank::pmi::Effect;
use crate::rank::process::Process;
use eyrie_wire::control::{FromAgent, RankReport};
use eyrie_wire::RankInstance;
use std::collections::BTreeMap;

/// What a request calls for beyond its answer.
pub enum Wanted {
    /// The rank waits at this barrier (from 1).
    Barrier(u32),
    /// The rank is through with MPI.
    Finalized,
    /// The job is to end with this code.
    Abort { code: i32 },
}

/// Reads and answers the requests of ranks.
pub struct Requests<'a> {
    processes: &'a mut BTreeMap<RankInstance, Process>,
    exchange: &'a mut Exchange,
    connection: &'a mut Connection,
}

impl Agent {
    pub fn requests(&mut self) -> Requests<'_> {
        let Agent { processes, exchange, connection, .. } = self;
        Requests { processes, exchange, connection }
    }
}

impl Requests<'_> {
    /// Reads what the rank has sent. [`Requests::next`] handles it.
    pub fn read(&mut self, instance: RankInstance) {
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
    }

    /// Answers the next request that has been read; returns what else it calls for. `None`: there
    /// is no other request.
    pub fn next(&mut self, instance: RankInstance) -> Option<Wanted> {
        loop {
            let p = self.processes.get_mut(&instance)?;
            let (reply, effect) = p.session.next(self.exchange.entries())?;
            // Of many ranks each asks for what every other one has put: there a segment is known
            // already, by its maker, who notes it before it puts its name.
            if effect != Effect::None {
                self.note_segments(instance);
            }
            self.reply(instance, &reply);
            match effect {
                Effect::None => {}
                Effect::Put { key, value } => {
                    self.exchange.put(instance.rank, key.clone(), value.clone());
                    self.connection.report(instance, RankReport::PmiPut { key, value });
                }
                Effect::Refused(what) => {
                    let text = format!("rank {}: {what}", instance.rank);
                    self.connection.send(&FromAgent::Note { text });
                }
                Effect::Barrier(barrier) => return Some(Wanted::Barrier(barrier)),
                Effect::Finalized => return Some(Wanted::Finalized),
                Effect::Abort { code } => return Some(Wanted::Abort { code }),
            }
        }
    }

    fn reply(&mut self, instance: RankInstance, reply: &str) {
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

    pub fn release(&mut self, instance: RankInstance) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        if let Some(reply) = p.session.release(self.exchange.barriers()) {
            self.reply(instance, &reply);
        }
    }

    /// Reports the rank's segments in /dev/shm that are not known yet.
    fn note_segments(&mut self, instance: RankInstance) {
        let Some(p) = self.processes.get_mut(&instance) else { return };
        let Some(pid) = p.mpi_pid else { return };
        for path in mapped::segments(pid) {
            if p.shared.insert(path.clone()) {
                self.connection.send(&FromAgent::Shared { rank: instance.rank, path });
            }
        }
    }
}

/// The process that sends PMI requests: the rank's, or a child of it when that is a wrapper
/// script.
pub fn pmi_peer(p: &Process) -> u32 {
    if mapped::mpi_library(p.pid).is_some() {
        return p.pid;
    }
    eyrie_proc::descendants(p.pid)
        .into_iter()
        .find(|pid| mapped::mpi_library(*pid).is_some())
        .unwrap_or(p.pid)
}
