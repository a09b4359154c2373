//! The network of a running job: where its nodes are in it, and what its ranks send each other. It
//! says what links carry when ranks go to other nodes. Which nodes may be chosen is decided by
//! [`crate::assign`]: nothing here looks at slots or at what is up.

use std::borrow::Cow;

use eyrie_topology::spec::Parsed;
use eyrie_topology::{coords, Layout, Network, NetworkNode, TopologyError, VertexId};

use crate::cluster::{JobNode, JobNodes};
use crate::cost::CostModel;
use crate::evaluate::{Counted, Evaluator, Scratch};
use crate::spares;
use crate::traffic::{Rank, RankMessage, Traffic};
use crate::words::{network, nodes, wrong, WordError, Words};

/// Where a job is in its network.
pub(crate) struct OnNetwork {
    pub network: Box<dyn Network>,
    /// The network's own grid.
    grid: Option<Layout>,
    /// Names of the network's nodes, where a file gives them.
    names: Vec<String>,
    hosts: Vec<String>,
    /// The network's node for each node of the job; `None`: it has joined, and is none of them.
    at: Vec<Option<NetworkNode>>,
    /// The node that each rank started on.
    pub start: Vec<JobNode>,
    pub traffic: Traffic,
    /// For how long the traffic was measured, in seconds; `None`: it was not, and is a pattern.
    pub measured: Option<f64>,
    pub costs: CostModel,
}

impl OnNetwork {
    /// `words` has a host for each node of the job, spares last. Their traffic is a pattern for
    /// the ranks in a line, or those of a grid of so many axes as the pattern needs.
    ///
    /// # Errors
    /// Of the first word that is wrong.
    pub fn read(words: &Words, start: &[JobNode], costs: CostModel) -> Result<Self, WordError> {
        let Parsed { network, layout: grid, names } = network(words)?;
        let at = nodes(words, network.as_ref(), &names)?;
        let most = start.iter().max().map_or(0, |node| *node as usize + 1);
        if most > at.len() {
            let why = format!("the job starts on {most} nodes: {} are given", at.len());
            return Err(wrong("network")(TopologyError::new(why)));
        }
        let traffic = traffic(words, start.len())?;
        let hosts = words.hosts.iter().map(ToString::to_string).collect();
        let at = at.into_iter().map(Some).collect();
        let start = start.to_vec();
        Ok(OnNetwork { network, grid, names, hosts, at, start, traffic, measured: None, costs })
    }

    /// What ranks have sent each other in so many seconds. Where nothing is sent, nothing changes.
    pub fn measure(&mut self, messages: &[RankMessage], seconds: f64) {
        if let Some(traffic) = Traffic::measured(self.start.len(), messages.to_vec()) {
            (self.traffic, self.measured) = (traffic, Some(seconds));
        }
    }

    /// All hosts of the job. One that has joined is the network's node of its name, or is where a
    /// node of the same host was.
    pub fn join(&mut self, hosts: &[String]) {
        for host in hosts.get(self.at.len()..).unwrap_or_default() {
            let own = spares::named(host, self.network.as_ref(), &self.names);
            let before = self.hosts.iter().position(|known| known == host);
            self.at.push(own.or(before.and_then(|node| self.at[node])));
            self.hosts.push(host.clone());
        }
    }

    /// How many nodes the job has.
    pub fn nodes(&self) -> usize {
        self.at.len()
    }

    /// The network's node of a node of the job.
    pub fn position(&self, node: JobNode) -> Option<NetworkNode> {
        self.at.get(node as usize).copied().flatten()
    }

    /// The name of a vertex: that of a file, or else the network's own.
    pub fn vertex_name(&self, vertex: VertexId) -> String {
        let named = self.names.get(vertex as usize).cloned();
        named.unwrap_or_else(|| self.network.vertex_name(vertex))
    }

    /// The nodes of the network that the job has, each once.
    fn positions(&self) -> Vec<NetworkNode> {
        let mut all: Vec<NetworkNode> = Vec::new();
        for at in self.at.iter().flatten() {
            if !all.contains(at) {
                all.push(*at);
            }
        }
        all
    }

    /// The grid that ranks slide along: the network's own, or else a line of the job's nodes.
    ///
    /// # Errors
    /// None while the positions are nodes of the network.
    pub fn layout(&self) -> Result<Layout, TopologyError> {
        if let Some(grid) = &self.grid {
            return Ok(grid.clone());
        }
        let line = self.positions();
        Layout::new(&[line.len()], line, self.network.nodes())
    }

