//! Other hosts: each is asked over ssh to check itself, with the program, the directory and the
//! variables that ranks there would have. Nothing is sent to a host but that command.

use super::report::{skew, Answer, HostReport, Several};
use super::CheckArgs;
use eyrie_host::shell::{self, quoted, SSH_FAILED};
use eyrie_host::Finding;
use eyrie_supervision::bounded::{self, Ran};
use eyrie_wire::role_address::Interface;
use serde::de::DeserializeOwned;
use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most hosts that are asked at the same time.
const AT_ONCE: usize = 32;
/// Longest that a host may take.
const LONGEST: Duration = Duration::from_secs(90);
/// How long ssh may take to reach a host, in seconds.
const CONNECT_TIMEOUT_S: u32 = 10;
/// Variables that decide which program and which libraries are found.
const VARIABLES: [&str; 6] =
    ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "EYRIE_PROVIDER_DIR"];

/// Asks all of them, in their order.
///
/// # Errors
/// When this process cannot say what it is.
pub fn ask_all(hosts: &[String], args: &CheckArgs) -> anyhow::Result<Vec<Answer>> {
    let command = remote_command(args, &args.interface, None)?;
    let next = AtomicUsize::new(0);
    let mut answers: Vec<(usize, Answer)> = std::thread::scope(|scope| {
        let work = || {
            let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < hosts.len());
            let each = std::iter::from_fn(take);
            each.map(|n| (n, ask_host(&hosts[n], &command))).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..hosts.len().min(AT_ONCE)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a panic ends us")).collect()
    });
    answers.sort_by_key(|(n, _)| *n);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

fn ask_host(host: &str, command: &OsStr) -> Answer {
    let Asked { report, clock_skew_s } =
        ask(host, command, bound(0), |report: &HostReport| report.clock_unix_ns);
    let (report, error) = match report {
        Ok(report) => (Some(report), None),
        Err(error) => (None, Some(error)),
    };
    Answer { host: host.to_string(), report, error, clock_skew_s }
}

/// Has a site's login node check these hosts from there, and itself.
///
/// # Errors
/// When this process cannot say what it is.
pub fn ask_site(
    destination: &str,
    hosts: &[String],
    args: &CheckArgs,
) -> anyhow::Result<Asked<Several>> {
    // An address is that of one host.
    let any = Interface::Ip(Ipv4Addr::UNSPECIFIED.into());
    let interface = match &args.interface {
        name @ Interface::Name(_) => name,
        Interface::Ip(_) => &any,
    };
    let command = remote_command(args, interface, Some(hosts))?;
    Ok(ask(destination, &command, bound(hosts.len()), |report: &Several| report.here.clock_unix_ns))
}

/// The bound of a host that asks so many others: it looks at itself first, then at as many at a
/// time as this one does.
fn bound(others: usize) -> Bound {
    let steps = if others == 0 { 1 } else { 2 + others.div_ceil(AT_ONCE) as u32 };
    Bound { longest: LONGEST * steps, kept: bounded::KEPT * (1 + others) }
}

/// What a host has said, or why it has not; and by how much its clock is wrong at least, seconds.
pub struct Asked<R> {
    pub report: Result<R, Finding>,
    pub clock_skew_s: f64,
}

/// How long a host may take, and how many bytes it may say.
struct Bound {
    longest: Duration,
    kept: usize,
}

/// Has a host's shell run a command that prints a report.
fn ask<R: DeserializeOwned>(
    host: &str,
    command: &OsStr,
    Bound { longest, kept }: Bound,
    clock: impl Fn(&R) -> u64,
) -> Asked<R> {
    let mut ssh = shell::ssh("ssh".as_ref(), CONNECT_TIMEOUT_S, host);
    ssh.arg(command);
    let asked = now_ns();
    let ran = bounded::run_keeping(&mut ssh, longest, kept);
    let answered = now_ns();
    let report = match &ran {
        Ok(ran) => serde_json::from_str::<R>(ran.stdout.trim())
            .map_err(|_| other_version(host, ran).unwrap_or_else(|| no_report(host, ran, longest))),
        Err(e) => Err(Finding::fail(host, format!("ssh cannot be run: {e}"), "install ssh here")),
    };
    let clock_skew_s = report.as_ref().map_or(0.0, |r| skew(clock(r), asked, answered));
    Asked { report, clock_skew_s }
}

/// What is to be said where another version has answered in other words.
fn other_version(host: &str, ran: &Ran) -> Option<Finding> {
    let said: serde_json::Value = serde_json::from_str(ran.stdout.trim()).ok()?;
    let places = ["/facts/version", "/here/facts/version"];
    let theirs = places.iter().find_map(|place| said.pointer(place)?.as_str())?;
    let ours = env!("CARGO_PKG_VERSION");
    (theirs != ours).then(|| {
        let text = format!("it has Eyrie {theirs}, this host has {ours}: they refuse each other");
        Finding::fail(host, text, "install the same version on both")
    })
}

/// Why a host has given no report.
fn no_report(host: &str, ran: &Ran, longest: Duration) -> Finding {
    let mut lines = ran.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next_back().unwrap_or("it said nothing");
    match ran.status.map(|status| status.code()) {
        None => Finding::fail(
            host,
            format!("no answer within {} s ({last})", longest.as_secs()),
            format!("try `ssh {host} true`"),
        ),
        Some(Some(SSH_FAILED)) => Finding::fail(
            host,
            format!("cannot be reached: {last}"),
            format!("make `ssh -o BatchMode=yes {host} true` work: a key without a question"),
        ),
        Some(_) => Finding::fail(
            host,
            format!("does not check itself: {last}"),
            "install the same Eyrie at the same path there, with the same directories (or share \
             the file system)",
        ),
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What the shell of another host is to do. `hosts`: those that it is to check from there.
fn remote_command(
    args: &CheckArgs,
    interface: &Interface,
    hosts: Option<&[String]>,
) -> anyhow::Result<OsString> {
    let mut words: Vec<OsString> = vec!["exec".into(), "env".into()];
    for name in VARIABLES {
        if let Some(value) = std::env::var_os(name) {
            let mut word = OsString::from(format!("{name}="));
            word.push(value);
            words.push(word);
        }
    }
    words.push(std::env::current_exe()?.into());
    words.extend(["check", "--json", "--interface"].map(OsString::from));
    words.push(interface.to_string().into());
    if let Some(ports) = args.port_range {
        words.extend(["--port-range".into(), ports.to_string().into()]);
    }
    if let Some(dir) = &args.dir {
        words.extend(["--dir".into(), std::path::absolute(dir)?.into()]);
    }
    if let Some(hosts) = hosts {
        words.extend(["--hosts".into(), hosts.join(",").into()]);
        let level = args.cpu.map(|cpu| ["--cpu".into(), cpu.name().into()]);
        words.extend(level.into_iter().flatten());
    }
    if !args.program.is_empty() {
        words.push("--".into());
        words.extend(args.program.iter().cloned());
    }
    let mut command = OsString::from("cd ");
    command.push(quoted(std::env::current_dir()?.as_os_str()));
    command.push(" && ");
    command.push(shell::words(&words));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn who_does_not_answer_is_quoted() {
        let ran = |status: Option<i32>, stderr: &str| {
            let status = status.map(|code| ExitStatus::from_raw(code << 8));
            let ran = Ran { status, stdout: String::new(), stderr: stderr.into() };
            no_report("n1", &ran, LONGEST).to_string()
        };
        let line = ran(Some(255), "Warning: x\r\nssh: connect to host n1 port 22: No route\r\n");
        assert!(line.starts_with("fail  n1: cannot be reached: ssh: connect to host n1"), "{line}");
        let line = ran(Some(127), "sh: 1: exec: /opt/eyrie: not found\n");
        assert!(line.contains("does not check itself: sh: 1: exec: /opt/eyrie: not found; install"));
        assert!(ran(None, "").contains("no answer within 90 s"));
    }
}
