//! Simulated jobs on a known network: ranks are placed by what they send each other, and those that
//! live move with the ranks of lost nodes.

use super::*;
use crate::machine::traffic::MeasuredTraffic;
use eyrie_placement::{CostModel, Method, Placement, Words};
use eyrie_topology::spec::Files;
use eyrie_topology::TopologyError;
use eyrie_wire::traffic::{PairSent, Sent};

/// Of every third job the network is known: a line or a ring of its nodes.
pub fn placement(config: &Config, seed: u64) -> Placement {
    if seed % 3 != 0 || config.domains.is_some() {
        return Placement::default();
    }
    let nodes = config.nodes + config.spares;
    let network = format!("{}:{nodes}", if seed % 2 == 0 { "mesh" } else { "torus" });
    let hosts: Vec<String> = (0..nodes).map(|node| format!("node{node}")).collect();
    let text = |_: &str| Err(TopologyError::new("there are no files"));
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
    let words = Words::of_running_job(&network, &hosts, None, files);
    let methods = [Method::Search, Method::Slide(1), Method::Hybrid, Method::Best0D];
    let method = methods[seed as usize / 3 % methods.len()];
    let start: Vec<u32> = config.start.iter().map(|node| node.0).collect();
    // So slow that every move pays.
    let costs = CostModel { bandwidth: 1e3, ..CostModel::default() };
    Placement::on_network(&words, &start, method, costs).unwrap()
}

impl Cluster {
    /// What ranks send is measured; users ask where they should be.
    pub(super) fn plan_traffic(&mut self) {
        if self.config.domains.is_some() {
            return;
        }
        for _ in 0..self.random.gen_range(0..3) {
            let traffic = Event::Traffic(self.any_traffic());
            self.after(0..8_000, Happening::Event(traffic));
        }
        for _ in 0..self.random.gen_range(0..2) {
            let left = Duration::from_secs(3600);
            let proposal = Event::Propose { request: 0, left };
            self.after(600..15_000, Happening::Event(proposal));
        }
    }

    fn any_traffic(&mut self) -> MeasuredTraffic {
        let pairs = self.random.gen_range(1..12);
        let pair = |_| {
            let [from, to] = [(); 2].map(|()| self.any_rank());
            let bytes = self.random.gen_range(1..1 << 24);
            PairSent { from, to, sent: Sent { messages: 7, bytes } }
        };
        let pairs = (0..pairs).map(pair).collect();
        MeasuredTraffic { over: Duration::from_secs(10), pairs }
    }

    /// A user is told where ranks should be, and asks for that.
    pub(super) fn rearrange(&mut self, moves: Vec<(Rank, NodeId)>) {
        if moves.is_empty() {
            return;
        }
        let request = Some(100 + self.made);
        let (drains, whole, manner) = (Vec::new(), true, Manner::default());
        let event = Event::Rearrange { request, moves, drains, whole, manner };
        self.after(0..500, Happening::Event(event));
    }
}
