//! The thread that owns the ledgers: it gives the core what happens, and carries out what the core
//! asks. It must never wait for a rank, nor for the end of a process.

use crate::core::{ConnId, Core, Output, Store};
use crate::files::{Files, Mapping};
use crate::mailbox::{Input, Mailbox};
use crate::process::Process;
use crate::saved;
use crate::spill_files::SpillFiles;
use crossbeam_channel::Sender;
use eyrie_ledger::mapped::Mapped;
use eyrie_router::{RouterCommand, RouterEvent, SavedAt};
use eyrie_transport::Stream;
use eyrie_wire::keeper::{FromKeeper, Ledgers};
use eyrie_wire::{Rank, RankInstance, RouterId};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process that was killed may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of the memory that may be used, ledgers leave this share, and at most so many bytes: they may
/// grow between two looks at it.
const RESERVE: u64 = 16;
const MOST_RESERVED: u64 = 512 << 20;

/// A connection of a rank.
struct Conn {
    rank: Rank,
    stream: Stream,
    /// The process at its other end, until the core has taken the connection.
    process: Option<Process>,
}

/// A process that was killed and has not ended.
struct Ending {
    rank: Rank,
    process: Process,
    /// Why it could not be killed.
    failed: Option<String>,
    since: Instant,
}

/// The connections and processes, which the core's output goes to.
struct Edges {
    id: RouterId,
    events: Sender<(RouterId, RouterEvent)>,
    files: Files,
    ledgers: Ledgers,
    spilled: SpillFiles,
    /// Bytes of memory that ledgers leave.
    reserve: u64,
    conns: HashMap<ConnId, Conn>,
    /// The process of each rank.
    processes: HashMap<Rank, Process>,
    ending: Vec<Ending>,
}

/// The thread's state. The core is dropped before the mapping that it uses.
pub struct Owner {
    core: Core<Mapped>,
    edges: Edges,
    mailbox: Arc<Mailbox>,
    begun: Instant,
    _mapping: Mapping,
}

impl Owner {
    /// `core`: over the regions of `mapping`, which maps the ledgers of `files`. `spilled`: what
    /// it has taken out of them.
    pub fn new(
        (core, mapping): (Core<Mapped>, Mapping),
        (files, ledgers, spilled): (Files, Ledgers, SpillFiles),
        mailbox: Arc<Mailbox>,
        (id, events): (RouterId, Sender<(RouterId, RouterEvent)>),
    ) -> Owner {
        let conns = HashMap::new();
        let processes = HashMap::new();
        let ending = Vec::new();
        let reserve = (eyrie_proc::memory::allowed() / RESERVE).min(MOST_RESERVED);
        let edges =
            Edges { id, events, files, ledgers, spilled, reserve, conns, processes, ending };
        Owner { core, edges, mailbox, begun: Instant::now(), _mapping: mapping }
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut ticked = Instant::now();
        let mut more = false;
        loop {
            let pause = self.core.pause();
            let most = if more { Duration::ZERO } else { pause.saturating_sub(ticked.elapsed()) };
            if let Err(e) = self.wait(most) {
                self.edges.event(RouterEvent::Fatal { reason: e.to_string() });
                break;
            }
            let inputs = self.mailbox.take();
            if inputs.into_iter().any(|input| self.handle(input)) {
                break;
            }
            self.handle_endings();
            more = self.core.relieve(&mut self.edges);
            if ticked.elapsed() >= pause {
                ticked = Instant::now();
                self.core.tick(self.begun.elapsed(), &mut self.edges);
            }
        }
        self.mailbox.end();
        for conn in self.edges.conns.values() {
            // It may have ended.
            let _ = conn.stream.shutdown(Shutdown::Both);
        }
    }

