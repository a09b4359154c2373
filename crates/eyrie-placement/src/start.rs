//! Where the ranks of a job start on its network, and which of its nodes are spares. Hosts are
//! counted as the user names them; what this comes to is their order, spares last, as a running job
//! counts its nodes. How many ranks a host takes is decided by the caller: nothing here reads a
//! user's hosts.

use std::collections::{BTreeMap, BTreeSet};

use eyrie_topology::spec::Parsed;
use eyrie_topology::{coords, refuse, Layout, Network, NetworkNode, TopologyError};

use crate::anneal;
use crate::cluster::JobNode;
use crate::cost::CostModel;
use crate::evaluate::Evaluator;
use crate::fluid;
use crate::job::Job;
use crate::objective::Weights;
use crate::on_network::traffic;
use crate::outcome::PlanError;
use crate::planning_input::Planner;
use crate::rearrange::counts;
use crate::spares::{self, Arrangement, SpareSet};
use crate::traffic::{Rank, Traffic};
use crate::words::{network, nodes, wrong, WordError, Words};

/// Which hosts are held free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spares<'a> {
    /// So many: those that are best by the network, or the last ones.
    Count(u32),
    /// These, whatever is best.
    Set(&'a SpareSet),
}

/// The ranks of hosts in this order, of which the last so many are spares: for each rank its place
/// in the order. The caller's hosts may have room for different numbers of ranks.
///
/// # Errors
/// When the ranks do not fit, with the remedy.
pub type Fill<'a> = &'a dyn Fn(&[usize], u32) -> Result<Vec<JobNode>, String>;

/// What is to be placed.
pub struct Task<'a> {
    pub spares: Spares<'a>,
    /// Nodes and ranks are chosen by the network; else hosts are filled in order.
    pub by_network: bool,
    /// The hosts are real ones: the network must know them, if it knows hosts by names.
    pub named: bool,
    pub fill: Fill<'a>,
    /// Most ranks of each host, where that was said.
    pub slots: &'a [Option<u32>],
    pub costs: CostModel,
}

/// The first places of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// The hosts, those that are held free last.
    pub order: Vec<usize>,
    pub spares: u32,
    /// For each rank its host's place in `order`.
    pub start: Vec<JobNode>,
    /// The network's node of each host of `order`.
    pub places: Vec<NetworkNode>,
    /// What users should know, where this is not the order of the hosts.
    pub said: Option<String>,
}

/// Most nodes whose failure is tried to compare sets of spares.
const FAILURES: usize = 32;
/// A step that is shorter by less than this share counts as equally long.
const CLOSE: f64 = 1e-3;
/// Of traffic with more messages only the busiest link is looked at, and ranks stay in their order:
/// a job is not to wait for its start.
const MOST_MESSAGES: usize = 200_000;
/// Most spares, and hosts that are missed, that a line names.
const NAMED: usize = 8;
/// How many of the network's nodes it names then.
const SHOWN: usize = 4;

/// How many nodes a job has whose spares are planes round its own nodes: all of the network.
///
/// # Errors
/// When the network cannot be read, or has no coordinates.
pub fn nodes_of_planes(words: &Words, set: &SpareSet) -> Result<u32, WordError> {
    let Parsed { network, layout, .. } = network(words)?;
    match layout {
        Some(grid) => Ok(grid.cells() as u32),
        None => Err(wrong("spares")(no_coordinates(network.as_ref(), set))),
    }
}

fn no_coordinates(network: &dyn Network, set: &SpareSet) -> TopologyError {
    TopologyError::new(format!(
        "{set} needs a network with coordinates, which {} has not: give a number of spares",
        network.describe()
    ))
}

/// Whether the network's nodes have the names of hosts.
///
/// # Errors
/// When the network cannot be read.
pub fn knows_hosts(words: &Words) -> Result<bool, WordError> {
    let Parsed { network, names, .. } = network(words)?;
    Ok(has_names(network.as_ref(), &names))
}

fn has_names(network: &dyn Network, names: &[String]) -> bool {
    !names.is_empty() || network.node_by_name(&network.vertex_name(0)) == Some(0)
}

