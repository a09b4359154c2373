//! The node that ranks leave: gathers their images in a pool of buffers, or in files first, and
//! says of each full buffer that it can be pulled. Whatever fails ends the process: its ranks with
//! it, and the driver says so.

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
use crate::ppmr::orders::{joined, must, say, Driver};
use crate::ppmr::pool::Pool;
use crate::ppmr::rank::WRITING;
use crate::ppmr::task::{most_memory_kib, now_ns, Feed, Sink, SourceReport, Task, Way};
use crate::ppmr::wire::{Full, Hello};

/// How long reads of the target are served before it is looked whether there will be more.
const SERVE: Duration = Duration::from_millis(20);

/// Lets ranks that stand still leave for the node that will ask for them: says the port at which it
/// can, and begins when it is told to. The ranks of this node end.
///
/// # Errors
/// Whatever fails.
pub fn leave(driver: &Driver, task: &Task, mut ranks: Vec<HeldRank>) -> anyhow::Result<()> {
    let pool = Arc::new(Pool::new(task.pool, task.chunk));
    let listener = TcpListener::bind((task.addresses[0].as_str(), 0))?;
    say(&listener.local_addr()?.port().to_string())?;
    let serving = match task.sink {
        Sink::Stay => None,
        Sink::Restore | Sink::Drop => Some(Serving::begin(task, &listener, &pool)?),
    };
    let mut streams = match task.way.has_files() {
        true => Vec::new(),
        false => (0..ranks.len() as u32)
            .map(|rank| Stream::open(task, rank))
            .collect::<Result<_, _>>()?,
    };
    driver.line()?;
    let mut report = SourceReport { ordered_ns: now_ns(), ..SourceReport::default() };
    for (rank, number) in ranks.iter_mut().zip(0..) {
        let path = task.file("source", number);
        rank.tell(path.to_str().context("the directory's name is no text")?)?;
    }
    ranks.iter_mut().try_for_each(|rank| rank.says(WRITING))?;
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
    say(&serde_json::to_string(&report)?)
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
        // Does not wait for the rank, which may end before.
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let read = rustix::fs::open(&path, read, Mode::empty())?.into();
        Ok(Stream { path, read })
    }

    /// The rank has opened it.
    fn begun(&mut self) -> anyhow::Result<()> {
        fcntl_setfl(&self.read, OFlags::RDONLY)?;
        Ok(std::fs::remove_file(&self.path)?)
    }
}

/// Where it is said that buffers are full; `None`: nobody wants them.
struct Fulls(Option<Mutex<TcpStream>>);

impl Fulls {
    fn say(&self, full: Full, pool: &Pool) -> std::io::Result<()> {
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
        self.say(Full { stream, place, chunk: 0, len: 0 }, pool)
    }
}

/// Gathers all streams at once; returns their bytes.
fn gather_all(from: Vec<File>, pool: &Arc<Pool>, full: &Arc<Fulls>) -> anyhow::Result<u64> {
    let gather_one = |(stream, from)| {
        let (pool, full) = (Arc::clone(pool), Arc::clone(full));
        std::thread::spawn(move || {
            must("gathering an image", gather(stream as u32, from, &pool, &full))
        })
    };
    let gathering: Vec<JoinHandle<u64>> = from.into_iter().enumerate().map(gather_one).collect();
    Ok(gathering.into_iter().map(joined).sum())
}

