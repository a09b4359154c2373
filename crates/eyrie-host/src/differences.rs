//! The differences between two hosts, and whether a rank can move between them nevertheless. Pure:
//! no I/O. Each comparison is made in both directions, because a rank may move either way.

use crate::node::obstacles;
use eyrie_image::fingerprint::Obstacle;
use eyrie_image::processor;
use eyrie_wire::facts::{Facts, File, Limits, Platform, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What a difference means for a job on both hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The job runs, but the user may want to know.
    Warn,
    /// An image of one host cannot become a process on the other, or that would not continue
    /// correctly.
    Refuse,
}

/// What differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Both names are of one host.
    SameHost,
    Version,
    Build,
    Kernel,
    CpuVendor,
    Instructions,
    RegisterState,
    Limit,
    /// A program or library that only one of them has.
    MissingFile,
    /// Different files with the same path.
    OtherFile,
    /// The same content with different times of change, and no build id.
    FileTime,
    /// An argument of the program.
    Argument,
}

/// One difference between two hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Difference {
    pub severity: Severity,
    pub what: What,
    /// The host that the difference is about: if one has less, that one.
    pub host: String,
    pub value: String,
    /// The host that it is compared with.
    pub than: String,
    pub other_value: String,
    /// One sentence with the difference, what it means and what to do.
    pub text: String,
}

impl Difference {
    /// One with a sentence about two hosts: both values, and the meaning after a colon.
    pub fn between(
        (severity, what): (Severity, What),
        (host, value): (&str, String),
        (than, other_value): (&str, String),
        text: String,
    ) -> Difference {
        let host = host.to_string();
        let than = than.to_string();
        Difference { severity, what, host, value, than, other_value, text }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What ranks need of the hosts that they move between.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs<'a> {
    pub images: Images,
    /// What ranks are started to use of the processors, if not all.
    pub level: Option<&'a processor::Level>,
}

/// What the images of a job's ranks have of the program and its libraries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Images {
    /// Only which files they are: a host without them cannot restore an image.
    #[default]
    NeedFiles,
    /// Their content (`--self-contained`).
    HaveFiles,
}

/// A host by its name.
type Host<'a> = (&'a str, &'a Facts);

/// The differences between two hosts; empty when a rank with these needs can move from each to the
/// other.
pub fn differences(of: Host, than: Host, needs: Needs) -> Vec<Difference> {
    let mut all = Vec::new();
    eyrie(of, than, &mut all);
    node(of, than, needs.level, &mut all);
    limits(of, than, &mut all);
    files(of, than, needs.images, &mut all);
    all
}

/// Whether two names are of one host, from what their kernels say ([`Facts::identity`]). Then the
/// difference says so.
pub fn same_host((a, of_a): (&str, &str), (b, of_b): (&str, &str)) -> Option<Difference> {
    let identity = || of_a.to_string();
    (!of_a.is_empty() && of_a == of_b).then(|| {
        let text = format!(
            "{a} and {b} are one host: copies that are kept on both are lost together; name it \
             once, with more slots"
        );
        Difference::between(
            (Severity::Refuse, What::SameHost),
            (a, identity()),
            (b, identity()),
            text,
        )
    })
}

fn eyrie((a, af): Host, (b, bf): Host, all: &mut Vec<Difference>) {
    if af.version != bf.version {
        let v = af.version.clone();
        let w = bf.version.clone();
        let text = format!(
            "{a} has Eyrie {v}, {b} has {w}: processes of different versions refuse each other; \
             install the same version on both"
        );
        all.push(Difference::between((Severity::Refuse, What::Version), (a, v), (b, w), text));
    } else if !af.command.has_content_of(&bf.command) {
        let text = format!(
            "{a} has another build of Eyrie {} ({}) than {b} ({}): one may lack corrections that \
             the other has; install the same file on both",
            af.version, af.command.path, bf.command.path
        );
        let value = |f: &Facts| identity(&f.command);
        all.push(Difference::between(
            (Severity::Warn, What::Build),
            (a, value(af)),
            (b, value(bf)),
            text,
        ));
    }
}

