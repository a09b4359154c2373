//! `eyrie balance` and `eyrie consolidate`: what should move by what was measured, and then the
//! moves. The job decides; here it is shown, and asked to be done.

use super::proposed::{Hosts, ProposedArgs};
use eyrie_cli::table::align;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::answer::Proposed;
use eyrie_interface::proposal::{Goal, NodeShare, Proposal, RankShare};
use eyrie_interface::proposal::{BALANCE_OVER, CONSOLIDATE_OVER, PAYBACK};
use eyrie_interface::Request;
use eyrie_units::{bytes, duration, time};
use std::path::Path;
use std::time::Duration;

/// Move ranks of a running job so that its busiest node has less to do, where that pays.
///
/// For some seconds it is measured what each rank computes; asking for messages in vain, as waiting
/// ranks do, does not count. Then a table shows what moves, what that brings and what it may cost,
/// or why nothing moves. Nodes with the same processors count as one.
#[derive(clap::Args)]
pub struct BalanceArgs {
    /// For how long to measure
    #[arg(long, default_value = BALANCE_OVER, value_parser = duration, value_name = "TIME")]
    over: Duration,
    /// Moves must have paid within this time: only then does the job win more than they may cost
    #[arg(long, default_value = PAYBACK, value_parser = duration, value_name = "TIME")]
    payback: Duration,
    #[command(flatten)]
    rest: ProposedArgs,
}

/// Move the ranks of a running job together onto fewer nodes, and make the others free.
///
/// Those nodes keep their ranks that have most of their memory, so that the least of it moves.
/// Returns when the other nodes can be switched off, as after `eyrie drain`. Spares stay spares.
#[derive(clap::Args)]
pub struct ConsolidateArgs {
    /// How many nodes have ranks afterwards
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// For how long to measure what ranks compute: it is spread over the nodes
    #[arg(long, default_value = CONSOLIDATE_OVER, value_parser = duration, value_name = "TIME")]
    over: Duration,
    #[command(flatten)]
    rest: ProposedArgs,
}

pub fn balance(args: &BalanceArgs) -> anyhow::Result<i32> {
    run(&args.rest, args.over, Goal::Balance { payback: args.payback })
}

pub fn consolidate(args: &ConsolidateArgs) -> anyhow::Result<i32> {
    run(&args.rest, args.over, Goal::Consolidate { nodes: args.nodes })
}

fn run(args: &ProposedArgs, over: Duration, goal: Goal) -> anyhow::Result<i32> {
    let measure = |dir: &Path| {
        let Proposed { proposal } = ask(dir, &Request::Measure { over, goal })?;
        Ok(proposal)
    };
    args.run(measure, in_full, |proposal, manner| {
        let moves: Vec<_> = proposal.ranks.iter().filter_map(|r| Some((r.rank, r.to?))).collect();
        let moves_any = !moves.is_empty() || !proposal.left.is_empty();
        let drains = proposal.left;
        moves_any.then_some(Request::Rearrange { moves, drains, whole: false, manner })
    })
}

fn in_full(proposal: &Proposal, hosts: &Hosts) -> String {
    let texts = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    let mut ranks =
        vec![texts(&["rank", "node", "computes", "polls", "memory", "may cost", "brings", ""])];
    ranks.extend(proposal.ranks.iter().map(|share| rank_row(share, hosts)));
    let mut nodes = vec![texts(&["node", "processors", "computes", "others", "busy", "then", ""])];
    nodes.extend(proposal.nodes.iter().map(|share| node_row(share, proposal, hosts)));
    format!("{}\n{}\n{}\n", align(&ranks), align(&nodes), proposal.why)
}

fn rank_row(share: &RankShare, hosts: &Hosts) -> Vec<String> {
    let RankShare { rank, node, computing, polling, memory, to, cost, brings } = share;
    let moves = |text: String| if to.is_some() { text } else { String::new() };
    vec![
        rank.to_string(),
        hosts.name(node.0),
        percent(*computing),
        percent(*polling),
        bytes(*memory),
        moves(time(Duration::from_secs_f64(*cost))),
        brings.map_or(String::new(), percent),
        to.map_or(String::new(), |to| format!("moves to node {}", hosts.name(to.0))),
    ]
}

fn node_row(share: &NodeShare, proposal: &Proposal, hosts: &Hosts) -> Vec<String> {
    let NodeShare { node, processors, others, computing, busy, then, same_as } = share;
    let note = match same_as {
        _ if proposal.left.contains(node) => "becomes free".into(),
        Some(other) => format!("has the processors of node {}", hosts.name(other.0)),
        None => String::new(),
    };
    vec![
        hosts.name(node.0),
        format!("{processors:.0}"),
        percent(*computing),
        percent(*others),
        percent(busy.min(1.0)),
        percent(then.min(1.0)),
        note,
    ]
}

/// Of one processor, or of what a node has.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::{NodeId, Rank};

    #[test]
    fn a_table_says_what_moves_and_why() {
        let rank = |rank, node, to: Option<NodeId>| RankShare {
            rank,
            node,
            computing: 0.5,
            polling: 0.0,
            memory: 1 << 20,
            to,
            cost: 0.1,
            brings: to.map(|_| 0.25),
        };
        let node = |node, same_as| NodeShare {
            node,
            processors: 1.0,
            others: 0.0,
            computing: 0.5,
            busy: 0.5,
            then: 0.25,
            same_as,
        };
        let proposal = Proposal {
            over: 5.0,
            nodes: vec![node(NodeId(0), None), node(NodeId(1), Some(NodeId(0)))],
            ranks: vec![rank(Rank(0), NodeId(0), None), rank(Rank(1), NodeId(0), Some(NodeId(1)))],
            left: vec![],
            busiest: 0.5,
            then: 0.25,
            why: "because".into(),
        };
        assert_eq!(
            in_full(&proposal, &Hosts(vec!["a".into(), "b".into()])),
            "rank   node  computes  polls  memory  may cost  brings\n\
             0     0 (a)      50 %    0 %   1 MiB\n\
             1     0 (a)      50 %    0 %   1 MiB    100 ms    25 %  moves to node 1 (b)\n\
             \n\
             node   processors  computes  others  busy  then\n\
             0 (a)           1      50 %     0 %  50 %  25 %\n\
             1 (b)           1      50 %     0 %  50 %  25 %  has the processors of node 0 (a)\n\
             \n\
             because\n"
        );
    }
}
