//! Other hosts: each is asked over ssh to check itself, with the program, the directory and the
//! variables that ranks there would have. Nothing is sent to a host but that command.

use super::report::{skew, Answer, HostReport};
use super::CheckArgs;
use eyrie_host::shell::{self, quoted};
use eyrie_host::Finding;
use eyrie_supervision::bounded::{self, Ran};
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most hosts that are asked at the same time.
const AT_ONCE: usize = 32;
/// Longest that a host may take.
const LONGEST: Duration = Duration::from_secs(90);
/// How long ssh may take to reach a host, in seconds.
const CONNECT_TIMEOUT_S: u32 = 10;
/// What ssh exits with when it is ssh that has failed.
const SSH_FAILED: i32 = 255;
/// Variables that decide which program and which libraries are found.
const VARIABLES: [&str; 6] =
    ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV", "EYRIE_PROVIDER_DIR"];

/// Asks all of them, in their order.
///
/// # Errors
/// When this process cannot say what it is.
pub fn ask_all(hosts: &[String], args: &CheckArgs) -> anyhow::Result<Vec<Answer>> {
    let command = remote_command(args)?;
    let next = AtomicUsize::new(0);
    let mut answers: Vec<(usize, Answer)> = std::thread::scope(|scope| {
        let work = || {
            let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < hosts.len());
            let each = std::iter::from_fn(take);
            each.map(|n| (n, ask(&hosts[n], &command))).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..hosts.len().min(AT_ONCE)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a panic ends us")).collect()
    });
    answers.sort_by_key(|(n, _)| *n);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

fn ask(host: &str, command: &OsStr) -> Answer {
    let mut ssh = shell::ssh("ssh".as_ref(), CONNECT_TIMEOUT_S, host);
    ssh.arg(command);
    let asked = now_ns();
    let ran = bounded::run(&mut ssh, LONGEST);
    let answered = now_ns();
    let report = match &ran {
        Ok(ran) => serde_json::from_str::<HostReport>(ran.stdout.trim()).ok(),
        Err(_) => None,
    };
    let error = match (&report, ran) {
        (Some(_), _) => None,
        (None, Ok(ran)) => Some(no_report(host, &ran)),
        (None, Err(e)) => {
            Some(Finding::fail(host, format!("ssh cannot be run: {e}"), "install ssh here"))
        }
    };
    let clock_skew_s = report.as_ref().map_or(0.0, |r| skew(r.clock_unix_ns, asked, answered));
    Answer { host: host.to_string(), report, error, clock_skew_s }
}

/// Why a host has given no report.
fn no_report(host: &str, ran: &Ran) -> Finding {
    let mut lines = ran.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next_back().unwrap_or("it said nothing");
    match ran.status.map(|status| status.code()) {
        None => Finding::fail(
            host,
            format!("no answer within {} s ({last})", LONGEST.as_secs()),
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

/// What the shell of another host is to do.
fn remote_command(args: &CheckArgs) -> anyhow::Result<OsString> {
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
    words.push(args.interface.to_string().into());
    if let Some(ports) = args.port_range {
        words.extend(["--port-range".into(), ports.to_string().into()]);
    }
    if let Some(dir) = &args.dir {
        words.extend(["--dir".into(), std::path::absolute(dir)?.into()]);
    }
    if !args.program.is_empty() {
        words.push("--".into());
        words.extend(args.program.iter().cloned());
    }
    let mut command = OsString::from("cd ");
    command.push(quoted(std::env::current_dir()?.as_os_str()));
    command.push(" &&");
    for word in &words {
        command.push(" ");
        command.push(quoted(word));
    }
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
            no_report("n1", &ran).to_string()
        };
        let line = ran(Some(255), "Warning: x\r\nssh: connect to host n1 port 22: No route\r\n");
        assert!(line.starts_with("fail  n1: cannot be reached: ssh: connect to host n1"), "{line}");
        let line = ran(Some(127), "sh: 1: exec: /opt/eyrie: not found\n");
        assert!(line.contains("does not check itself: sh: 1: exec: /opt/eyrie: not found; install"));
        assert!(ran(None, "").contains("no answer within 90 s"));
    }
}
