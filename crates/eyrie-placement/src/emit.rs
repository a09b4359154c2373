//! Writes a placement in the formats that other programs read. Text only; the caller writes files.

use std::collections::HashMap;
use std::fmt::Write;

use eyrie_topology::{Network, NetworkNode};

/// What [`text`] can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One line per rank: the position of its new node in the list of nodes sorted by number, in
    /// which a node stands once for each of its ranks. A program that shrinks and splits a
    /// communicator with this as the key has its ranks in their places (ULFM).
    Permutation,
    /// One host a line in rank order, for mpiexec -f / --hostfile.
    Hostfile,
    /// Open MPI's `rank N=host slot=0`.
    Rankfile,
    /// `rank node host` for people and scripts.
    Rankmap,
}

/// The file for `placement` (node of each rank); `host` names a node.
pub fn text(
    format: Format,
    placement: &[NetworkNode],
    host: &dyn Fn(NetworkNode) -> String,
) -> String {
    let mut out = String::new();
    match format {
        Format::Permutation => {
            let mut nodes = placement.to_vec();
            nodes.sort_unstable();
            for (node, slot) in placement.iter().zip(slots(placement)) {
                let position = nodes.partition_point(|other| other < node) + slot;
                let _ = writeln!(out, "{position}");
            }
        }
        Format::Hostfile => {
            for &n in placement {
                let _ = writeln!(out, "{}", host(n));
            }
        }
        Format::Rankfile => {
            for (rank, (&n, slot)) in placement.iter().zip(slots(placement)).enumerate() {
                let _ = writeln!(out, "rank {rank}={} slot={slot}", host(n));
            }
        }
        Format::Rankmap => {
            out += "# rank node host\n";
            for (rank, &n) in placement.iter().enumerate() {
                let _ = writeln!(out, "{rank} {n} {}", host(n));
            }
        }
    }
    out
}

/// For each rank how many lower ones are on its node.
fn slots(placement: &[NetworkNode]) -> impl Iterator<Item = usize> + '_ {
    let mut ranks: HashMap<NetworkNode, usize> = HashMap::new();
    placement.iter().map(move |node| {
        let ranks = ranks.entry(*node).or_default();
        *ranks += 1;
        *ranks - 1
    })
}

/// The host name of a node: from `names`, else the network's own, else `node` and its number.
pub fn host_name(network: &dyn Network, names: &[String], node: NetworkNode) -> String {
    if let Some(name) = names.get(node as usize) {
        return name.clone();
    }
    let own = network.vertex_name(node);
    match network.node_by_name(&own) {
        Some(_) => own,
        None => format!("node{node}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_a_line_per_rank() {
        let host = |n: NetworkNode| format!("h{n}");
        assert_eq!(text(Format::Permutation, &[7, 2, 5], &host), "2\n0\n1\n");
        assert_eq!(text(Format::Permutation, &[7, 2, 7, 2], &host), "2\n0\n3\n1\n");
        assert_eq!(text(Format::Hostfile, &[7, 2], &host), "h7\nh2\n");
        assert_eq!(text(Format::Rankfile, &[7], &host), "rank 0=h7 slot=0\n");
        let two = "rank 0=h7 slot=0\nrank 1=h7 slot=1\n";
        assert_eq!(text(Format::Rankfile, &[7, 7], &host), two);
        assert_eq!(text(Format::Rankmap, &[7], &host), "# rank node host\n0 7 h7\n");
    }
}