    /// Waits for an input, or the end of a process.
    fn wait(&self, most: Duration) -> io::Result<()> {
        let ending = self.edges.ending.iter().map(|ending| ending.process.as_fd());
        let fds = std::iter::once(self.mailbox.as_fd()).chain(ending);
        let mut polled: Vec<_> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = most.try_into().map_err(io::Error::other)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Handles an input. True: stop.
    fn handle(&mut self, input: Input) -> bool {
        let Owner { core, edges, .. } = self;
        match input {
            Input::Stop => return true,
            Input::Command(RouterCommand::Save(at)) => {
                let saved = save(core, &edges.spilled, &at);
                edges.event(RouterEvent::Saved(saved));
            }
            Input::Command(command) => core.command(command, edges),
            Input::Admit(instance, answer) => {
                // The connection may have ended.
                let _ = answer.send(core.admit(instance));
            }
            Input::Connected { id, instance, stream, process } => {
                self.connected(id, instance, stream, process);
            }
            Input::Message(id, message) => {
                if let Some(rank) = edges.conns.get(&id).map(|conn| conn.rank) {
                    core.message(id, rank, message, edges);
                }
            }
            Input::Disconnected(id) => {
                if let Some(conn) = edges.conns.remove(&id) {
                    core.disconnected(id, conn.rank, edges);
                }
            }
            Input::Found(event) => edges.event(event),
        }
        false
    }

    fn connected(&mut self, id: ConnId, instance: RankInstance, stream: Stream, process: Process) {
        let Owner { core, edges, .. } = self;
        let number = process.pid;
        tracing::info!(conn = id, %instance, number, "connected");
        edges.conns.insert(id, Conn { rank: instance.rank, stream, process: Some(process) });
        core.connected(id, instance, number, edges);
    }

    /// Gives the core the ends of processes that it has asked for.
    fn handle_endings(&mut self) {
        let Owner { core, edges, .. } = self;
        let mut over = Vec::new();
        edges.ending.retain(|ending| {
            let ended = ending.process.has_ended();
            let late = ending.since.elapsed() >= PATIENCE;
            if ended {
                over.push((ending.rank, Ok(())));
            } else if late {
                over.push((ending.rank, Err(ending.reason())));
            }
            !ended && !late
        });
        for (rank, result) in over {
            // Where several incarnations have to end, the last one's end counts.
            if result.is_err() || !edges.ending.iter().any(|ending| ending.rank == rank) {
                core.ended(rank, result, edges);
            }
        }
    }
}

impl Ending {
    /// Why the job cannot go on.
    fn reason(&self) -> String {
        let why = self.failed.as_ref().map_or(String::new(), |e| format!(" ({e})"));
        format!(
            "process {} of rank {} was killed and has not ended within {} s{why}: two processes \
             would write one ledger",
            self.process.pid,
            self.rank,
            PATIENCE.as_secs()
        )
    }
}

/// Saves the ledgers.
fn save(core: &Core<Mapped>, spilled: &SpillFiles, at: &SavedAt) -> Result<u64, String> {
    match at {
        SavedAt::File(path) => {
            saved::write(path, |mut to| core.save(spilled, &mut to)).map_err(|e| e.to_string())
        }
        SavedAt::Controller(_) => {
            Err("ledgers are of one host, and are saved to a file there: jobs of several hosts \
                 have routers"
                .into())
        }
    }
}

impl Edges {
    /// Sends the ledgers, and where spilled messages are in the rank's file: the message, and with
    /// its first byte the descriptors.
    fn send_ledgers(&self, conn: &Conn, (begin, end): (u64, u64)) -> io::Result<()> {
        let spilled = if end > begin { self.spilled.readable(conn.rank)? } else { None };
        let message =
            FromKeeper::Admitted { ledgers: self.ledgers, spilled_begin: begin, spilled_end: end };
        let mut bytes = postcard::to_extend(&message, vec![0; 4]).map_err(io::Error::other)?;
        let len = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        let Files { readable, writable, bells } = &self.files;
        let descriptors = [readable, writable, bells].into_iter().chain(&spilled);
        let descriptors: Vec<_> = descriptors.map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        // Nothing else was sent, so there is room for all of it.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let slices = [IoSlice::new(&bytes)];
        let sent = rustix::net::sendmsg(&conn.stream, &slices, &mut ancillary, flags)?;
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }
}

impl Store for Edges {
    fn write(&mut self, rank: Rank, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.spilled.write(rank, at, bytes)
    }

    fn read(&self, rank: Rank, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.spilled.read(rank, at, to)
    }

    fn free(&mut self, rank: Rank, begin: u64, end: u64) {
        self.spilled.free(rank, begin, end);
    }

    fn truncate(&mut self, rank: Rank, end: u64) {
        self.spilled.truncate(rank, end);
    }
}

impl Output for Edges {
    fn event(&mut self, event: RouterEvent) {
        tracing::debug!(?event);
        // The receiver is gone only while the job ends.
        let _ = self.events.send((self.id, event));
    }

    fn admit(&mut self, id: ConnId, spilled: (u64, u64)) {
        let Some(conn) = self.conns.get(&id) else { return };
        if let Err(e) = self.send_ledgers(conn, spilled) {
            tracing::info!(conn = id, error = %e, "the ledgers could not be sent");
            // Its thread reports the end.
            let _ = conn.stream.shutdown(Shutdown::Both);
        }
    }

    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.remove(&id) {
            // Its thread ends then. The peer may have closed it.
            let _ = conn.stream.shutdown(Shutdown::Both);
        }
    }

    fn adopt(&mut self, id: ConnId, rank: Rank) {
        if let Some(process) = self.conns.get_mut(&id).and_then(|conn| conn.process.take()) {
            self.processes.insert(rank, process);
        }
    }

    fn runs(&self, rank: Rank) -> bool {
        self.processes.get(&rank).is_some_and(|process| !process.has_ended())
    }

    fn memory_left(&self) -> u64 {
        eyrie_proc::memory::left().saturating_sub(self.reserve)
    }

    fn end(&mut self, rank: Rank) {
        let Some(process) = self.processes.remove(&rank) else { return };
        let failed = process.kill().err().map(|e| e.to_string());
        self.ending.push(Ending { rank, process, failed, since: Instant::now() });
    }
}
