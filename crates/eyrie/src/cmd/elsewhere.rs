//! This command, carried out at the site of another domain: the same words, without `--domain`,
//! over ssh. Its output, its exit code and signals to it are as if it ran here.

use anyhow::{bail, Context};
use eyrie_host::shell::{self, SSH_FAILED};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// How long ssh may take to reach a site, in seconds.
const CONNECT_TIMEOUT_S: u32 = 10;
/// A connection that is silent for so many seconds, so often, ends: a command may take long.
const ALIVE_OPTIONS: [&str; 4] = ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"];

/// The way to a site.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// The command that takes ssh's arguments.
    pub program: &'a Path,
    pub destination: &'a str,
}

/// Carries this command out at the site of a domain; `eyrie` is the command there. Returns its exit
/// code.
///
/// # Errors
/// When the site is not reached.
pub fn run(domain: &str, way: Way<'_>, eyrie: &Path) -> anyhow::Result<i32> {
    let Way { program, destination } = way;
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut ssh = shell::ssh(program.as_os_str(), CONNECT_TIMEOUT_S, destination);
    // Options of ssh may also follow the destination.
    ssh.args(ALIVE_OPTIONS).arg(line(eyrie, &there(&args)?)).stdin(Stdio::null());
    let status = ssh.status().with_context(|| format!("cannot run {}", program.display()))?;
    match status.code() {
        Some(SSH_FAILED) => bail!(
            "the site of domain {domain} cannot be reached: `ssh -o BatchMode=yes {destination} \
             true` must work, with a key without a question; or type the command there"
        ),
        Some(code) => Ok(code),
        None => bail!("ssh to the site of domain {domain} was ended"),
    }
}

/// What the shell of a site runs.
pub fn line(eyrie: &Path, args: &[OsString]) -> OsString {
    let mut line = OsString::from("exec ");
    line.push(shell::words(
        [eyrie.as_os_str()].into_iter().chain(args.iter().map(OsString::as_os_str)),
    ));
    line
}

/// These arguments as they are meant at another site: without `--domain`, and with `--dir` whole,
/// since the shell there begins in another directory.
fn there(args: &[OsString]) -> std::io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let bytes = arg.as_encoded_bytes();
        if arg == "--domain" {
            args.next();
        } else if arg == "--dir" {
            found.push(arg.clone());
            found.extend(args.next().map(|dir| absolute(dir)).transpose()?);
        } else if let Some(dir) = arg.to_str().and_then(|arg| arg.strip_prefix("--dir=")) {
            found.extend(["--dir".into(), absolute(dir.as_ref())?]);
        } else if !bytes.starts_with(b"--domain=") {
            found.push(arg.clone());
        }
    }
    Ok(found)
}

fn absolute(dir: &OsStr) -> std::io::Result<OsString> {
    std::path::absolute(dir).map(PathBuf::into_os_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_gets_the_same_words_without_the_domain() {
        let words = |text: &str| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        let dir = std::env::current_dir().unwrap().join("jobs").into_os_string();
        for text in ["drain --domain cloud j n1 --dir jobs", "drain --dir=jobs j --domain=cloud n1"]
        {
            let got = there(&words(text)).unwrap();
            assert!(!got.iter().any(|word| word == "cloud" || word == "--domain"), "{got:?}");
            let at = got.iter().position(|word| word == "--dir").unwrap();
            assert_eq!(got[at + 1], dir);
            assert!(got.contains(&"j".into()) && got.contains(&"n1".into()));
            assert_eq!(got.len(), 5);
        }
        let line = line(Path::new("/opt/my eyrie"), &words("stop j"));
        assert_eq!(line, "exec '/opt/my eyrie' stop j");
    }
}
