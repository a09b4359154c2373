//! The files that a program needs, found before it runs: scripts and their interpreters, and
//! libraries as the loader finds them in the rank's environment. This asks the loader; the program
//! does not run.

use crate::file;
use eyrie_supervision::bounded;
use eyrie_wire::facts::{File, Role};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest time that the loader may take.
const LOADING_MAX: Duration = Duration::from_secs(30);
/// Most scripts that interpret each other, as the kernel allows.
const SCRIPTS_MAX: usize = 5;
/// Most arguments that are checked, and the longest file that counts as input.
const ARGUMENTS_MAX: usize = 32;
const ARGUMENT_BYTES_MAX: u64 = 16 << 20;

/// How a rank is started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub exe: &'a Path,
    /// With the program's name first.
    pub argv: &'a [OsString],
    /// The whole environment.
    pub env: &'a [(OsString, OsString)],
    pub cwd: &'a Path,
}

/// The program, its interpreter, their libraries, and arguments that are files.
pub fn files(start: &Start) -> Vec<File> {
    let (scripts, exe) = read_by(start);
    let mut found: Vec<File> = scripts.iter().map(|s| file::look(Role::Script, s)).collect();
    found.push(file::look(Role::Program, &exe));
    found.extend(libraries(&exe, start));
    found.extend(arguments(start));
    found
}

/// The file that the kernel executes for a program: the program itself, or the interpreter of a
/// script.
pub fn runs(start: &Start) -> PathBuf {
    read_by(start).1
}

/// The scripts that interpret each other, and the program that interprets the last of them.
fn read_by(start: &Start) -> (Vec<PathBuf>, PathBuf) {
    let mut scripts = Vec::new();
    let mut exe = start.cwd.join(start.exe);
    while scripts.len() < SCRIPTS_MAX {
        let Some(reader) = interpreter(&exe, start) else { break };
        scripts.push(std::mem::replace(&mut exe, reader));
    }
    (scripts, exe)
}

/// The interpreter of a script; `None` if it is not a script.
fn interpreter(script: &Path, start: &Start) -> Option<PathBuf> {
    let front = file::front(&std::fs::File::open(script).ok()?).ok()?;
    let line = front.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let reader = PathBuf::from(OsStr::from_bytes(words.next()?));
    if reader.file_name() != Some(OsStr::new("env")) {
        return Some(reader);
    }
    // `env` looks the program up and executes it.
    let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    let Some(name) = named else { return Some(reader) };
    let path = start.env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    let mut places = std::env::split_paths(path.unwrap_or_default());
    places.find_map(|dir| Some(dir.join(OsStr::from_bytes(name))).filter(|f| f.is_file()))
}

/// The libraries of a program, as the loader finds them, with those that the environment preloads
/// and the loader itself.
pub fn libraries(exe: &Path, start: &Start) -> Vec<File> {
    let Some(loader) = file::loader(exe) else { return Vec::new() };
    let mut command = Command::new(&loader);
    command.arg("--list").arg(exe).current_dir(start.cwd).env_clear();
    command.envs(start.env.iter().map(|(key, value)| (key, value)));
    let failed = |why: String| vec![File::unknown(Role::Library, &loader.to_string_lossy(), &why)];
    match bounded::run(&mut command, LOADING_MAX) {
        Err(e) => failed(e.to_string()),
        Ok(ran) if ran.status.is_none() => failed("it did not say which libraries it loads".into()),
        Ok(ran) if ran.stdout.is_empty() => failed(first_line(&ran.stderr)),
        Ok(ran) => ran.stdout.lines().filter_map(library).collect(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("it said nothing").to_string()
}

/// Parses a line of the loader's list: `NAME => PATH (ADDRESS)`, `NAME => not found` or `PATH
/// (ADDRESS)`.
fn library(line: &str) -> Option<File> {
    let line = line.trim();
    let (name, place) = line.split_once(" => ").unwrap_or((line, line));
    if place == "not found" {
        return Some(File::unknown(Role::Library, name, "the loader does not find it"));
    }
    let path = place.rsplit_once(" (").map_or(place, |(path, _)| path);
    path.starts_with('/').then(|| file::look(Role::Library, Path::new(path)))
}

/// Arguments that name files of moderate length: scripts, input.
fn arguments(start: &Start) -> Vec<File> {
    let paths = start.argv.iter().skip(1).take(ARGUMENTS_MAX).map(|word| start.cwd.join(word));
    let moderate = |path: &PathBuf| {
        path.metadata().is_ok_and(|m| m.is_file() && m.len() <= ARGUMENT_BYTES_MAX)
    };
    paths.filter(moderate).map(|path| file::look(Role::Argument, &path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn found(exe: &Path, argv: &[&str], cwd: &Path) -> Vec<File> {
        let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let env = [("PATH".into(), "/usr/bin:/bin".into())];
        files(&Start { exe, argv: &argv, env: &env, cwd })
    }

    #[test]
    fn a_script_comes_with_its_interpreter_and_that_one_with_its_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(dir.path().join("input"), "x").unwrap();
        for first in ["#!/bin/sh -e", "#! /usr/bin/env -S sh -e", "#!/usr/bin/env sh"] {
            std::fs::write(&script, format!("{first}\necho\n")).unwrap();
            std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
            let all = found(&script, &["script", "-v", "input", "7"], dir.path());
            let shell = Path::new("/bin/sh").canonicalize().unwrap();
            assert_eq!((all[0].role, all[0].name()), (Role::Script, "script"));
            assert_eq!((all[1].role, Path::new(&all[1].path)), (Role::Program, &*shell));
            let libc = all.iter().find(|f| f.name().starts_with("libc")).unwrap();
            assert!(libc.role == Role::Library && libc.build_id != 0 && libc.problem.is_empty());
            let last = all.last().unwrap();
            assert_eq!((last.role, last.name()), (Role::Argument, "input"));
        }
    }

    #[test]
    fn the_list_of_the_loader_is_parsed() {
        let of = |line: &str| library(line).map(|f| (f.path, f.problem));
        assert_eq!(of("\tlinux-vdso.so.1 (0x00007fc7b22cf000)"), None);
        let (path, problem) = of("\tlibmpi.so.12 => not found").unwrap();
        assert_eq!(
            (path.as_str(), problem.as_str()),
            ("libmpi.so.12", "the loader does not find it")
        );
        let (path, _) = of("\tlibx.so => /no such/libx (1).so (0x00007fc7b1200000)").unwrap();
        assert_eq!(path, "/no such/libx (1).so");
        assert!(of("\t/lib64/ld-linux-x86-64.so.2 (0x00007fc7b22d1000)").is_some());
        assert_eq!(of("\tstatically linked"), None);
    }

    #[test]
    fn a_missing_program_is_reported() {
        let all = found(Path::new("/no/such/program"), &[], Path::new("/"));
        assert!(all.len() == 1 && all[0].problem.contains("No such file"), "{all:?}");
    }
}
