//! Networks without a description: switches guessed from hosts' names that have numbers of
//! racks, or from round trips and rates measured between hosts. What comes out is the text of a
//! topology.conf. Where hosts do not fall into clear groups there is no guess: a wrong network is
//! worse than none.

use std::fmt::Write;

/// Words in front of a number that say that it is one of a rack, a chassis or a switch.
const RACKS: [&str; 20] = [
    "r", "rk", "rack", "cab", "cabinet", "x", "c", "ch", "chassis", "i", "row", "pod", "island",
    "isle", "sw", "switch", "leaf", "encl", "b", "s",
];
/// Groups are told apart where what is between them is so many times what is within them.
const GAP: f64 = 1.5;
/// Fewer hosts than this are not grouped by what was measured: chance would do it, too.
const FEWEST: usize = 4;

/// Hosts at one switch, or switches at another one.
struct Switch<'h> {
    name: String,
    below: Below<'h>,
}

enum Below<'h> {
    Hosts(Vec<&'h str>),
    Switches(Vec<Switch<'h>>),
}

impl Switch<'_> {
    /// Its lines, those of what is below it first.
    fn write(&self, conf: &mut String) {
        let (key, names) = match &self.below {
            Below::Hosts(hosts) => ("Nodes", hosts.to_vec()),
            Below::Switches(switches) => {
                switches.iter().for_each(|switch| switch.write(conf));
                ("Switches", switches.iter().map(|switch| switch.name.as_str()).collect())
            }
        };
        let _ = writeln!(conf, "SwitchName={} {key}={}", self.name, names.join(","));
    }

    fn conf(&self) -> String {
        let mut conf = String::new();
        self.write(&mut conf);
        conf
    }
}

/// All hosts at one switch.
pub fn flat(hosts: &[&str]) -> String {
    Switch { name: "flat".into(), below: Below::Hosts(hosts.to_vec()) }.conf()
}

/// A number in a host's name: the word in front of it, and where it ends.
struct Field {
    word: String,
    digits: String,
    end: usize,
}

/// The numbers of a name, up to its domain.
fn fields(host: &str) -> Vec<Field> {
    let name = host.split('.').next().unwrap_or(host);
    let mut fields = Vec::new();
    let mut word = String::new();
    let mut at = 0;
    while at < name.len() {
        let rest = &name[at..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits == 0 {
            let c = rest.chars().next().unwrap_or_default();
            word.extend(c.to_lowercase().filter(|c| c.is_alphabetic()));
            at += c.len_utf8();
            continue;
        }
        at += digits;
        let digits = rest[..digits].to_string();
        fields.push(Field { word: std::mem::take(&mut word), digits, end: at });
    }
    fields
}

/// Switches by the numbers of racks, chassis and so on in hosts' names, such as r1n04,
/// rack2-node3 or x1000c0s3b0n1: the last number is that of the host, and each number before it
/// that stands behind such a word, and is not the same for all hosts, is that of a switch. `None`:
/// the names do not have them, or each host would be at a switch of its own.
pub fn by_names(hosts: &[&str]) -> Option<String> {
    let fields: Vec<Vec<Field>> = hosts.iter().map(|host| fields(host)).collect();
    let first = fields.first()?;
    let is_alike = |of: &Vec<Field>| {
        of.len() == first.len() && of.iter().zip(first).all(|(a, b)| a.word == b.word)
    };
    if !fields.iter().all(is_alike) {
        return None;
    }
    let varies = |at: usize| fields.iter().any(|of| of[at].digits != first[at].digits);
    let is_rack = |at: usize| RACKS.contains(&first[at].word.as_str()) && varies(at);
    let levels: Vec<usize> = (0..first.len().saturating_sub(1)).filter(|at| is_rack(*at)).collect();
    let all: Vec<usize> = (0..hosts.len()).collect();
    let switch = below("all".into(), &all, &levels, hosts, &fields);
    let mut racks = 0;
    let mut fullest = 0;
    leaves(&switch, &mut |hosts| {
        racks += 1;
        fullest = fullest.max(hosts.len());
    });
    (racks > 1 && fullest > 1).then(|| switch.conf())
}

/// The switch of these hosts, with those of the next level below it.
fn below<'h>(
    name: String,
    members: &[usize],
    levels: &[usize],
    hosts: &[&'h str],
    fields: &[Vec<Field>],
) -> Switch<'h> {
    let [level, deeper @ ..] = levels else {
        let hosts = members.iter().map(|host| hosts[*host]).collect();
        return Switch { name, below: Below::Hosts(hosts) };
    };
    let mut groups: Vec<(&str, Vec<usize>)> = Vec::new();
    for host in members {
        let prefix = &hosts[*host][..fields[*host][*level].end];
        match groups.iter_mut().find(|(known, _)| *known == prefix) {
            Some((_, group)) => group.push(*host),
            None => groups.push((prefix, vec![*host])),
        }
    }
    let switches = groups.into_iter();
    let switches =
        switches.map(|(prefix, group)| below(prefix.into(), &group, deeper, hosts, fields));
    Switch { name, below: Below::Switches(switches.collect()) }
}

