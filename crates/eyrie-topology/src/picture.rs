//! A network as text: a grid with its nodes, or switches with what is at each. For people, who read
//! it before a job, so a large network is cut short.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::coords;
use crate::layout::Layout;
use crate::network::{Network, NetworkNode, VertexId};

/// Most nodes that are drawn at one switch or in a row, and most lines.
const IN_A_LINE: usize = 16;
const LINES: usize = 48;

/// The picture. `label`: what a node is called; `None`: it is none of the job's.
pub fn text(
    network: &dyn Network,
    grid: Option<&Layout>,
    label: &dyn Fn(NetworkNode) -> Option<String>,
) -> String {
    let drawn = match grid {
        Some(grid) => rows(grid, label),
        None => switches(network, label),
    };
    let mut text = String::new();
    for line in drawn.iter().take(LINES) {
        let _ = writeln!(text, "{line}");
    }
    match drawn.len().saturating_sub(LINES) {
        0 => text,
        more => format!("{text}... and {more} more lines\n"),
    }
}

fn name(label: Option<String>) -> String {
    label.unwrap_or_else(|| ".".into())
}

/// The last axis runs to the right, the one before it downwards; each plane of the others has a
/// heading.
fn rows(grid: &Layout, label: &dyn Fn(NetworkNode) -> Option<String>) -> Vec<String> {
    let dims = grid.dims();
    let columns = *dims.last().unwrap_or(&1);
    let names: Vec<String> = (0..grid.cells())
        .filter(|cell| cell % columns < IN_A_LINE)
        .map(|cell| name(label(grid.node(cell))))
        .collect();
    let width = names.iter().map(String::len).max().unwrap_or(1);
    let shown = columns.min(IN_A_LINE);
    let height = if dims.len() > 1 { dims[dims.len() - 2] } else { 1 };
    let mut lines = Vec::new();
    for (row, names) in names.chunks(shown).enumerate() {
        if dims.len() > 2 && row % height == 0 {
            let outer = &dims[..dims.len() - 2];
            lines.push(format!("at {}:", coords::format(&coords::of(row / height, outer))));
        }
        if row % height > 0 {
            let bar = format!("{:<width$}   ", "|");
            lines.push(bar.repeat(shown).trim_end().to_string());
        }
        let cells: Vec<String> = names.iter().map(|name| format!("{name:<width$}")).collect();
        let more = if columns > shown { " - ..." } else { "" };
        lines.push(format!("{}{more}", cells.join(" - ").trim_end()));
    }
    lines
}

/// Each switch with what is below it, from the top on. One that has several switches above it
/// stands below the first of them, and names the others.
fn switches(network: &dyn Network, label: &dyn Fn(NetworkNode) -> Option<String>) -> Vec<String> {
    let levels = levels(network);
    let mut out = Vec::new();
    let mut neighbours = |vertex: VertexId| {
        out.clear();
        network.out_links(vertex, &mut out);
        let mut found: Vec<VertexId> = out.iter().map(|(_, to)| *to).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    let level = |vertex: VertexId| levels.get(vertex as usize).copied().unwrap_or(0);
    let mut below: BTreeMap<VertexId, Vec<VertexId>> = BTreeMap::new();
    let mut tops = Vec::new();
    let mut also: BTreeMap<VertexId, Vec<VertexId>> = BTreeMap::new();
    for vertex in network.nodes() as VertexId..network.vertices() as VertexId {
        let above: Vec<VertexId> =
            neighbours(vertex).into_iter().filter(|v| level(*v) > level(vertex)).collect();
        match above.split_first() {
            Some((first, others)) => {
                below.entry(*first).or_default().push(vertex);
                also.insert(vertex, others.to_vec());
            }
            None => tops.push(vertex),
        }
    }
    let mut lines = Vec::new();
    let mut todo: Vec<(VertexId, usize)> = tops.into_iter().rev().map(|top| (top, 0)).collect();
    while let Some((vertex, depth)) = todo.pop() {
        let nodes: Vec<VertexId> =
            neighbours(vertex).into_iter().filter(|v| (*v as usize) < network.nodes()).collect();
        let mut names: Vec<String> = nodes.iter().filter_map(|node| label(*node)).collect();
        let others = nodes.len() - names.len();
        let more = names.len().saturating_sub(IN_A_LINE);
        names.truncate(IN_A_LINE);
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        if others > 0 {
            names.push(format!("({others} that are not the job's)"));
        }
        let switch = |v: VertexId| network.vertex_name(v);
        let ups: Vec<String> =
            also.get(&vertex).into_iter().flatten().map(|v| switch(*v)).collect();
        let ups =
            if ups.is_empty() { String::new() } else { format!(" (also at {})", ups.join(", ")) };
        let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(" ")) };
        lines.push(format!("{}{}{ups}{names}", "  ".repeat(depth), switch(vertex)));
        let children = below.get(&vertex).into_iter().flatten().rev();
        todo.extend(children.map(|child| (*child, depth + 1)));
    }
    lines
}