    /// The traffic of the ranks whose place in the network is known.
    pub fn traffic_of(&self, cluster: &JobNodes<'_>) -> Cow<'_, Traffic> {
        let is_known = |rank: Rank| self.position_of(cluster, rank).is_some();
        if (0..self.start.len() as Rank).all(is_known) {
            return Cow::Borrowed(&self.traffic);
        }
        Cow::Owned(self.traffic.among(is_known))
    }

    pub fn position_of(&self, cluster: &JobNodes<'_>, rank: Rank) -> Option<NetworkNode> {
        cluster.at.get(rank as usize).copied().flatten().and_then(|node| self.position(node))
    }

    /// What links carry now; `traffic` is that of [`OnNetwork::traffic_of`]. `None`: the network
    /// has no route for some of it.
    pub fn scene<'a>(&'a self, traffic: &'a Traffic, cluster: &JobNodes<'_>) -> Option<Scene<'a>> {
        let evaluator = Evaluator { network: self.network.as_ref(), traffic };
        // One that is nowhere sends nothing.
        let at = |rank| self.position_of(cluster, rank).unwrap_or(0);
        let counted = evaluator.count((0..self.start.len() as Rank).map(at).collect()).ok()?;
        let scratch = evaluator.scratch();
        Some(Scene { on: self, evaluator, counted, scratch })
    }
}

/// What the ranks of a running job send each other, as far as the words say it.
///
/// # Errors
/// When the traffic is wrong.
pub(crate) fn traffic(words: &Words, ranks: usize) -> Result<Traffic, WordError> {
    let shape = shape(words.traffic, ranks);
    let traffic = Traffic::read(words.traffic, &shape, words.bytes, words.files.text);
    traffic.map_err(wrong("traffic"))
}

/// The extents of the grid of ranks for a pattern: as many axes as it needs, shared out as
/// MPI_Dims_create does; else a line.
fn shape(traffic: Option<&str>, ranks: usize) -> Vec<usize> {
    match traffic.map(|words| words.split(':').next().unwrap_or(words)) {
        Some("stencil5" | "stencil9") => coords::shared_out(ranks, 2),
        Some("stencil7" | "stencil27") => coords::shared_out(ranks, 3),
        _ => vec![ranks],
    }
}

/// Ranks on nodes, and what the links carry by that.
pub(crate) struct Scene<'a> {
    on: &'a OnNetwork,
    evaluator: Evaluator<'a>,
    counted: Counted,
    scratch: Scratch,
}

impl Scene<'_> {
    fn moves(&self, ranks: &[Rank], to: JobNode) -> Option<Vec<(Rank, NetworkNode)>> {
        let to = self.on.position(to)?;
        Some(ranks.iter().map(|rank| (*rank, to)).collect())
    }

    /// The node of these to which the ranks go with the fewest messages on the busiest link, the
    /// first of several; `None`: none of them is known in the network.
    pub fn best(&mut self, ranks: &[Rank], candidates: &[JobNode]) -> Option<JobNode> {
        let known: Vec<(JobNode, Vec<(Rank, NetworkNode)>)> =
            candidates.iter().filter_map(|to| Some((*to, self.moves(ranks, *to)?))).collect();
        let moves: Vec<_> = known.iter().map(|(_, moves)| moves.clone()).collect();
        let scores = self.evaluator.score_all(&self.counted, &moves, &mut self.scratch);
        let scored = scores.into_iter().zip(known).enumerate();
        let scored = scored.filter_map(|(n, (score, (to, _)))| Some((score?.messages, n, to)));
        scored.min().map(|(_, _, to)| to)
    }

    /// Messages on the busiest link when these ranks have gone to these nodes as well; `None`: a
    /// node is not known in the network.
    pub fn busiest_after(&mut self, moves: &[(Rank, JobNode)]) -> Option<u64> {
        let moves: Option<Vec<(Rank, NetworkNode)>> =
            moves.iter().map(|(rank, to)| Some((*rank, self.on.position(*to)?))).collect();
        let score = self.evaluator.score_moves(&self.counted, &moves?, &mut self.scratch);
        score.ok().map(|score| score.messages)
    }

    /// The ranks are there from now on.
    pub fn go(&mut self, ranks: &[Rank], to: JobNode) {
        let Some(moves) = self.moves(ranks, to) else { return };
        if let Ok(counted) = self.evaluator.apply(&self.counted, &moves, &mut self.scratch) {
            self.counted = counted;
        }
    }
}