fn leaves(switch: &Switch, each: &mut dyn FnMut(&[&str])) {
    match &switch.below {
        Below::Hosts(hosts) => each(hosts),
        Below::Switches(switches) => switches.iter().for_each(|switch| leaves(switch, each)),
    }
}

/// What was measured between two hosts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Way {
    /// Seconds, the least of several.
    pub round_trip_s: f64,
    pub bytes_per_s: f64,
}

/// Groups of hosts that are nearer to each other than to all others.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    pub conf: String,
    /// Names of the hosts of each.
    pub groups: Vec<Vec<String>>,
    /// What tells them apart.
    pub by: By,
    /// The most within a group, and the least between two: seconds, or bytes a second the other way
    /// round.
    pub within: f64,
    pub between: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    RoundTrip,
    Rate,
}

impl Groups {
    /// How many times more it is between groups than within them.
    pub fn gap(&self) -> f64 {
        match self.by {
            By::RoundTrip => self.between / self.within,
            By::Rate => self.within / self.between,
        }
    }
}

/// The hosts in groups by what was measured between each two of them: by round trips or by rates,
/// where these tell them apart more clearly. `None`: they do not fall into groups.
pub fn by_ways(hosts: &[&str], way: &dyn Fn(usize, usize) -> Way) -> Option<Groups> {
    let round_trip = |a: usize, b: usize| way(a, b).round_trip_s;
    let rate = |a: usize, b: usize| 1.0 / way(a, b).bytes_per_s;
    let by_round_trip = parted(hosts, &round_trip, By::RoundTrip);
    let by_rate = parted(hosts, &rate, By::Rate);
    match (by_round_trip, by_rate) {
        (Some(a), Some(b)) if a.gap() < b.gap() => Some(b),
        (a, b) => a.or(b),
    }
}

