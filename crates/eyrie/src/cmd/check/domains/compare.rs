//! In what the sites differ, by the first host of each. What one job needs the same everywhere is
//! refused: Eyrie, the program and its MPI library. What only matters to ranks that go from one
//! site to another is a warning. No I/O.

use super::report::Site;
use crate::cmd::check::report::{HostReport, Mpi};
use eyrie_host::{differences, level, same_host, Difference, Images, Needs, Severity, What};
use eyrie_interface::options::CpuLevel;
use eyrie_wire::facts::{Facts, File, Role};
use std::collections::BTreeSet;

/// Most files that are named in a line.
const NAMED: usize = 3;

/// Compares each site with the first that has answered. `cpu`: what ranks would be started to use
/// of the processors, if not all.
pub fn between(sites: &[Site], cpu: Option<CpuLevel>) -> Vec<Difference> {
    let firsts: Vec<(String, &HostReport)> = sites
        .iter()
        .filter_map(|site| {
            let (host, report) = site.first()?;
            Some((format!("{host} of {}", site.name), report))
        })
        .collect();
    let platforms = firsts.iter().map(|(_, report)| &report.facts.node);
    let level = cpu.and_then(|cpu| level(cpu.name(), platforms));
    let needs = Needs { images: Images::HaveFiles, level: level.as_ref() };
    let Some((first, others)) = firsts.split_first() else { return Vec::new() };
    let named = |(name, report): &(String, &HostReport)| (name.clone(), (*report).clone());
    let first = named(first);
    let mut all = Vec::new();
    for other in others {
        let other = named(other);
        let found = differences((&other.0, &other.1.facts), (&first.0, &first.1.facts), needs);
        all.extend(found.into_iter().filter(|d| !of_files(d)).map(for_moves_only));
        all.extend(mpi(&other, &first));
        all.extend(program(&other, &first));
        all.extend(libraries(&other, &first));
    }
    all.extend(one_host_twice(sites));
    all
}

type Named = (String, HostReport);

fn of_files(d: &Difference) -> bool {
    matches!(d.what, What::MissingFile | What::OtherFile | What::FileTime | What::Argument)
}

/// A rank stays at its site unless that is left: only then the processor of another one counts.
fn for_moves_only(mut difference: Difference) -> Difference {
    if difference.what != What::Version {
        difference.severity = Severity::Warn;
    }
    difference
}

/// One job has one MPI library.
fn mpi((a, at_a): &Named, (b, at_b): &Named) -> Option<Difference> {
    let of_a = at_a.mpi.as_ref()?;
    let of_b = at_b.mpi.as_ref()?;
    let shown = |Mpi { path, name }: &Mpi| format!("{name} ({path})");
    (of_a.name != of_b.name).then(|| {
        let text = format!(
            "{a} has {}, {b} has {}: ranks of one job need the same MPI library; install the same \
             version at both",
            shown(of_a),
            shown(of_b)
        );
        let what = (Severity::Refuse, What::OtherFile);
        Difference::between(what, (a, of_a.name.clone()), (b, of_b.name.clone()), text)
    })
}

/// The program, or the script that it is.
fn program((a, at_a): &Named, (b, at_b): &Named) -> Option<Difference> {
    let of = |facts: &Facts| -> Option<File> {
        let is_it = |role| facts.files.iter().find(|file| file.role == role).cloned();
        is_it(Role::Script).or_else(|| is_it(Role::Program))
    };
    let of_a = of(&at_a.facts)?;
    let of_b = of(&at_b.facts)?;
    if !of_a.problem.is_empty() || !of_b.problem.is_empty() || of_a.has_content_of(&of_b) {
        // What cannot be read is said by its host.
        return None;
    }
    let size = |file: &File| format!("{} bytes", file.size);
    let text = format!(
        "{} on {a} and {} on {b} are not the same file ({} and {}): ranks of one job would run \
         different programs; install the same one at both",
        of_a.path,
        of_b.path,
        size(&of_a),
        size(&of_b)
    );
    let what = (Severity::Refuse, What::OtherFile);
    Some(Difference::between(what, (a, size(&of_a)), (b, size(&of_b)), text))
}

