//! The program, its MPI library, and whether that comes through our provider. The program does not
//! run; a Python that would run it is asked which MPI it loads.

use super::rank::Found;
use super::report::Mpi;
use super::trials::{with_remedy, TRIALS};
use anyhow::Context;
use eyrie_controller::runtime::program;
use eyrie_host::trial::Library;
use eyrie_host::{Finding, Level, Start};
use eyrie_supervision::bounded;
use eyrie_wire::control::Program;
use eyrie_wire::facts::{Facts, Role};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SUBJECT: &str = "MPI";
/// Longest that Python may take to load MPI.
const PYTHON_MAX: Duration = Duration::from_secs(20);
/// How a library of MPI is called; those in front count more.
const LIBRARIES: [&str; 4] = ["libmpi.so", "libmpich.so", "libmpi_abi.so", "libmpi_"];
/// The oldest MPICH that is supported.
const OLDEST: (u32, u32) = (4, 3);
const INSTALL: &str = "use an MPICH with ch4:ofi, for instance `pip install mpich`, and build the \
                       program with its mpicc";

/// Has Python load MPI, without MPI_Init, and prints the programs and libraries it has then.
const PYTHON: &str = "
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI
for line in open('/proc/self/maps'):
    if ' r-xp ' in line and '/' in line:
        print(line[line.index('/'):].rstrip())
";

/// What was found out.
pub struct Looked {
    pub findings: Vec<Finding>,
    pub facts: Facts,
    /// Files that the program loads while it runs.
    pub loaded: Vec<String>,
    /// The library, and what it says that it is; as far as that is known.
    pub mpi: Option<Mpi>,
    /// It, where ranks can be tried with it.
    pub library: Option<Found>,
    /// Where the trial of a rank may have its files.
    pub scratch: Option<Scratch>,
}

/// Looks at a program, or at the one that is usual here; `base` is where jobs have theirs.
pub fn look(argv: &[OsString], base: Option<&Path>) -> Looked {
    let mut findings = Vec::new();
    let scratch = base.and_then(|base| match Scratch::make(base) {
        Ok(scratch) => Some(scratch),
        Err(e) => {
            let text = format!("{e:#}; choose another directory with --dir");
            findings.push(with_remedy("directory", &text));
            None
        }
    });
    let usual = usual_program();
    let argv = if argv.is_empty() { &usual[..] } else { argv };
    let prepared = if argv.is_empty() {
        None
    } else {
        match program::prepare(argv) {
            Ok(program) => Some(program),
            Err(e) => {
                findings.push(with_remedy(
                    "program",
                    &format!("{e}; name the program as for `eyrie run`"),
                ));
                None
            }
        }
    };
    let libraries = ours(&mut findings);
    let Some(mut program) = prepared else {
        if findings.iter().all(|finding| finding.subject != "program") {
            findings.push(none_named());
        }
        let facts = facts(None, &libraries);
        return Looked { findings, facts, loaded: Vec::new(), mpi: None, library: None, scratch };
    };
    let dir = scratch.as_ref().map(|scratch| scratch.0.as_path());
    if let (Some(dir), false) = (dir, libraries.is_empty()) {
        let made = program::link_provider(&mut program, dir).and_then(|provider| {
            let preloaded = program::preload(&mut program, dir, false)?;
            for (name, target) in preloaded.into_iter().chain([provider]) {
                std::os::unix::fs::symlink(target, dir.join(name))?;
            }
            Ok(())
        });
        findings.extend(made.err().map(|e| with_remedy("provider", &e.to_string())));
    }
    let facts = facts(Some(&program), &libraries);
    let loaded = python_loads(&program);
    let library = library(&facts, &loaded);
    let (library_path, mut env) = with_places_of(&facts, program.env);
    env.push((LIBRARY_PATH.into(), library_path.clone()));
    let mut mpi = None;
    let judged = match (&library, &libraries[..]) {
        (None, _) => no_library(&program.exe),
        (Some(path), [provider, calls, _]) if dir.is_some() => {
            let asked = TRIALS.library(path, provider, calls, &env);
            mpi = asked.as_ref().ok().map(|known| Mpi {
                path: path.to_string_lossy().into_owned(),
                name: name_of(&known.version),
            });
            judge(path, asked)
        }
        // That it could not be asked is said already.
        (Some(path), libraries) => {
            let (lacking, remedy) = match libraries {
                [] => ("the provider", "install the provider first"),
                _ => ("a directory of a job", "choose a directory for jobs with --dir"),
            };
            let text =
                format!("{} was found, and cannot be tried without {lacking}", path.display());
            Finding::warn(SUBJECT, text, remedy)
        }
    };
    let can_be_tried = judged.level != Level::Fail && libraries.len() == 3;
    let library = library.filter(|_| can_be_tried).map(|library| Found { library, library_path });
    findings.push(judged);
    Looked { findings, facts, loaded, mpi, library, scratch }
}

