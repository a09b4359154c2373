//! Pulls full buffers of the source into buffers here: over TCP connections, or by reads of remote
//! memory. A buffer here is taken before the next full one is received, so that the oldest full one
//! always has a buffer.

use anyhow::Context;
use eyrie_libfabric::site::{Endpoint, Peer, Registered};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ppmr::orders::must;
use crate::ppmr::pool::Pool;
use crate::ppmr::task::Task;
use crate::ppmr::wire::{Full, Hello};

/// A chunk in a buffer here, or (with length 0) the end of its stream.
pub type Pulled = Full;

/// How long to wait for a read before checking whether more can begin.
const WAIT: Duration = Duration::from_millis(2);

/// Begins to pull over `streams` connections. The threads end when `full` does.
///
/// # Errors
/// When the source cannot be reached.
pub fn pull_over_tcp(
    source: impl ToSocketAddrs,
    streams: usize,
    full: Receiver<Full>,
    pool: &Arc<Pool>,
    sinks: Vec<Sender<Pulled>>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let source: SocketAddr =
        source.to_socket_addrs()?.next().context("the source has no address")?;
    let full = Arc::new(Mutex::new(full));
    let begin = |_| -> anyhow::Result<JoinHandle<()>> {
        let stream = TcpStream::connect(source).context("cannot reach the source")?;
        stream.set_nodelay(true)?;
        let full = Arc::clone(&full);
        let pool = Arc::clone(pool);
        let sinks = sinks.clone();
        Ok(std::thread::spawn(move || must("pulling", pull_stream(stream, &full, &pool, &sinks))))
    };
    (0..streams).map(begin).collect()
}

fn pull_stream(
    mut stream: TcpStream,
    full: &Mutex<Receiver<Full>>,
    pool: &Pool,
    sinks: &[Sender<Pulled>],
) -> anyhow::Result<()> {
    loop {
        let chunk = pool.take();
        let next = full.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(next) = next else {
            pool.give(chunk);
            return Ok(());
        };
        let order = [next.chunk.to_le_bytes(), next.len.to_le_bytes()].concat();
        stream.write_all(&order)?;
        let mut content = pool.content(chunk);
        let room = content.get_mut(..next.len as usize).context("a chunk is too long")?;
        stream.read_exact(room).context("the source has ended")?;
        drop(content);
        sinks[next.stream as usize]
            .send(Pulled { chunk, ..next })
            .context("an outlet has ended")?;
    }
}

/// Begins to pull by reads of remote memory, `streams` at the same time; buffers that were read are
/// named on `control`. The thread ends when `full` does.
///
/// # Errors
/// The errors of the site's libfabric.
pub fn pull_over_rdma(
    task: &Task,
    hello: &Hello,
    full: Receiver<Full>,
    control: TcpStream,
    pool: &Arc<Pool>,
    sinks: Vec<Sender<Pulled>>,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    let rdma = &task.rdma;
    let mut endpoint = Endpoint::open(&rdma.library, &rdma.provider, &task.addresses[1])
        .map_err(anyhow::Error::msg)?;
    let mut buffers = Vec::new();
    for chunk in 0..pool.chunks() {
        let mut content = pool.content(chunk);
        let begin = content.as_mut_ptr();
        // SAFETY: the pool keeps its buffers in place, and `Reads` holds the pool and the endpoint
        // together. A read only writes to a buffer that was taken for it.
        let registered = unsafe { endpoint.register(begin, content.len()) };
        buffers.push((Place(begin), registered.map_err(anyhow::Error::msg)?));
    }
    let peer = endpoint.peer(&hello.name).map_err(anyhow::Error::msg)?;
    let reads = Reads {
        endpoint,
        peer,
        buffers,
        remote: hello.clone(),
        most: task.streams,
        under_way: HashMap::new(),
        waiting: None,
        control,
        pool: Arc::clone(pool),
        sinks,
    };
    Ok(vec![std::thread::spawn(move || must("pulling", reads.pull_all(&full)))])
}

/// Where a buffer of the pool begins.
#[derive(Clone, Copy)]
struct Place(*mut u8);
// SAFETY: it is only an address; the code that uses it ensures that it is valid.
unsafe impl Send for Place {}

/// Reads of remote memory.
struct Reads {
    endpoint: Endpoint,
    peer: Peer,
    buffers: Vec<(Place, Registered)>,
    remote: Hello,
    most: usize,
    /// The remote buffer that is being read, by the buffer here.
    under_way: HashMap<u32, Full>,
    /// The next chunk, if its read could not begin yet.
    waiting: Option<Full>,
    control: TcpStream,
    pool: Arc<Pool>,
    sinks: Vec<Sender<Pulled>>,
}

impl Reads {
    fn pull_all(mut self, full: &Receiver<Full>) -> anyhow::Result<()> {
        loop {
            while self.under_way.len() < self.most {
                let Some(next) = self.next(full) else { break };
                if !self.begin(next)? {
                    self.waiting = Some(next);
                    break;
                }
            }
            if self.under_way.is_empty() && self.waiting.is_none() {
                return Ok(());
            }
            if let Some(chunk) = self.endpoint.completed(WAIT).map_err(anyhow::Error::msg)? {
                self.finish(chunk as u32)?;
            }
        }
    }

    /// The next full buffer. It waits for one only when no read is under way.
    fn next(&mut self, full: &Receiver<Full>) -> Option<Full> {
        if let Some(waiting) = self.waiting.take() {
            return Some(waiting);
        }
        match full.try_recv() {
            Ok(next) => Some(next),
            Err(TryRecvError::Empty) if self.under_way.is_empty() => full.recv().ok(),
            Err(_) => None,
        }
    }

    /// Begins a read; false: not now.
    fn begin(&mut self, next: Full) -> anyhow::Result<bool> {
        let free =
            if self.under_way.is_empty() { Some(self.pool.take()) } else { self.pool.take_now() };
        let Some(chunk) = free else { return Ok(false) };
        let remote = self.remote.remote(next.chunk).context("no such buffer")?;
        let len = next.len as usize;
        anyhow::ensure!(len <= self.pool.content(chunk).len(), "a chunk is too long");
        let (begin, registered) = self.buffers[chunk as usize];
        // SAFETY: the buffer was taken for this read and is long enough. It is given on only when
        // the read is over.
        let begun = unsafe {
            let from = (self.peer, remote);
            self.endpoint.read((begin.0, registered), len, from, chunk as usize)
        };
        let begun = begun.map_err(anyhow::Error::msg)?;
        if begun {
            self.under_way.insert(chunk, next);
        } else {
            self.pool.give(chunk);
        }
        Ok(begun)
    }

    fn finish(&mut self, chunk: u32) -> anyhow::Result<()> {
        let read = self.under_way.remove(&chunk).context("a read is over that was not begun")?;
        self.control.write_all(&read.chunk.to_le_bytes()).context("the source has ended")?;
        let sink = &self.sinks[read.stream as usize];
        sink.send(Pulled { chunk, ..read }).context("an outlet has ended")
    }
}
