//! What the ranks run: the program found as a shell would find it, and the environment that makes
//! its MPI library come through our provider. A setting of the user's must never lead round it.

use anyhow::{bail, Context};
use eyrie_agent::mpi;
use eyrie_wire::agent::{ENV_CPU, ENV_RANDOM};
use eyrie_wire::control::Program;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// File name of the provider: libfabric only looks at names that end in -fi.so.
const PROVIDER: &str = "libeyrie-fi.so";

/// Set for every rank, whatever the user has set; with what the MPI libraries want.
const FIXED: [(&str, &str); 1] = [("FI_PROVIDER", "eyrie")];

/// Set for every rank unless the user has set it: a re-executed rank must take the same way, so
/// threads get the same parts and add up in the same order, where the library lets that be asked
/// for; and large pages make the pause of a checkpoint short. A heap that gives memory back would
/// then be given 2 MiB of zeros for the next few bytes, so malloc keeps memory from the start as it
/// does once a program has freed 32 MiB at once. With what the MPI libraries want.
const DEFAULTS: [(&str, &str); 5] = [
    ("OMP_DYNAMIC", "false"),
    ("OMP_SCHEDULE", "static"),
    ("KMP_DETERMINISTIC_REDUCTION", "1"),
    ("PYTHONHASHSEED", "0"),
    (
        "GLIBC_TUNABLES",
        "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:\
         glibc.malloc.trim_threshold=67108864",
    ),
];

/// A program that cannot be run, with the exit code that a shell would give.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct NotRunnable {
    text: String,
    pub code: i32,
}

/// Names of a library's file: as installed, and as cargo builds it.
type Names = [&'static str; 2];
const PROVIDER_FILES: Names = [PROVIDER, "libeyrie_fi.so"];
/// The library that lets waits go on which an image interrupts.
const CALLS: &str = "libeyrie-calls.so";
const CALLS_FILES: Names = [CALLS, "libeyrie_calls.so"];
/// The library through which Open MPI's ranks start. It does nothing in others; which library a
/// program has is known only when it loads it.
const PMIX: &str = "libeyrie-pmix.so";
const PMIX_FILES: Names = [PMIX, "libeyrie_pmix.so"];
/// The variable that names libraries to be loaded in front of all others.
const PRELOAD: &str = "LD_PRELOAD";

/// The file of one of our libraries.
///
/// # Errors
/// When it is in none of the places where it may be.
fn library_file(names: Names) -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot find the eyrie command itself")?;
    let bin = exe.parent().unwrap_or(Path::new("/"));
    let places: Vec<PathBuf> = match std::env::var_os("EYRIE_PROVIDER_DIR") {
        Some(dir) => vec![dir.into()],
        None => vec![bin.into(), bin.join("../lib/eyrie")],
    };
    let files = places.iter().flat_map(|dir| names.map(|name| dir.join(name)));
    for file in files {
        if file.is_file() {
            return Ok(file.canonicalize()?);
        }
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "{} is not in {}; install it there, or name its directory in EYRIE_PROVIDER_DIR",
        names[0],
        places.join(" or ")
    )
}

/// A name in the job's directory, and the file that is to be there: agents put it there on their
/// hosts.
pub type Provided = (String, OsString);

/// The provider's file.
///
/// # Errors
/// When it is in none of the places where it may be.
pub fn provider_file() -> anyhow::Result<PathBuf> {
    library_file(PROVIDER_FILES)
}

/// The file of libeyrie-calls.
///
/// # Errors
/// When it is in none of the places where it may be.
pub fn calls_file() -> anyhow::Result<PathBuf> {
    library_file(CALLS_FILES)
}

/// The file of libeyrie-pmix.
///
/// # Errors
/// When it is in none of the places where it may be.
pub fn pmix_file() -> anyhow::Result<PathBuf> {
    library_file(PMIX_FILES)
}

/// Gives the provider the name that libfabric looks for, in the job's directory, and points
/// the ranks there.
///
/// # Errors
/// When there is no provider.
pub fn link_provider(program: &mut Program, dir: &Path) -> anyhow::Result<Provided> {
    program.env.push(("FI_PROVIDER_PATH".into(), dir.into()));
    Ok((PROVIDER.into(), provider_file()?.into()))
}

