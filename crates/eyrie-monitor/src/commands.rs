//! Which commands have series of their own in /metrics: those that use most of the node, by
//! processor time and memory. The others are summed, as are all kernel threads: a node that starts
//! a million programs has as many series as one that starts ten. Pure.

use crate::sample::{text_of, Name, Process};
use std::collections::HashMap;

/// The name of the series of all commands without one of their own.
const OTHER: &str = "other";
/// Longer than a command's name can be.
const KERNEL: &str = "all kernel threads";
const NAMELESS: &str = "(no name)";

/// A new sample counts for one part in this many of the use of a command.
const SMOOTH: f64 = 16.0;
/// A command replaces another one when it uses this many times as much.
const MARGIN: f64 = 2.0;
/// Use of the node that counts as none. All uses together are 2 at most, so that few are kept.
const NOTHING: f64 = 1e-4;

/// The figures of the processes of one command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    pub cpu_ns: u64,
    pub rss_bytes: u64,
    pub processes: u64,
    pub threads: u64,
}

impl Group {
    fn add(&mut self, other: &Group) {
        self.cpu_ns += other.cpu_ns;
        self.rss_bytes += other.rss_bytes;
        self.processes += other.processes;
        self.threads += other.threads;
    }

    /// The group without its processes, which have ended; the counter stays.
    fn without_processes(&self) -> Group {
        Group { cpu_ns: self.cpu_ns, ..Group::default() }
    }
}

/// A command in one sample.
#[derive(Default)]
struct Now {
    /// `cpu_ns` since the sample before.
    grown: Group,
    /// CPU time of its processes since their start.
    whole_cpu_ns: u64,
}

/// The counts over all samples. They do not depend on when scrapes come.
pub struct Commands {
    most: usize,
    groups: HashMap<Name, Group>,
    kernel: Group,
    other: Group,
    /// The share of the node that each command uses, smoothed.
    uses: HashMap<Name, f64>,
    /// CPU time of each process when it was last seen.
    seen: HashMap<(u32, u64), (u64, bool)>,
}

