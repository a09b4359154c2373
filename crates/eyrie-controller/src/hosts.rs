//! The hosts of a job as users and batch systems write them: names with slots, in the order in
//! which they get ranks. Nothing here asks a network whether a host is there.

use eyrie_topology::hostlist;
use eyrie_wire::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// A host, which is a node of the job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    /// As the launcher is told it.
    pub name: String,
    /// How many ranks it may start with; `None`: it was not said.
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

/// Reads a file of hosts: a host or host list a line, with slots as `host:4` (Hydra, Intel MPI),
/// `host slots=4` (Open MPI), or by a line for each slot (PBS). `#` begins a comment. What else may
/// follow is a user's name; any other word is refused, because it would change what is meant.
///
/// # Errors
/// Names the line, what is wrong with it and what to write.
pub fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Hosts::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        hosts.add_line(line).map_err(|e| format!("line {}: {e}", number + 1))?;
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

/// Whether this is an address of IPv6, maybe with its interface.
fn is_address(text: &str) -> bool {
    let address = text.split('%').next().unwrap_or_default();
    address.parse::<std::net::Ipv6Addr>().is_ok()
}

/// The hosts of `NAME`, `LIST`, `[ADDRESS]` or one of them with `:SLOTS`, and these.
fn item_of(item: &str) -> Result<(String, Option<u32>), String> {
    if let Some((before, (address, after))) =
        item.split_once('[').and_then(|(before, rest)| Some((before, rest.split_once(']')?)))
    {
        if is_address(address) && (before.is_empty() || before.ends_with('@')) {
            let slots = match after.strip_prefix(':') {
                Some(slots) => Some(slots_of(slots)?),
                None if after.is_empty() => None,
                None => {
                    return Err(format!("{after:?} after [{address}]: write [{address}]:SLOTS"))
                }
            };
            return Ok((format!("{before}{address}"), slots));
        }
    }
    // The colons of an IPv6 address come more than once.
    match item.rsplit_once(':') {
        Some((names, slots)) if !names.contains(':') => {
            Ok((names.to_string(), Some(slots_of(slots)?)))
        }
        _ => Ok((item.to_string(), None)),
    }
}

/// Why a word after the hosts of a line is none that may stand there.
fn no_key(names: &str, word: &str) -> String {
    let slots = word.trim_start_matches(':');
    if slots.is_empty() || slots.parse::<u32>().is_ok() {
        return format!("{word:?} after {names}: write {names}:SLOTS or {names} slots=N");
    }
    format!("{word:?} after {names}: write one host or host list a line, slots as slots=N")
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
    /// Adds the hosts of a line of a file.
    fn add_line(&mut self, line: &str) -> Result<(), String> {
        // `slots = 4` is what Open MPI takes, too.
        let spaced = line.replace('=', " = ");
        let mut words = spaced.split_whitespace();
        let Some(names) = words.next() else { return Ok(()) };
        let mut slots = None;
        let mut most = None;
        let mut user = None;
        while let Some(key) = words.next() {
            let value = match words.next() {
                Some("=") => words.next().ok_or_else(|| format!("{key}= has no value"))?,
                _ => return Err(no_key(names, key)),
            };
            let place = match key.to_ascii_lowercase().replace('-', "_").as_str() {
                "slots" | "count" | "cpu" => &mut slots,
                "max_slots" | "slots_max" | "max_count" | "count_max" | "max_cpu" | "cpu_max" => {
                    &mut most
                }
                "user" | "username" | "user_name" => &mut user,
                _ => {
                    return Err(format!(
                        "Eyrie does not know {key}={value}: what may follow a host is slots=N and \
                         user=NAME; remove it"
                    ))
                }
            };
            if place.replace(value).is_some() {
                return Err(format!("{key} comes twice"));
            }
        }
        // The most that a host may have is what it may start with, unless that is said.
        let most = most.map(slots_of).transpose()?;
        let slots = slots.map(slots_of).transpose()?.or(most);
        for item in outside_brackets(names) {
            let (names, of_item) = item_of(item)?;
            if slots.is_some() && of_item.is_some() {
                return Err(format!("{item} has its slots twice: write one of both"));
            }
            match user {
                Some(user) if names.contains('@') => {
                    return Err(format!("user={user} beside {names}: write one of both"))
                }
                Some(user) => self.add_names(&names, user, of_item.or(slots))?,
                None => self.add_names(&names, "", of_item.or(slots))?,
            }
        }
        Ok(())
    }

    /// Adds `NAME`, `LIST` or either with `:SLOTS`.
    fn add_item(&mut self, item: &str) -> Result<(), String> {
        let (names, slots) = item_of(item)?;
        self.add_names(&names, "", slots)
    }

    /// Adds the hosts of a list, as those of a user unless that is empty.
    fn add_names(&mut self, names: &str, user: &str, slots: Option<u32>) -> Result<(), String> {
        if names.is_empty() {
            return Err("a name of a host is empty".into());
        }
        for name in hostlist::expand(names).map_err(|e| e.to_string())? {
            let name = match user {
                "" => name,
                user => format!("{user}@{name}"),
            };
            if name.starts_with('-') {
                return Err(format!("{name:?} is no host: names do not begin with -"));
            }
            if !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:@%".contains(c)) {
                return Err(format!("{name:?} is no name of a host"));
            }
            let place = name.rsplit('@').next().unwrap_or_default();
            if place.is_empty() || place.contains(':') && !is_address(place) {
                return Err(format!(
                    "{name:?} is no host: write HOST, HOST:SLOTS or [ADDRESS]:SLOTS"
                ));
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
        if self.list.is_empty() {
            Err(format!("{source} names no host"))
        } else {
            Ok(self.list)
        }
    }
}

/// Where ranks start: how many, on which of the hosts, and how many of these get none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// For each rank its host.
    pub nodes: Vec<NodeId>,
    /// Hosts at the end of the list that no rank starts on.
    pub spares: u32,
}

