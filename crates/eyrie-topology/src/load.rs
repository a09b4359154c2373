//! Messages and bytes on every directed link during one communication step, counted in parallel.

use rayon::prelude::*;

use crate::network::{Lines, LinkId, Network, NetworkNode, RouteError, Run};

/// One message: source node, destination node, bytes, and how many such messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    pub from: NetworkNode,
    pub to: NetworkNode,
    pub bytes: u64,
    pub count: u32,
}

/// The busiest link of a step. On networks with links of several bandwidths both figures are
/// divided by the link's bandwidth factor, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Busiest {
    pub messages: u64,
    pub bytes: u64,
}

impl Busiest {
    pub fn max(self, other: Busiest) -> Busiest {
        Busiest { messages: self.messages.max(other.messages), bytes: self.bytes.max(other.bytes) }
    }
}

/// Messages and bytes per directed link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkLoads {
    pub messages: Vec<u32>,
    pub bytes: Vec<u64>,
}

/// Below this many messages, or this many for each link, a single thread counts faster than
/// several: each thread needs counters for all links, which are added up in the end.
const PARALLEL_FROM: usize = 50_000;
const PARALLEL_FROM_PER_LINK: usize = 4;

/// The lines of a network along which these messages go far, if they do on average: then their
/// routes are better taken as runs. It decides from a sample of them.
pub fn far_along(
    network: &dyn Network,
    total: usize,
    message: impl Fn(usize) -> Message,
) -> Option<&dyn Lines> {
    const SAMPLE: usize = 32;
    const FAR: usize = 3;
    let lines = network.lines()?;
    let sample = total.min(SAMPLE);
    let mut runs = Vec::new();
    for i in 0..sample {
        let m = message(i * total / sample);
        // A pair without a route is found again when all are counted.
        let _ = lines.runs(m.from, m.to, &mut runs);
    }
    (runs.iter().map(Run::len).sum::<usize>() > FAR * sample).then_some(lines)
}

impl LinkLoads {
    pub fn empty(links: usize) -> Self {
        LinkLoads { messages: vec![0; links], bytes: vec![0; links] }
    }

    /// Counts `total` messages, the i-th given by `message(i)`. Messages inside a node use no link.
    pub fn count(
        network: &dyn Network,
        total: usize,
        message: impl Fn(usize) -> Message + Sync,
    ) -> Result<Self, RouteError> {
        let lines = far_along(network, total, &message);
        let sequential = |range: std::ops::Range<usize>| {
            let mut counter = Counter::new(network, lines);
            for i in range {
                counter.add(message(i))?;
            }
            Ok(counter.loads())
        };
        let threads = rayon::current_num_threads();
        let few = total < PARALLEL_FROM.max(PARALLEL_FROM_PER_LINK * network.links());
        if few || threads == 1 {
            return sequential(0..total);
        }
        let chunk = total.div_ceil(threads);
        (0..threads)
            .into_par_iter()
            .map(|t| sequential((t * chunk).min(total)..((t + 1) * chunk).min(total)))
            .reduce_with(|a, b| {
                let mut a = a?;
                let b = b?;
                a.merge(&b);
                Ok(a)
            })
            .unwrap_or_else(|| Ok(LinkLoads::empty(network.links())))
    }

    fn merge(&mut self, other: &LinkLoads) {
        for (a, b) in self.messages.iter_mut().zip(&other.messages) {
            *a += b;
        }
        for (a, b) in self.bytes.iter_mut().zip(&other.bytes) {
            *a += b;
        }
    }

    /// The figure of one link as [`Busiest`] counts it.
    pub fn of_link(&self, network: &dyn Network, link: LinkId) -> Busiest {
        scaled(network, link, u64::from(self.messages[link as usize]), self.bytes[link as usize])
    }

    /// The busiest link by messages and by bytes (they may be different links).
    pub fn busiest(&self, network: &dyn Network) -> Busiest {
        if network.uniform_bandwidth() {
            return Busiest {
                messages: u64::from(self.messages.iter().copied().max().unwrap_or(0)),
                bytes: self.bytes.iter().copied().max().unwrap_or(0),
            };
        }
        (0..self.messages.len() as LinkId)
            .filter(|&l| self.messages[l as usize] > 0)
            .map(|l| self.of_link(network, l))
            .fold(Busiest::default(), Busiest::max)
    }

    /// A link with the most messages.
    pub fn busiest_link(&self, network: &dyn Network) -> Option<LinkId> {
        (0..self.messages.len() as LinkId)
            .filter(|&l| self.messages[l as usize] > 0)
            .max_by_key(|&l| (self.of_link(network, l).messages, std::cmp::Reverse(l)))
    }
}

/// Runs up to this length are counted link by link; of longer ones only both ends are noted.
const SHORT_RUN: usize = 16;

