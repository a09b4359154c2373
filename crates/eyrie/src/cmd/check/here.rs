//! This host: every check of it, in the order in which they are shown.

use super::report::HostReport;
use super::trials::{with_remedy, TRIALS};
use super::{mpi, rank, CheckArgs};
use crate::cmd::run::usual_log_memory;
use eyrie_agent::guards;
use eyrie_controller::runtime::{check_ledgers, jobdir};
use eyrie_host::trial::Start;
use eyrie_host::{checks, look_at_file, Finding};
use eyrie_proc::Status;
use eyrie_wire::facts::{Facts, Role, FILES_MAX};
use eyrie_wire::role_address::Ports;
use eyrie_wire::Rank;
use std::path::Path;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn look(args: &CheckArgs) -> HostReport {
    let (mut findings, base) = match jobdir::base(args.dir.as_deref()) {
        Ok(base) => (Vec::new(), Some(base)),
        Err(e) => (vec![with_remedy("directory", &e.to_string())], None),
    };
    let mpi = mpi::look(&args.program, base.as_deref());
    findings.extend(mpi.findings);
    findings.push(image());
    findings.extend(start());
    if let (Some(found), Some(base), Some(scratch)) = (&mpi.library, &base, &mpi.scratch) {
        findings.push(rank::look(found, base, scratch.path()));
    }
    let yama = eyrie_proc::host::setting("kernel/yama/ptrace_scope");
    findings.push(checks::sandbox(&Status::read(eyrie_proc::OWN), &yama));
    findings.push(checks::memory(eyrie_proc::memory::allowed(), usual_log_memory(1)));
    findings.push(ledgers());
    findings.push(checks::shared_memory());
    findings.extend(base.as_deref().map(checks::disk));
    let mut facts = mpi.facts;
    findings.push(checks::open_files(facts.limits.open_files));
    let ports = args.port_range.unwrap_or(Ports::ANY);
    findings.push(checks::port(
        &args.interface.to_string(),
        eyrie_transport::interface::ip(&args.interface),
        ports.each(),
    ));
    findings.push(checks::clock_source(&checks::clock_source_name()));
    findings.push(checks::slurm(|name| std::env::var(name).ok()));
    add_loaded(&mut facts, &mpi.loaded);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HostReport {
        host: eyrie_proc::host::name(),
        findings,
        facts,
        mpi: mpi.mpi,
        clock_unix_ns: u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// What a program loads while it runs.
fn add_loaded(facts: &mut Facts, loaded: &[String]) {
    for path in loaded {
        let known = facts.files.iter().any(|file| file.path == *path);
        if !known && facts.files.len() < FILES_MAX {
            facts.files.push(look_at_file(Role::Library, Path::new(path)));
        }
    }
}

fn image() -> Finding {
    match TRIALS.image() {
        Ok(taken) => {
            let size = eyrie_units::bytes(taken.bytes as u64);
            let time = eyrie_units::time(taken.restored_in);
            Finding::ok("image", format!("a process was captured ({size}) and restored in {time}"))
        }
        Err(why) => Finding::fail(
            "image",
            why,
            "images need Linux 5.9 or later on x86_64, and a sandbox that lets a process look at \
             itself (for containers, for instance, --security-opt seccomp=unconfined)",
        ),
    }
}

/// The memory through which messages go straight, as a job of two ranks has it.
fn ledgers() -> Finding {
    const SUBJECT: &str = "messages";
    match check_ledgers(2, usual_log_memory(1)) {
        Ok(()) => Finding::ok(SUBJECT, "on one host they go straight, through shared memory"),
        Err(e) => Finding::warn(
            SUBJECT,
            format!("they go through a router, which is slower, also on one host: {e}"),
            "until then `eyrie run` takes a router by itself",
        ),
    }
}

/// A program as agents start it.
fn start() -> Vec<Finding> {
    const SUBJECT: &str = "start";
    let random = guards::bytes_of(b"eyrie check", Rank(0));
    let mut command = TRIALS.start();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let ran = guards::spawn(&mut command, random).and_then(|child| child.wait_with_output());
    let found = ran.map(|output| serde_json::from_slice::<Start>(&output.stdout));
    let found = match found {
        Ok(Ok(found)) => found,
        Ok(Err(_)) => {
            return vec![Finding::fail(SUBJECT, "a process ended at once", "look at dmesg")]
        }
        Err(e) => return vec![Finding::fail(SUBJECT, e.to_string(), "raise `ulimit -u`")],
    };
    let mut findings = Vec::new();
    if found.random != random {
        let text = guards::note().unwrap_or_default();
        let (text, remedy) = text.split_once(" To allow it, ").unwrap_or((&text, ""));
        findings.push(Finding::warn(SUBJECT, text.trim_end_matches('.'), remedy));
    }
    if !found.fixed_addresses {
        findings.push(Finding::warn(
            SUBJECT,
            "address randomization cannot be switched off: a rank that dies before its first image \
             may come back with other addresses, so that a program that sends addresses (MPICH does \
             for MPI_Win) may diverge",
            "let the sandbox's seccomp profile permit personality(0x0040000); for containers, for \
             instance, --security-opt seccomp=unconfined",
        ));
    }
    if findings.is_empty() {
        let text = "ranks get random bytes of their own (ptrace) and fixed addresses (personality)";
        findings.push(Finding::ok(SUBJECT, text));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_split_from_its_remedy() {
        let finding = with_remedy("provider", "x is not in y; install it there");
        assert_eq!(finding.to_string(), "fail  provider: x is not in y; install it there");
        assert_eq!(finding.remedy, "install it there");
    }
}