fn node((a, af): Host, (b, bf): Host, level: Option<&processor::Level>, all: &mut Vec<Difference>) {
    let v = af.node.kernel.clone();
    let w = bf.node.kernel.clone();
    if v != w {
        let text = format!(
            "{a} runs kernel {v}, {b} runs {w}: a rank that uses something of the newer one may \
             not be restored on the other; boot the same kernel on both to be sure"
        );
        all.push(Difference::between((Severity::Warn, What::Kernel), (a, v), (b, w), text));
    }
    for obstacle in obstacles(&af.node, &bf.node, level) {
        all.push(obstacle_between((a, af), (b, bf), level.is_some(), obstacle));
    }
    // The other obstacles are the same in both directions.
    for obstacle in obstacles(&bf.node, &af.node, level) {
        if matches!(obstacle, Obstacle::Lacks(_) | Obstacle::LacksRegisters(_)) {
            all.push(obstacle_between((b, bf), (a, af), level.is_some(), obstacle));
        }
    }
}

/// What lets unequal processors be hosts of one job.
const HELD: &str = "start the job with --cpu common or a level that both have (--cpu x86-64-v3)";

/// Why `a` refuses images of `b`. `is_held`: of ranks that are started for a level.
fn obstacle_between((a, af): Host, (b, bf): Host, is_held: bool, obstacle: Obstacle) -> Difference {
    let af = &af.node;
    let bf = &bf.node;
    let (what, value, other, text) = match obstacle {
        Obstacle::CpuVendor => {
            let v = af.cpu_vendor.clone();
            let w = bf.cpu_vendor.clone();
            let text = format!(
                "{a} has a CPU of {v}, {b} one of {w}: neither restores images of the other; use \
                 hosts with the same CPU (in Slurm: --constraint)"
            );
            (What::CpuVendor, v, w, text)
        }
        Obstacle::Lacks(instructions) => {
            let text = if is_held {
                format!(
                    "{a}'s CPU lacks {instructions}, which ranks of {b} may use in spite of --cpu: \
                     they are of the level, or Eyrie's own libraries use them and {b} has no means \
                     to hide them; start the ranks on {a}, take a lower level, or use hosts with \
                     the same CPU (in Slurm: --constraint)"
                )
            } else {
                format!(
                    "{a}'s CPU lacks {instructions}, which {b}'s has: libraries choose their code \
                     by what the CPU has when they are loaded, so an image of {b} would end by an \
                     illegal instruction on {a}; {HELD}, or use hosts with the same CPU (in Slurm: \
                     --constraint)"
                )
            };
            let v = format!("lacks {instructions}");
            let w = format!("has {instructions}");
            (What::Instructions, v, w, text)
        }
        Obstacle::RegisterState => {
            let state = |n: &Platform| format!("{:#x}, {} bytes", n.xcr0, n.xsave_len);
            let text = format!(
                "{a}'s CPU has the register state {}, {b}'s {}: neither restores images of the \
                 other; {HELD}, or use hosts with the same CPU (in Slurm: --constraint) and the \
                 same kernel parameters (clearcpuid=, pku)",
                state(af),
                state(bf)
            );
            (What::RegisterState, state(af), state(bf), text)
        }
        Obstacle::LacksRegisters(components) => {
            let text = format!(
                "{a}'s CPU lacks the registers of {components}, or saves them in another place \
                 than {b}'s: an image of {b} cannot be restored on {a}; take a level of --cpu \
                 without them, or use hosts with the same CPU (in Slurm: --constraint)"
            );
            let v = format!("lacks {components}");
            let w = format!("has {components}");
            (What::RegisterState, v, w, text)
        }
    };
    Difference::between((Severity::Refuse, what), (a, value), (b, other), text)
}

/// A limit: its name, how it is raised, and its value.
type Limit = (&'static str, &'static str, fn(&Limits) -> u64);

