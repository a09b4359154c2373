//! The monitor of this node: a thread samples the node and its processes at the moments that the
//! controller's tick says, another one judges the node's health right after a sample. The agent's
//! loop gets both as reports, and adds what it knows of ranks. Nothing here may delay a sample, or
//! wait for the loop.

mod figures;
pub mod sample;

use crate::background::{Background, Done, Reporter};
use crate::rank::process::Process;
use eyrie_monitor::health::judging::judge;
use eyrie_monitor::health::{Event, Health, HealthState as Judged, Rules, World};
use eyrie_monitor::policy::Policy;
use eyrie_monitor::sampling_thread::{Config, Sampler};
use eyrie_monitor::sync::Key;
use eyrie_wire::auth::Secret;
use eyrie_wire::health::{Finding, HealthState, Monitoring, NodeFigures};
use eyrie_wire::role_address::Addr;
use eyrie_wire::NodeId;
use figures::Share;
use sample::Sample;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Processes that use less of a core than this are read less often (OPT1 of Kamoshida and Taura).
const BUSY: f64 = 0.1;

/// What the loop and the sampling thread share.
#[derive(Default)]
struct Shared {
    /// Where the controller says when to sample, until the thread has taken it.
    conductor: Mutex<Option<SocketAddr>>,
    /// The loop has not taken the last sample yet. Meanwhile others are left out.
    pending: AtomicBool,
}

/// The monitor, once the controller has asked for it.
#[derive(Default)]
pub struct Monitor {
    shared: Arc<Shared>,
    share: Share,
}

impl Monitor {
    /// Samples and judges this node from now on.
    ///
    /// # Errors
    /// When the rules cannot be read.
    pub fn start(
        &self,
        how: &Monitoring,
        node: NodeId,
        secret: &Secret,
        background: &Background,
    ) -> Result<(), String> {
        let rules = how.rules.as_deref().map_or_else(|| Ok(Rules::default()), Rules::parse)?;
        let rules = rules.of_jobs();
        let root = how.roots.as_ref().map_or("/".into(), |roots| {
            let roots = PathBuf::from(roots);
            roots.join(node.to_string())
        });
        let config = Config {
            interval: how.interval,
            policy: Policy::Threshold { share: BUSY },
            key: Key::from_secret(&secret.0),
            // The ranks' memory is not the monitor's to lock, and the agent's grows with images.
            lock_memory: false,
            // The loop takes each sample; none is kept.
            ring_bytes: 0,
            root: root.clone(),
            ..Config::default()
        };
        let shared = Arc::clone(&self.shared);
        let reporter = background.reporter();
        let begun = std::thread::Builder::new().name("sample".into()).spawn(move || {
            if let Err(why) = sample(config, rules, &root, &shared, &reporter) {
                reporter.report(Done::Note(format!("node {node} is not monitored: {why}")));
            }
        });
        begun.map(drop).map_err(|e| format!("the monitor cannot be started: {e}"))
    }

    /// The controller says when to sample, at this UDP port of its host.
    pub fn follow(&self, controller: &Addr, port: u16) {
        let host = match controller {
            Addr::Unix(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Addr::Tcp { at, .. } => at.ip(),
        };
        let with = Some(SocketAddr::new(host, port));
        *self.shared.conductor.lock().unwrap_or_else(PoisonError::into_inner) = with;
    }

    /// What a sample says of this node and of its ranks, to be sent; `None`: enough was sent
    /// lately.
    pub fn figures<'a>(
        &mut self,
        sample: &Sample,
        processes: impl Iterator<Item = &'a Process>,
    ) -> Option<NodeFigures> {
        self.shared.pending.store(false, Ordering::Release);
        figures::of(sample, processes, &mut self.share)
    }
}

/// Samples until the process ends.
fn sample(
    config: Config,
    rules: Rules,
    root: &Path,
    shared: &Shared,
    reporter: &Reporter,
) -> Result<(), String> {
    let mut sampler = Sampler::prepare(config)?;
    let ring = Arc::new(sampler.ring());
    let judged = Arc::clone(&ring);
    let finds = reporter.clone();
    let world = World::new(root);
    let judging = move || {
        let mut health = Health::new(rules, "");
        judge(&mut health, &world, &judged, |_, events| {
            events.iter().for_each(|event| finds.report(Done::Found(finding(event))));
        });
    };
    let begun = std::thread::Builder::new().name("health".into()).spawn(judging);
    begun.map_err(|e| format!("no thread for its health: {e}"))?;
    sampler.settle()?;
    loop {
        let conductor = shared.conductor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(with) = conductor {
            if let Err(why) = sampler.follow(with) {
                reporter.report(Done::Note(format!(
                    "nodes are sampled by their own clocks, not by the controller's: {why}"
                )));
            }
        }
        sampler.tick(&ring);
        // A loop that is late gets the newest one, when it has taken the last.
        if !shared.pending.swap(true, Ordering::Acquire) {
            if let Some(frame) = ring.latest() {
                let in_step = sampler.is_in_step();
                let sample = Sample { head: frame.head, processes: frame.processes, in_step };
                reporter.report(Done::Sampled(Box::new(sample)));
            }
        }
    }
}

/// A change of health, as the controller gets it.
fn finding(event: &Event) -> Finding {
    let state = match event.to {
        Judged::Ok => HealthState::Ok,
        Judged::Suspect => HealthState::Suspect,
        Judged::Failing => HealthState::Failing,
    };
    let Event { rule, what, evidence, .. } = event.clone();
    let said = format!("{} ({})", evidence.said, evidence.read_from);
    Finding { rule, what, state, said }.bounded()
}
