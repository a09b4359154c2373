//! What was found, on one host or on several, for people and for programs. No I/O.

use eyrie_host::{
    differences, level, same_host, Difference, Finding, Level, Needs, Severity, What,
};
use eyrie_interface::options::CpuLevel;
use eyrie_wire::facts::{Facts, Role};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Clocks that differ by more are said: times in logs and of files mean something else then.
const SKEW_MAX: Duration = Duration::from_secs(1);

/// What one host found out about itself.
#[derive(Clone, Serialize, Deserialize)]
pub struct HostReport {
    /// As it calls itself.
    pub host: String,
    pub findings: Vec<Finding>,
    pub facts: Facts,
    /// The MPI library, as far as it could be asked.
    #[serde(default)]
    pub mpi: Option<Mpi>,
    /// Its clock when it was done, nanoseconds since 1970.
    pub clock_unix_ns: u64,
}

/// An MPI library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mpi {
    pub path: String,
    /// What it says that it is: name, version and device.
    pub name: String,
}

impl HostReport {
    pub fn fails(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Fail)
    }
}

/// A host that was asked.
#[derive(Clone, Serialize, Deserialize)]
pub struct Answer {
    /// As the user calls it.
    pub host: String,
    pub report: Option<HostReport>,
    /// Why there is none.
    pub error: Option<Finding>,
    /// By how much its clock may be wrong at least, in seconds: ahead is positive.
    pub clock_skew_s: f64,
}

/// How much a clock is wrong at least, when it was read between two times of ours.
pub fn skew(clock_ns: u64, asked_ns: u64, answered_ns: u64) -> f64 {
    let wrong = match clock_ns {
        early if early < asked_ns => -((asked_ns - early) as f64),
        late if late > answered_ns => (late - answered_ns) as f64,
        _ => 0.0,
    };
    wrong / 1e9
}

/// Several hosts, beside this one.
#[derive(Clone, Serialize, Deserialize)]
pub struct Several {
    pub here: HostReport,
    pub hosts: Vec<Answer>,
    pub differences: Vec<Difference>,
}

impl Several {
    /// `cpu`: what ranks would be started to use of the processors, if not all.
    pub fn new(here: HostReport, hosts: Vec<Answer>, cpu: Option<CpuLevel>) -> Several {
        let platforms = hosts.iter().filter_map(|a| Some(&a.report.as_ref()?.facts.node));
        let level = cpu.and_then(|cpu| level(cpu.name(), platforms));
        let mut answered = hosts.iter().filter_map(|a| Some((&*a.host, &a.report.as_ref()?.facts)));
        let mut all = Vec::new();
        if let Some(first) = answered.next() {
            // No rank runs here: it is only to talk with those who run them.
            let of_eyrie = |d: &Difference| matches!(d.what, What::Version | What::Build);
            let to_here = differences(first, ("this host", &here.facts), Needs::default());
            all.extend(to_here.into_iter().filter(of_eyrie));
            for other in answered {
                // Where there is no program, that is said already, not of each of its libraries.
                let both = [first, other].iter().all(|(_, facts)| has_program(facts));
                let needs = Needs { level: level.as_ref(), ..Needs::default() };
                let found = differences(other, first, needs).into_iter();
                all.extend(found.filter(|d| both || !of_files(d)));
            }
        }
        let identity =
            |a: &Answer| Some((a.host.clone(), a.report.as_ref()?.facts.identity.clone()));
        let answered: Vec<_> = hosts.iter().filter_map(identity).collect();
        for (n, other) in answered.iter().enumerate() {
            all.extend(
                answered[..n].iter().find_map(|b| same_host((&b.0, &b.1), (&other.0, &other.1))),
            );
        }
        Several { here, hosts, differences: all }
    }

    pub fn fails(&self) -> bool {
        let refused = self.differences.iter().any(|d| d.severity == Severity::Refuse);
        let failed = |a: &Answer| a.report.as_ref().is_none_or(HostReport::fails);
        refused || self.here.fails() || self.hosts.iter().any(failed)
    }
}

