//! Signals for the job's ranks. The program gets them at the end of a progress call, and gets them
//! there again when it is re-executed. A program that does not handle a signal, or makes no
//! progress call for a while, gets it from the agent.

use crate::memory;
use crate::observing::{note_signal, signal_before, Before};
use libc::c_int;

/// What the program has got.
#[derive(Default)]
pub struct Signals {
    /// So many of the job's.
    got: u64,
    /// It does what it has never done before.
    is_new: bool,
}

impl Signals {
    /// Another incarnation of the rank begins, with a page of its own. The first one got signals as
    /// any other process does until now: its agent has claimed those.
    pub fn begin(&mut self) {
        self.is_new = false;
        memory::page().signals().set_got(self.got);
    }

    /// The signal that the program gets at the end of the progress call at this clock. `is_new`:
    /// there was no determinant to follow at this clock, nor behind it.
    #[inline]
    pub fn at(&mut self, clock: u64, is_new: bool) -> Option<c_int> {
        if self.is_new && memory::page().signals().sent() <= self.got {
            None
        } else {
            self.look(clock, is_new)
        }
    }

    #[cold]
    fn look(&mut self, clock: u64, is_new: bool) -> Option<c_int> {
        let page = memory::page();
        if !self.is_new {
            match signal_before(clock) {
                Before::Signal { n, signal } => {
                    self.got = n + 1;
                    page.signals().set_got(self.got);
                    return Some(signal.into());
                }
                Before::Unknown if is_new => {
                    self.is_new = true;
                    page.set_new(true);
                }
                Before::Unknown | Before::None => return None,
            }
        }
        let signals = page.signals();
        while let Some((signal, claimed)) = signals.take(self.got) {
            note_signal(clock, self.got, signal);
            self.got += 1;
            signals.note(self.got);
            if claimed {
                return Some(signal.into());
            }
            // The agent has sent it, before MPI began or in the middle of other work.
        }
        None
    }
}

/// Has the program get a signal now, in this thread if it takes it.
pub fn raise(signal: c_int) {
    // SAFETY: the set is ours; a handler of the program runs as it would have at any other moment.
    unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut blocked);
        let process = libc::syscall(libc::SYS_getpid);
        match libc::sigismember(&blocked, signal) {
            0 => libc::syscall(libc::SYS_tgkill, process, libc::syscall(libc::SYS_gettid), signal),
            _ => libc::syscall(libc::SYS_kill, process, signal),
        };
    }
}
