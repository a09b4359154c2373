//! Checks of a host that need no trial: limits, clocks, directories, Slurm. Each function looks at
//! one thing and changes nothing. Its decision depends only on its arguments.

use crate::finding::Finding;
use eyrie_proc::Status;
use std::ffi::CString;
use std::net::{IpAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Open files that Eyrie needs at least, and as many as medium-sized jobs need.
const OPEN_FILES_LEAST: u64 = 512;
const OPEN_FILES_GOOD: u64 = 4096;
/// Free space below which a disk or /dev/shm is reported as small, bytes.
const DISK_GOOD: u64 = 4 << 30;
const SHM_GOOD: u64 = 64 << 20;
/// Memory below which it is reported as small, bytes.
const MEMORY_GOOD: u64 = 1 << 30;

/// The hard limit of open files.
pub fn open_files(limit: u64) -> Finding {
    const SUBJECT: &str = "open files";
    let remedy = "raise the hard limit (`ulimit -Hn`, in systemd LimitNOFILE=, in \
                  /etc/security/limits.conf nofile)";
    let shown = match limit {
        u64::MAX => "any number".to_string(),
        n => n.to_string(),
    };
    let text = format!("{shown} may be open in a process");
    match limit {
        0..OPEN_FILES_LEAST => Finding::fail(SUBJECT, text, remedy),
        OPEN_FILES_LEAST..OPEN_FILES_GOOD => {
            Finding::warn(SUBJECT, format!("{text}: enough for small jobs"), remedy)
        }
        _ => Finding::ok(SUBJECT, text),
    }
}

/// The free space of a file system, and its kind.
struct Space {
    free: u64,
    in_memory: bool,
}

fn space(path: &Path) -> std::io::Result<Space> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statfs is valid, the name ends in a NUL, and both outlive the call.
    let (done, found) = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &mut found), found)
    };
    if done != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let free = found.f_bavail.saturating_mul(u64::try_from(found.f_bsize).unwrap_or(0));
    let kinds = [libc::TMPFS_MAGIC, 0x8584_58f6];
    Ok(Space { free, in_memory: kinds.contains(&found.f_type) })
}

/// The disk for the directories of jobs.
pub fn disk(base: &Path) -> Finding {
    const SUBJECT: &str = "disk";
    let shown = base.display();
    let remedy = "name a directory with more room with --dir";
    match space(base) {
        Err(e) => Finding::fail(SUBJECT, format!("{shown}: {e}"), remedy),
        Ok(Space { free, in_memory }) => {
            let place = if in_memory { " (a file system in memory)" } else { "" };
            let bytes = eyrie_units::bytes(free);
            let text = format!("{bytes} free in {shown}{place}, for images and logs of messages");
            match free {
                DISK_GOOD.. => Finding::ok(SUBJECT, text),
                _ => Finding::warn(SUBJECT, text, remedy),
            }
        }
    }
}

/// /dev/shm, where MPICH has a file for each rank.
pub fn shared_memory() -> Finding {
    const SUBJECT: &str = "/dev/shm";
    let remedy = "make it larger (mount -o remount,size=1G /dev/shm; for containers --shm-size=1g)";
    let path = Path::new("/dev/shm");
    // SAFETY: the name is a constant that ends in a NUL.
    if unsafe { libc::access(c"/dev/shm".as_ptr(), libc::W_OK) } != 0 {
        let e = std::io::Error::last_os_error();
        let text = format!("cannot be written ({e}): MPICH needs it");
        return Finding::fail(SUBJECT, text, "mount a tmpfs there, with mode 1777");
    }
    match space(path) {
        Err(e) => Finding::fail(SUBJECT, e.to_string(), remedy),
        Ok(Space { free, .. }) if free < SHM_GOOD => {
            Finding::warn(SUBJECT, format!("{} free", eyrie_units::bytes(free)), remedy)
        }
        Ok(Space { free, .. }) => {
            Finding::ok(SUBJECT, format!("{} free", eyrie_units::bytes(free)))
        }
    }
}

/// The memory that this process may use, and how much of it routers take for their logs.
pub fn memory(allowed: u64, log_memory: u64) -> Finding {
    const SUBJECT: &str = "memory";
    let log = eyrie_units::bytes(log_memory);
    let all = match allowed {
        u64::MAX => "an unknown amount".to_string(),
        bytes => eyrie_units::bytes(bytes),
    };
    let text = format!("{all} may be used, {log} of it for logs of messages (--log-memory)");
    match allowed {
        MEMORY_GOOD.. => Finding::ok(SUBJECT, text),
        _ => Finding::warn(SUBJECT, text, "give the job more, or lower --log-memory"),
    }
}

/// The kernel's clock source, from its name.
pub fn clock_source(name: &str) -> Finding {
    const SUBJECT: &str = "clock";
    match name.trim() {
        "tsc" => Finding::ok(SUBJECT, "the kernel reads time from tsc"),
        fast @ ("kvm-clock" | "hyperv_clocksource_tsc_page" | "xen") => Finding::ok(
            SUBJECT,
            format!("the kernel reads time from {fast}, as virtual machines do"),
        ),
        "" => {
            Finding::warn(SUBJECT, "the kernel does not say which it uses", "no action is needed")
        }
        slow => Finding::warn(
            SUBJECT,
            format!(
                "the kernel reads time from {slow}: programs that ask often (MPI_Wtime) are slow"
            ),
            "boot with tsc=reliable if the processors' counters are (see the kernel's log for why \
             it is not used)",
        ),
    }
}