/// Reads a stream into one buffer after another.
fn gather(stream: u32, mut from: File, pool: &Pool, full: &Fulls) -> anyhow::Result<u64> {
    let (mut place, mut bytes) = (0, 0);
    loop {
        let chunk = pool.take();
        let len = fill(&mut from, &mut pool.content(chunk))?;
        if len == 0 {
            pool.give(chunk);
            full.end(stream, place, pool)?;
            return Ok(bytes);
        }
        full.say(Full { stream, place, chunk, len: len as u32 }, pool)?;
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

/// Has so many bytes pulled of what the buffers hold anyway.
fn repeat(bytes: u64, pool: &Pool, full: &Fulls) -> anyhow::Result<u64> {
    let len = pool.content(0).len() as u32;
    let chunks = (bytes / u64::from(len)) as u32;
    for place in 0..chunks {
        let chunk = pool.take();
        full.say(Full { stream: 0, place, chunk, len }, pool)?;
    }
    full.end(0, chunks, pool)?;
    Ok(u64::from(chunks) * u64::from(len))
}

/// The images in files, on the disk where that is asked for.
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

/// Has the files pulled, or says that they are where the target sees them. Returns their bytes.
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

/// What answers the target.
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
        let heard = control.try_clone()?;
        let endpoint = match task.way.is_rdma() {
            // What the target says of a source that is gone is not the reason.
            true => Some(must("serving reads", open(task, pool, &mut hello))),
            false => None,
        };
        control.write_all(&hello.encode())?;
        match endpoint {
            Some(endpoint) => {
                let pool = Arc::clone(pool);
                spawn("serving reads", Box::new(move || serve_reads(endpoint, heard, pool)));
            }
            None => {
                for _ in 0..task.streams {
                    let (stream, _) = listener.accept()?;
                    let pool = Arc::clone(pool);
                    spawn("serving a stream", Box::new(move || serve_stream(stream, &pool)));
                }
                spawn("hearing the target", Box::new(move || hear_the_end(heard)));
            }
        }
        Ok(Serving { control, threads })
    }

    /// Waits until the target has taken all and left.
    fn end(self) -> anyhow::Result<()> {
        self.control.shutdown(std::net::Shutdown::Write)?;
        self.threads.into_iter().for_each(joined);
        Ok(())
    }
}

/// An endpoint that has the pool's buffers registered, which `hello` names.
fn open(task: &Task, pool: &Pool, hello: &mut Hello) -> anyhow::Result<Endpoint> {
    let rdma = &task.rdma;
    let mut endpoint = Endpoint::open(&rdma.library, &rdma.provider, &task.addresses[0])
        .map_err(anyhow::Error::msg)?;
    for chunk in 0..pool.chunks() {
        let mut content = pool.content(chunk);
        // SAFETY: buffers stay where they are as long as the pool, which the thread that closes the
        // endpoint holds; one that was said to be full is not touched until the target gives it
        // back.
        let registered = unsafe { endpoint.register(content.as_mut_ptr(), content.len()) };
        let remote = registered.map_err(anyhow::Error::msg)?.remote;
        hello.buffers.push((remote.addr, remote.key));
    }
    hello.name = endpoint.name().map_err(anyhow::Error::msg)?;
    Ok(endpoint)
}

/// Serves reads of the target, and takes back the buffers that it names, until it leaves.
fn serve_reads(
    mut endpoint: Endpoint,
    mut heard: TcpStream,
    pool: Arc<Pool>,
) -> anyhow::Result<()> {
    let given = std::thread::spawn(move || {
        let mut number = [0; 4];
        loop {
            match heard.read_exact(&mut number) {
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

/// A buffer's number from outside.
fn checked(chunk: u32, pool: &Pool) -> u32 {
    must("hearing the target", (chunk < pool.chunks()).then_some(chunk).context("no such buffer"))
}

/// Sends the buffers that the target asks for on one connection, until it leaves.
fn serve_stream(mut stream: TcpStream, pool: &Pool) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut order = [0; 8];
    while stream.read_exact(&mut order).is_ok() {
        let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|j| order[4 * i + j]));
        let (chunk, len) = (checked(word(0), pool), word(1) as usize);
        let content = pool.content(chunk);
        stream.write_all(content.get(..len).context("the target asks for too much")?)?;
        drop(content);
        pool.give(chunk);
    }
    Ok(())
}

fn hear_the_end(mut heard: TcpStream) -> anyhow::Result<()> {
    match heard.read(&mut [0; 1])? {
        0 => Ok(()),
        _ => bail!("the target says something that it should not"),
    }
}
