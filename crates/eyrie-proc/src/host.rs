//! What /proc says of this host: its name, its boot, its settings, its memory and processors.

use crate::process::OWN;
use crate::text;
use std::ffi::OsString;

/// The host's name; empty where the kernel does not say.
pub fn name() -> String {
    setting("kernel/hostname")
}

/// A text that is another one each time that the host is booted; empty where the kernel does not
/// say.
pub fn boot_id() -> String {
    setting("kernel/random/boot_id")
}

/// A setting of the kernel, by its path in /proc/sys; empty where there is none.
pub fn setting(path: &str) -> String {
    text::read("/proc/sys", path).trim().to_string()
}

/// The namespace of this process of a kind: `pid`, `net`, `uts` and others.
///
/// # Errors
/// When the kernel does not say.
pub fn namespace(kind: &str) -> std::io::Result<OsString> {
    Ok(std::fs::read_link(format!("{OWN}/ns/{kind}"))?.into())
}

/// Bytes of memory of the machine, if it says.
pub fn memory() -> Option<u64> {
    memory_in(&text::read("/proc", "meminfo"))
}

/// Bytes of memory that processes can have yet, if the machine says.
pub fn available_memory() -> Option<u64> {
    memory_line(&text::read("/proc", "meminfo"), b"MemAvailable:")
}

fn memory_in(meminfo: &str) -> Option<u64> {
    memory_line(meminfo, b"MemTotal:")
}

fn memory_line(meminfo: &str, key: &[u8]) -> Option<u64> {
    let total = text::after(meminfo.as_bytes(), key)?;
    let (kib, unit) = text::number(total)?;
    unit.starts_with(b" kB").then_some(kib << 10)
}

/// Ticks of a processor, or of all, by what it did with them: user, nice, system, idle, iowait,
/// irq, softirq, steal. User contains what guests used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// `None`: the sum of all.
    pub number: Option<u32>,
    pub ticks: [u64; 8],
}

impl Processor {
    /// Ticks that the host of a virtual machine used meanwhile.
    pub fn stolen(&self) -> u64 {
        self.ticks[7]
    }

    /// Ticks in which it worked for this machine.
    pub fn busy(&self) -> u64 {
        [0, 1, 2, 5, 6].iter().map(|at| self.ticks[*at]).sum()
    }
}

/// The sum of all processors, and then each one.
pub fn processors() -> Vec<Processor> {
    processors_in(&text::read("/proc", "stat"))
}

fn processors_in(stat: &str) -> Vec<Processor> {
    let of = |line: &str| {
        let (number, counts) = line.strip_prefix("cpu")?.split_once(' ')?;
        let number = if number.is_empty() { None } else { Some(number.parse().ok()?) };
        Some(Processor { number, ticks: text::numbers(counts.as_bytes()).0 })
    };
    stat.lines().map_while(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_read() {
        assert_eq!(memory_in("MemFree: 5 kB\nMemTotal:  24576 kB\n"), Some(24 << 20));
        assert_eq!(memory_in("nothing"), None);
        assert!(memory().unwrap() > 1 << 20 && !name().is_empty());
        assert!(namespace("net").unwrap().to_string_lossy().contains("net:["));
        assert_eq!(setting("none"), "");
    }

    #[test]
    fn guests_and_waiting_are_not_counted_as_busy() {
        let all = processors_in("cpu  100 200 300 9999 8888 1 2 50 70 80\ncpu0 1 1")[0];
        assert_eq!((all.busy(), all.stolen()), (603, 50));
    }

    #[test]
    fn processors_are_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 100 100 4 5 6 0 0\n\
                    cpu1 10 0 0 7 0 0 0 0 0 0\nintr 1\n";
        let all = processors_in(stat);
        assert_eq!(all.iter().map(|p| p.number).collect::<Vec<_>>(), [None, Some(0), Some(1)]);
        assert_eq!((all[1].busy(), all[1].stolen(), all[2].busy()), (15, 6, 10));
        assert!(processors().len() > 1 && processors_in("").is_empty());
    }
}