/// The network's node of each of the hosts, which are real ones.
///
/// # Errors
/// As [`place`].
pub fn positions(words: &Words) -> Result<Vec<NetworkNode>, WordError> {
    let Parsed { network, names, .. } = network(words)?;
    fits(words, network.as_ref(), &names, true).map_err(wrong("network"))?;
    Ok(nodes(words, network.as_ref(), &names)?)
}

/// Places a job, `words` with its hosts in the user's order.
///
/// # Errors
/// Of the first word that is wrong: the network is too small or names other hosts, the spares
/// cannot be had on it, the traffic is of another job, ranks do not fit.
pub fn place(words: &Words, task: &Task<'_>) -> Result<Started, WordError> {
    let Parsed { network, layout: grid, names } = network(words)?;
    let network = network.as_ref();
    fits(words, network, &names, task.named).map_err(wrong("network"))?;
    let at = nodes(words, network, &names)?;
    let hosts = Hosts { network, grid: grid.as_ref(), names: &names, at: &at, words, task };
    let filled = hosts.filled()?;
    let traffic = traffic(words, filled[0].start.len())?;
    if words.traffic.is_some_and(|written| written.starts_with("matrix:")) {
        of_this_job(&traffic).map_err(wrong("traffic"))?;
    }
    if !task.by_network {
        return Ok(hosts.started(&filled[0], None));
    }
    let trial = Trial { hosts: &hosts, traffic: &traffic };
    let mut chosen = trial.best_of(filled)?;
    // Without a word of what ranks send each other they stay in their order.
    if words.traffic.is_some() && traffic.messages() <= MOST_MESSAGES {
        chosen = trial.improved(chosen)?;
    }
    let said = trial.said(&chosen)?;
    Ok(hosts.started(&chosen.0, said))
}

/// Whether the network has a node for each host.
fn fits(
    words: &Words,
    network: &dyn Network,
    names: &[String],
    named: bool,
) -> Result<(), TopologyError> {
    let described = network.describe();
    if named && has_names(network, names) {
        let hosts = words.hosts.iter().copied();
        let missing: Vec<&str> =
            hosts.filter(|host| spares::of_host(host, network, names).is_none()).collect();
        if !missing.is_empty() {
            let some = (0..network.nodes().min(SHOWN) as NetworkNode).map(|n| match names {
                [] => network.vertex_name(n),
                names => names[n as usize].clone(),
            });
            let some = some.collect::<Vec<_>>().join(", ");
            let more = if network.nodes() > SHOWN { " and so on" } else { "" };
            return refuse!(
                "{described} names other hosts: {} of {} are not in it ({}), it has {some}{more}; \
                 name hosts as it does, or give the network of these hosts",
                missing.len(),
                words.hosts.len(),
                listed(missing.iter().copied()),
            );
        }
    }
    let (has, needs) = (network.nodes(), words.hosts.len());
    if needs > has {
        return refuse!(
            "{described} has {has} nodes, the job has {needs}, spares included: give a larger \
             network, or fewer nodes"
        );
    }
    Ok(())
}

/// Whether a matrix is of as many ranks as the job has. Each rank sends or gets something in any
/// job.
fn of_this_job(traffic: &Traffic) -> Result<(), TopologyError> {
    let messages = traffic.phases.iter().flat_map(|phase| &phase.messages);
    let last = messages.map(|m| m.from.max(m.to) as usize).max().unwrap_or(0);
    if last + 1 < traffic.ranks {
        return refuse!(
            "the matrix is of {} ranks, the job has {}: measure one of this job (`eyrie traffic JOB \
             --matrix FILE`), or give a pattern",
            last + 1,
            traffic.ranks
        );
    }
    Ok(())
}

/// Names, not too many of them.
fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = names.len();
    let shown = names.take(NAMED).collect::<Vec<_>>().join(", ");
    match count.saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// An order of the hosts, of which the last are spares.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    order: Vec<usize>,
    spares: u32,
}

/// The same with ranks: for each its host's place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Filled {
    choice: Choice,
    start: Vec<JobNode>,
}

