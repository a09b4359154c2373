//! The hosts of a job as users and batch systems write them: names with slots, in the order in
//! which they get ranks. Nothing here asks a network whether a host is there.

use eyrie_topology::hostlist;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// A host, which is a node of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    /// As the launcher is told it.
    pub name: String,
    /// How many ranks it may start with; `None`: nobody said it.
    pub slots: Option<u32>,
}

/// Most slots that a host may be said to have.
const MAX_SLOTS: u32 = 1 << 20;

/// Reads `a:4,b:4` or `n[0-3]:2`, the value of --hosts. A host that is named again gets more slots.
///
/// # Errors
/// Names what is no host.
pub fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Hosts::default();
    for item in outside_brackets(text) {
        hosts.add_item(item.trim())?;
    }
    hosts.finish("--hosts")
}

/// Reads a file of hosts: a host or host list a line, with slots as `host:4` (hydra), `host
/// slots=4` (Open MPI), or by a line for each slot (PBS). `#` begins a comment.
///
/// # Errors
/// Names the line and what is wrong with it.
pub fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Hosts::default();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let at_line = |e: String| format!("line {}: {e}", number + 1);
        let slots = words.find_map(|word| word.strip_prefix("slots="));
        match slots.map(slots_of).transpose().map_err(at_line)? {
            Some(slots) => hosts.add_names(name, Some(slots)).map_err(at_line)?,
            None => {
                outside_brackets(name).try_for_each(|item| hosts.add_item(item)).map_err(at_line)?
            }
        }
    }
    hosts.finish("the file of hosts")
}

/// The hosts of a Slurm allocation: SLURM_JOB_NODELIST, and how many tasks or processors each has
/// (SLURM_TASKS_PER_NODE or SLURM_JOB_CPUS_PER_NODE, like `2(x3),1`).
///
/// # Errors
/// Names what does not fit.
pub fn from_slurm(nodes: &str, per_node: &str) -> Result<Vec<Host>, String> {
    let names = hostlist::expand(nodes).map_err(|e| format!("SLURM_JOB_NODELIST: {e}"))?;
    let bad = || format!("{per_node:?} is no number of slots for each of the nodes {nodes}");
    let mut slots = Vec::new();
    for part in per_node.split(',') {
        let (count, times) = match part.split_once("(x") {
            None => (part, 1),
            Some((count, times)) => {
                let times = times.strip_suffix(')').and_then(|t| t.parse().ok()).ok_or_else(bad)?;
                (count, times)
            }
        };
        let count = slots_of(count).map_err(|_| bad())?;
        if times > names.len() {
            return Err(bad());
        }
        slots.extend(std::iter::repeat_n(count, times));
    }
    if slots.len() != names.len() {
        return Err(bad());
    }
    Ok(names.into_iter().zip(slots).map(|(name, n)| Host { name, slots: Some(n) }).collect())
}

/// The hosts of --hosts or --hostfile; `None` when neither is given.
///
/// # Errors
/// Names the option or the file, and what is wrong with it.
pub fn named(list: Option<&str>, file: Option<&Path>) -> Result<Option<Vec<Host>>, String> {
    if let Some(list) = list {
        return parse_list(list).map(Some).map_err(|e| format!("--hosts: {e}"));
    }
    let Some(file) = file else { return Ok(None) };
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| format!("reading {shown}: {e}"))?;
    parse_file(&text).map(Some).map_err(|e| format!("{shown}: {e}"))
}

/// The items between commas, but for those within brackets.
fn outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
}

fn slots_of(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(slots) if (1..=MAX_SLOTS).contains(&slots) => Ok(slots),
        _ => Err(format!("{text:?} is no number of slots, which is from 1 to {MAX_SLOTS}")),
    }
}

/// Hosts in the order of their first names.
#[derive(Default)]
struct Hosts {
    list: Vec<Host>,
    places: HashMap<String, usize>,
}

