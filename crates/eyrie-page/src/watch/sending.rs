//! What ranks send each other, and what the links of the network carry by that, as the job is asked
//! for it while someone looks. Routes are asked for once each.

use super::watched::Watch;
use crate::picture::{loads, NodePairs, Routed};
use eyrie_controller::runtime::users::ask;
use eyrie_interface::network::{Network, Networked, Routes};
use eyrie_interface::traffic::Traffic;
use eyrie_interface::Request;
use eyrie_wire::NodeId;
use std::path::Path;
use std::time::{Duration, Instant};

/// The job is asked again after this many times the time that its answer took, at least, but not
/// after more than the longest pause.
pub const REST: u32 = 50;
/// How long after an answer a job is asked again: so long at least and at most, and between them as
/// long as its answer was dear.
const PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// Most routes that are kept. Links that more pairs of nodes need are not shown.
const ROUTES: usize = 1 << 16;

/// What is known of it.
#[derive(Default)]
pub struct Sending {
    network: Option<Network>,
    /// How many nodes the job had when it was asked for its network.
    nodes: Option<usize>,
    routed: Routed,
    /// The last answer.
    before: Option<Traffic>,
    next: Option<Instant>,
}

impl Sending {
    /// Asks the job, unless it was asked a moment ago.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn look_when_due(&mut self, dir: &Path, watch: &Watch) -> anyhow::Result<()> {
        if self.next.is_some_and(|next| Instant::now() < next) {
            return Ok(());
        }
        let began = Instant::now();
        let looked = self.look(dir, watch);
        let pause = (began.elapsed() * REST).clamp(PAUSE, LONGEST_PAUSE);
        self.next = Some(Instant::now() + pause);
        looked
    }

    fn look(&mut self, dir: &Path, watch: &Watch) -> anyhow::Result<()> {
        self.look_at_network(dir, watch)?;
        let total: Traffic = ask(dir, &Request::Traffic)?;
        let window = match self.before.take() {
            Some(before) => total.clone().since(&before),
            None => total.clone(),
        };
        let links = match &self.network {
            Some(network) if !network.links.is_empty() => {
                let pairs = watch.node_pairs(&window);
                self.ask_for_routes(dir, &pairs)?;
                loads(&pairs, &self.routed, window.over.as_secs_f64())
            }
            _ => Vec::new(),
        };
        watch.set_traffic(&total, &window, links);
        self.before = Some(total);
        Ok(())
    }

    /// The network is asked for once, and again when hosts have joined.
    fn look_at_network(&mut self, dir: &Path, watch: &Watch) -> anyhow::Result<()> {
        let nodes = watch.count_nodes();
        if self.nodes == Some(nodes) {
            return Ok(());
        }
        let Networked { network } = ask(dir, &Request::Network)?;
        if let Some(network) = &network {
            watch.set_network(network);
        }
        (self.network, self.nodes) = (network, Some(nodes));
        self.routed.clear();
        Ok(())
    }

    fn ask_for_routes(&mut self, dir: &Path, pairs: &NodePairs) -> anyhow::Result<()> {
        let room = ROUTES - self.routed.len().min(ROUTES);
        let new = pairs.keys().filter(|pair| !self.routed.contains_key(pair)).take(room);
        let new: Vec<(NodeId, NodeId)> = new.copied().collect();
        for pairs in new.chunks(Routes::MOST) {
            let Routes { routes } = ask(dir, &Request::Routes { pairs: pairs.to_vec() })?;
            self.routed.extend(pairs.iter().copied().zip(routes));
        }
        Ok(())
    }
}
