//! Who this process is in its job, from the environment that the agent gave it. The incarnation comes over
//! the agent channel, because the environment must be the same in each life of a rank.

use eyrie_wire::agent::{
    ToRank, ENV_AGENT_FD, ENV_DIR, ENV_RANK, ENV_ROUTERS, ENV_SIZE, MAX_MESSAGE,
};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::{Incarnation, Rank};
use std::path::PathBuf;
use std::time::Duration;

/// This process in its job.
pub struct Identity {
    pub rank: Rank,
    /// Ranks of the job.
    pub size: u32,
    pub routers: u32,
    pub incarnation: Incarnation,
    pub secret: Secret,
    pub agent_fd: i32,
    /// Where the routers listen.
    pub router_sockets: Vec<PathBuf>,
}

/// How long the agent may take to say what a starting or restored rank waits for.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(30);

impl Identity {
    /// Reads environment, secret and welcome.
    ///
    /// # Errors
    /// What is missing, in words for the user.
    pub fn from_environment() -> Result<Identity, String> {
        let var = |name: &str| {
            std::env::var(name).map_err(|_| {
                format!("{name} is not set: this provider works inside `eyrie run` only")
            })
        };
        let number = |name: &str| -> Result<u32, String> {
            var(name)?.parse().map_err(|_| format!("{name} is not a number"))
        };
        let dir = PathBuf::from(var(ENV_DIR)?);
        let bytes = std::fs::read(dir.join("secret"))
            .map_err(|e| format!("the secret of the job cannot be read: {e}"))?;
        let secret: [u8; SECRET_LEN] =
            bytes.try_into().map_err(|_| "the secret of the job has another length")?;
        let routers = number(ENV_ROUTERS)?;
        let agent_fd = number(ENV_AGENT_FD)? as i32;
        Ok(Identity {
            rank: number(ENV_RANK)?,
            size: number(ENV_SIZE)?,
            routers,
            incarnation: await_welcome(agent_fd)?,
            secret: Secret(secret),
            agent_fd,
            router_sockets: (0..routers).map(|k| dir.join(format!("router-{k}.sock"))).collect(),
        })
    }
}

/// Waits for the agent to say which incarnation this is. Allocates only for an error.
///
/// # Errors
/// When the agent does not say it in time.
pub fn await_welcome(agent_fd: i32) -> Result<Incarnation, String> {
    await_agent(agent_fd, |message| match message {
        ToRank::Welcome { incarnation } => Some(incarnation),
        _ => None,
    })
}

/// Waits for a message of the agent's that `wanted` takes; drops others. Allocates only for an error.
///
/// # Errors
/// When none comes in time.
pub fn await_agent<T>(agent_fd: i32, wanted: impl Fn(ToRank) -> Option<T>) -> Result<T, String> {
    let mut poll = libc::pollfd { fd: agent_fd, events: libc::POLLIN, revents: 0 };
    let mut buf = [0u8; MAX_MESSAGE];
    loop {
        // SAFETY: one pollfd, which lives through the call.
        let ready = unsafe { libc::poll(&mut poll, 1, WELCOME_TIMEOUT.as_millis() as i32) };
        if ready < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
            continue;
        }
        if ready <= 0 {
            return Err(format!("the agent has not answered this rank within {WELCOME_TIMEOUT:?}"));
        }
        // SAFETY: the buffer is as long as said.
        let n = unsafe { libc::recv(agent_fd, buf.as_mut_ptr().cast(), buf.len(), 0) };
        if n <= 0 {
            return Err("the agent is gone".into());
        }
        if let Some(value) = ToRank::decode(&buf[..n as usize]).and_then(&wanted) {
            return Ok(value);
        }
    }
}