impl Hosts {
    /// Adds `NAME`, `LIST` or either with `:SLOTS`.
    fn add_item(&mut self, item: &str) -> Result<(), String> {
        // The colons of an IPv6 address stand within brackets of their own or more than once.
        match item.rsplit_once(':') {
            Some((names, slots)) if !names.contains(':') => {
                self.add_names(names, Some(slots_of(slots)?))
            }
            _ => self.add_names(item, None),
        }
    }

    fn add_names(&mut self, names: &str, slots: Option<u32>) -> Result<(), String> {
        if names.starts_with('-') {
            return Err(format!("{names:?} is no host: names do not begin with -"));
        }
        for name in hostlist::expand(names).map_err(|e| e.to_string())? {
            if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:@%".contains(c)) {
                return Err(format!("{name:?} is no name of a host"));
            }
            self.add(name, slots);
        }
        Ok(())
    }

    fn add(&mut self, name: String, slots: Option<u32>) {
        match self.places.get(&name) {
            // One slot for each line, as PBS writes it.
            Some(place) => {
                let of_it = &mut self.list[*place].slots;
                *of_it = Some((of_it.unwrap_or(1) + slots.unwrap_or(1)).min(MAX_SLOTS));
            }
            None => {
                self.places.insert(name.clone(), self.list.len());
                self.list.push(Host { name, slots });
            }
        }
    }

    fn finish(self, source: &str) -> Result<Vec<Host>, String> {
        match self.list.is_empty() {
            true => Err(format!("{source} names no host")),
            false => Ok(self.list),
        }
    }
}

/// Where ranks start: how many, on which of the hosts, and how many of these get none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// For each rank its host.
    pub nodes: Vec<u32>,
    /// Hosts at the end of the list that no rank starts on.
    pub spares: u32,
}

