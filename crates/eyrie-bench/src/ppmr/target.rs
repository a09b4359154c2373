//! The node that ranks come to: pulls what the source has, passes it to files or directly to the
//! restorers, and lets the restored ranks go on to their results. Any failure ends the process.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::ppmr::held::HeldRank;
use crate::ppmr::orders::{joined, must, write_line, Driver};
use crate::ppmr::pool::Pool;
use crate::ppmr::process::pipe;
use crate::ppmr::pull::{pull_over_rdma, pull_over_tcp, Pulled};
use crate::ppmr::rank::{READY, RUNNING};
use crate::ppmr::task::{most_memory_kib, now_ns, Sink, TargetReport, Task, Way};
use crate::ppmr::wire::{Full, Hello, FULL_LEN};

/// Receives the ranks that leave the node with the given port; they run, and stand still.
///
/// # Errors
/// Any failure.
pub fn arrive(driver: &Driver, task: &Task) -> anyhow::Result<Vec<HeldRank>> {
    let source = (task.addresses[0].as_str(), driver.line()?.parse::<u16>()?);
    let mut control = TcpStream::connect(source).context("cannot reach the source")?;
    control.set_nodelay(true)?;
    let hello = Hello::read(&mut control)?;
    let pool = Arc::new(Pool::new(task.pool, task.chunk));
    let (mut ranks, outlets) = outlets(task)?;
    let (fulls, full) = channel();
    let (sinks, draining) = drain_all(outlets, task, &pool);
    let pulling = if task.way.is_rdma() {
        pull_over_rdma(task, &hello, full, control.try_clone()?, &pool, sinks.clone())?
    } else {
        pull_over_tcp(source, task.streams, full, &pool, sinks.clone())?
    };
    let receiving = std::thread::spawn({
        let control = control.try_clone()?;
        let sources = task.sources();
        move || must("reading from the source", forward(control, sources, fulls, sinks))
    });
    write_line(READY)?;
    driver.line()?;
    joined(receiving);
    for thread in pulling {
        joined(thread);
    }
    let mut report = TargetReport { pulled_ns: now_ns(), ..TargetReport::default() };
    report.pulled_bytes = draining.into_iter().map(joined).sum();
    if task.way.has_files() {
        report.pulled_ns = now_ns();
        if task.sink == Sink::Restore {
            ranks = restore_from_files(task)?;
        }
    }
    ranks.iter_mut().try_for_each(|rank| rank.expect_line(RUNNING))?;
    report.running_ns = now_ns();
    drop(control);
    report.most_chunks = pool.most_used();
    report.memory_kib = most_memory_kib();
    write_line(&serde_json::to_string(&report)?)?;
    Ok(ranks)
}

fn restore_from_files(task: &Task) -> anyhow::Result<Vec<HeldRank>> {
    let restore = |rank| HeldRank::restore(File::open(task.file("target", rank))?);
    (0..task.ranks).map(restore).collect()
}

/// The destination of a stream.
enum Outlet {
    /// None: it is dropped.
    Drop,
    /// A file, or a restorer.
    To(File),
}

/// The destination of each stream, and the ranks whose restorers wait for theirs.
fn outlets(task: &Task) -> anyhow::Result<(Vec<HeldRank>, Vec<Outlet>)> {
    let mut ranks = Vec::new();
    let mut outlets = Vec::new();
    for stream in 0..task.sources() {
        outlets.push(match (task.sink, task.way) {
            (Sink::Restore, Way::Shared) | (Sink::Drop | Sink::Stay, _) => Outlet::Drop,
            (Sink::Restore, Way::Local | Way::RdmaLocal) => {
                Outlet::To(File::create(task.file("target", stream))?)
            }
            (Sink::Restore, Way::Pipeline | Way::RdmaPipeline | Way::Live) => {
                let (image, to) = pipe()?;
                ranks.push(HeldRank::restore(image)?);
                Outlet::To(to)
            }
        });
    }
    Ok((ranks, outlets))
}

/// Passes the source's messages to the pulling threads, and ends of streams to their outlets.
fn forward(
    mut control: TcpStream,
    sources: u32,
    fulls: Sender<Full>,
    sinks: Vec<Sender<Pulled>>,
) -> anyhow::Result<()> {
    let mut ended = 0;
    let mut bytes = [0; FULL_LEN];
    while ended < sources {
        control.read_exact(&mut bytes).context("the source has ended")?;
        let full = Full::decode(&bytes);
        let sink = sinks.get(full.stream as usize).context("no such stream")?;
        match full.len {
            0 => {
                ended += 1;
                sink.send(full).context("an outlet has ended")?;
            }
            _ => fulls.send(full).context("no thread pulls any more")?,
        }
    }
    Ok(())
}

/// Starts a thread for each outlet; each returns the number of bytes that it has written.
fn drain_all(
    outlets: Vec<Outlet>,
    task: &Task,
    pool: &Arc<Pool>,
) -> (Vec<Sender<Pulled>>, Vec<JoinHandle<u64>>) {
    let drain_one = |outlet| {
        let (send, pulled) = channel();
        let pool = Arc::clone(pool);
        let synced = task.synced && task.way.has_files();
        let thread = std::thread::spawn(move || {
            must("storing an image", drain(outlet, &pulled, synced, &pool))
        });
        (send, thread)
    };
    outlets.into_iter().map(drain_one).unzip()
}

/// Writes chunks in their order; each buffer is freed when it is written.
fn drain(
    outlet: Outlet,
    pulled: &Receiver<Pulled>,
    synced: bool,
    pool: &Pool,
) -> anyhow::Result<u64> {
    let mut order = Order::default();
    let mut bytes = 0;
    loop {
        order.put(pulled.recv().context("a stream has broken off")?);
        while let Some(next) = order.following() {
            if next.len == 0 {
                if let (Outlet::To(file), true) = (&outlet, synced) {
                    file.sync_all()?;
                }
                return Ok(bytes);
            }
            if let Outlet::To(file) = &outlet {
                let mut file: &File = file;
                let content = pool.content(next.chunk);
                file.write_all(content.get(..next.len as usize).context("a chunk is too long")?)?;
            }
            pool.give(next.chunk);
            bytes += u64::from(next.len);
        }
    }
}

/// Chunks of a stream, which arrive in any order.
#[derive(Default)]
struct Order {
    ahead: BTreeMap<u32, Pulled>,
    next: u32,
}

impl Order {
    fn put(&mut self, pulled: Pulled) {
        self.ahead.insert(pulled.place, pulled);
    }

    /// The chunk that follows the last one, if it has arrived.
    fn following(&mut self) -> Option<Pulled> {
        let found = self.ahead.remove(&self.next)?;
        self.next += 1;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_written_in_their_order() {
        let mut order = Order::default();
        let chunk = |place| Full { stream: 0, place, chunk: place, len: 1 };
        let mut out = Vec::new();
        for place in [2, 0, 3, 1] {
            order.put(chunk(place));
            out.push(std::iter::from_fn(|| order.following()).map(|c| c.place).collect::<Vec<_>>());
        }
        assert_eq!(out, [vec![], vec![0], vec![], vec![1, 2, 3]]);
    }
}
