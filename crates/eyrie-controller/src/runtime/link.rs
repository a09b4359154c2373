//! The controller's end of a connection to an agent or to a role in a process of its own. Nothing
//! here waits for the other side: a frozen one must not stop the controller.

use crossbeam_channel::{unbounded, Sender};
use eyrie_transport::{frame, Stream};
use eyrie_wire::control::ToAgent;
use serde::Serialize;
use std::io::Write;
use std::net::{IpAddr, Shutdown};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Most bytes that wait for an agent that does not read. One that lets more wait is as good as
/// dead: its connection is closed.
const MAX_BACKLOG: usize = 256 << 20;
/// What a message takes while it waits, besides its bytes.
const OVERHEAD: usize = 64;

/// A message as it goes over a connection.
pub type Frame = Arc<[u8]>;

/// Encodes a message, once for all who get it.
pub fn encode(message: &ToAgent) -> Frame {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, message).expect("the controller's messages are bounded");
    bytes.into()
}

/// The sending half of a connection to an agent. Messages queue while the agent does not read, as
/// far as [`MAX_BACKLOG`].
#[derive(Clone, Debug)]
pub struct Link {
    queue: Sender<Frame>,
    backlog: Arc<AtomicUsize>,
    max_backlog: usize,
    stream: Arc<Stream>,
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
        let (queue, frames) = unbounded::<Frame>();
        let backlog = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::clone(&backlog);
        std::thread::spawn(move || {
            for frame in frames {
                if out.write_all(&frame).is_err() {
                    break;
                }
                waiting.fetch_sub(frame.len() + OVERHEAD, Ordering::Relaxed);
            }
            // Wakes the reader too: the connection is over for both.
            let _ = out.shutdown(Shutdown::Both);
        });
        Ok(Link { queue, backlog, max_backlog, stream })
    }

    /// The IP address of the other side, where it has one.
    pub fn peer(&self) -> Option<IpAddr> {
        self.stream.peer()
    }

    pub fn send(&self, message: &ToAgent) {
        self.send_frame(encode(message));
    }

    /// Queues an encoded message; closes the connection when too much waits already.
    pub fn send_frame(&self, frame: Frame) {
        let size = frame.len() + OVERHEAD;
        let before = self.backlog.fetch_add(size, Ordering::Relaxed);
        if before + size > self.max_backlog {
            self.backlog.fetch_sub(size, Ordering::Relaxed);
            // The reader finds it closed, and the node is declared dead.
            let _ = self.stream.shutdown(Shutdown::Both);
            return;
        }
        // Fails when the connection is over, which its reader reports.
        let _ = self.queue.send(frame);
    }
}

/// The connection to a role in a process of its own: what is sent before it has come waits.
pub struct Remote {
    link: Option<Link>,
    early: Vec<Frame>,
}

impl Remote {
    /// A role that is told `config` first.
    ///
    /// # Errors
    /// When it is too long.
    pub fn new(config: &impl Serialize) -> std::io::Result<Remote> {
        Ok(Remote { link: None, early: vec![frame::encode_long(config)?.into()] })
    }

    pub fn send(&mut self, message: &impl Serialize) {
        let bytes = frame::encode_long(message).expect("no message is that long");
        match &self.link {
            Some(link) => link.send_frame(bytes.into()),
            None => self.early.push(bytes.into()),
        }
    }

    /// The process has connected.
    pub fn connected(&mut self, link: Link) {
        self.early.drain(..).for_each(|frame| link.send_frame(frame));
        self.link = Some(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_transport::{Bind, Listener};
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
        let message = ToAgent::Pmi { entries: vec![("k".into(), "v".repeat(1000))], barriers: 1 };
        // More than the bound and what a socket holds.
        for _ in 0..20_000 {
            link.send(&message);
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
            link.send(&ToAgent::Heartbeat { n });
        }
        for n in 0..2_000 {
            let message: ToAgent = frame::read(&mut agent).unwrap();
            assert_eq!(message, ToAgent::Heartbeat { n });
        }
    }
}