/// Our provider, libeyrie-calls and libeyrie-pmix, when all are there.
fn ours(findings: &mut Vec<Finding>) -> Vec<PathBuf> {
    let all = program::provider_file()
        .and_then(|p| Ok(vec![p, program::calls_file()?, program::pmix_file()?]));
    match all {
        Ok(all) => {
            let shown: Vec<_> = all.iter().map(|path| path.display().to_string()).collect();
            findings.push(Finding::ok("provider", shown.join(", ")));
            all
        }
        Err(e) => {
            findings.push(with_remedy("provider", &e.to_string()));
            Vec::new()
        }
    }
}

fn facts(program: Option<&Program>, libraries: &[PathBuf]) -> Facts {
    let also: Vec<&Path> = libraries.iter().map(PathBuf::as_path).collect();
    let start = program.map(|program| start_of(program));
    eyrie_host::gather(env!("CARGO_PKG_VERSION"), start.as_ref(), &also)
}

fn start_of(program: &Program) -> Start<'_> {
    Start {
        exe: Path::new(&program.exe),
        argv: &program.argv,
        env: &program.env,
        cwd: Path::new(&program.cwd),
    }
}

/// The program when none is named: Python with mpi4py, or what mpiexec in PATH starts.
fn usual_program() -> Vec<OsString> {
    let mut python = Command::new("python3");
    python.args(["-c", "import mpi4py"]);
    if bounded::run(&mut python, PYTHON_MAX).is_ok_and(|ran| ran.succeeded()) {
        vec!["python3".into()]
    } else {
        mpiexec_of_path().map(|path| vec![path.into()]).unwrap_or_default()
    }
}

fn mpiexec_of_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("mpiexec")).find(|file| file.is_file())
}

fn none_named() -> Finding {
    Finding::warn(
        SUBJECT,
        "no program is named, and PATH has neither python3 with mpi4py nor mpiexec",
        "name a program: `eyrie check ./program`",
    )
}

fn no_library(exe: &OsStr) -> Finding {
    Finding::warn(
        SUBJECT,
        format!("{} links no MPI library", exe.to_string_lossy()),
        format!(
            "{INSTALL}; one that loads MPI later, or starts another program, is judged by `eyrie run`"
        ),
    )
}

/// The files that Python has loaded with MPI; none for other programs.
fn python_loads(program: &Program) -> Vec<String> {
    let exe = eyrie_host::program::runs(&start_of(program));
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with("python") {
        return Vec::new();
    }
    let mut command = Command::new(&exe);
    command.args(["-c", PYTHON]).env_clear().current_dir(&program.cwd);
    command.envs(program.env.iter().map(|(key, value)| (key, value)));
    let Ok(ran) = bounded::run(&mut command, PYTHON_MAX) else { return Vec::new() };
    let mut paths: Vec<String> = ran.stdout.lines().map(String::from).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The MPI library among what a program loads; for mpiexec, the one that it belongs to.
fn library(facts: &Facts, loaded: &[String]) -> Option<PathBuf> {
    let linked = facts.files.iter().map(|file| file.path.as_str());
    let all: Vec<&str> = linked.chain(loaded.iter().map(String::as_str)).collect();
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_string();
    let found = LIBRARIES.iter().find_map(|l| all.iter().find(|path| name(path).starts_with(l)));
    if let Some(path) = found {
        return Some(PathBuf::from(path));
    }
    let launcher = facts.files.iter().find(|file| file.name().starts_with("mpiexec"))?;
    let lib = Path::new(&launcher.path).parent()?.parent()?.join("lib");
    let mut beside: Vec<PathBuf> =
        std::fs::read_dir(lib).ok()?.flatten().map(|entry| entry.path()).collect();
    beside.sort();
    let named = |path: &PathBuf| name(&path.to_string_lossy()).starts_with("libmpi.so.");
    beside.into_iter().find(named)
}

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// LD_LIBRARY_PATH with which a library finds the others as it does in the program, which may say
/// by itself (RPATH) where they are; and the rest of the environment.
fn with_places_of(
    facts: &Facts,
    env: Vec<(OsString, OsString)>,
) -> (OsString, Vec<(OsString, OsString)>) {
    let (before, env): (Vec<_>, Vec<_>) = env.into_iter().partition(|(key, _)| key == LIBRARY_PATH);
    let mut value = before.into_iter().next().map(|(_, value)| value).unwrap_or_default();
    let found = facts.files.iter().filter(|f| f.role == Role::Library && f.problem.is_empty());
    let places: BTreeSet<&Path> = found.filter_map(|f| Path::new(&f.path).parent()).collect();
    for place in places {
        value.push(":");
        value.push(place);
    }
    (value, env)
}

/// What the library says of itself, judged.
fn judge(path: &Path, asked: Result<Library, String>) -> Finding {
    let shown = path.display();
    let known = match asked {
        Ok(known) => known,
        Err(why) => {
            return Finding::fail(SUBJECT, format!("{shown} cannot be loaded: {why}"), INSTALL)
        }
    };
    let version = said(&known.version, "MPICH Version:");
    let device = said(&known.version, "MPICH Device:");
    let fail = |why: String| Finding::fail(SUBJECT, format!("{shown} {why}"), INSTALL);
    let open_mpi = open_mpi(&known.version);
    if let Some(old) = open_mpi.filter(|version| number(version) < Some((5, 0))) {
        return fail(format!("is Open MPI {old}: the oldest that Eyrie starts is 5.0"));
    }
    if !version.is_empty() && !device.contains("ofi") {
        return fail(format!("is MPICH {version} without libfabric ({device})"));
    }
    let fabric = match known.libfabric {
        Some((major, minor)) => format!("libfabric {major}.{minor}"),
        // It opens the one that it brings in MPI_Init: a rank is tried after this.
        None if known.version.starts_with("Intel(R) MPI") && known.has_calls => {
            let name = name_of(&known.version);
            return Finding::ok(
                SUBJECT,
                format!("{shown} is {name}; it loads libfabric in MPI_Init"),
            );
        }
        None => return fail("brings no libfabric that can be seen".into()),
    };
    if !known.loads_provider {
        return fail(format!(
            "has {fabric}, which does not load Eyrie's provider (FI_PROVIDER_PATH)"
        ));
    }
    let name = name_of(&known.version);
    let text = format!("{shown} is {name}; its {fabric} loads Eyrie's provider");
    if !known.has_calls {
        return Finding::fail(
            SUBJECT,
            format!("{text}, but libeyrie-calls is not preloaded"),
            "do not start Eyrie with rights of another user (setuid): the loader preloads nothing then",
        );
    }
    match number(version) {
        _ if open_mpi.is_some() => Finding::ok(SUBJECT, text),
        Some(number) if number >= OLDEST => Finding::ok(SUBJECT, text),
        _ => Finding::warn(SUBJECT, text, "MPICH 4.3 or newer is what is tested"),
    }
}

/// What a library says of itself behind this label.
fn said<'a>(version: &'a str, label: &str) -> &'a str {
    let mut lines = version.lines();
    lines.find_map(|line| line.strip_prefix(label)).map(str::trim).unwrap_or_default()
}

