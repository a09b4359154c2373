//! The node that ranks leave: gathers their images in a pool of buffers, or in files first, and
//! reports each full buffer, which can then be pulled. Any failure ends the process and its ranks;
//! the driver reports it.

use anyhow::{bail, Context};
use eyrie_libfabric::site::Endpoint;
use rustix::fs::{fcntl_setfl, mknodat, FileType, Mode, OFlags, CWD};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::ppmr::held::HeldRank;
use crate::ppmr::orders::{joined, must, write_line, Driver};
use crate::ppmr::pool::Pool;
use crate::ppmr::rank::WRITING;
use crate::ppmr::task::{most_memory_kib, now_ns, Feed, Sink, SourceReport, Task, Way};
use crate::ppmr::wire::{Full, Hello};

/// How long reads of the target are served before checking whether there will be more.
const SERVE: Duration = Duration::from_millis(20);

/// Lets ranks that stand still leave for another node: reports the port for that node, and begins
/// when it is told to. The ranks of this node end.
///
/// # Errors
/// Any failure.
pub fn leave(driver: &Driver, task: &Task, mut ranks: Vec<HeldRank>) -> anyhow::Result<()> {
    let pool = Arc::new(Pool::new(task.pool, task.chunk));
    let listener = TcpListener::bind((task.addresses[0].as_str(), 0))?;
    write_line(&listener.local_addr()?.port().to_string())?;
    let serving = match task.sink {
        Sink::Stay => None,
        Sink::Restore | Sink::Drop => Some(Serving::begin(task, &listener, &pool)?),
    };
    let mut streams = if task.way.has_files() {
        Vec::new()
    } else {
        (0..ranks.len() as u32).map(|rank| Stream::open(task, rank)).collect::<Result<_, _>>()?
    };
    driver.line()?;
    let mut report = SourceReport { ordered_ns: now_ns(), ..SourceReport::default() };
    for (rank, number) in ranks.iter_mut().zip(0..) {
        let path = task.file("source", number);
        rank.send_line(path.to_str().context("the directory's name is no text")?)?;
    }
    ranks.iter_mut().try_for_each(|rank| rank.expect_line(WRITING))?;
    streams.iter_mut().try_for_each(Stream::begun)?;
    let full = Arc::new(Fulls(
        serving.as_ref().map(|s| s.control.try_clone()).transpose()?.map(Mutex::new),
    ));
    report.image_bytes = match (task.feed, task.way.has_files()) {
        (Feed::Memory(bytes), _) => repeat(bytes, &pool, &full)?,
        (Feed::Ranks, false) => {
            let bytes = gather_all(streams.into_iter().map(|s| s.read).collect(), &pool, &full)?;
            ranks.iter_mut().try_for_each(HeldRank::ended)?;
            report.imaged_ns = now_ns();
            bytes
        }
        (Feed::Ranks, true) => {
            ranks.iter_mut().try_for_each(HeldRank::ended)?;
            let files = settle_files(task)?;
            report.imaged_ns = now_ns();
            send_files(task, files, &pool, &full)?
        }
    };
    if let Some(serving) = serving {
        serving.end()?;
    }
    report.taken_ns = now_ns();
    report.most_chunks = pool.most_used();
    report.memory_kib = most_memory_kib();
    write_line(&serde_json::to_string(&report)?)
}

/// The stream of a rank's image: a named pipe, which the rank opens.
struct Stream {
    path: PathBuf,
    read: File,
}

impl Stream {
    fn open(task: &Task, rank: u32) -> anyhow::Result<Stream> {
        let path = task.file("source", rank);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // Does not wait for the rank, which may end before it opens the pipe.
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let read = rustix::fs::open(&path, read, Mode::empty())?.into();
        Ok(Stream { path, read })
    }

    /// Notes that the rank has opened it.
    fn begun(&mut self) -> anyhow::Result<()> {
        fcntl_setfl(&self.read, OFlags::RDONLY)?;
        Ok(std::fs::remove_file(&self.path)?)
    }
}

/// The connection on which full buffers are reported; `None`: there is no target.
struct Fulls(Option<Mutex<TcpStream>>);

impl Fulls {
    fn report(&self, full: Full, pool: &Pool) -> std::io::Result<()> {
        match &self.0 {
            Some(control) => {
                let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
                control.write_all(&full.encode())
            }
            None if full.len == 0 => Ok(()),
            None => {
                pool.give(full.chunk);
                Ok(())
            }
        }
    }

    fn end(&self, stream: u32, place: u32, pool: &Pool) -> std::io::Result<()> {
        self.report(Full { stream, place, chunk: 0, len: 0 }, pool)
    }
}

/// Gathers all streams at once; returns the number of their bytes.
fn gather_all(from: Vec<File>, pool: &Arc<Pool>, full: &Arc<Fulls>) -> anyhow::Result<u64> {
    let gather_one = |(stream, from)| {
        let pool = Arc::clone(pool);
        let full = Arc::clone(full);
        std::thread::spawn(move || {
            must("gathering an image", gather(stream as u32, from, &pool, &full))
        })
    };
    let gathering: Vec<JoinHandle<u64>> = from.into_iter().enumerate().map(gather_one).collect();
    Ok(gathering.into_iter().map(joined).sum())
}

/// Reads a stream into one buffer after another.
fn gather(stream: u32, mut from: File, pool: &Pool, full: &Fulls) -> anyhow::Result<u64> {
    let mut place = 0;
    let mut bytes = 0;
    loop {
        let chunk = pool.take();
        let len = fill(&mut from, &mut pool.content(chunk))?;
        if len == 0 {
            pool.give(chunk);
            full.end(stream, place, pool)?;
            return Ok(bytes);
        }
        full.report(Full { stream, place, chunk, len: len as u32 }, pool)?;
        place += 1;
        bytes += len as u64;
    }
}