/// Loads while they are counted.
struct Counter<'a> {
    network: &'a dyn Network,
    lines: Option<&'a dyn Lines>,
    loads: LinkLoads,
    /// By how much each place has more than the one before it (in wrapping numbers), because of
    /// long runs.
    steps: Vec<(u32, u64)>,
    route: Vec<LinkId>,
    runs: Vec<Run>,
}

impl<'a> Counter<'a> {
    fn new(network: &'a dyn Network, lines: Option<&'a dyn Lines>) -> Self {
        let loads = LinkLoads::empty(network.links());
        Counter { network, lines, loads, steps: Vec::new(), route: Vec::new(), runs: Vec::new() }
    }

    fn add(&mut self, message: Message) -> Result<(), RouteError> {
        self.route.clear();
        match self.lines {
            None => self.network.route(message.from, message.to, &mut self.route)?,
            Some(lines) => {
                self.runs.clear();
                lines.runs(message.from, message.to, &mut self.runs)?;
                for run in &self.runs {
                    if run.len() <= SHORT_RUN {
                        self.route.extend(run.clone().map(|place| lines.link_at(place)));
                        continue;
                    }
                    self.steps.resize(self.network.links() + 1, (0, 0));
                    let first = run.start as usize;
                    let after = run.end as usize;
                    let (messages, bytes) = self.steps[first];
                    self.steps[first] =
                        (messages.wrapping_add(message.count), bytes.wrapping_add(message.bytes));
                    let (messages, bytes) = self.steps[after];
                    self.steps[after] =
                        (messages.wrapping_sub(message.count), bytes.wrapping_sub(message.bytes));
                }
            }
        }
        for &link in &self.route {
            self.loads.messages[link as usize] += message.count;
            self.loads.bytes[link as usize] += message.bytes;
        }
        Ok(())
    }

    fn loads(mut self) -> LinkLoads {
        let Some(lines) = self.lines.filter(|_| !self.steps.is_empty()) else {
            return self.loads;
        };
        let mut messages = 0u32;
        let mut bytes = 0u64;
        for place in 0..self.network.links() {
            messages = messages.wrapping_add(self.steps[place].0);
            bytes = bytes.wrapping_add(self.steps[place].1);
            if messages > 0 {
                let link = lines.link_at(place as u32) as usize;
                self.loads.messages[link] += messages;
                self.loads.bytes[link] += bytes;
            }
        }
        self.loads
    }
}

/// Divides a link's figures by its bandwidth factor.
pub fn scaled(network: &dyn Network, link: LinkId, messages: u64, bytes: u64) -> Busiest {
    if network.uniform_bandwidth() {
        return Busiest { messages, bytes };
    }
    let factor = network.bandwidth_factor(link);
    Busiest {
        messages: (messages as f64 / factor).ceil() as u64,
        bytes: (bytes as f64 / factor).ceil() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cartesian::Cartesian;

    #[test]
    fn parallel_and_sequential_counts_agree() {
        let torus = Cartesian::torus(&[40, 40]);
        let message = |i: usize| Message {
            from: (i % 1600) as NetworkNode,
            to: (i * 7919 % 1600) as NetworkNode,
            bytes: i as u64 % 100,
            count: 1,
        };
        let total = PARALLEL_FROM + 17;
        let all = LinkLoads::count(&torus, total, message).unwrap();
        let mut one = Counter::new(&torus, None);
        (0..total).for_each(|i| one.add(message(i)).unwrap());
        assert_eq!(all, one.loads());
    }

    #[test]
    fn runs_count_on_every_link_as_routes_do() {
        for torus in [Cartesian::torus(&[3, 90]), Cartesian::mesh(&[200])] {
            let nodes = torus.nodes();
            let message = |i: usize| Message {
                from: (i % nodes) as NetworkNode,
                to: (i * 7919 % nodes) as NetworkNode,
                bytes: i as u64 % 100,
                count: 1 + i as u32 % 3,
            };
            let total = 5 * nodes + 3;
            let counted = LinkLoads::count(&torus, total, message).unwrap();
            let mut walked = LinkLoads::empty(torus.links());
            for m in (0..total).map(message) {
                let mut route = Vec::new();
                torus.route(m.from, m.to, &mut route).unwrap();
                for link in route {
                    walked.messages[link as usize] += m.count;
                    walked.bytes[link as usize] += m.bytes;
                }
            }
            assert!(far_along(&torus, total, message).is_some());
            assert_eq!(counted, walked);
        }
    }

    #[test]
    fn a_message_counts_on_every_link_of_its_route() {
        let mesh = Cartesian::mesh(&[1, 5]);
        let loads =
            LinkLoads::count(&mesh, 2, |i| Message { from: i as u32, to: 4, bytes: 10, count: 1 })
                .unwrap();
        assert_eq!(loads.busiest(&mesh), Busiest { messages: 2, bytes: 20 });
        assert_eq!(loads.messages.iter().sum::<u32>(), 4 + 3);
    }
}