/// The libraries, in one line.
fn libraries((a, at_a): &Named, (b, at_b): &Named) -> Option<Difference> {
    let is_library = |file: &&File| file.role == Role::Library;
    let find = |facts: &Facts, path: &str| -> Option<File> {
        facts.files.iter().find(|file| file.path == path && file.problem.is_empty()).cloned()
    };
    let all = at_a.facts.files.iter().chain(&at_b.facts.files).filter(is_library);
    let paths: BTreeSet<&str> = all.map(|file| file.path.as_str()).collect();
    let differ = |path: &&str| match (find(&at_a.facts, path), find(&at_b.facts, path)) {
        (Some(here), Some(there)) => !here.has_content_of(&there),
        (None, None) => false,
        _ => true,
    };
    let differing: Vec<&str> = paths.into_iter().filter(differ).collect();
    if differing.is_empty() {
        return None;
    }
    let more = if differing.len() > NAMED { ", ..." } else { "" };
    let names = differing.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let text = format!(
        "{a} and {b} differ in {} ({names}{more}): ranks go from one to the other with \
         --self-contained only; install the same at both, or give that",
        eyrie_units::counted(differing.len() as u64, "library file")
    );
    let what = (Severity::Warn, What::OtherFile);
    Some(Difference::between(what, (a, names.clone()), (b, names), text))
}

/// Hosts of two sites that are one.
fn one_host_twice(sites: &[Site]) -> Vec<Difference> {
    let mut known: Vec<(&str, String, &str)> = Vec::new();
    let mut all = Vec::new();
    for site in sites {
        for answer in site.hosts.iter().flat_map(|hosts| &hosts.hosts) {
            let Some(report) = &answer.report else { continue };
            let name = format!("{} of {}", answer.host, site.name);
            let identity = report.facts.identity.as_str();
            let others = known.iter().filter(|(other, ..)| *other != site.name);
            all.extend(
                others
                    .filter_map(|(_, other, theirs)| same_host((other, theirs), (&name, identity))),
            );
            known.push((&site.name, name, identity));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::check::report::{Answer, Several};

    fn file(role: Role, path: &str, build_id: u64) -> File {
        File { size: 10, build_id, ..File::unknown(role, path, "") }
    }

    fn site(name: &str, change: impl FnOnce(&mut HostReport)) -> Site {
        let mut facts = eyrie_host::gather("1", None, &[]);
        facts.files =
            vec![file(Role::Program, "/p/solver", 1), file(Role::Library, "/lib/libm.so", 2)];
        facts.identity = name.into();
        let mpi = Mpi { path: "/lib/libmpi.so".into(), name: "MPICH 5".into() };
        let mut report = HostReport {
            host: name.into(),
            findings: vec![],
            facts,
            mpi: Some(mpi),
            clock_unix_ns: 0,
        };
        let here = report.clone();
        change(&mut report);
        let host = format!("{name}0");
        let answer = Answer { host, report: Some(report), error: None, clock_skew_s: 0.0 };
        let hosts = Several { here, hosts: vec![answer], differences: vec![] };
        let name = name.to_string();
        let via = "here".to_string();
        Site { name, ranks: 1, via, hosts: Some(hosts), error: None, clock_skew_s: 0.0 }
    }

    #[test]
    fn sites_must_have_one_eyrie_one_program_and_one_mpi() {
        let home = || site("home", |_| {});
        let of = |change: fn(&mut HostReport)| between(&[home(), site("cloud", change)], None);
        assert_eq!(of(|_| {}), []);
        let refused = |change: fn(&mut HostReport), words: &str| {
            let found = of(change);
            let is_it = |d: &&Difference| d.severity == Severity::Refuse && d.text.contains(words);
            assert!(found.iter().any(|d| is_it(&d)), "{words} is not in {found:?}");
            assert_eq!(found.iter().filter(|d| d.severity == Severity::Refuse).count(), 1);
        };
        refused(
            |r| r.facts.version = "2".into(),
            "cloud0 of cloud has Eyrie 2, home0 of home has 1",
        );
        refused(|r| r.facts.files[0].build_id = 9, "/p/solver on cloud0 of cloud and /p/solver on");
        refused(
            |r| r.mpi = Some(Mpi { path: "/x".into(), name: "Open MPI 5".into() }),
            "cloud0 of cloud has Open MPI 5 (/x), home0 of home has MPICH 5 (/lib/libmpi.so)",
        );
        refused(|r| r.facts.identity = "home".into(), "home0 of home and cloud0 of cloud are one");
    }

    #[test]
    fn what_ranks_need_to_move_is_a_warning() {
        let warned = |change: fn(&mut HostReport), words: &str| {
            let found = between(&[site("home", |_| {}), site("cloud", change)], None);
            assert!(found.iter().all(|d| d.severity == Severity::Warn), "{found:?}");
            assert!(found.iter().any(|d| d.text.contains(words)), "{words} is not in {found:?}");
        };
        warned(|r| r.facts.node.kernel = "9".into(), "cloud0 of cloud runs kernel 9");
        warned(|r| r.facts.node.cpu_vendor = "X".into(), "cloud0 of cloud has a CPU of X");
        warned(|r| r.facts.files[1].build_id = 9, "differ in 1 library file (/lib/libm.so): ranks");
        warned(|r| r.facts.files.truncate(1), "differ in 1 library file (/lib/libm.so)");
    }
}
