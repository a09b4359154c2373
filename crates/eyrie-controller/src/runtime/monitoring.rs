//! What agents have sampled of their nodes and of the ranks there, for users; and the tick by which
//! all of them sample at the same moment. The figures are in no journal: a successor of this
//! controller gets new ones. Decides nothing.

use super::options::{JobOptions, Reach};
use crate::machine::health::equals::{times, NodeTime, Work};
use eyrie_interface::health::{RankSampled, Sampled};
use eyrie_monitor::sync::{Conductor, Key};
use eyrie_wire::auth::Secret;
use eyrie_wire::health::{NodeFigures, RankFigures};
use eyrie_wire::role_address::{Addr, Ports};
use eyrie_wire::{NodeId, RankInstance};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// What was sampled of all nodes.
#[derive(Default)]
pub struct Monitoring {
    conducting: Option<Conducting>,
    nodes: BTreeMap<NodeId, Node>,
    ranks: BTreeMap<eyrie_wire::Rank, Rank>,
    /// The length of the windows in which ranks are compared, and when the present one ends.
    window: Duration,
    window_ends: Duration,
}

/// A window is so many intervals, and at least so long: in less some ranks have no turn.
const WINDOW: u32 = 10;
const LEAST_WINDOW: Duration = Duration::from_secs(2);

/// What a node has said last, and before.
struct Node {
    now: NodeFigures,
    before: Option<NodeFigures>,
    /// When it came here.
    at: Duration,
}

/// So for a rank.
struct Rank {
    node: NodeId,
    now: RankFigures,
    before: Option<RankFigures>,
    /// The first ones of the present window.
    first: RankFigures,
}

impl Rank {
    /// What it did in the window that ends; the next one begins.
    fn end_window(&mut self) -> Work {
        let Rank { node, now, first, .. } = *self;
        self.first = now;
        let since = |of: fn(&RankFigures) -> u64| of(&now).saturating_sub(of(&first));
        let over_ns = since(|of| of.at_ns);
        let computed_ns = over_ns.saturating_sub(since(|of| of.waited_ns));
        Work { node, over_ns, computed_ns, steps: since(|of| of.steps) }
    }
}

/// The thread that says when to sample, until this is dropped.
struct Conducting {
    port: u16,
    over: Arc<AtomicBool>,
}

impl Drop for Conducting {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Conducting {
    /// Says when to sample, at the address where agents reach the controller.
    fn begin(
        interval: Duration,
        controller: &Addr,
        ports: Ports,
        secret: &Secret,
    ) -> Result<Conducting, String> {
        let host = match controller {
            Addr::Unix(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Addr::Tcp { at, .. } => at.ip(),
        };
        let key = Key::from_secret(&secret.0);
        let interval_ns = interval.as_nanos() as u64;
        let tried = ports
            .each()
            .map(|port| Conductor::new(SocketAddr::new(host, port), interval_ns, key.clone()));
        let mut last = String::new();
        let free = tried.into_iter().find_map(|tried| tried.map_err(|why| last = why).ok());
        let Some(mut conductor) = free else { return Err(last) };
        let port = conductor.address().map_err(|e| e.to_string())?.port();
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let conduct = move || {
            eyrie_monitor::clock::steady(true);
            conductor.run(&seen);
        };
        let begun = std::thread::Builder::new().name("conduct".into()).spawn(conduct);
        begun.map(|_| Conducting { port, over }).map_err(|e| e.to_string())
    }
}

impl Monitoring {
    /// Says when to sample from now on, if nodes are monitored. With what users should know.
    pub fn begin(
        options: &JobOptions,
        controller: &Addr,
        secret: &Secret,
    ) -> (Monitoring, Option<String>) {
        let Some(how) = &options.monitoring else { return (Monitoring::default(), None) };
        let ports = match &options.reach {
            Reach::Unix => Ports::ANY,
            Reach::Tcp { ports, .. } => *ports,
        };
        let begun = Conducting::begin(how.interval, controller, ports, secret);
        let note = begun.as_ref().err().map(|why| {
            format!("nodes are sampled by their own clocks, not by the controller's: {why}")
        });
        let window = (WINDOW * how.interval).max(LEAST_WINDOW);
        (Monitoring { conducting: begun.ok(), window, ..Monitoring::default() }, note)
    }

    /// The UDP port at which agents hear when to sample.
    pub fn port(&self) -> Option<u16> {
        self.conducting.as_ref().map(|conducting| conducting.port)
    }

    /// A node has said what it has sampled.
    pub fn add(&mut self, node: NodeId, figures: NodeFigures, at: Duration) {
        for now in figures.ranks.iter().copied() {
            let RankInstance { rank, incarnation } = now.instance;
            let known = self.ranks.remove(&rank);
            match known {
                // An older incarnation counts no more.
                Some(known) if known.now.instance.incarnation > incarnation => {
                    self.ranks.insert(rank, known);
                }
                known => {
                    let same = known.filter(|of| of.now.instance == now.instance);
                    let first = same.as_ref().map_or(now, |of| of.first);
                    let before = same.map(|of| of.now);
                    self.ranks.insert(rank, Rank { node, now, before, first });
                }
            }
        }
        let before = self.nodes.remove(&node).map(|of| of.now);
        self.nodes.insert(node, Node { now: figures, before, at });
    }

