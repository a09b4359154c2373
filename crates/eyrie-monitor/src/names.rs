//! The names of a process beyond those in a sample: its control group and command line. They are
//! read once for each process, by the thread that writes samples out and never by the sampler.

use crate::sample::Process;
use eyrie_proc::kept::page_size;
use std::collections::HashMap;
use std::str::FromStr;

/// Which command lines are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommandLines {
    None,
    /// Those of the user who runs the monitor.
    #[default]
    Own,
    All,
}

impl FromStr for CommandLines {
    type Err = String;

    fn from_str(text: &str) -> Result<CommandLines, String> {
        match text {
            "none" => Ok(CommandLines::None),
            "own" => Ok(CommandLines::Own),
            "all" => Ok(CommandLines::All),
            _ => Err(format!("whose command lines? {text:?} is none of none, own and all")),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub cgroup: String,
    pub command_line: Option<String>,
}

struct Known {
    start_ns: u64,
    cgroup: u64,
    /// The command's name when they were read: another program has other arguments.
    command: [u8; 16],
    names: Names,
    seen: bool,
}

pub struct Directory {
    command_lines: CommandLines,
    me: u32,
    known: HashMap<u32, Known>,
}

impl Directory {
    pub fn new(command_lines: CommandLines) -> Directory {
        Directory { command_lines, me: rustix::process::geteuid().as_raw(), known: HashMap::new() }
    }

    /// Reads the names of these processes, where they are not known yet, and removes those of all
    /// others.
    pub fn update(&mut self, processes: &[Process]) {
        self.known.values_mut().for_each(|k| k.seen = false);
        for p in processes {
            let current = self.known.get_mut(&p.pid).filter(|k| {
                (k.start_ns, k.command) == (p.start_ns, p.command) && k.cgroup == p.cgroup
            });
            match current {
                Some(known) => known.seen = true,
                None => {
                    let names = self.read(p);
                    let Process { start_ns, cgroup, command, .. } = *p;
                    self.known
                        .insert(p.pid, Known { start_ns, cgroup, command, names, seen: true });
                }
            }
        }
        self.known.retain(|_, k| k.seen);
    }

    pub fn of(&self, pid: u32) -> Option<&Names> {
        self.known.get(&pid).map(|k| &k.names)
    }

    fn read(&self, p: &Process) -> Names {
        let dir = eyrie_proc::directory(p.pid);
        let cgroup = eyrie_proc::text::read(&dir, "cgroup");
        let may = match self.command_lines {
            CommandLines::None => false,
            CommandLines::All => true,
            CommandLines::Own => owner(&dir) == Some(self.me),
        };
        let command_line =
            (may && !p.kernel_thread).then(|| std::fs::read(dir.join("cmdline")).ok()).flatten();
        Names {
            cgroup: path_of(&cgroup).into(),
            command_line: command_line.map(|bytes| shown(&bytes)),
        }
    }
}

fn owner(dir: &std::path::Path) -> Option<u32> {
    rustix::fs::stat(dir).ok().map(|s| s.st_uid)
}

/// The path in /proc/PID/cgroup: that of version 2. Where that is the root, the path of systemd or
/// of the memory controller in version 1, if there is one.
fn path_of(text: &str) -> &str {
    let path = |prefix: &str| text.lines().find_map(|l| l.split_once(':')?.1.strip_prefix(prefix));
    let unified = path(":").unwrap_or("");
    let older = || path("name=systemd:").or_else(|| path("memory:"));
    match unified {
        "" | "/" => older().unwrap_or(unified),
        path => path,
    }
}

/// Arguments as one line, at most a page.
fn shown(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(page_size() as usize)];
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').replace('\0', " ").replace(|c: char| c.is_control(), "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions() {
        assert_eq!(path_of("0::/user.slice/a.scope\n"), "/user.slice/a.scope");
        assert_eq!(path_of("5:memory:/job/1\n1:name=systemd:/x\n0::/\n"), "/x");
        assert_eq!(path_of("5:memory:/job/1\n0::/\n"), "/job/1");
        assert_eq!(path_of(""), "");
    }

    #[test]
    fn arguments_are_one_line() {
        assert_eq!(shown(b"a\0b c\0\n\0"), "a b c ?");
    }

    #[test]
    fn our_own_process_is_known_and_removed_when_it_is_gone() {
        let me = Process { pid: std::process::id(), ..Process::NONE };
        let mut directory = Directory::new(CommandLines::Own);
        directory.update(&[me]);
        assert!(directory.of(me.pid).unwrap().command_line.as_ref().unwrap().contains("eyrie"));
        let mut silent = Directory::new(CommandLines::None);
        silent.update(&[me]);
        assert_eq!(silent.of(me.pid).unwrap().command_line, None);
        directory.update(&[]);
        assert_eq!(directory.of(me.pid), None);
    }
}
