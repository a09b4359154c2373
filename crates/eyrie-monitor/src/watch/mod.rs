//! A running monitor: the sampler's thread, and around it those that judge, answer and show. It
//! prints nothing itself. Nothing here may delay the sampler.

pub mod client;
mod judge;
pub mod remote;
mod socket;
mod summary;
pub mod view;

pub use judge::{Judgement, Tell};
pub use summary::Summary;

use crate::clock::{Clock, Steadiness};
use crate::metrics::Exporter;
use crate::names::{CommandLines, Directory};
use crate::ring::Frame;
use crate::sampling_thread::{Config, Sampler};
use crate::serve::Monitor;
use crate::shared::{lock, Shared};
use eyrie_exporter::listen::bind;
use eyrie_exporter::server;
use judge::Judge;
use socket::Socket;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The options of a monitor.
pub struct Options {
    /// Name of the node in samples.
    pub node: String,
    pub sampler: Config,
    /// `None`: health is not judged.
    pub judgement: Option<Judgement>,
    /// The address for Prometheus.
    pub listen: Option<SocketAddr>,
    /// Most series of commands for Prometheus.
    pub series: usize,
    pub command_lines: CommandLines,
    /// The directory for sockets of this user's monitors.
    pub sockets: anyhow::Result<PathBuf>,
}

/// When a monitor ends by itself.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub samples: Option<u64>,
    pub until: Option<Instant>,
}

/// Shows the samples as they come.
pub trait Viewer {
    /// Called before each sample, with the approximate time until it is there; a live view waits
    /// for keys meanwhile. `false` ends the monitor.
    ///
    /// # Errors
    /// When the view cannot go on.
    fn until_next(&mut self, wait: Duration) -> anyhow::Result<bool>;

    /// The next sample.
    ///
    /// # Errors
    /// When it cannot be shown.
    fn show(&mut self, frame: &Frame) -> anyhow::Result<()>;

    /// Whether the view is on a terminal, where a user presses keys.
    fn is_live(&self) -> bool;
}

/// A running monitor.
pub struct Watch {
    pub shared: Arc<Shared>,
    /// The address for Prometheus.
    pub scraped_at: Option<SocketAddr>,
    pub steadiness: Steadiness,
    /// Why `eyrie monitor dump` cannot find this monitor.
    pub unfindable: Option<anyhow::Error>,
    exporter: Arc<Mutex<Exporter>>,
    stop: Arc<AtomicBool>,
    _socket: Option<Socket>,
}

impl Watch {
    /// Starts sampling; returns when the sampler is ready. Setting `stop` and
    /// [`crate::ring::Ring::end_waits`] end it.
    ///
    /// # Errors
    /// When the address is taken, no reader works, or a thread cannot be started.
    pub fn start(options: Options, stop: Arc<AtomicBool>) -> anyhow::Result<Watch> {
        let Options { node, sampler, judgement, listen, series, command_lines, sockets } = options;
        let root = sampler.root.clone();
        let judge = judgement.map(|j| Judge::new(j, &node, &root)).transpose();
        let judge = judge.map_err(anyhow::Error::msg)?;
        // Before anything is measured: measuring does not free a port that is in use.
        let tcp = listen.map(|at| bind(at, "--listen")).transpose()?;
        let mut sampler = Sampler::prepare(sampler).map_err(anyhow::Error::msg)?;
        let shared = Arc::new(Shared {
            node,
            ring: sampler.ring(),
            started: sampler.started().clone(),
            names: Mutex::new(Directory::new(command_lines)),
            health: Mutex::new(Vec::new()),
        });
        let exporter = Arc::new(Mutex::new(Exporter::new(series)));
        let (unix, socket, unfindable) = match sockets.and_then(|base| socket::listen(&base)) {
            Ok((listener, guard)) => (Some(listener), Some(guard), None),
            Err(why) => (None, None, Some(why)),
        };
        let scraped_at = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
        let monitor = Monitor { shared: shared.clone(), exporter: exporter.clone() };
        spawn("serve", move || drop(server::run(monitor, tcp, unix)))?;
        if let Some(mut judge) = judge {
            let shared = shared.clone();
            spawn("health", move || judge.run(&shared))?;
        }
        let sampling = shared.clone();
        let (settled, settling) = std::sync::mpsc::channel();
        let never = AtomicBool::new(false);
        spawn("sampler", move || match sampler.settle() {
            Ok(steadiness) => {
                let _ = settled.send(Ok(steadiness));
                sampler.run(&sampling.ring, &never);
            }
            Err(why) => drop(settled.send(Err(why))),
        })?;
        let steadiness = settling.recv()?.map_err(anyhow::Error::msg)?;
        let _socket = socket;
        Ok(Watch { shared, scraped_at, steadiness, unfindable, exporter, stop, _socket })
    }

    /// Shows samples until the limit, the viewer or `stop` ends it.
    ///
    /// # Errors
    /// Those of the viewer.
    pub fn follow(&self, limit: Limit, viewer: &mut dyn Viewer) -> anyhow::Result<Summary> {
        let mut summary = Summary::default();
        let mut seen = None;
        while !self.stop.load(Ordering::Relaxed) && !limit.is_over(summary.count) {
            // Waits for keys until the next sample is there: only these two wake the thread.
            if !viewer.until_next(self.until_next(summary.last.0))? {
                break;
            }
            let Some(frame) = self.next(&mut seen, limit, viewer.is_live()) else { continue };
            summary.add(&frame);
            viewer.show(&frame)?;
            if self.scraped_at.is_some() {
                lock(&self.exporter).observe(frame);
            }
        }
        Ok(summary)
    }

    /// The approximate time until the sample is there that follows one with this intended moment.
    fn until_next(&self, last_ns: u64) -> Duration {
        let next = last_ns + self.shared.started.interval_ns + 2_000_000;
        let wait = next.saturating_sub(Clock::Realtime.now_ns());
        Duration::from_nanos(wait.min(self.shared.started.interval_ns))
    }

    /// The next sample in order; samples that the ring has removed are left out.
    fn next(&self, seen: &mut Option<u64>, limit: Limit, live: bool) -> Option<Frame> {
        let patience = if live { Duration::from_millis(20) } else { LONG };
        let left =
            limit.until.map_or(LONG, |until| until.saturating_duration_since(Instant::now()));
        self.shared.ring.wait(*seen, patience.min(left))?;
        let frame = self.shared.ring.following(*seen)?;
        *seen = Some(frame.head.number);
        Some(frame)
    }
}

impl Limit {
    fn is_over(&self, count: u64) -> bool {
        self.samples.is_some_and(|n| count >= n)
            || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Longer than any interval. A signal ends a wait early.
const LONG: Duration = Duration::from_secs(365 * 86_400);

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}