    /// When a window is over: how long the ranks of nodes took in it for the same work.
    pub fn compare(&mut self, now: Duration) -> Option<Vec<NodeTime>> {
        if self.window.is_zero() || now < self.window_ends {
            return None;
        }
        self.window_ends = now + self.window;
        let work: Vec<Work> = self.ranks.values_mut().map(Rank::end_window).collect();
        Some(times(&work))
    }

    /// What is known of each node, as users see it at `now`.
    pub fn of_all(&self, now: Duration) -> BTreeMap<NodeId, Sampled> {
        let mut ranks = BTreeMap::<NodeId, Vec<RankSampled>>::new();
        for rank in self.ranks.values() {
            ranks.entry(rank.node).or_default().push(rank.sampled());
        }
        let of = |(id, node): (&NodeId, &Node)| {
            (*id, node.sampled(now, ranks.remove(id).unwrap_or_default()))
        };
        self.nodes.iter().map(of).collect()
    }
}

impl Node {
    /// What is known of it, as users see it at `now`.
    fn sampled(&self, now: Duration, ranks: Vec<RankSampled>) -> Sampled {
        let Node { now: figures, before, at } = self;
        let busy = before.as_ref().and_then(|before| {
            let busy = figures.busy_ns.saturating_sub(before.busy_ns);
            let all = busy + figures.idle_ns.saturating_sub(before.idle_ns);
            (all > 0).then(|| busy as f64 / all as f64)
        });
        Sampled {
            seconds_ago: now.saturating_sub(*at).as_secs_f64(),
            sample: figures.sample,
            moment_ns: figures.moment_ns,
            late_ns: figures.late_ns,
            in_step: figures.in_step,
            reader: figures.reader.clone(),
            cost_ns: figures.cost_ns,
            busy,
            memory_bytes: figures.memory,
            available_bytes: figures.available,
            ranks,
        }
    }
}

impl Rank {
    fn sampled(&self) -> RankSampled {
        let Rank { now, before, .. } = self;
        let since = |of: fn(&RankFigures) -> u64| {
            let before = before.as_ref()?;
            let over = now.at_ns.saturating_sub(before.at_ns);
            (over > 0).then(|| of(now).saturating_sub(of(before)) as f64 / over as f64)
        };
        RankSampled {
            rank: now.instance.rank,
            busy: since(|of| of.used_ns),
            polling: since(|of| of.polled_ns),
            waiting: since(|of| of.waited_ns),
            memory_bytes: now.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::Incarnation;

    fn figures(sample: u64, busy_ns: u64, idle_ns: u64, ranks: Vec<RankFigures>) -> NodeFigures {
        NodeFigures { sample, busy_ns, idle_ns, ranks, ..NodeFigures::default() }
    }

    fn rank(incarnation: u32, used_ns: u64, at_ns: u64) -> RankFigures {
        let rank = eyrie_wire::Rank(3);
        let instance = RankInstance { rank, incarnation: Incarnation(incarnation) };
        RankFigures {
            instance,
            used_ns,
            polled_ns: used_ns / 2,
            waited_ns: 0,
            memory: 7,
            steps: 0,
            at_ns,
        }
    }

    fn of(monitoring: &Monitoring, node: NodeId, now: Duration) -> Option<Sampled> {
        monitoring.of_all(now).remove(&node)
    }

    #[test]
    fn shares_are_of_the_time_between_two_samples_and_only_of_the_newest_incarnation() {
        let mut monitoring = Monitoring::default();
        let s = Duration::from_secs;
        monitoring.add(NodeId(1), figures(0, 100, 100, vec![rank(1, 10, 100)]), s(1));
        let first = of(&monitoring, NodeId(1), s(1)).unwrap();
        assert_eq!((first.busy, first.ranks[0].busy), (None, None));
        monitoring.add(NodeId(1), figures(1, 175, 125, vec![rank(1, 60, 200)]), s(2));
        let next = of(&monitoring, NodeId(1), s(4)).unwrap();
        assert_eq!((next.busy, next.seconds_ago), (Some(0.75), 2.0));
        assert_eq!((next.ranks[0].busy, next.ranks[0].polling), (Some(0.5), Some(0.25)));
        // It has moved.
        monitoring.add(NodeId(2), figures(0, 1, 1, vec![rank(2, 5, 300)]), s(5));
        assert!(of(&monitoring, NodeId(1), s(5)).unwrap().ranks.is_empty());
        assert_eq!(of(&monitoring, NodeId(2), s(5)).unwrap().ranks[0].busy, None);
        assert_eq!(of(&monitoring, NodeId(3), s(5)), None);
        monitoring.add(NodeId(1), figures(2, 1, 1, vec![rank(1, 70, 400)]), s(6));
        assert!(of(&monitoring, NodeId(1), s(6)).unwrap().ranks.is_empty(), "it was on its way");
    }
}