/// The hosts of a job in its network.
struct Hosts<'a> {
    network: &'a dyn Network,
    grid: Option<&'a Layout>,
    names: &'a [String],
    /// The network's node of each host.
    at: &'a [NetworkNode],
    words: &'a Words<'a>,
    task: &'a Task<'a>,
}

impl Hosts<'_> {
    /// The hosts in the order in which they are written; the last ones are spares.
    fn as_written(&self) -> Choice {
        let spares = match self.task.spares {
            Spares::Count(count) => count,
            Spares::Set(set) => self.counted(set),
        };
        Choice { order: (0..self.at.len()).collect(), spares }
    }

    /// How many hosts a set has at most that can be counted without the network.
    fn counted(&self, set: &SpareSet) -> u32 {
        match set {
            SpareSet::Contiguous(count) | SpareSet::Scattered(count) => *count as u32,
            SpareSet::List(names) => names.len() as u32,
            SpareSet::Planes { .. } => 0,
        }
    }

    /// By number in the network.
    fn along_the_network(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.at.len()).collect();
        order.sort_by_key(|host| self.at[*host]);
        order
    }

    /// What may be chosen from; the first is the order as it is written.
    fn choices(&self) -> Result<Vec<Choice>, WordError> {
        let written: Vec<usize> = (0..self.at.len()).collect();
        let orders = match self.task.by_network {
            true => vec![written, self.along_the_network()],
            false => vec![written],
        };
        // `None`: the last ones of each order.
        let sets: Vec<Option<Vec<usize>>> = match self.task.spares {
            Spares::Count(count @ 1..) if self.task.by_network => {
                [None].into_iter().chain(self.sets(count as usize).into_iter().map(Some)).collect()
            }
            Spares::Count(_) => vec![None],
            Spares::Set(SpareSet::Contiguous(count)) => {
                vec![Some((self.at.len().saturating_sub(*count)..self.at.len()).collect())]
            }
            Spares::Set(set) => vec![Some(self.hosts_of(set).map_err(wrong("spares"))?)],
        };
        let mut choices: Vec<Choice> = Vec::new();
        for order in &orders {
            for set in &sets {
                let choice = match set {
                    None => Choice { order: order.clone(), ..self.as_written() },
                    Some(set) => {
                        let rest = order.iter().filter(|host| !set.contains(host));
                        let order = rest.chain(set).copied().collect();
                        Choice { order, spares: set.len() as u32 }
                    }
                };
                if !choices.contains(&choice) {
                    choices.push(choice);
                }
            }
        }
        Ok(choices)
    }

    /// The choices that have room for the ranks, at least one.
    fn filled(&self) -> Result<Vec<Filled>, WordError> {
        let mut filled = Vec::new();
        let mut refused = None;
        for choice in self.choices()? {
            match (self.task.fill)(&choice.order, choice.spares) {
                Ok(start) => filled.push(Filled { choice, start }),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        match refused {
            Some(why) if filled.is_empty() => Err(TopologyError::new(why).into()),
            _ => Ok(filled),
        }
    }

    /// Sets of so many spares that may be good: spread over the hosts, and planes on sides of the
    /// box that they are.
    fn sets(&self, count: usize) -> Vec<Vec<usize>> {
        let along = self.along_the_network();
        let hosts = along.len();
        if count >= hosts {
            return Vec::new();
        }
        let spread = (0..count).map(|n| along[(2 * n + 1) * hosts / (2 * count)]).collect();
        let mut sets: Vec<Vec<usize>> = vec![spread];
        let Some(layout) = self.boxed() else { return sets };
        let axes = layout.dims().len();
        for sides in 1..=2 * axes {
            for width in 1..=count {
                let set = SpareSet::Planes { n: axes, sides, width };
                match self.hosts_of(&set) {
                    Ok(set) if set.len() == count => sets.push(set),
                    Ok(set) if set.len() < count => {}
                    _ => break,
                }
            }
        }
        sets
    }

    /// The hosts as a grid of their own within that of the network, if they are a whole box of it.
    fn boxed(&self) -> Option<Layout> {
        let grid = self.grid?;
        let at: Option<Vec<Vec<usize>>> =
            (self.at.iter()).map(|node| Some(coords::of(grid.cell(*node)?, grid.dims()))).collect();
        let at = at?;
        let ends = |axis: usize| {
            let along = at.iter().map(|c| c[axis]);
            Some((along.clone().min()?, along.max()?))
        };
        let ends: Vec<(usize, usize)> = (0..grid.dims().len()).map(ends).collect::<Option<_>>()?;
        let dims: Vec<usize> = ends.iter().map(|(low, high)| high - low + 1).collect();
        if dims.iter().product::<usize>() != at.len() {
            return None;
        }
        let mut nodes = Vec::new();
        coords::for_each(&dims, |c| {
            let cell: Vec<usize> = c.iter().zip(&ends).map(|(c, (low, _))| c + low).collect();
            nodes.push(grid.node(coords::index(&cell, grid.dims())));
        });
        Layout::new(&dims, nodes, self.network.nodes()).ok()
    }

    /// The hosts of a set, in the order in which they are taken.
    fn hosts_of(&self, set: &SpareSet) -> Result<Vec<usize>, TopologyError> {
        let layout = match set {
            SpareSet::Planes { .. } if self.grid.is_none() => {
                return Err(no_coordinates(self.network, set))
            }
            SpareSet::Planes { .. } => match self.boxed() {
                Some(layout) => layout,
                None => {
                    return refuse!(
                        "{set}: the {} hosts are no whole box of {}: give a number of spares, or \
                         list:HOST;HOST",
                        self.at.len(),
                        self.network.describe()
                    )
                }
            },
            _ => Layout::new(&[self.at.len()], self.at.to_vec(), self.network.nodes())?,
        };
        let resolve = |name: &str, layout: &Layout| match self
            .words
            .hosts
            .iter()
            .position(|host| *host == name)
        {
            Some(host) => Ok(self.at[host]),
            None => spares::resolve(name, self.network, layout, self.names),
        };
        let arrangement = Arrangement::Contiguous;
        let laid = spares::lay(self.network, Some(&layout), None, set, arrangement, &resolve)?;
        let of: BTreeMap<NetworkNode, usize> =
            self.at.iter().enumerate().map(|(host, node)| (*node, host)).collect();
        let host = |node: &NetworkNode| match of.get(node) {
            Some(host) => Ok(*host),
            None => refuse!(
                "{set}: node {} is none of the job's: name hosts of the job",
                self.network.vertex_name(*node)
            ),
        };
        laid.spares.iter().map(host).collect()
    }

    /// The result of a choice.
    fn started(&self, Filled { choice, start }: &Filled, said: Option<String>) -> Started {
        Started {
            order: choice.order.clone(),
            spares: choice.spares,
            start: start.clone(),
            places: choice.order.iter().map(|host| self.at[*host]).collect(),
            said,
        }
    }
}

/// How good a choice is.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Seconds of communication in a step.
    step_s: f64,
    /// Messages on the busiest link after the failure of a node, with its ranks on the best spare:
    /// the most, and the mean of the failures tried.
    most: u64,
    mean: f64,
}

