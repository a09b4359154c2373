//! Messages and bytes on every directed link during one communication step, counted in parallel.

use rayon::prelude::*;

use crate::network::{LinkId, Network, NodeId, RouteError};

/// One message: source node, destination node, bytes, and how many such messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    pub from: NodeId,
    pub to: NodeId,
    pub bytes: u64,
    pub count: u32,
}

/// The busiest link of a step. On networks with links of several bandwidths both figures are divided by
/// the link's bandwidth factor, rounded up.
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

/// Below this many messages, or this many for each link, a single thread counts faster than several: each needs counters for all
/// links, which are added up in the end.
const PARALLEL_FROM: usize = 50_000;
const PARALLEL_FROM_PER_LINK: usize = 4;

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
        let sequential = |range: std::ops::Range<usize>| {
            let mut loads = LinkLoads::empty(network.links());
            let mut route = Vec::new();
            for i in range {
                loads.add(network, message(i), &mut route)?;
            }
            Ok(loads)
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
                let (mut a, b) = (a?, b?);
                a.merge(&b);
                Ok(a)
            })
            .unwrap_or_else(|| Ok(LinkLoads::empty(network.links())))
    }

    fn merge(&mut self, other: &LinkLoads) {
        self.messages.iter_mut().zip(&other.messages).for_each(|(a, b)| *a += b);
        self.bytes.iter_mut().zip(&other.bytes).for_each(|(a, b)| *a += b);
    }

    fn add(
        &mut self,
        network: &dyn Network,
        message: Message,
        route: &mut Vec<LinkId>,
    ) -> Result<(), RouteError> {
        route.clear();
        network.route(message.from, message.to, route)?;
        for &link in route.iter() {
            self.messages[link as usize] += message.count;
            self.bytes[link as usize] += message.bytes;
        }
        Ok(())
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
            from: (i % 1600) as NodeId,
            to: (i * 7919 % 1600) as NodeId,
            bytes: i as u64 % 100,
            count: 1,
        };
        let total = PARALLEL_FROM + 17;
        let all = LinkLoads::count(&torus, total, message).unwrap();
        let mut one = LinkLoads::empty(torus.links());
        for i in 0..total {
            one.add(&torus, message(i), &mut Vec::new()).unwrap();
        }
        assert_eq!(all, one);
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
