//! What this process is told by its environment: variables, and who has started it.

use libc::c_int;
use std::ffi::CStr;

const ENV_AGENT_FD: &CStr = c"EYRIE_AGENT_FD";

/// The value of a variable.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string; the value is one, and the program leaves it where it is: it
    // is read at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// The channel to the agent, where there is one.
pub fn agent_channel() -> Option<c_int> {
    variable(ENV_AGENT_FD)?.to_str().ok()?.parse().ok()
}

/// The number of the agent's process; `None`: there is none, or it is in another namespace.
pub fn agent() -> Option<libc::pid_t> {
    let fd = agent_channel()?;
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: structure and length live through the call.
    let result = unsafe {
        let at = (&raw mut peer).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len)
    };
    (result == 0 && peer.pid > 0).then_some(peer.pid)
}

/// Whether the agent itself has started this process.
pub fn is_started_by_agent() -> bool {
    // SAFETY: getppid(2) takes no argument and always succeeds.
    agent().is_some_and(|agent| agent == unsafe { libc::getppid() })
}
