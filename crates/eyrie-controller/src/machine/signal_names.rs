//! Signals in words.

/// `signal 11 (segmentation fault)`.
pub fn in_words(signal: i32) -> String {
    format!("signal {signal} ({})", name(signal))
}

/// Whether a process that dies of this signal has done it itself. Ending signals come from outside.
pub fn is_own_fault(signal: i32) -> bool {
    !matches!(signal, libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT)
}

fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGTRAP => "trap",
        libc::SIGABRT => "abort",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "kill",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGPIPE => "broken pipe",
        libc::SIGTERM => "terminated",
        libc::SIGUSR1 => "user-defined 1",
        libc::SIGUSR2 => "user-defined 2",
        libc::SIGALRM => "alarm clock",
        libc::SIGXCPU => "limit of processor time, `ulimit -t`",
        libc::SIGXFSZ => "limit of the size of files, `ulimit -f`",
        libc::SIGSYS => "bad system call",
        _ => "signal",
    }
}