/// The version of an Open MPI.
fn open_mpi(version: &str) -> Option<&str> {
    version.strip_prefix("Open MPI v")?.split(',').next()
}

/// A library's name and version in short, from what it says of itself.
fn name_of(version: &str) -> String {
    match (said(version, "MPICH Version:"), open_mpi(version)) {
        ("", Some(version)) => format!("Open MPI {version}"),
        ("", None) => version.lines().next().unwrap_or("an unknown MPI").to_string(),
        (mpich, _) => format!("MPICH {mpich} ({})", said(version, "MPICH Device:")),
    }
}

/// The first two parts of a version.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// A directory for the provider's link and for the files of a trial, removed with this value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn make(base: &Path) -> anyhow::Result<Scratch> {
        let dir = base.join(format!(".eyrie-check-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(version: &str) -> Library {
        let version = version.to_string();
        Library { version, libfabric: Some((2, 5)), loads_provider: true, has_calls: true }
    }

    #[test]
    fn a_library_is_judged_by_what_it_says_and_does() {
        let good = known("MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\n");
        let judged = |asked| judge(Path::new("/lib/libmpi.so.12"), asked);
        let line = judged(Ok(good.clone())).to_string();
        assert_eq!(
            line,
            "ok    MPI: /lib/libmpi.so.12 is MPICH 5.0.2 (ch4:ucx ofi); its libfabric 2.5 loads \
             Eyrie's provider"
        );
        let cases = [
            (Library { loads_provider: false, ..good.clone() }, Level::Fail, "does not load"),
            (Library { libfabric: None, ..good.clone() }, Level::Fail, "no libfabric"),
            (Library { has_calls: false, ..good }, Level::Fail, "not preloaded"),
            (known("Open MPI v5.0.8, package: x"), Level::Ok, "is Open MPI 5.0.8; its libfabric"),
            (known("Open MPI v4.1.4, package: x"), Level::Fail, "oldest that Eyrie starts is 5.0"),
            (known("MPICH Version: 4.0.2\nMPICH Device: ch4:ucx\n"), Level::Fail, "(ch4:ucx)"),
            (known("MPICH Version: 4.1\nMPICH Device: ch4:ofi\n"), Level::Warn, "4.3 or newer"),
            (known("Another MPI 1.0\n"), Level::Warn, "is Another MPI 1.0"),
            (
                Library {
                    libfabric: None,
                    loads_provider: false,
                    ..known("Intel(R) MPI Library\n")
                },
                Level::Ok,
                "is Intel(R) MPI Library; it loads libfabric in MPI_Init",
            ),
        ];
        for (library, level, words) in cases {
            let finding = judged(Ok(library));
            assert!(finding.level == level && finding.to_string().contains(words), "{finding}");
            assert_eq!(finding.remedy.is_empty(), level == Level::Ok, "{finding}");
        }
        let finding = judged(Err("no such symbol".into()));
        assert!(finding
            .to_string()
            .starts_with("fail  MPI: /lib/libmpi.so.12 cannot be loaded: no"));
    }
}