/// The name of the kernel's clock source.
pub fn clock_source_name() -> String {
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Whether a role can listen at a port of an address.
pub fn port(
    interface: &str,
    ip: std::io::Result<IpAddr>,
    ports: impl Iterator<Item = u16>,
) -> Finding {
    const SUBJECT: &str = "TCP";
    let remedy = "name another with --interface (`ip address` lists them) or --port-range";
    let ip = match ip {
        Ok(ip) => ip,
        Err(e) => return Finding::fail(SUBJECT, e.to_string(), remedy),
    };
    let mut last = "no port was named".to_string();
    for port in ports {
        match TcpListener::bind((ip, port)).and_then(|listener| listener.local_addr()) {
            Ok(at) => return Finding::ok(SUBJECT, format!("roles can listen at {at}")),
            Err(e) => last = e.to_string(),
        }
    }
    Finding::fail(
        SUBJECT,
        format!("no role can listen at a port on {interface} ({ip}): {last}"),
        remedy,
    )
}

/// What Slurm says about this process in its environment variables.
pub fn slurm(variable: impl Fn(&str) -> Option<String>) -> Finding {
    const SUBJECT: &str = "Slurm";
    let Some(job) = variable("SLURM_JOB_ID") else {
        return Finding::ok(SUBJECT, "this is not inside an allocation");
    };
    let nodes = variable("SLURM_JOB_NODELIST").unwrap_or_else(|| "unknown nodes".into());
    let end = variable("SLURM_JOB_END_TIME");
    let end = end.map(|at| format!(", until {at} (seconds since 1970)")).unwrap_or_default();
    Finding::warn(
        SUBJECT,
        format!(
            "this is inside allocation {job} on {nodes}{end}; whether a node that fails ends all \
             of it cannot be asked"
        ),
        "submit with `sbatch --no-kill`, and --requeue where the job may start again",
    )
}

/// Restrictions that are in force here, which may explain why something fails.
pub fn sandbox(status: &Status, yama: &str) -> Finding {
    let mut words = Vec::new();
    if status.value("Seccomp") == Some("2") {
        words.push("a seccomp filter".to_string());
    }
    if !["", "0", "1"].contains(&yama.trim()) {
        words.push(format!("kernel.yama.ptrace_scope={}", yama.trim()));
    }
    if words.is_empty() {
        Finding::ok("sandbox", "none that Eyrie would notice")
    } else {
        Finding::ok(
            "sandbox",
            format!("{} (what Eyrie needs was tried, see above)", words.join(", ")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;

    #[test]
    fn limits_that_are_too_low_are_reported() {
        assert_eq!(open_files(256).level, Level::Fail);
        assert_eq!(open_files(1024).level, Level::Warn);
        assert_eq!(open_files(u64::MAX).level, Level::Ok);
        assert_eq!(memory(512 << 20, 256 << 20).level, Level::Warn);
        assert!(memory(8 << 30, 512 << 20).text.starts_with("8 GiB may be used, 512 MiB of it"));
        assert_eq!(clock_source("tsc\n").level, Level::Ok);
        assert!(clock_source("hpet\n").to_string().contains("from hpet"));
        assert_eq!(disk(Path::new("/no/such/place")).level, Level::Fail);
        assert!(["ok", "warn"].iter().any(|l| disk(Path::new("/tmp")).to_string().starts_with(l)));
    }

    #[test]
    fn ports_are_tried_for_real() {
        let local: IpAddr = [127, 0, 0, 1].into();
        let taken = TcpListener::bind((local, 0)).unwrap();
        let port_of = taken.local_addr().unwrap().port();
        assert_eq!(port("lo", Ok(local), 0..=0).level, Level::Ok);
        let finding = port("lo", Ok(local), port_of..=port_of);
        assert_eq!(finding.level, Level::Fail);
        assert!(finding.text.contains("on lo (127.0.0.1)"), "{finding}");
    }

    #[test]
    fn an_allocation_of_slurm_is_reported_with_a_remedy() {
        assert_eq!(slurm(|_| None).level, Level::Ok);
        let inside = slurm(|name| match name {
            "SLURM_JOB_ID" => Some("17".into()),
            "SLURM_JOB_NODELIST" => Some("n[0-3]".into()),
            _ => None,
        });
        let line = inside.to_string();
        assert!(line.starts_with("warn  Slurm: this is inside allocation 17 on n[0-3];"), "{line}");
        assert!(line.contains("--no-kill"), "{line}");
    }

    #[test]
    fn a_sandbox_is_named() {
        let status = |text: &str| Status::from(text.to_string());
        let free = sandbox(&status("Name:\tx\nSeccomp:\t0\n"), "1\n");
        assert_eq!(free.text, "none that Eyrie would notice");
        let tight = sandbox(&status("Seccomp:\t2\n"), "3\n");
        assert!(tight.text.starts_with("a seccomp filter, kernel.yama.ptrace_scope=3 "), "{tight}");
    }
}