/// Hosts come together, the nearest first, until the next ones are much farther; all of a group
/// must then be nearer to each other than any two of different groups.
fn parted(hosts: &[&str], far: &dyn Fn(usize, usize) -> f64, by: By) -> Option<Groups> {
    let count = hosts.len();
    if count < FEWEST {
        return None;
    }
    let mut pairs: Vec<(f64, usize, usize)> = (0..count)
        .flat_map(|b| (0..b).map(move |a| (a, b)))
        .map(|(a, b)| (far(a, b), a, b))
        .collect();
    if pairs.iter().any(|(far, ..)| !(far.is_finite() && *far > 0.0)) {
        return None;
    }
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let gaps = pairs.windows(2).map(|two| two[1].0 / two[0].0);
    let widest = gaps.enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    let (last_within, _) = widest.filter(|(_, gap)| *gap >= GAP)?;
    let mut group: Vec<usize> = (0..count).collect();
    for (_, a, b) in &pairs[..=last_within] {
        let (from, to) = (group[*a], group[*b]);
        group.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
    }
    if pairs[last_within + 1..].iter().any(|(_, a, b)| group[*a] == group[*b]) {
        return None;
    }
    let mut groups: Vec<(usize, Vec<&str>)> = Vec::new();
    for (host, group) in hosts.iter().zip(group) {
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, members)) => members.push(host),
            None => groups.push((group, vec![host])),
        }
    }
    let groups: Vec<Vec<&str>> = groups.into_iter().map(|(_, members)| members).collect();
    // One pair that is near by chance makes no network.
    if groups.iter().filter(|members| members.len() > 1).count() < 2 {
        return None;
    }
    let switches = groups
        .iter()
        .enumerate()
        .map(|(n, hosts)| Switch { name: format!("group{n}"), below: Below::Hosts(hosts.clone()) });
    let all = Switch { name: "all".into(), below: Below::Switches(switches.collect()) };
    let of = |far: f64| match by {
        By::RoundTrip => far,
        By::Rate => 1.0 / far,
    };
    Some(Groups {
        conf: all.conf(),
        groups: groups.iter().map(|g| g.iter().map(ToString::to_string).collect()).collect(),
        by,
        within: of(pairs[last_within].0),
        between: of(pairs[last_within + 1].0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use crate::slurm::parse_conf;
    use proptest::prelude::*;

    /// Hosts of each leaf, as the network has them.
    fn read(conf: &str) -> (usize, usize) {
        let none = |_: &str| crate::refuse!("nothing is included");
        let tree = parse_conf(conf, &none, 1.0).unwrap();
        (tree.nodes(), tree.vertices() - tree.nodes())
    }

    #[test]
    fn racks_are_seen_in_names() {
        let conf = by_names(&["r1n01", "r2n01", "r1n02", "r2n02"]).unwrap();
        assert_eq!(
            conf,
            "SwitchName=r1 Nodes=r1n01,r1n02\nSwitchName=r2 Nodes=r2n01,r2n02\n\
             SwitchName=all Switches=r1,r2\n"
        );
        let hosts = ["x1000c0s0b0n0", "x1000c0s0b0n1", "x1000c1s0b0n0", "x1001c0s0b0n0"];
        // Two cabinets, the chassis of each: blades of all hosts have the same number.
        assert_eq!(read(&by_names(&hosts).unwrap()), (4, 6));
        let hosts = ["rack2-node3.site.org", "rack2-node4.site.org", "rack10-node3.site.org"];
        assert_eq!(read(&by_names(&hosts).unwrap()), (3, 3));
    }

    #[test]
    fn names_without_racks_say_nothing() {
        for hosts in [
            &["n0", "n1", "n2"][..],
            &["r1n0", "r2n0", "r3n0"],
            &["r1n0", "r1n1"],
            &["ip-10-0-1-7", "ip-10-0-1-8", "ip-10-0-2-7"],
            &["gpu1-node1", "gpu1-node2", "gpu2-node1"],
            &["r1n0", "r1n1", "login"],
            &["a", "b"],
            &["10.0.0.1", "10.0.0.2"],
            &[],
        ] {
            assert_eq!(by_names(hosts), None, "{hosts:?}");
        }
    }

    /// Hosts 0, 2, 4 and 1, 3, 5 are near each other.
    fn way(near: Way, far: Way) -> impl Fn(usize, usize) -> Way {
        move |a, b| if a % 2 == b % 2 { near } else { far }
    }

    #[test]
    fn groups_are_seen_in_round_trips_and_in_rates() {
        let hosts = ["a", "b", "c", "d", "e", "f"];
        let near = Way { round_trip_s: 20e-6, bytes_per_s: 1e9 };
        let slow = way(near, Way { round_trip_s: 22e-6, bytes_per_s: 1e8 });
        let found = by_ways(&hosts, &slow).unwrap();
        assert_eq!(found.by, By::Rate);
        assert_eq!(found.groups, [["a", "c", "e"], ["b", "d", "f"]]);
        assert!((found.gap() - 10.0).abs() < 1e-6 && (found.within - 1e9).abs() < 1.0);
        assert_eq!(read(&found.conf), (6, 3));
        let late = way(near, Way { round_trip_s: 90e-6, bytes_per_s: 0.9e9 });
        let found = by_ways(&hosts, &late).unwrap();
        assert_eq!((found.by, found.groups.len()), (By::RoundTrip, 2));
        let same = |_, _| near;
        assert_eq!(by_ways(&hosts, &same), None);
        assert_eq!(by_ways(&hosts[..3], &late), None, "three hosts are too few");
        // A line of hosts: each is near its neighbours, and not all of one group to each other.
        let line = |a: usize, b: usize| Way { round_trip_s: a.abs_diff(b) as f64, ..near };
        assert_eq!(by_ways(&hosts, &line), None);
        let broken = |_, _| Way { round_trip_s: 0.0, bytes_per_s: f64::INFINITY };
        assert_eq!(by_ways(&hosts, &broken), None);
    }

    proptest! {
        #[test]
        fn any_names_and_figures_do_no_harm(
            names in prop::collection::vec("[a-z0-9.-]{1,12}|r[0-9]n[0-9]", 0..8),
            figures in prop::collection::vec((0.0f64..9.0, 0.0f64..9.0), 64),
        ) {
            let mut names = names;
            names.sort();
            names.dedup();
            let hosts: Vec<&str> = names.iter().map(String::as_str).collect();
            if let Some(conf) = by_names(&hosts) {
                prop_assert_eq!(read(&conf).0, hosts.len());
            }
            let way = |a: usize, b: usize| {
                let (round_trip_s, bytes_per_s) = figures[8 * a + b];
                Way { round_trip_s, bytes_per_s }
            };
            if let Some(found) = by_ways(&hosts, &way) {
                prop_assert!(found.gap() >= GAP);
                prop_assert_eq!(found.groups.concat().len(), hosts.len());
            }
        }
    }
}
