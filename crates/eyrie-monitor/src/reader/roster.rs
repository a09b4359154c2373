//! The processes that the readers of /proc know, in order of their number, with their open files.
//! It lists the directory only when the node has made a new process. It must never allocate after
//! it was made.

use super::tick::{Tally, Tick};
use crate::adapt::Rate;
use crate::sample::Process;
use eyrie_proc::kept::{self, PidPath};
use eyrie_proc::text::number;
use eyrie_proc::{Stat, TICK_NS};
use rustix::fd::OwnedFd;
use rustix::fs::RawDir;
use rustix::io::Errno;
use std::mem::MaybeUninit;

pub struct Entry {
    pub process: Process,
    /// Kept open. Once the process is gone, reading fails, so that a process with the same number
    /// is not mistaken for it.
    pub statm: Option<OwnedFd>,
    pub rate: Rate,
    present: bool,
}

pub struct Roster {
    proc: OwnedFd,
    loadavg: OwnedFd,
    pub entries: Vec<Entry>,
    last_pid: Option<u64>,
    keeps_statm: bool,
    directory: Box<[MaybeUninit<u8>; 32 << 10]>,
    page: u64,
    /// Processes for which there was no room in the last listing.
    pub beyond: u32,
    /// Whether the last listing had new processes.
    pub newcomers: bool,
}

const PF_KTHREAD: u64 = 0x0020_0000;
/// The directory is listed after this many samples even if no process was made: then processes that
/// are gone are certainly removed.
const LOOK: u64 = 64;

impl Roster {
    /// When /proc does not exist.
    /// When /proc is not there.
    pub fn new(capacity: usize, keeps_statm: bool) -> Result<Roster, String> {
        let open = |path: &str| kept::keep(path).ok_or_else(|| format!("cannot read {path}"));
        if keeps_statm {
            allow_files(capacity as u64 + 256)?;
        }
        Ok(Roster {
            proc: open("/proc")?,
            loadavg: open("/proc/loadavg")?,
            entries: Vec::with_capacity(capacity),
            last_pid: None,
            keeps_statm,
            directory: Box::new([MaybeUninit::uninit(); 32 << 10]),
            page: kept::page_size(),
            beyond: 0,
            newcomers: false,
        })
    }

    /// Updates the list, if the node has made processes (or threads) since.
    pub fn update(&mut self, tick: &Tick) -> Result<(), Errno> {
        let mut text = [0; 64];
        let last = kept::again(&self.loadavg, &mut text).ok().and_then(|t| {
            let field = t.trim_ascii_end().rsplit(|b| *b == b' ').next()?;
            number(field).map(|(n, _)| n)
        });
        self.newcomers = false;
        if last.is_some() && last == self.last_pid && tick.number % LOOK != 0 {
            return Ok(());
        }
        self.last_pid = last;
        self.look()
    }

    /// Lists the directory: adds new processes and removes those that are gone.
    pub fn look(&mut self) -> Result<(), Errno> {
        self.beyond = 0;
        self.entries.iter_mut().for_each(|e| e.present = false);
        let known = self.entries.len();
        rustix::fs::seek(&self.proc, rustix::fs::SeekFrom::Start(0))?;
        let mut listing = RawDir::new(&self.proc, &mut *self.directory);
        while let Some(item) = listing.next() {
            let item = item?;
            let Some((pid, [])) = number(item.file_name().to_bytes()) else { continue };
            match self.entries[..known].binary_search_by_key(&(pid as u32), |e| e.process.pid) {
                Ok(at) => self.entries[at].present = true,
                Err(_) if self.entries.len() == self.entries.capacity() => self.beyond += 1,
                Err(_) => {
                    let process = Process { pid: pid as u32, ..Process::NONE };
                    self.entries.push(Entry {
                        process,
                        statm: None,
                        rate: Rate::default(),
                        present: true,
                    });
                }
            }
        }
        self.newcomers = self.entries.len() > known;
        for entry in &mut self.entries[known..] {
            entry.present = refresh(&self.proc, entry, self.page, self.keeps_statm).is_ok();
        }
        self.entries.retain(|e| e.present);
        self.entries.sort_unstable_by_key(|e| e.process.pid);
        Ok(())
    }

    /// Adds every process to `out`. Those that are due are read with `read`, which returns whether
    /// the process still exists; those that are gone are removed. `looked`: the result of the last
    /// listing.
    pub fn sample(
        &mut self,
        looked: Result<(), Errno>,
        tick: &Tick,
        out: &mut Vec<Process>,
        mut read: impl FnMut(&mut Roster, usize) -> bool,
    ) -> Tally {
        let mut tally = Tally { beyond: self.beyond, failed: looked.is_err().into() };
        let newcomers = self.newcomers;
        let mut at = 0;
        while at < self.entries.len() {
            let due = self.entries[at].rate.wants(tick.policy, newcomers);
            if due && !read(self, at) {
                self.entries.remove(at);
                continue;
            }
            let entry = &mut self.entries[at];
            if due {
                entry.rate.observe(entry.process.cpu_ns, tick.now_ns, tick.policy);
            }
            if out.len() < out.capacity() {
                out.push(Process { age: entry.rate.age(), due, ..entry.process });
            } else {
                tally.beyond += 1;
            }
            at += 1;
        }
        tally
    }

    /// Reads /proc/PID/stat of one process again; false when it is gone.
    pub fn reread(&mut self, at: usize) -> bool {
        refresh(&self.proc, &mut self.entries[at], self.page, false).is_ok()
    }
}

/// Opens, reads and closes /proc/PID/stat.
fn refresh(proc: &OwnedFd, entry: &mut Entry, page: u64, keep: bool) -> Result<(), Errno> {
    let pid = entry.process.pid;
    let mut buffer = [0; 512];
    let text = kept::again(&kept::open(proc, &PidPath::new(pid, "stat"))?, &mut buffer)?.len();
    let stat = Stat::parse(&buffer[..text]).ok_or(Errno::INVAL)?;
    if entry.process.start_ns != 0 && entry.process.start_ns != stat.start_ticks * TICK_NS {
        // Another process has the number now.
        *entry = Entry {
            process: Process { pid, ..Process::NONE },
            statm: None,
            rate: Rate::default(),
            present: true,
        };
    }
    fill(&mut entry.process, &stat, page);
    if keep && entry.statm.is_none() {
        entry.statm = Some(kept::open(proc, &PidPath::new(pid, "statm"))?);
    }
    Ok(())
}

fn fill(process: &mut Process, stat: &Stat, page: u64) {
    process.command = stat.command;
    process.state = stat.state;
    process.parent = stat.parent;
    process.threads = stat.threads;
    process.kernel_thread = stat.flags & PF_KTHREAD != 0;
    process.start_ns = stat.start_ticks * TICK_NS;
    process.user_ns = stat.user_ticks * TICK_NS;
    process.system_ns = stat.system_ticks * TICK_NS;
    process.cpu_ns = process.user_ns + process.system_ns;
    process.rss_bytes = stat.rss_pages * page;
}

/// Raises the limit of open files if necessary.
fn allow_files(needed: u64) -> Result<(), String> {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|now| now >= needed) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|m| m.max(needed));
    let raised = |maximum| setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum });
    if limit.maximum.is_none_or(|m| m >= needed) && raised(limit.maximum).is_ok()
        || raised(maximum).is_ok()
    {
        return Ok(());
    }
    Err(format!("keeping {needed} files open is above the limit of open files (ulimit -Hn)"))
}