/// Places ranks on hosts in order, each filled before the next; the last `spares` hosts get none.
/// Without `ranks` every slot gets one. Where nobody said slots, ranks are spread evenly.
///
/// # Errors
/// When there are too few hosts or slots.
pub fn start(hosts: &[Host], spares: u32, ranks: Option<u32>) -> Result<Start, String> {
    let all = hosts.len() as u32;
    if spares >= all {
        return Err(format!("of {all} hosts, {spares} cannot be spares: ranks need one at least"));
    }
    let first = &hosts[..(all - spares) as usize];
    let slots: u32 = first.iter().fold(0, |sum, h| sum.saturating_add(h.slots.unwrap_or(1)));
    let ranks = ranks.unwrap_or(slots);
    let place = |node: usize, count: u32| std::iter::repeat_n(node as u32, count as usize);
    if first.iter().all(|h| h.slots.is_none()) {
        let count = first.len() as u32;
        let share = |node: u32| ranks / count + u32::from(node < ranks % count);
        let nodes: Vec<u32> = (0..count).flat_map(|n| place(n as usize, share(n))).collect();
        return Ok(Start { spares: all - count.min(ranks), nodes });
    }
    if ranks > slots {
        return Err(format!(
            "{ranks} ranks do not fit into the {slots} slots of {} hosts{}; give more hosts or slots",
            first.len(),
            if spares > 0 { " that are no spares" } else { "" }
        ));
    }
    let each = first.iter().enumerate().flat_map(|(n, h)| place(n, h.slots.unwrap_or(1)));
    let nodes: Vec<u32> = each.take(ranks as usize).collect();
    let used = nodes.last().map_or(0, |last| last + 1);
    Ok(Start { nodes, spares: all - used })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hosts(list: &[(&str, Option<u32>)]) -> Vec<Host> {
        list.iter().map(|(name, slots)| Host { name: name.to_string(), slots: *slots }).collect()
    }

    #[test]
    fn lists_of_the_command_line() {
        let four = hosts(&[("a", Some(4)), ("b", Some(4))]);
        assert_eq!(parse_list("a:4,b:4"), Ok(four));
        let list = hosts(&[("n0", Some(2)), ("n1", Some(2)), ("x9", None)]);
        assert_eq!(parse_list("n[0-1]:2,x9"), Ok(list));
        assert_eq!(parse_list("r[0,2]"), Ok(hosts(&[("r0", None), ("r2", None)])));
        for (text, fault) in [
            ("", "empty"),
            ("a:0", "slots"),
            ("a:x", "slots"),
            ("-oProxyCommand=x", "begin with -"),
            ("a;b", "no name"),
            ("a,,b", "empty"),
            ("n[0-", "n[0-"),
        ] {
            assert!(parse_list(text).unwrap_err().contains(fault), "{text}");
        }
    }

    #[test]
    fn files_of_hydra_open_mpi_and_pbs() {
        let two = hosts(&[("a", Some(2)), ("b", Some(3))]);
        assert_eq!(parse_file("a:2\n# none\nb:3 # three\n"), Ok(two.clone()));
        assert_eq!(parse_file("a slots=2\nb slots=3 max_slots=5\n"), Ok(two.clone()));
        assert_eq!(parse_file("a\na\nb\nb\nb\n"), Ok(two));
        assert_eq!(parse_file("n[1-2]\n"), Ok(hosts(&[("n1", None), ("n2", None)])));
        assert!(parse_file("a\nb slots=-1\n").unwrap_err().starts_with("line 2: "));
        assert!(parse_file("\n").unwrap_err().contains("names no host"));
    }

    #[test]
    fn an_allocation_of_slurm() {
        let all = from_slurm("n[0-2],big", "2(x3),16").unwrap();
        let expected =
            hosts(&[("n0", Some(2)), ("n1", Some(2)), ("n2", Some(2)), ("big", Some(16))]);
        assert_eq!(all, expected);
        for bad in ["2", "2(x3)", "2(x99999999999)", "x(x4)", "2(x4", "", "1(x5)"] {
            assert!(from_slurm("n[0-2],big", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_are_filled_in_order_and_the_last_ones_are_spares() {
        let list = parse_list("a:2,b:1,c:4").unwrap();
        let at = |nodes: &[u32], spares| Ok(Start { nodes: nodes.to_vec(), spares });
        assert_eq!(start(&list, 1, None), at(&[0, 0, 1], 1));
        assert_eq!(start(&list, 0, Some(5)), at(&[0, 0, 1, 2, 2], 0));
        // Who gets no rank is a spare.
        assert_eq!(start(&list, 0, Some(2)), at(&[0, 0], 2));
        assert!(start(&list, 1, Some(4)).unwrap_err().contains("3 slots of 2 hosts that are no"));
        assert!(start(&list, 3, None).is_err());
        let plain = parse_list("a,b,c").unwrap();
        assert_eq!(start(&plain, 0, None), at(&[0, 1, 2], 0));
        assert_eq!(start(&plain, 1, Some(5)), at(&[0, 0, 0, 1, 1], 1));
        assert_eq!(start(&plain, 0, Some(1)), at(&[0], 2));
    }

    proptest! {
        #[test]
        fn no_text_does_harm(text in ".{0,200}") {
            let _ = (parse_list(&text), parse_file(&text), from_slurm("n[0-9]", &text));
        }

        #[test]
        fn every_rank_has_a_slot(
            slots in prop::collection::vec(1..9u32, 1..9), spares in 0..8u32, ranks in 1..40u32
        ) {
            let list: Vec<Host> = (slots.iter().enumerate())
                .map(|(n, s)| Host { name: format!("h{n}"), slots: Some(*s) })
                .collect();
            if let Ok(start) = start(&list, spares, Some(ranks)) {
                prop_assert_eq!(start.nodes.len(), ranks as usize);
                prop_assert!(start.spares >= spares);
                for (node, most) in slots.iter().enumerate() {
                    let there = start.nodes.iter().filter(|n| **n == node as u32).count();
                    prop_assert!(there <= *most as usize);
                    prop_assert!(there == 0 || node < list.len() - start.spares as usize);
                }
            }
        }
    }
}