/// What the user has loaded in front of all others: what goes in front of our libraries, so that it
/// sees each call of the program as that makes it, and what goes behind them: MPI libraries, in
/// front of which ours stand.
fn of_user(program: &mut Program) -> [Vec<OsString>; 2] {
    let before = program.env.iter().position(|(name, _)| name == PRELOAD);
    let value = before.map(|at| program.env.remove(at).1).unwrap_or_default();
    let names = value.as_bytes().split(|byte| *byte == b':' || byte.is_ascii_whitespace());
    let file = |name: &OsString| Path::new(name).file_name().unwrap_or_default().to_os_string();
    // Those of the job that was saved, where this one goes on with it.
    let ours =
        |name: &OsString| [CALLS_FILES, PMIX_FILES].concat().iter().any(|n| file(name) == *n);
    let all = names.filter(|name| !name.is_empty()).map(|name| OsStr::from_bytes(name).into());
    let is_mpi = |name: &OsString| file(name).as_bytes().starts_with(b"libmpi");
    let (behind, front) = all.filter(|name| !ours(name)).partition(is_mpi);
    [front, behind]
}

/// Has libeyrie-calls and libeyrie-pmix loaded into the ranks, in front of all but what the user
/// has loaded there ([`of_user`]). `copied`: they are in the job's directory only.
///
/// # Errors
/// When there is no such library, or no name of it that the loader can read.
pub fn preload(program: &mut Program, dir: &Path, copied: bool) -> anyhow::Result<[Provided; 2]> {
    let [mut all, behind] = of_user(program);
    let calls = file_to_preload((CALLS, CALLS_FILES), dir, copied)?;
    let pmix = file_to_preload((PMIX, PMIX_FILES), dir, copied)?;
    all.extend([calls.1.into(), pmix.1.into()].into_iter().chain(behind));
    program.env.push((PRELOAD.into(), all.join(OsStr::new(":"))));
    program.env.retain(|(name, _)| name != ENV_RANDOM);
    let key: [u8; 32] = eyrie_wire::auth::random();
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    program.env.push((ENV_RANDOM.into(), digits.into()));
    Ok([calls.0, pmix.0])
}

/// A library of ours, and the file that the loader is to take.
fn file_to_preload(
    (called, names): (&str, Names),
    dir: &Path,
    copied: bool,
) -> anyhow::Result<(Provided, PathBuf)> {
    let target = library_file(names)?;
    let mut file = target.clone();
    // The loader takes both for the end of a name.
    let unreadable = |path: &Path| {
        path.as_os_str().as_encoded_bytes().iter().any(|b| b.is_ascii_whitespace() || *b == b':')
    };
    if copied || unreadable(&file) {
        file = dir.join(called);
    }
    if unreadable(&file) {
        bail!(
            "{} cannot be preloaded: the loader reads no names with spaces or colons; give another \
             --dir",
            file.display()
        );
    }
    Ok(((called.into(), target.into()), file))
}

/// Looks the program up and fixes what every rank gets.
///
/// # Errors
/// [`NotRunnable`] when there is no such program or it may not be executed.
pub fn prepare(argv: &[OsString]) -> anyhow::Result<Program> {
    let cwd = std::env::current_dir().context("cannot find the current directory")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let name = argv.first().map(OsString::as_os_str).unwrap_or_default();
    let exe = find(name, &path, &cwd)?;
    let wanted: Vec<_> = mpi::settings().map(|(_, name, value)| (name, value)).collect();
    let fixed: Vec<_> = wanted.into_iter().chain(FIXED).collect();
    let all: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    check_settings(&all)?;
    let ours = |key: &OsString| fixed.iter().any(|(name, _)| key == name);
    // What holds ranks to a level of the processor comes from this job's options alone.
    let is_kept = |key: &OsString| !ours(key) && key != "FI_PROVIDER_PATH" && key != ENV_CPU;
    let mut env: Vec<(OsString, OsString)> =
        all.into_iter().filter(|(key, _)| is_kept(key)).collect();
    add_defaults(&mut env);
    env.extend(fixed.into_iter().map(|(k, v)| (k.into(), v.into())));
    Ok(Program { exe: exe.into(), argv: argv.to_vec(), env, cwd: cwd.into() })
}

/// Sets what the user has not set.
fn add_defaults(env: &mut Vec<(OsString, OsString)>) {
    for (key, value) in DEFAULTS.into_iter().chain(mpi::defaults()) {
        if !env.iter().any(|(k, _)| k == key) {
            env.push((key.into(), value.into()));
        }
    }
}

/// Refuses what the user has set for an MPI library and what would lead its messages round the
/// provider.
fn check_settings(env: &[(OsString, OsString)]) -> anyhow::Result<()> {
    for (library, name, value) in mpi::settings() {
        let theirs = env.iter().find(|(key, theirs)| key == name && theirs != value);
        if let Some((_, theirs)) = theirs {
            bail!(
                "{name}={} is set, but {} under Eyrie needs {name}={value}, or messages would go \
                 round the log: unset {name}; Eyrie sets it",
                theirs.to_string_lossy(),
                library.name
            );
        }
    }
    Ok(())
}