/// Limits of which more is better.
const LIMITS: [Limit; 6] = [
    ("mappings of a process", "sysctl vm.max_map_count", |l| l.mappings),
    ("huge pages", "sysctl vm.nr_hugepages", |l| l.huge_pages),
    ("open files", "ulimit -Hn", |l| l.open_files),
    ("bytes of locked memory", "ulimit -Hl", |l| l.locked_memory),
    ("bytes of stack", "ulimit -Hs", |l| l.stack),
    ("bytes of address space", "ulimit -Hv", |l| l.address_space),
];

fn limits(a: Host, b: Host, all: &mut Vec<Difference>) {
    for (name, how, value) in LIMITS {
        let here = value(&a.1.limits);
        let there = value(&b.1.limits);
        let ((poor, less), (rich, more)) = match here.cmp(&there) {
            std::cmp::Ordering::Equal => continue,
            std::cmp::Ordering::Less => ((a.0, here), (b.0, there)),
            std::cmp::Ordering::Greater => ((b.0, there), (a.0, here)),
        };
        let less = amount(less);
        let more = amount(more);
        let text = format!(
            "{poor} allows {less} {name}, {rich} {more}: a rank that has more than {less} cannot \
             be restored on {poor}; raise it there ({how})"
        );
        all.push(Difference::between(
            (Severity::Warn, What::Limit),
            (poor, less),
            (rich, more),
            text,
        ));
    }
    lowest_address(a, b, all);
    overcommit(a, b, all);
}

fn lowest_address((a, af): Host, (b, bf): Host, all: &mut Vec<Difference>) {
    let v = af.limits.lowest_address;
    let w = bf.limits.lowest_address;
    if v == w {
        return;
    }
    let ((high, most), (low, least)) = if v > w { ((a, v), (b, w)) } else { ((b, w), (a, v)) };
    let text = format!(
        "{high} allows no mapping below {most:#x}, {low} below {least:#x}: a rank that has one \
         there cannot be restored on {high}; set the same (sysctl vm.mmap_min_addr)"
    );
    let values = (format!("{most:#x}"), format!("{least:#x}"));
    all.push(Difference::between(
        (Severity::Warn, What::Limit),
        (high, values.0),
        (low, values.1),
        text,
    ));
}

fn overcommit((a, af): Host, (b, bf): Host, all: &mut Vec<Difference>) {
    let strict = |facts: &Facts| facts.limits.overcommit == 2;
    let ((strict, value), (other, other_value)) = match (strict(af), strict(bf)) {
        (true, false) => ((a, af), (b, bf)),
        (false, true) => ((b, bf), (a, af)),
        _ => return,
    };
    let v = value.limits.overcommit.to_string();
    let w = other_value.limits.overcommit.to_string();
    let text = format!(
        "{strict} counts memory that was never touched (vm.overcommit_memory={v}), {other} does \
         not ({w}): a rank may be too large to be restored on {strict}; set the same"
    );
    all.push(Difference::between((Severity::Warn, What::Limit), (strict, v), (other, w), text));
}

fn amount(limit: u64) -> String {
    match limit {
        u64::MAX => "any number of".into(),
        number => number.to_string(),
    }
}

fn files(a: Host, b: Host, images: Images, all: &mut Vec<Difference>) {
    let find = |facts: &'_ Facts, path: &str| {
        facts.files.iter().find(|file| file.path == path && file.problem.is_empty()).cloned()
    };
    // Where there is no program, nothing is known of its libraries.
    let is_program = |file: &&File| file.role == Role::Program;
    let has_program =
        |facts: &Facts| facts.files.iter().any(|f| is_program(&f) && f.problem.is_empty());
    let all_count = images == Images::NeedFiles || has_program(a.1) && has_program(b.1);
    let named = a.1.files.iter().chain(&b.1.files).filter(|file| all_count || is_program(file));
    let paths: BTreeSet<&str> = named.map(|file| file.path.as_str()).collect();
    for path in paths {
        match (find(a.1, path), find(b.1, path)) {
            (Some(here), Some(there)) => all.extend(file((a.0, &here), (b.0, &there), images)),
            (None, Some(there)) => all.push(missing(a, (b.0, &there), images)),
            (Some(here), None) => all.push(missing(b, (a.0, &here), images)),
            // Neither host has it: whether that is a problem is the program's concern.
            (None, None) => {}
        }
    }
}