impl Commands {
    /// At most `most` commands have series of their own.
    pub fn new(most: usize) -> Commands {
        Commands {
            most,
            groups: HashMap::new(),
            kernel: Group::default(),
            other: Group::default(),
            uses: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    /// Adds the processes of a sample.
    pub fn observe(&mut self, processes: &[Process]) {
        for group in self.groups.values_mut().chain([&mut self.kernel, &mut self.other]) {
            *group = group.without_processes();
        }
        let now = self.sums(processes);
        self.weigh(&now);
        self.assign_series(&now);
        for (name, sum) in now {
            self.groups.get_mut(&name).unwrap_or(&mut self.other).add(&sum.grown);
        }
    }

    /// The use of each command; kernel threads are added to their group directly.
    fn sums(&mut self, processes: &[Process]) -> HashMap<Name, Now> {
        let mut now: HashMap<Name, Now> = HashMap::new();
        self.seen.values_mut().for_each(|(_, present)| *present = false);
        for p in processes {
            // What a process used before the first sample counts with it: counters begin at its
            // start.
            let before =
                self.seen.insert((p.pid, p.start_ns), (p.cpu_ns, true)).map_or(0, |(cpu, _)| cpu);
            let one = Group {
                cpu_ns: p.cpu_ns.saturating_sub(before),
                rss_bytes: p.rss_bytes,
                processes: 1,
                threads: p.threads.into(),
            };
            if p.kernel_thread {
                self.kernel.add(&one);
                continue;
            }
            let of_it = now.entry(p.command).or_default();
            of_it.grown.add(&one);
            of_it.whole_cpu_ns += p.cpu_ns;
        }
        self.seen.retain(|_, (_, present)| *present);
        now
    }

    fn weigh(&mut self, now: &HashMap<Name, Now>) {
        let all = |of: fn(&Group) -> u64| now.values().map(|n| of(&n.grown)).sum::<u64>().max(1);
        let cpu = all(|g| g.cpu_ns);
        let memory = all(|g| g.rss_bytes);
        self.uses.values_mut().for_each(|used| *used *= 1.0 - 1.0 / SMOOTH);
        for (name, Now { grown, .. }) in now {
            let share = grown.cpu_ns as f64 / cpu as f64 + grown.rss_bytes as f64 / memory as f64;
            *self.uses.entry(*name).or_default() += share / SMOOTH;
        }
        self.uses.retain(|_, used| *used > NOTHING);
    }

    /// Decides which commands have series of their own.
    fn assign_series(&mut self, now: &HashMap<Name, Now>) {
        let used = |name: &Name| self.uses.get(name).copied().unwrap_or(0.0);
        let by_use = |a: &Name, b: &Name| used(b).total_cmp(&used(a)).then(a.cmp(b));
        let mut waiting: Vec<Name> =
            now.keys().filter(|name| !self.groups.contains_key(*name)).copied().collect();
        waiting.sort_unstable_by(by_use);
        let mut there: Vec<Name> = self.groups.keys().copied().collect();
        there.sort_unstable_by(by_use);
        let free = self.most.saturating_sub(there.len()).min(waiting.len());
        let mut changes: Vec<(Option<Name>, Name)> =
            waiting.drain(..free).map(|name| (None, name)).collect();
        for (old, new) in there.into_iter().rev().zip(waiting) {
            if used(&new) <= MARGIN * used(&old) {
                break;
            }
            changes.push((Some(old), new));
        }
        for (old, new) in changes {
            if let Some(old) = old {
                self.groups.remove(&old);
            }
            // Its counter begins with what its processes have used before this sample.
            let Now { grown, whole_cpu_ns } = &now[&new];
            let cpu_ns = whole_cpu_ns.saturating_sub(grown.cpu_ns);
            self.groups.insert(new, Group { cpu_ns, ..Group::default() });
        }
    }

    /// Each series once, with its name.
    pub fn series(&self) -> Vec<(String, Group)> {
        let text = |name: &Name| match text_of(name) {
            text if text.is_empty() => NAMELESS.to_string(),
            text => text.into_owned(),
        };
        let mut all: Vec<(String, &Group)> =
            self.groups.iter().map(|(name, group)| (text(name), group)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let mut rest = self.other.clone();
        let mut series: Vec<(String, Group)> = Vec::new();
        for (name, group) in all {
            // A command may itself be called "other", and two names may look alike as text: a
            // series must not occur twice.
            if name == OTHER {
                rest.add(group);
                continue;
            }
            match series.last_mut().filter(|(last, _)| *last == name) {
                Some((_, sum)) => sum.add(group),
                None => series.push((name, group.clone())),
            }
        }
        series.push((KERNEL.into(), self.kernel.clone()));
        series.push((OTHER.into(), rest));
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::name_of;

    fn process(pid: u32, command: &str, cpu_ns: u64) -> Process {
        Process {
            pid,
            command: name_of(command.as_bytes()),
            cpu_ns,
            rss_bytes: 100,
            threads: 2,
            ..Process::NONE
        }
    }

    fn of<'s>(series: &'s [(String, Group)], name: &str) -> Option<&'s Group> {
        series.iter().find(|(n, _)| n == name).map(|(_, group)| group)
    }

    #[test]
    fn groups_are_bounded_and_counters_never_go_back() {
        let mut commands = Commands::new(3);
        let mut last: HashMap<String, u64> = HashMap::new();
        for number in 0..100u32 {
            let mut all: Vec<Process> = (number * 20..number * 20 + 20)
                .map(|i| process(i + 10, &format!("job{i}"), 5))
                .collect();
            all.push(process(1, "steady", u64::from(number) * 100));
            commands.observe(&all);
            let series = commands.series();
            assert!(series.len() <= 5 && commands.uses.len() < 2000 && commands.seen.len() <= 21);
            let processes: u64 = series.iter().map(|(_, group)| group.processes).sum();
            assert_eq!(processes, 21, "each process counts once");
            for (name, group) in &series {
                assert!(last.get(name).is_none_or(|cpu| group.cpu_ns >= *cpu), "{name} went back");
            }
            last = series.into_iter().map(|(name, group)| (name, group.cpu_ns)).collect();
        }
        assert_eq!(last["steady"], 9900);
        assert!(last[OTHER] > 9000, "commands without series are counted");
    }

    #[test]
    fn a_busy_program_that_comes_later_gets_a_series() {
        let mut commands = Commands::new(4);
        let idle: Vec<Process> = (0..40).map(|i| process(i + 10, &format!("idle{i}"), 7)).collect();
        commands.observe(&idle);
        for step in 1..20u64 {
            let mut all = idle.clone();
            all.push(process(1, "solver", step * 1000));
            commands.observe(&all);
            if step == 3 {
                assert_eq!(of(&commands.series(), "solver").map(|g| g.cpu_ns), Some(3000));
            }
        }
        let series = commands.series();
        assert_eq!(of(&series, "solver").map(|g| (g.cpu_ns, g.processes)), Some((19_000, 1)));
        // The others do not replace each other in turn.
        let names =
            |series: &[(String, Group)]| series.iter().map(|s| s.0.clone()).collect::<Vec<_>>();
        commands.observe(&[idle.clone(), vec![process(1, "solver", 20_000)]].concat());
        assert_eq!(names(&commands.series()), names(&series));
    }

    #[test]
    fn a_command_that_is_gone_is_replaced() {
        let mut commands = Commands::new(1);
        commands.observe(&[process(1, "old", 5)]);
        commands.observe(&[]);
        assert!(of(&commands.series(), "old").is_some(), "no other command wants its series");
        for _ in 0..40 {
            commands.observe(&[process(2, "new", 7)]);
        }
        assert!(of(&commands.series(), "new").is_some() && of(&commands.series(), "old").is_none());
    }

    #[test]
    fn kernel_threads_are_one_group() {
        let mut commands = Commands::new(4);
        let worker =
            |i: u32| Process { kernel_thread: true, ..process(i, &format!("kworker/{i}:1"), 10) };
        let mut all: Vec<Process> = (10..90).map(worker).collect();
        // A process can give itself any name.
        all.push(process(1, "kworker/3:1", 3));
        commands.observe(&all);
        let series = commands.series();
        assert_eq!(of(&series, KERNEL).map(|g| (g.processes, g.cpu_ns)), Some((80, 800)));
        assert_eq!(of(&series, "kworker/3:1").map(|g| g.processes), Some(1));
    }

    #[test]
    fn no_series_occurs_twice_whatever_the_names_of_processes() {
        let mut commands = Commands::new(9);
        let odd = |pid, name: &[u8]| Process { command: name_of(name), ..process(pid, "", 1) };
        commands.observe(&[
            odd(1, b"other"),
            odd(2, b"\xff\xfe"),
            odd(3, b"\xfe\xff"),
            odd(4, b""),
            odd(5, b"(no name)"),
        ]);
        let mut names: Vec<String> = commands.series().into_iter().map(|s| s.0).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }
}
