//! The controller's end of a connection to an agent or to a role in a process of its own. Nothing
//! here waits for the other side: a frozen one must not stop the controller.

use crossbeam_channel::{unbounded, Sender};
use eyrie_transport::session::{Frame, Header, Inbox, Kind, Outbox};
use eyrie_transport::{frame, Stream};
use eyrie_wire::control::ToAgent;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{IpAddr, Shutdown};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Most bytes that wait for an agent that does not read. One that lets more wait is as good as
/// dead: its connection is closed.
const MAX_BACKLOG: usize = 256 << 20;
/// What a message takes while it waits, besides its bytes.
const OVERHEAD: usize = 64;

/// How many links there have been.
static LINKS: AtomicU64 = AtomicU64::new(0);

/// Encodes a message, once for all who get it.
pub fn encode(message: &ToAgent) -> Frame {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, message).expect("the controller's messages are bounded");
    bytes.into()
}

/// Encodes a message to a role, which may be long.
pub fn encode_long(message: &impl Serialize) -> Frame {
    frame::encode_long(message).expect("no message is that long").into()
}

/// The sending half of a connection to an agent or a role. Messages queue while the other side does
/// not read, as far as [`MAX_BACKLOG`].
#[derive(Clone, Debug)]
pub struct Link {
    id: u64,
    queue: Sender<(Header, Frame)>,
    backlog: Arc<AtomicUsize>,
    max_backlog: usize,
    stream: Arc<Stream>,
    /// It has ended because the other host did not answer.
    silent: Arc<AtomicBool>,
}

/// Whether a connection has ended because nothing comes from the other host: it may be that one
/// which is gone, or the way to it.
pub fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), HostUnreachable | NetworkUnreachable | TimedOut)
}

impl Link {
    /// Starts to write to `stream`.
    ///
    /// # Errors
    /// When the stream cannot be duplicated.
    pub fn new(stream: &Stream) -> std::io::Result<Link> {
        Link::bounded(stream, MAX_BACKLOG)
    }

    fn bounded(stream: &Stream, max_backlog: usize) -> std::io::Result<Link> {
        let mut out = stream.try_clone()?;
        let stream = Arc::new(stream.try_clone()?);
        // Bounded by the bytes in it.
        let (queue, letters) = unbounded::<(Header, Frame)>();
        let backlog = Arc::new(AtomicUsize::new(0));
        let silent = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&silent);
        let waiting = Arc::clone(&backlog);
        std::thread::spawn(move || {
            for (header, frame) in letters {
                let bytes = [&header.encode()[..], &frame].concat();
                if let Err(e) = out.write_all(&bytes) {
                    noted.store(is_silence(&e), Ordering::SeqCst);
                    break;
                }
                waiting.fetch_sub(frame.len() + OVERHEAD, Ordering::Relaxed);
            }
            // Wakes the reader too: the connection is over for both.
            let _ = out.shutdown(Shutdown::Both);
        });
        let id = LINKS.fetch_add(1, Ordering::Relaxed);
        Ok(Link { id, queue, backlog, max_backlog, stream, silent })
    }

    /// No other one has this number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Says, also when it has ended, whether that was because the other host did not answer.
    pub fn silence(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.silent)
    }

    /// The IP address of the other side, where it has one.
    pub fn peer(&self) -> Option<IpAddr> {
        self.stream.peer()
    }

    /// Sends a message that ends with the connection.
    pub fn send_passing(&self, message: &ToAgent) {
        self.put(Header { kind: Kind::Passing, heard: 0 }, encode(message));
    }

    /// Ends the connection: its reader reports it.
    fn close(&self) {
        // It may have ended meanwhile.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Queues an encoded message; closes the connection when too much waits already.
    fn put(&self, header: Header, frame: Frame) {
        let size = frame.len() + OVERHEAD;
        let before = self.backlog.fetch_add(size, Ordering::Relaxed);
        if before + size > self.max_backlog {
            self.backlog.fetch_sub(size, Ordering::Relaxed);
            // The node is declared dead.
            self.close();
            return;
        }
        // Fails when the connection is over, which its reader reports.
        let _ = self.queue.send((header, frame));
    }
}

/// How far the journal has come, in bytes: what follows from an event goes out when the event
/// cannot be lost any more.
#[derive(Clone, Copy, Debug)]
pub struct JournalProgress {
    /// Where the present event ends.
    pub position: u64,
    /// Up to where it is safe.
    pub durable: u64,
}

impl JournalProgress {
    /// Without a journal.
    pub const NO_JOURNAL: JournalProgress = JournalProgress { position: 0, durable: 0 };
}

/// What goes between the controller and an agent or a role, over one connection after another.
#[derive(Default)]
pub struct Session {
    link: Option<Link>,
    outbox: Outbox,
    inbox: Inbox,
    /// What waits for the journal, with the position in it.
    held: VecDeque<(u64, Header, Frame)>,
}

/// What of a [`Session`] outlives its connection and the controller.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedSession {
    written: u64,
    kept: Vec<Vec<u8>>,
    heard: u64,
}

impl Session {
    /// What another controller needs to go on with it.
    pub fn saved(&self) -> SavedSession {
        let kept = self.outbox.kept().map(|(_, frame)| frame.to_vec()).collect();
        SavedSession { written: self.outbox.last(), kept, heard: self.inbox.heard() }
    }