/// Reads until the buffer is full or the stream has ended.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}

/// Has this many bytes pulled of what the buffers hold anyway.
fn repeat(bytes: u64, pool: &Pool, full: &Fulls) -> anyhow::Result<u64> {
    let len = pool.content(0).len() as u32;
    let chunks = (bytes / u64::from(len)) as u32;
    for place in 0..chunks {
        let chunk = pool.take();
        full.report(Full { stream: 0, place, chunk, len }, pool)?;
    }
    full.end(0, chunks, pool)?;
    Ok(u64::from(chunks) * u64::from(len))
}

/// The files of the images, written to the disk where that is wanted.
fn settle_files(task: &Task) -> anyhow::Result<Vec<File>> {
    let settle = |rank| -> anyhow::Result<File> {
        let file = File::open(task.file("source", rank))?;
        if task.synced {
            file.sync_all()?;
        }
        Ok(file)
    };
    (0..task.ranks).map(settle).collect()
}

/// Has the files pulled, or reports that they are where the target sees them. Returns their bytes.
fn send_files(
    task: &Task,
    files: Vec<File>,
    pool: &Arc<Pool>,
    full: &Arc<Fulls>,
) -> anyhow::Result<u64> {
    if task.way != Way::Shared {
        return gather_all(files, pool, full);
    }
    let mut bytes = 0;
    for (stream, file) in files.iter().enumerate() {
        bytes += file.metadata()?.len();
        full.end(stream as u32, 0, pool)?;
    }
    Ok(bytes)
}

/// The threads that serve the target.
struct Serving {
    control: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    fn begin(task: &Task, listener: &TcpListener, pool: &Arc<Pool>) -> anyhow::Result<Serving> {
        let (mut control, _) = listener.accept()?;
        control.set_nodelay(true)?;
        let mut threads = Vec::new();
        let mut hello = Hello::default();
        let mut spawn =
            |what: &'static str, serve: Box<dyn FnOnce() -> anyhow::Result<()> + Send>| {
                threads.push(std::thread::spawn(move || must(what, serve())));
            };
        let stream = control.try_clone()?;
        // What the target reports about a source that is gone is not the reason.
        let endpoint =
            task.way.is_rdma().then(|| must("serving reads", open(task, pool, &mut hello)));
        control.write_all(&hello.encode())?;
        match endpoint {
            Some(endpoint) => {
                let pool = Arc::clone(pool);
                spawn("serving reads", Box::new(move || serve_reads(endpoint, stream, pool)));
            }
            None => {
                for _ in 0..task.streams {
                    let (stream, _) = listener.accept()?;
                    let pool = Arc::clone(pool);
                    spawn("serving a stream", Box::new(move || serve_stream(stream, &pool)));
                }
                spawn("reading from the target", Box::new(move || await_end(stream)));
            }
        }
        Ok(Serving { control, threads })
    }

    /// Waits until the target has everything and has left.
    fn end(self) -> anyhow::Result<()> {
        self.control.shutdown(std::net::Shutdown::Write)?;
        for thread in self.threads {
            joined(thread);
        }
        Ok(())
    }
}

/// An endpoint with the pool's buffers registered, which are listed in `hello`.
fn open(task: &Task, pool: &Pool, hello: &mut Hello) -> anyhow::Result<Endpoint> {
    let rdma = &task.rdma;
    let mut endpoint = Endpoint::open(&rdma.library, &rdma.provider, &task.addresses[0])
        .map_err(anyhow::Error::msg)?;
    for chunk in 0..pool.chunks() {
        let mut content = pool.content(chunk);
        // SAFETY: the pool keeps its buffers in place, and the thread that closes the endpoint
        // holds the pool. A buffer that was reported full is not touched before the target gives it
        // back.
        let registered = unsafe { endpoint.register(content.as_mut_ptr(), content.len()) };
        let remote = registered.map_err(anyhow::Error::msg)?.remote;
        hello.buffers.push((remote.addr, remote.key));
    }
    hello.name = endpoint.name().map_err(anyhow::Error::msg)?;
    Ok(endpoint)
}

/// Serves reads of the target, and frees the buffers that it names, until it leaves.
fn serve_reads(
    mut endpoint: Endpoint,
    mut stream: TcpStream,
    pool: Arc<Pool>,
) -> anyhow::Result<()> {
    let given = std::thread::spawn(move || {
        let mut number = [0; 4];
        loop {
            match stream.read_exact(&mut number) {
                Ok(()) => pool.give(checked(u32::from_le_bytes(number), &pool)),
                Err(_) => return,
            }
        }
    });
    while !given.is_finished() {
        endpoint.completed(SERVE).map_err(anyhow::Error::msg)?;
    }
    joined(given);
    Ok(())
}

/// The number of a buffer, which came from outside.
fn checked(chunk: u32, pool: &Pool) -> u32 {
    must(
        "reading from the target",
        (chunk < pool.chunks()).then_some(chunk).context("no such buffer"),
    )
}

/// Sends the buffers that the target asks for on one connection, until it leaves.
fn serve_stream(mut stream: TcpStream, pool: &Pool) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut order = [0; 8];
    while stream.read_exact(&mut order).is_ok() {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| order[4 * i + j]));
        let chunk = checked(word(0), pool);
        let len = word(1) as usize;
        let content = pool.content(chunk);
        stream.write_all(content.get(..len).context("the target asks for too much")?)?;
        drop(content);
        pool.give(chunk);
    }
    Ok(())
}

fn await_end(mut stream: TcpStream) -> anyhow::Result<()> {
    match stream.read(&mut [0; 1])? {
        0 => Ok(()),
        _ => bail!("the target says something that it should not"),
    }
}
