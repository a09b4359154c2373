//! Work of threads beside the agent's loop, and what they report to it. The loop never waits for
//! one of them.

use crate::images::transfer::Uploaded;
use crate::monitor::sample::Sample;
use eyrie_wire::control::{ImageMeta, StartFault, StartRank};
use eyrie_wire::health::Finding;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, NodeId, RankInstance};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Instant;

/// The result of fetching an image: its stream, or why there is none.
pub type Opened = Result<(eyrie_transport::Stream, ImageMeta), (String, StartFault)>;

/// What a thread reports.
pub enum Done {
    Opened {
        start: Box<StartRank>,
        since: Instant,
        /// The image that is in place: `result` has the difference to it. 0: none, it is whole.
        in_place: ImageId,
        result: Opened,
    },
    Fed {
        instance: RankInstance,
        result: std::io::Result<u64>,
    },
    Uploaded {
        instance: RankInstance,
        image: ImageId,
        /// Bytes of (stdout, stderr) that the rank had written before the image.
        output: [u64; 2],
        store: Addr,
        result: anyhow::Result<Uploaded>,
    },
    /// An image was put in place for an incoming rank, or not. `into`: the pipe for the next image.
    Prepared {
        instance: RankInstance,
        image: ImageId,
        into: OwnedFd,
        result: Result<u64, String>,
    },
    /// Another controller listens at this address.
    Controller(Addr),
    /// The controller lives, and has declared this node dead.
    DeclaredDead,
    /// This host is about to be taken away; the reason.
    Notice(String),
    /// The node was sampled.
    Sampled(Box<Sample>),
    /// A health rule has found something, or finds it no longer.
    Found(Finding),
    /// Something that the user should know.
    Note(String),
    /// Another host can be reached again, or no longer.
    Reached {
        node: NodeId,
        reached: bool,
    },
}

/// What threads have reported, until the loop takes it.
pub struct Background {
    reporter: Reporter,
    reports: Receiver<Done>,
}

/// By it a thread reports to the loop.
#[derive(Clone)]
pub struct Reporter {
    done: Sender<Done>,
    /// The loop waits for its other end.
    waker: Arc<UnixStream>,
}

impl Reporter {
    /// Reports something, and wakes the loop.
    pub fn report(&self, what: Done) {
        // Both fail only when the agent ends.
        let _ = self.done.send(what);
        let _ = (&*self.waker).write_all(&[1]);
    }
}

impl Background {
    /// Reports wake the loop through `waker`.
    pub fn new(waker: UnixStream) -> Background {
        let (done, reports) = channel();
        Background { reporter: Reporter { done, waker: Arc::new(waker) }, reports }
    }

    /// For a thread that reports more than once.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Runs this on a thread, which reports its result.
    pub fn run(&self, work: impl FnOnce() -> Done + Send + 'static) {
        let reporter = self.reporter();
        std::thread::spawn(move || reporter.report(work()));
    }

    /// The next report, if there is one.
    pub fn next(&self) -> Option<Done> {
        self.reports.try_recv().ok()
    }
}
