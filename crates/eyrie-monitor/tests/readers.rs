//! Every reader agrees with /proc about known processes, within the accuracy that it states.

use eyrie_monitor::accuracy;
use eyrie_monitor::reader::Kind;
use eyrie_monitor::sample::{Process, UNKNOWN};
use eyrie_monitor::sampling_thread::{Config, Sampler};
use std::process::{Child, Command};

/// The readers that this node and user can use.
fn samplers() -> Vec<Sampler> {
    let start = |kind| Sampler::prepare(Config { reader: Some(kind), ..Config::default() });
    Kind::ALL.into_iter().filter_map(|kind| start(kind).ok()).collect()
}

/// A process that ends with its guard.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guard {
    fn run(script: &str) -> Guard {
        Guard(
            Command::new("python3")
                .args(["-c", script])
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// Waits for a line of its output.
    fn ready(mut self) -> Guard {
        use std::io::{BufRead, BufReader};
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        self
    }
}

fn find(sampler: &Sampler, pid: u32) -> Option<Process> {
    sampler.processes().iter().find(|p| p.pid == pid).copied()
}

fn stat(pid: u32) -> eyrie_proc::Stat {
    eyrie_proc::read_stat(eyrie_proc::directory(pid)).unwrap()
}

#[test]
fn all_readers_agree_with_proc() {
    // Works on 3 threads for a while, one of which ends, then sleeps with 32 MiB.
    let worker = Guard::run(
        "import threading,time,sys\n\
         kept = b'x' * (32 << 20)\n\
         def work(s):\n\
         \x20   end = time.thread_time() + s\n\
         \x20   while time.thread_time() < end: pass\n\
         t = threading.Thread(target=work, args=(0.15,)); t.start(); t.join()\n\
         hold = threading.Event()\n\
         wait = lambda: (work(0.1), hold.wait())\n\
         for _ in range(2): threading.Thread(target=wait, daemon=True).start()\n\
         work(0.1)\n\
         while time.process_time() < 0.46: time.sleep(0.01)\n\
         print('ready', flush=True)\n\
         time.sleep(1000)",
    )
    .ready();
    let pid = worker.0.id();
    for mut sampler in samplers() {
        let kind = sampler.started().reader;
        let stated = accuracy::of(kind);
        // Now everything that is read in turn has been read.
        for _ in 0..130 {
            sampler.read_once();
        }
        let seen = find(&sampler, pid).unwrap_or_else(|| panic!("{kind:?} does not see it"));
        let truth = stat(pid);
        assert_eq!(seen.command(), "python3", "{kind:?}");
        assert_eq!((seen.parent, seen.threads), (std::process::id(), 3), "{kind:?}");
        assert_eq!((seen.state, truth.state), (b'S', b'S'), "{kind:?}");
        assert!(!seen.kernel_thread);
        assert_eq!(seen.start_ns / 10_000_000, truth.start_ticks, "{kind:?}");
        let cpu = (truth.user_ticks + truth.system_ticks) * 10_000_000;
        // It sleeps now: nothing is late, and /proc itself rounds twice. taskstats does not have
        // the thread that has ended.
        let (low, high) = if kind == Kind::Taskstats {
            (cpu - 180_000_000, cpu + 20_000_000)
        } else {
            (cpu - 1_000_000, cpu + 20_000_000)
        };
        assert!((low..=high).contains(&seen.cpu_ns), "{kind:?}: {} and {cpu}", seen.cpu_ns);
        if stated.user_and_system {
            // Ticks and switches charge differently; the readers that split the sum lose nothing.
            assert!(
                (seen.user_ns + seen.system_ns).abs_diff(seen.cpu_ns) <= 250_000_000,
                "{kind:?}: {seen:?}"
            );
        } else {
            assert_eq!((seen.user_ns, seen.system_ns), (UNKNOWN, UNKNOWN));
        }
        let rss = truth.rss_pages * eyrie_proc::kept::page_size();
        let allowed = 2 * stated.rss_error_bytes; // /proc may be off by as much
        assert!(seen.rss_bytes.abs_diff(rss) <= allowed, "{kind:?}: {} and {rss}", seen.rss_bytes);
        assert!(rss > 32 << 20);
    }
}

#[test]
fn processes_that_vanish_or_come_never_stop_a_reader() {
    for mut sampler in samplers() {
        let kind = sampler.started().reader;
        for _ in 0..10 {
            let mut gone = Command::new("true").spawn().unwrap();
            sampler.read_once();
            let new = Guard(Command::new("sleep").arg("100").spawn().unwrap());
            gone.wait().unwrap();
            sampler.read_once();
            assert!(find(&sampler, new.0.id()).is_some(), "{kind:?}");
            assert!(find(&sampler, gone.id()).is_none(), "{kind:?} has a process that is gone");
            assert!(find(&sampler, std::process::id()).is_some(), "{kind:?}");
        }
    }
}

#[test]
fn a_zombie_and_a_kernel_thread_are_recognised() {
    let mut zombie = Command::new("true").spawn().unwrap();
    let pid = zombie.id();
    while stat(pid).state != b'Z' {
        std::thread::yield_now();
    }
    for mut sampler in samplers() {
        for _ in 0..130 {
            sampler.read_once();
        }
        let kind = sampler.started().reader;
        if let Some(seen) = find(&sampler, pid) {
            assert_eq!(seen.state, b'Z', "{kind:?}");
        }
        if let Some(thread) = find(&sampler, 2).filter(|p| p.command() == "kthreadd") {
            assert!(thread.kernel_thread && thread.rss_bytes == 0, "{kind:?}");
        }
    }
    zombie.wait().unwrap();
}