impl Figures {
    /// The shorter step; of equally long ones the links that stay freer after a failure.
    fn is_better_than(&self, other: &Figures) -> bool {
        if (self.step_s - other.step_s).abs() > CLOSE * other.step_s {
            return self.step_s < other.step_s;
        }
        (self.most, self.mean) < (other.most, other.mean)
    }
}

/// What choices are tried with.
struct Trial<'a> {
    hosts: &'a Hosts<'a>,
    traffic: &'a Traffic,
}

impl Trial<'_> {
    fn evaluator(&self) -> Evaluator<'_> {
        Evaluator { network: self.hosts.network, traffic: self.traffic }
    }

    /// The network's node of each rank.
    fn home(&self, Filled { choice, start }: &Filled) -> Vec<NetworkNode> {
        start.iter().map(|node| self.hosts.at[choice.order[*node as usize]]).collect()
    }

    /// The network's nodes without ranks.
    fn free(&self, Filled { choice, start }: &Filled) -> Vec<NetworkNode> {
        let used: BTreeSet<JobNode> = start.iter().copied().collect();
        let free = (0..).zip(&choice.order).filter(|(node, _)| !used.contains(node));
        free.map(|(_, host)| self.hosts.at[*host]).collect()
    }

    /// The best of these, the first one of several, with its figures.
    fn best_of(&self, filled: Vec<Filled>) -> Result<(Filled, Figures), WordError> {
        let mut best: Option<(Filled, Figures)> = None;
        for filled in filled {
            let figures = self.figures(&filled).map_err(not_routed)?;
            if best.as_ref().is_none_or(|(_, lowest)| figures.is_better_than(lowest)) {
                best = Some((filled, figures));
            }
        }
        best.ok_or_else(|| TopologyError::new("no host is named").into())
    }

    fn figures(&self, filled: &Filled) -> Result<Figures, PlanError> {
        let evaluator = self.evaluator();
        let home = self.home(filled);
        let counted = evaluator.count(home.clone())?;
        let costs = &self.hosts.task.costs;
        let step_s = match self.traffic.messages() {
            ..=MOST_MESSAGES => fluid::step_time(&evaluator, &counted, costs)?,
            _ => fluid::least_step_time(&evaluator, &counted, costs),
        };
        let mut scratch = evaluator.scratch();
        let spares = self.free(filled);
        let used: Vec<NetworkNode> = counts(&home).into_keys().collect();
        let tried = used.len().min(FAILURES);
        let mut busiest = Vec::new();
        for lost in (0..tried).map(|n| used[n * used.len() / tried]) {
            let ranks: Vec<Rank> =
                (0..).zip(&home).filter(|(_, at)| **at == lost).map(|(rank, _)| rank).collect();
            let moves: Vec<Vec<(Rank, NetworkNode)>> =
                spares.iter().map(|to| ranks.iter().map(|rank| (*rank, *to)).collect()).collect();
            let scores = evaluator.score_all(&counted, &moves, &mut scratch);
            busiest.extend(scores.into_iter().flatten().map(|score| score.messages).min());
        }
        let mean = busiest.iter().sum::<u64>() as f64 / busiest.len().max(1) as f64;
        Ok(Figures { step_s, most: busiest.into_iter().max().unwrap_or(0), mean })
    }

    /// Ranks change places, or go to spares, as long as that makes a step shorter; hosts have as
    /// many ranks as before, in another order.
    fn improved(&self, chosen: (Filled, Figures)) -> Result<(Filled, Figures), WordError> {
        let home = self.home(&chosen.0);
        let mut best = chosen.clone();
        for placed in self.annealed(&chosen.0, &home).map_err(not_routed)? {
            let Some(filled) = self.filled(&chosen.0.choice, &home, &placed) else { continue };
            let figures = self.figures(&filled).map_err(not_routed)?;
            if figures.step_s < best.1.step_s * (1.0 - CLOSE) {
                best = (filled, figures);
            }
        }
        Ok(best)
    }

    /// Placements that annealing has found.
    fn annealed(
        &self,
        filled: &Filled,
        home: &[NetworkNode],
    ) -> Result<Vec<Vec<NetworkNode>>, PlanError> {
        let Hosts { network, at, task, .. } = *self.hosts;
        let layout = Layout::new(&[at.len()], at.to_vec(), network.nodes())?;
        let most = counts(home).into_values().max().unwrap_or(1);
        let job = Job::on_slots(layout, home.to_vec(), most, self.traffic.clone())?;
        // Spares that the user has named stay spares.
        let spares = match task.spares {
            Spares::Count(_) => self.free(filled),
            Spares::Set(_) => Vec::new(),
        };
        let planner = Planner::new(network, &job, &spares, task.costs, Weights::default())?;
        let broken = planner.broken(&[], &[]);
        let setting = planner.setting(&broken);
        let mut scratch = setting.evaluator.scratch();
        let found = anneal::candidates(&setting, &planner.now(&[])?, &mut scratch)?;
        Ok(found.into_iter().map(|candidate| candidate.occupancy.rank_at).collect())
    }

    /// A placement as a choice; `None`: nodes would have other numbers of ranks than at `home`, or
    /// a host more than its slots.
    fn filled(
        &self,
        choice: &Choice,
        home: &[NetworkNode],
        placed: &[NetworkNode],
    ) -> Option<Filled> {
        let sorted = |mut counts: Vec<u32>| {
            counts.sort_unstable();
            counts
        };
        let there = counts(placed);
        let as_before = sorted(counts(home).into_values().collect());
        if sorted(there.values().copied().collect()) != as_before {
            return None;
        }
        let ranks_on = |host: usize| there.get(&self.hosts.at[host]).copied().unwrap_or(0);
        let slots = self.hosts.task.slots;
        let room = |host: usize| slots.get(host).copied().flatten().unwrap_or(u32::MAX);
        if choice.order.iter().any(|host| ranks_on(*host) > room(*host)) {
            return None;
        }
        let (used, free): (Vec<usize>, Vec<usize>) =
            choice.order.iter().copied().partition(|host| ranks_on(*host) > 0);
        let order = [used, free].concat();
        let node_of: BTreeMap<NetworkNode, JobNode> =
            (0..).zip(&order).map(|(node, host)| (self.hosts.at[*host], node)).collect();
        let start = placed.iter().map(|at| node_of.get(at).copied()).collect::<Option<_>>()?;
        Some(Filled { choice: Choice { order, spares: choice.spares }, start })
    }

    /// What was chosen, where it is not what the order of the hosts says.
    fn said(&self, (filled, figures): &(Filled, Figures)) -> Result<Option<String>, WordError> {
        let Hosts { network, words, task, .. } = *self.hosts;
        let choice = self.hosts.as_written();
        let start = (task.fill)(&choice.order, choice.spares);
        let written = start.ok().map(|start| Filled { choice, start });
        if written.as_ref() == Some(filled) {
            return Ok(None);
        }
        let Filled { choice, .. } = filled;
        let spares = &choice.order[choice.order.len() - choice.spares as usize..];
        let names: Vec<&str> = spares.iter().map(|host| words.hosts[*host]).collect();
        let spares = match &names[..] {
            [] => "no host is a spare".to_string(),
            [one] => format!("{one} is the spare"),
            several => format!("{} are spares", listed(several.iter().copied())),
        };
        let usual = written.map(|written| self.figures(&written)).transpose();
        let than = match usual.map_err(not_routed)? {
            Some(Figures { step_s, .. }) if step_s > figures.step_s * (1.0 + CLOSE) => {
                format!(", {} in the order of the hosts", written_time(step_s))
            }
            _ => String::new(),
        };
        Ok(Some(format!(
            "ranks start where the network says ({}): {spares}; messages of a step ({}) take \
             {}{than}",
            network.describe(),
            self.traffic.name,
            written_time(figures.step_s),
        )))
    }
}