/// How many links each vertex is from the nearest node, which is 0.
fn levels(network: &dyn Network) -> Vec<u32> {
    let mut levels = vec![u32::MAX; network.vertices()];
    let mut here: Vec<VertexId> = (0..network.nodes() as VertexId).collect();
    here.iter().for_each(|node| levels[*node as usize] = 0);
    let mut out = Vec::new();
    let mut level = 0;
    while !here.is_empty() {
        level += 1;
        let mut next = Vec::new();
        for vertex in here {
            out.clear();
            network.out_links(vertex, &mut out);
            for (_, to) in &out {
                if levels[*to as usize] == u32::MAX {
                    levels[*to as usize] = level;
                    next.push(*to);
                }
            }
        }
        here = next;
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{parse, parse_with, Files};

    fn drawn(words: &str, hosts: &[&str]) -> String {
        let conf =
            "SwitchName=r0 Nodes=a,b\nSwitchName=r1 Nodes=c,d\nSwitchName=top Switches=r[0-1]";
        let text = |_: &str| Ok(conf.to_string());
        let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
        let parsed = parse_with(words, &files).unwrap();
        let label = |node: NetworkNode| hosts.get(node as usize).map(ToString::to_string);
        super::text(parsed.network.as_ref(), parsed.layout.as_ref(), &label)
    }

    #[test]
    fn a_grid_has_its_nodes_in_rows() {
        let hosts = ["n0", "n1", "n2", "n10", "n11"];
        assert_eq!(drawn("mesh:2x3", &hosts), "n0  - n1  - n2\n|     |     |\nn10 - n11 - .\n");
        assert_eq!(drawn("torus:3", &hosts), "n0 - n1 - n2\n");
        assert!(drawn("mesh:2x2x2", &hosts).starts_with("at 0:\nn0  - n1\n"));
        let long = drawn("mesh:100x100", &[]);
        assert!(long.lines().count() == LINES + 1 && long.ends_with("more lines\n"), "{long}");
    }

    #[test]
    fn switches_have_their_nodes_below_them() {
        let hosts = ["a", "b", "c", "d"];
        assert_eq!(drawn("slurm:f", &hosts), "top\n  r0: a b\n  r1: c d\n");
        let some = drawn("slurm:f", &hosts[..3]);
        assert_eq!(some, "top\n  r0: a b\n  r1: c (1 that are not the job's)\n");
    }

    #[test]
    fn every_network_can_be_drawn() {
        for words in ["fattree:4^2", "dragonfly:5x4x2", "tofu:2x1x2x2x3x2", "xgft:4,4;1,2"] {
            let parsed = parse(words).unwrap();
            let label = |node: NetworkNode| Some(node.to_string());
            let text = super::text(parsed.network.as_ref(), parsed.layout.as_ref(), &label);
            assert!(text.lines().count() > 3, "{words}: {text}");
        }
    }
}