    /// Goes on with that of another controller.
    pub fn of(saved: SavedSession) -> Session {
        let SavedSession { written, kept, heard } = saved;
        let outbox = Outbox::of(written, kept.into_iter().map(Frame::from));
        Session { outbox, inbox: Inbox::of(heard), ..Session::default() }
    }

    /// With a role that is told `config` first.
    pub fn with(progress: JournalProgress, config: &impl Serialize) -> Session {
        let mut session = Session::default();
        session.send(progress, encode_long(config));
        session
    }

    /// Sends a letter: it is written when the other side is there, and the journal is.
    pub fn send(&mut self, progress: JournalProgress, frame: Frame) {
        let number = self.outbox.put(Arc::clone(&frame));
        self.write(progress, Kind::Letter(number), frame);
    }

    /// Sends a message that ends with the connection, and waits for nothing: so it says nothing of
    /// what was heard.
    pub fn send_passing(&self, frame: Frame) {
        if let Some(link) = &self.link {
            link.put(Header { kind: Kind::Passing, heard: 0 }, frame);
        }
    }

    fn write(&mut self, progress: JournalProgress, kind: Kind, frame: Frame) {
        let Some(link) = &self.link else { return };
        let header = Header { kind, heard: self.inbox.confirm() };
        if self.held.is_empty() && progress.position <= progress.durable {
            link.put(header, frame)
        } else {
            self.held.push_back((progress.position, header, frame))
        }
    }

    /// Writes what waited for the journal, which is safe up to `durable`.
    pub fn release(&mut self, durable: u64) {
        while self.held.front().is_some_and(|(position, ..)| *position <= durable) {
            if let (Some((_, header, frame)), Some(link)) = (self.held.pop_front(), &self.link) {
                link.put(header, frame);
            }
        }
    }

    /// The other side has connected, and has heard so many letters: those that it has not are sent.
    ///
    /// # Errors
    /// When it has heard more than were ever written here.
    pub fn connect(
        &mut self,
        progress: JournalProgress,
        link: Link,
        heard: u64,
    ) -> std::io::Result<()> {
        self.outbox.confirm(heard)?;
        self.held.clear();
        // What was heard before the first word on a connection was heard by an earlier controller,
        // whose journal said so: nothing has to be waited for.
        link.put(Header { kind: Kind::Nothing, heard: self.inbox.confirm() }, Frame::default());
        self.link = Some(link);
        let kept: Vec<_> = self.outbox.kept().map(|(n, frame)| (n, Arc::clone(frame))).collect();
        for (number, frame) in kept {
            self.write(progress, Kind::Letter(number), frame);
        }
        Ok(())
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) {
        self.held.clear();
        if let Some(link) = self.link.take() {
            link.close();
        }
    }

    /// Whether something of the other side is new; what `heard` says it has heard is kept no more.
    ///
    /// # Errors
    /// `InvalidData` for what cannot be.
    pub fn hear(&mut self, kind: Kind, bytes: usize) -> std::io::Result<bool> {
        self.inbox.hear(kind, bytes)
    }

    /// The other side has heard so many letters.
    ///
    /// # Errors
    /// `InvalidData` when these are more than were ever written.
    pub fn confirm(&mut self, heard: u64) -> std::io::Result<()> {
        self.outbox.confirm(heard)
    }

    /// Lets the other side know what was heard, when it keeps much.
    pub fn answer(&mut self, progress: JournalProgress) {
        if self.inbox.is_due() {
            self.write(progress, Kind::Nothing, Frame::default());
        }
    }

    /// The connection, while there is one.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_transport::Listener;
    use eyrie_wire::entries::Entry;
    use eyrie_wire::role_address::Bind;
    use std::io::Read;
    use std::time::Duration;

    #[test]
    fn an_agent_that_does_not_read_costs_bounded_memory_and_then_its_connection() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&Bind::Unix(dir.path().join("socket"))).unwrap();
        let addr = listener.addr().unwrap();
        let mut agent = Stream::connect(&addr, Duration::from_secs(10)).unwrap();
        let ours = listener.accept().unwrap();
        let link = Link::bounded(&ours, 1 << 20).unwrap();
        let entry = Entry::Text { key: "k".into(), value: "v".repeat(1000) };
        let message = ToAgent::Pmi { entries: vec![entry], barriers: 1 };
        // More than the bound and what a socket holds.
        for _ in 0..20_000 {
            link.send_passing(&message);
            assert!(link.backlog.load(Ordering::Relaxed) <= 1 << 20);
        }
        // It is closed: what was sent before can be read, then it ends.
        agent.set_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut read = Vec::new();
        let _ = agent.read_to_end(&mut read);
        assert!(read.len() < 20_000 * 1000, "{} bytes", read.len());
        assert_eq!(agent.read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn one_that_reads_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&Bind::Unix(dir.path().join("socket"))).unwrap();
        let addr = listener.addr().unwrap();
        let mut agent = Stream::connect(&addr, Duration::from_secs(10)).unwrap();
        let link = Link::bounded(&listener.accept().unwrap(), 1 << 20).unwrap();
        for n in 0..2_000 {
            link.send_passing(&ToAgent::Heartbeat { n });
        }
        for n in 0..2_000 {
            assert_eq!(Header::read(&mut agent).unwrap().kind, Kind::Passing);
            let message: ToAgent = frame::read(&mut agent).unwrap();
            assert_eq!(message, ToAgent::Heartbeat { n });
        }
    }
}