impl Several {
    /// All of it, a line each. `here`: what the host is called that has asked the others.
    pub fn lines(&self, here: &str) -> Vec<Finding> {
        let mut lines = host(here, &self.here.findings);
        for answer in &self.hosts {
            match (&answer.report, &answer.error) {
                (Some(report), _) => lines.extend(host(&answer.host, &report.findings)),
                (None, error) => lines.extend(error.clone()),
            }
            lines.extend(wrong_clock(&answer.host, answer.clock_skew_s));
        }
        lines.extend(self.differences.iter().map(line_of));
        let answered = self.hosts.iter().filter(|a| a.report.is_some()).count();
        if answered > 1 && self.differences.is_empty() {
            let text = format!("ranks can move between these {answered} hosts");
            lines.push(Finding::ok("hosts", text));
        }
        lines
    }
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.lines("this host").iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// A difference as a line.
pub fn line_of(difference: &Difference) -> Finding {
    let level = match difference.severity {
        Severity::Refuse => Level::Fail,
        Severity::Warn => Level::Warn,
    };
    let subject = format!("{} and {}", difference.host, difference.than);
    Finding { level, subject, text: difference.text.clone(), remedy: String::new() }
}

fn has_program(facts: &Facts) -> bool {
    facts.files.iter().any(|file| file.role == Role::Program && file.problem.is_empty())
}

fn of_files(d: &Difference) -> bool {
    matches!(d.what, What::MissingFile | What::OtherFile | What::FileTime | What::Argument)
}

/// A host in a line, and one for each thing that is not well there.
fn host(name: &str, findings: &[Finding]) -> Vec<Finding> {
    let well = findings.iter().filter(|finding| finding.level == Level::Ok).count();
    let mpi = findings.iter().find(|f| f.subject == "MPI" && f.level == Level::Ok);
    let mpi = mpi.map(|f| format!(", MPI: {}", f.text)).unwrap_or_default();
    let text = format!("{well} of {} checks are well{mpi}", findings.len());
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    let mut lines = vec![Finding { level, ..Finding::ok(name, text) }];
    for finding in findings.iter().filter(|finding| finding.level != Level::Ok) {
        let subject = format!("{name}: {}", finding.subject);
        lines.push(Finding { subject, ..finding.clone() });
    }
    lines
}

/// What is to be said of a clock that is wrong by so many seconds at least, if that is much.
pub fn wrong_clock(host: &str, seconds: f64) -> Option<Finding> {
    let way = if seconds > 0.0 { "ahead" } else { "behind" };
    (seconds.abs() > SKEW_MAX.as_secs_f64()).then(|| {
        Finding::warn(
            &format!("{host}: clock"),
            format!("it is at least {:.1} s {way}", seconds.abs()),
            "set it (chrony, ntpd): times in logs and of files mean something else there",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(level: Level, version: &str) -> HostReport {
        let finding = Finding { level, ..Finding::warn("disk", "small", "name another") };
        let facts = eyrie_host::gather(version, None, &[]);
        HostReport { host: "x".into(), findings: vec![finding], facts, mpi: None, clock_unix_ns: 0 }
    }

    /// Each name is a host of its own.
    fn answer(host: &str, mut report: Option<HostReport>) -> Answer {
        if let Some(report) = &mut report {
            report.facts.identity = host.into();
        }
        let error =
            report.is_none().then(|| Finding::fail(host, "cannot be reached: no", "log in"));
        Answer { host: host.into(), report, error, clock_skew_s: 0.0 }
    }

    #[test]
    fn hosts_that_are_well_are_a_line_each() {
        let well = || report(Level::Ok, "1");
        let several = Several::new(
            well(),
            vec![answer("n1", Some(well())), answer("n2", Some(well()))],
            None,
        );
        assert_eq!(
            several.to_string(),
            "ok    this host: 1 of 1 checks are well\nok    n1: 1 of 1 checks are well\n\
             ok    n2: 1 of 1 checks are well\nok    hosts: ranks can move between these 2 hosts\n"
        );
        assert!(!several.fails());
        let mut again = answer("n3", Some(well()));
        if let Some(report) = &mut again.report {
            report.facts.identity = "n1".into();
        }
        let hosts = vec![answer("n1", Some(well())), answer("n2", Some(well())), again];
        let several = Several::new(well(), hosts, None);
        assert!(several.fails());
        let last = several.to_string().lines().last().unwrap_or_default().to_string();
        assert!(last.starts_with("fail  n1 and n3: n1 and n3 are one host: "), "{last}");
    }

    #[test]
    fn what_is_not_well_is_said_with_its_host() {
        let mut late = answer("n1", Some(report(Level::Warn, "1")));
        late.clock_skew_s = -3.25;
        let newer = answer("n3", Some(report(Level::Ok, "2")));
        let several =
            Several::new(report(Level::Ok, "1"), vec![late, answer("n2", None), newer], None);
        let text = several.to_string();
        for line in [
            "warn  n1: 0 of 1 checks are well\nwarn  n1: disk: small; name another\n",
            "warn  n1: clock: it is at least 3.2 s behind; set it",
            "fail  n2: cannot be reached: no; log in\n",
            "fail  n3 and n1: n3 has Eyrie 2, n1 has 1: ",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        assert!(several.fails());
    }

    #[test]
    fn a_clock_is_wrong_only_when_it_must_be() {
        assert_eq!(skew(15, 10, 20), 0.0);
        assert_eq!(skew(4_000_000_000, 5_000_000_000, 6_000_000_000), -1.0);
        assert_eq!(skew(8_000_000_000, 5_000_000_000, 6_000_000_000), 2.0);
    }
}