fn not_routed(why: PlanError) -> WordError {
    wrong("network")(TopologyError::new(why.to_string()))
}

/// Seconds, for the user.
fn written_time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s => format!("{:.2} ms", s * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_topology::spec::Files;
    use proptest::prelude::*;

    /// Two racks of three hosts.
    const RACKS: &str = "SwitchName=r0 Nodes=a,c,e\nSwitchName=r1 Nodes=b,d,f\n\
                         SwitchName=top Switches=r[0-1]\n";

    struct Asked<'a> {
        network: &'a str,
        hosts: &'a [&'a str],
        spares: Result<u32, &'a str>,
        traffic: Option<&'a str>,
        ranks: usize,
        by_network: bool,
        slots: &'a [Option<u32>],
    }

    impl Asked<'_> {
        fn place(&self) -> Result<Started, String> {
            let text = |path: &str| match path {
                "racks" => Ok(RACKS.to_string()),
                // Rank 0 and 3 send most to each other, as ranks 1 and 2 do.
                "pairs" => Ok("0 3 1000000 9\n1 2 1000000 9\n0 1 8 1\n".to_string()),
                "other" => Ok("0 1 8 1\n".to_string()),
                _ => Err(TopologyError::new(format!("reading {path}: there is none"))),
            };
            let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
            let words = Words::of_running_job(self.network, self.hosts, self.traffic, files);
            let set = self.spares.map_err(SpareSet::parse);
            let spares = match &set {
                Ok(count) => Spares::Count(*count),
                Err(set) => Spares::Set(set.as_ref().map_err(ToString::to_string)?),
            };
            // As many ranks on each host as are left to share out, at most its slots.
            let fill = |order: &[usize], spares: u32| {
                let hosts = order.len().checked_sub(spares as usize).filter(|hosts| *hosts > 0);
                let hosts = hosts.ok_or("no host is left for ranks")?;
                let each = self.ranks.div_ceil(hosts);
                let room = |host: &usize| self.slots.get(*host).copied().flatten();
                let most = |host: &usize| room(host).map_or(each, |slots| slots as usize);
                let places = order[..hosts].iter().enumerate();
                let all =
                    places.flat_map(|(n, host)| std::iter::repeat_n(n as JobNode, most(host)));
                let start: Vec<JobNode> = all.take(self.ranks).collect();
                if start.len() < self.ranks {
                    return Err("they do not fit".to_string());
                }
                Ok(start)
            };
            let task = Task {
                spares,
                by_network: self.by_network,
                named: true,
                fill: &fill,
                slots: self.slots,
                costs: CostModel::default(),
            };
            place(&words, &task).map_err(|e| e.to_string())
        }
    }

    const MESH: Asked = Asked {
        network: "mesh:3x3",
        hosts: &["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"],
        spares: Ok(3),
        traffic: Some("stencil5"),
        ranks: 6,
        by_network: true,
        slots: &[],
    };
    const TREE: Asked = Asked {
        network: "slurm:racks",
        hosts: &["a", "b", "c", "d", "e", "f"],
        spares: Ok(2),
        traffic: None,
        ranks: 4,
        by_network: true,
        slots: &[],
    };

    #[test]
    fn hosts_are_filled_in_order_where_nothing_else_is_asked_for() {
        let started = Asked { by_network: false, ..MESH }.place().unwrap();
        assert_eq!(started.order, (0..9).collect::<Vec<_>>());
        assert_eq!((started.spares, started.start), (3, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!((started.places[8], started.said), (8, None));
    }

    #[test]
    fn planes_are_kept_free_and_ranks_are_on_the_box_that_is_left() {
        for by_network in [false, true] {
            let asked = Asked { spares: Err("2d(2,1)"), ranks: 4, by_network, ..MESH };
            let started = asked.place().unwrap();
            assert_eq!(started.order, [0, 1, 3, 4, 2, 5, 6, 7, 8]);
            assert_eq!((started.spares, started.start), (5, vec![0, 1, 2, 3]));
            assert_eq!(started.places, [0, 1, 3, 4, 2, 5, 6, 7, 8]);
        }
        for list in ["list:h4;h0", "list:1,1;0"] {
            let asked = Asked { spares: Err(list), ranks: 7, ..MESH };
            assert_eq!(asked.place().unwrap().order[7..], [4, 0]);
        }
        let asked = Asked { spares: Err("contiguous:2"), ranks: 7, ..MESH };
        assert_eq!(asked.place().unwrap().order[7..], [7, 8]);
    }

    #[test]
    fn planes_are_those_of_the_box_that_the_hosts_are_in_a_larger_network() {
        let two_rows = ["h0", "h1", "h2", "h3", "h4", "h5"];
        let asked = Asked { hosts: &two_rows, spares: Err("2d(1,1)"), ranks: 3, ..MESH };
        assert_eq!(asked.place().unwrap().order[3..], [3, 4, 5]);
        let asked = Asked { hosts: &["h0", "h1", "h2"], spares: Err("2d(1,1)"), ranks: 2, ..MESH };
        // One row: an axis of extent 1 has no room for a plane.
        assert!(asked.place().unwrap_err().contains("nothing is left"), "{:?}", asked.place());
        let hosts = ["h0", "h1", "h2", "h3", "h4"];
        let asked = Asked { hosts: &hosts, spares: Err("2d(1,1)"), ranks: 2, ..MESH };
        let error = asked.place().unwrap_err();
        assert!(error.contains("5 hosts are no whole box of mesh:3x3: give a number"), "{error}");
    }

    #[test]
    fn hosts_of_a_rack_follow_each_other_and_ranks_that_send_most_share_one() {
        let matrix = Asked { traffic: Some("matrix:pairs"), ..TREE };
        let started = matrix.place().unwrap();
        let rack = |rank: usize| started.places[started.start[rank] as usize] / 3;
        assert_eq!((rack(0), rack(1)), (rack(3), rack(2)), "{started:?}");
        let mut used = started.start.clone();
        used.sort_unstable();
        assert_eq!(used, [0, 1, 2, 3], "one rank a host, spares last");
        assert!(started.said.unwrap().contains("are spares"));
    }

    #[test]
    fn of_a_number_of_spares_those_are_taken_that_leave_links_free() {
        let figures = |asked: &Asked| asked.place().unwrap();
        // On a line the middle is nearest to all, but ranks on both sides of it are parted by it.
        let hosts = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
        let line = Asked { network: "mesh:9", hosts: &hosts, spares: Ok(1), ranks: 8, ..MESH };
        let started = figures(&Asked { traffic: Some("allreduce:ring"), ..line });
        assert_eq!(started.order.len(), 9);
        assert_eq!(started.spares, 1);
        let by_order = figures(&Asked { by_network: false, ..MESH });
        assert_eq!(by_order.order[6..], [6, 7, 8]);
    }

    #[test]
    fn no_host_gets_more_ranks_than_slots() {
        let slots = [Some(1), Some(3), Some(2), Some(2), Some(3), Some(1)];
        let asked = Asked { ranks: 6, slots: &slots, traffic: Some("alltoall"), ..TREE };
        let started = asked.place().unwrap();
        for (node, host) in started.order.iter().enumerate() {
            let there = started.start.iter().filter(|at| **at == node as JobNode).count();
            assert!(there <= slots[*host].unwrap() as usize, "{started:?}");
        }
        let none = Asked { ranks: 12, slots: &slots, ..TREE };
        assert_eq!(none.place().unwrap_err(), "they do not fit");
    }

    #[test]
    fn what_cannot_be_is_one_line_with_the_remedy() {
        for (asked, fault) in [
            (Asked { network: "mesh:2x2", ..MESH }, "network: mesh:2x2 has 4 nodes, the job has 9"),
            (
                Asked { hosts: &["a", "x", "y.site"], ..TREE },
                "network: switch tree of 6 nodes and 3 switches names other hosts: 2 of 3 are not \
                 in it (x, y.site), it has a, c, e, b and so on",
            ),
            (Asked { spares: Err("2d(2,1)"), ..TREE }, "needs a network with coordinates"),
            (Asked { spares: Err("3d(2,1)"), ..MESH }, "need a grid of 3 axes"),
            (Asked { spares: Err("list:h77"), ..MESH }, "spares: node `h77` is no node name"),
            (Asked { traffic: Some("matrix:pairs"), ranks: 3, ..MESH }, "rank `3` is not one of"),
            (Asked { traffic: Some("matrix:other"), ..MESH }, "is of 2 ranks, the job has 6"),
            (Asked { traffic: Some("gossip"), ..MESH }, "traffic: traffic `gossip`"),
            (Asked { spares: Ok(9), ..MESH }, "no host is left for ranks"),
        ] {
            let error = asked.place().unwrap_err();
            assert!(error.contains(fault) && !error.contains('\n'), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever is asked for, each host is once in the order, and ranks are on no spare.
        #[test]
        fn every_rank_has_a_host_and_every_host_a_place(
            spares in 0u32..4, ranks in 1usize..13, by_network: bool, pattern in 0usize..4,
        ) {
            let traffic = [None, Some("stencil5"), Some("allreduce"), Some("alltoall")][pattern];
            for asked in [
                Asked { spares: Ok(spares), ranks, by_network, traffic, ..MESH },
                Asked { spares: Ok(spares), ranks, by_network, traffic, ..TREE },
            ] {
                let started = asked.place().unwrap();
                let mut order = started.order.clone();
                order.sort_unstable();
                prop_assert_eq!(order, (0..asked.hosts.len()).collect::<Vec<_>>());
                prop_assert_eq!(started.start.len(), ranks);
                let first_spare = (asked.hosts.len() as u32) - started.spares;
                prop_assert!(started.start.iter().all(|node| *node < first_spare));
                prop_assert_eq!(started.places.len(), asked.hosts.len());
            }
        }
    }
}