/// The file that `name` stands for.
fn find(name: &OsStr, path: &OsStr, cwd: &Path) -> Result<PathBuf, NotRunnable> {
    let shown = name.to_string_lossy();
    if name.as_encoded_bytes().contains(&b'/') {
        let file = cwd.join(name);
        return match file.metadata() {
            Err(e) => Err(NotRunnable { text: format!("cannot run {shown}: {e}"), code: 127 }),
            Ok(_) if is_executable(&file) => Ok(file),
            Ok(_) => Err(NotRunnable {
                text: format!("cannot run {shown}: it is not executable; is it the program? then `chmod +x` it"),
                code: 126,
            }),
        };
    }
    std::env::split_paths(path)
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
        .ok_or_else(|| {
            let hint = if cwd.join(name).is_file() {
                format!("; did you mean ./{shown}?")
            } else {
                String::new()
            };
            NotRunnable { text: format!("cannot run {shown}: it is not in PATH{hint}"), code: 127 }
        })
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_libraries_stand_behind_the_users_and_in_front_of_mpi() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(CALLS), b"").unwrap();
        std::fs::write(dir.path().join(PMIX), b"").unwrap();
        // SAFETY: no other test of this crate reads or writes this variable.
        unsafe { std::env::set_var("EYRIE_PROVIDER_DIR", dir.path()) };
        let file = |name: &str| dir.path().join(name).canonicalize().unwrap().display().to_string();
        let ours = format!("{}:{}", file(CALLS), file(PMIX));
        let mut program = prepare(&["sh".into()]).unwrap();
        program.env.retain(|(name, _)| name != "LD_PRELOAD");
        let preloaded = |program: &Program| {
            let all: Vec<_> = program.env.iter().filter(|(name, _)| name == "LD_PRELOAD").collect();
            assert_eq!(all.len(), 1);
            all[0].1.to_string_lossy().into_owned()
        };
        preload(&mut program, dir.path(), false).unwrap();
        assert_eq!(preloaded(&program), ours);
        program.env.retain(|(name, _)| name != "LD_PRELOAD");
        program.env.push(("LD_PRELOAD".into(), "/their/lib.so".into()));
        preload(&mut program, dir.path(), false).unwrap();
        assert_eq!(preloaded(&program), format!("/their/lib.so:{ours}"));
        program.env.retain(|(name, _)| name != "LD_PRELOAD");
        program.env.push(("LD_PRELOAD".into(), "/their/libmpi.so.12 a.so:b.so".into()));
        preload(&mut program, dir.path(), false).unwrap();
        assert_eq!(preloaded(&program), format!("a.so:b.so:{ours}:/their/libmpi.so.12"));
    }

    #[test]
    fn settings_that_lead_round_the_provider_are_refused() {
        let set = |name: &str, value: &str| check_settings(&[(name.into(), value.into())]);
        for (_, name, value) in mpi::settings() {
            assert!(set(name, value).is_ok());
            let refused = set(name, "other").unwrap_err().to_string();
            assert!(refused.contains(&format!("unset {name}")), "{refused}");
        }
        assert!(set("I_MPI_DEBUG", "5").is_ok());
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let mut env = vec![("I_MPI_SPIN_COUNT".into(), "7".into())];
        add_defaults(&mut env);
        let of = |name: &str| {
            let all: Vec<_> = env.iter().filter(|(key, _)| key == name).collect();
            assert_eq!(all.len(), 1, "{name}");
            all[0].1.to_str().unwrap()
        };
        assert_eq!((of("I_MPI_SPIN_COUNT"), of("I_MPI_THREAD_YIELD")), ("7", "2"));
        assert_eq!((of("OMPI_MCA_mpi_yield_when_idle"), of("OMP_DYNAMIC")), ("1", "false"));
    }

    #[test]
    fn programs_are_found_as_in_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prog");
        std::fs::write(&file, b"#!/bin/sh\n").unwrap();
        let path = OsString::from("/bin:/usr/bin");
        assert!(find(OsStr::new("sh"), &path, dir.path()).is_ok());
        let refused = |name: &str| find(OsStr::new(name), &path, dir.path()).unwrap_err();
        let e = refused("./prog");
        assert!(e.text.contains("not executable") && e.code == 126);
        let e = refused("./nothing");
        assert!(e.text.contains("No such file") && e.code == 127);
        let e = refused("prog");
        assert!(e.text.contains("did you mean ./prog?") && e.code == 127);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(
            find(OsStr::new("./prog"), &path, dir.path()).unwrap(),
            dir.path().join("./prog")
        );
    }
}