/// Compares a file that both hosts have.
fn file((a, af): (&str, &File), (b, bf): (&str, &File), images: Images) -> Option<Difference> {
    let path = &af.path;
    let (severity, what, meaning) = match af.role.max(bf.role) {
        Role::Argument if af.has_content_of(bf) => return None,
        Role::Argument => {
            let meaning = "a rank that starts anew on the other reads another input; copy it to \
                           both, unless the program writes it";
            (Severity::Warn, What::Argument, meaning)
        }
        Role::Script if af.has_content_of(bf) => return None,
        Role::Program | Role::Library if af.is_taken_for(bf) => return None,
        Role::Program | Role::Library if af.has_content_of(bf) && images == Images::HaveFiles => {
            return None;
        }
        Role::Program | Role::Library if af.has_content_of(bf) => {
            let meaning = "it has no build id, so a restore treats a file with another time as \
                           changed; copy it with its time (cp -p, rsync -t) or keep it on a \
                           file system that both share, or use --self-contained";
            (Severity::Refuse, What::FileTime, meaning)
        }
        _ if images == Images::HaveFiles => {
            let meaning = "images have their own (--self-contained), but a rank without an image \
                           starts with the one that is there; install the same file on both if \
                           that matters";
            (Severity::Warn, What::OtherFile, meaning)
        }
        _ => {
            let meaning = "neither restores images of the other; install the same file on both, \
                           or use --self-contained";
            (Severity::Refuse, What::OtherFile, meaning)
        }
    };
    let (v, w) = match what {
        What::FileTime => (time(af), time(bf)),
        _ => (identity(af), identity(bf)),
    };
    let text = format!("{path} is {v} on {a} and {w} on {b}: {meaning}");
    Some(Difference::between((severity, what), (a, v), (b, w), text))
}

/// A file that one host has and uses, and the other does not.
fn missing((a, af): Host, (b, bf): (&str, &File), images: Images) -> Difference {
    let path = &bf.path;
    let known = af.files.iter().find(|file| file.path == *path);
    let elsewhere = af.files.iter().find(|file| file.path != *path && file.name() == bf.name());
    let value = match (known, elsewhere) {
        (Some(file), _) => file.problem.clone(),
        (_, Some(file)) => format!("loads {} instead", file.path),
        _ => "does not load it".into(),
    };
    let needed = format!("a rank of {b} needs it at that place; install the same programs and");
    let (severity, what, meaning) = match (bf.role, images) {
        (Role::Argument, _) => {
            let meaning = format!("{needed} libraries at the same paths on both");
            (Severity::Warn, What::Argument, meaning)
        }
        (_, Images::NeedFiles) => {
            let meaning =
                format!("{needed} libraries at the same paths on both, or use --self-contained");
            (Severity::Refuse, What::MissingFile, meaning)
        }
        (_, Images::HaveFiles) => {
            let meaning = format!(
                "images have it (--self-contained), but a rank without an image does not start on \
                 {a} as on {b}; install it there, too, if that matters"
            );
            (Severity::Warn, What::MissingFile, meaning)
        }
    };
    let text = format!("{b} uses {path}, {a} does not ({value}): {meaning}");
    Difference::between((severity, what), (a, value), (b, identity(bf)), text)
}

/// Identifies a file in a few words.
fn identity(file: &File) -> String {
    match (file.build_id, file.content.get(..16)) {
        (0, Some(content)) => format!("{} bytes, content {content}", file.size),
        (0, None) => format!("{} bytes", file.size),
        (id, _) => format!("{} bytes, build {id:016x}", file.size),
    }
}

fn time(file: &File) -> String {
    let seconds = file.modified_ns.div_euclid(1_000_000_000);
    let rest = file.modified_ns % 1_000_000_000;
    format!("of the time {seconds}.{rest:09}")
}

#[cfg(test)]
mod tests;
