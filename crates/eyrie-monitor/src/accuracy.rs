//! How accurate each reader's figures are. Every recording says it, so that figures are not
//! compared that cannot be.

use crate::ages::REFRESH;
use crate::reader::Kind;
use eyrie_proc::kept::page_size;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// CPU time of a process is late by at most this. Running threads are charged at timer ticks
    /// and when they are switched.
    pub cpu_late_us: u64,
    /// Steps in which CPU time grows.
    pub cpu_step_us: u64,
    /// Whether user and system time are known apart.
    pub user_and_system: bool,
    /// Resident memory is off by at most this. The kernel counts per processor and adds up when a
    /// batch is full.
    pub rss_error_bytes: u64,
    /// How many samples old resident memory may be.
    pub rss_age: u16,
    /// How many samples old parent, state, threads and name may be.
    pub lasting_age: u16,
    pub note: &'static str,
}

/// Sources: kernel/sched/cputime.c (cputime_adjust, task_sched_runtime), include/linux/mm.h and
/// lib/percpu_counter.c (a batch of max(32, 2 × processors) pages for each processor and each of
/// three counters), kernel/taskstats.c.
pub fn of(kind: Kind) -> Accuracy {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let batch = 32.max(2 * processors) * processors * 3 * page_size();
    let exact = Accuracy {
        cpu_late_us: 0,
        cpu_step_us: 0,
        user_and_system: true,
        rss_error_bytes: batch,
        rss_age: 0,
        lasting_age: 0,
        note: "",
    };
    match kind {
        Kind::BpfOpen => Accuracy {
            cpu_late_us: 10_000,
            rss_age: REFRESH,
            lasting_age: REFRESH,
            note: "of a process that has not run since, memory may be old (its pages may be \
                   reclaimed) and state too (it may wait for a processor); CPU time of a running \
                   thread is that of its last switch or timer tick; user and system in proportion \
                   of ticks",
            ..exact
        },
        Kind::BpfIter => Accuracy {
            cpu_late_us: 10_000,
            note:
                "as bpf-open; threads that start or end while the tasks are walked may be missed \
                   once",
            ..exact
        },
        Kind::Taskstats => Accuracy {
            cpu_late_us: 10_000,
            rss_age: crate::ages::RSS,
            lasting_age: crate::ages::LASTING,
            note: "the kernel gives CPU time only; memory and state are read from /proc in turn; \
                   threads that have ended count only if others were left",
            ..exact
        },
        Kind::Clocks => Accuracy {
            user_and_system: false,
            lasting_age: crate::ages::LASTING,
            note: "exact CPU time, user and system together; state and threads are read in turn",
            ..exact
        },
        Kind::Proc => Accuracy {
            cpu_late_us: 10_000,
            cpu_step_us: 10_000,
            note: "counted in hundredths of a second",
            ..exact
        },
    }
}