/// Places ranks on hosts in order, each filled before the next; the last `spares` hosts get none.
/// Without `ranks` every slot gets one. Where no slots were given, ranks are spread evenly.
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
    let place = |node: usize, count: u32| std::iter::repeat_n(NodeId(node as u32), count as usize);
    if first.iter().all(|h| h.slots.is_none()) {
        let count = first.len() as u32;
        let share = |node: u32| ranks / count + u32::from(node < ranks % count);
        let nodes: Vec<NodeId> = (0..count).flat_map(|n| place(n as usize, share(n))).collect();
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
    let nodes: Vec<NodeId> = each.take(ranks as usize).collect();
    let used = nodes.last().map_or(0, |last| last.0 + 1);
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
            ("a:2:3", "[ADDRESS]:SLOTS"),
            ("n[0-", "n[0-"),
        ] {
            assert!(parse_list(text).unwrap_err().contains(fault), "{text}");
        }
    }

    #[test]
    fn files_of_hydra_open_mpi_and_pbs() {
        let two = hosts(&[("a", Some(2)), ("b", Some(3))]);
        for text in [
            "a:2\n# none\nb:3 # three\n",
            "a slots=2\nb slots=3 max_slots=5\n",
            "a slots = 2\r\n\tb slots= 3 max-slots =5\n",
            "a SLOTS=2\nb count=3\n",
            "a max_slots=2\nb cpu=3\n",
            "a\na\nb\nb\nb\n",
        ] {
            assert_eq!(parse_file(text), Ok(two.clone()), "{text}");
        }
        assert_eq!(parse_file("n[1-2]\n"), Ok(hosts(&[("n1", None), ("n2", None)])));
        let joe = hosts(&[("joe@n1", Some(2)), ("joe@n2", Some(2)), ("ann@b", None)]);
        assert_eq!(parse_file("n[1-2]:2 user=joe\nann@b\n"), Ok(joe));
        let addresses =
            hosts(&[("::1", Some(2)), ("fe80::2%eth0", Some(3)), ("joe@::4", None), ("::5", None)]);
        let text = "[::1]:2\n[fe80::2%eth0] slots=3\njoe@[::4]\n::5\n";
        assert_eq!(parse_file(text), Ok(addresses.clone()));
        assert_eq!(parse_list("[::1]:2,[fe80::2%eth0]:3,joe@[::4],::5"), Ok(addresses));
    }

    #[test]
    fn a_line_that_is_not_understood_is_refused_with_the_remedy() {
        for (line, fault) in [
            ("b slots=-1", "\"-1\" is no number of slots"),
            ("b slots=", "slots= has no value"),
            ("b slots=2 slots=3", "slots comes twice"),
            ("b:2 slots=3", "b:2 has its slots twice"),
            ("b 4", "\"4\" after b: write b:SLOTS or b slots=N"),
            ("b : 2", "\":\" after b: write b:SLOTS or b slots=N"),
            ("b :2", "\":2\" after b: write b:SLOTS"),
            ("b c", "\"c\" after b: write one host or host list a line"),
            ("b slots", "\"slots\" after b: write one host"),
            ("b binding=user:1", "does not know binding=user:1"),
            ("b port=2222", "does not know port=2222"),
            ("ann@b user=joe", "write one of both"),
            ("b:2:ib0", "\"b:2:ib0\" is no host: write HOST, HOST:SLOTS"),
            ("[::1]2", "write [::1]:SLOTS"),
            ("[::1]:x", "\"x\" is no number of slots"),
            ("^b", "no name of a host"),
            ("b user=-x", "names do not begin with -"),
            ("b,,c", "is empty"),
        ] {
            let error = parse_file(&format!("a\n{line}\n")).unwrap_err();
            assert!(error.starts_with("line 2: ") && error.contains(fault), "{line}: {error}");
        }
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
        let at = |nodes: &[u32], spares| {
            Ok(Start { nodes: nodes.iter().copied().map(NodeId).collect(), spares })
        };
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
                    let there = start.nodes.iter().filter(|n| **n == NodeId(node as u32)).count();
                    prop_assert!(there <= *most as usize);
                    prop_assert!(there == 0 || node < list.len() - start.spares as usize);
                }
            }
        }
    }
}
