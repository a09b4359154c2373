//! Who this process is in its job. What is the same in each incarnation comes from the environment;
//! the rest comes over the agent channel, because the environment lies on the stack and moves
//! addresses, and because it must not be part of an image.

use crate::channel;
use crate::memory;
use eyrie_transport::Directory;
use eyrie_wire::agent::{ToRank, ENV_AGENT_FD, ENV_RANK, ENV_SIZE};
use eyrie_wire::RankInstance;
use std::fs::File;
use std::io::Read;

/// This process in its job.
pub struct Identity {
    pub instance: RankInstance,
    /// Ranks of the job.
    pub size: u32,
    pub directory: Directory,
}

fn number(name: &str) -> Result<u32, String> {
    let value = std::env::var(name)
        .map_err(|_| format!("{name} is not set: this provider works inside `eyrie run` only"))?;
    value.parse().map_err(|_| format!("{name} is not a number"))
}

/// The number of the agent channel.
///
/// # Errors
/// When this is no rank of a job.
pub fn agent_fd() -> Result<i32, String> {
    Ok(number(ENV_AGENT_FD)? as i32)
}

impl Identity {
    /// Reads environment and welcome.
    ///
    /// # Errors
    /// What is missing, in words for the user.
    pub fn of_this_process() -> Result<Identity, String> {
        let (rank, size) = (number(ENV_RANK)?, number(ENV_SIZE)?);
        let instance = RankInstance { rank, incarnation: 0 };
        let mut identity = Identity { instance, size, directory: Directory::default() };
        identity.be_welcomed()?;
        Ok(identity)
    }

    /// Waits for the agent to say which incarnation this is and where the routers are, and maps the
    /// rank's page. Every incarnation is welcomed, new or restored.
    ///
    /// # Errors
    /// When the agent does not say it in time, or says nonsense.
    pub fn be_welcomed(&mut self) -> Result<(), String> {
        let (incarnation, files) = channel::await_agent(|message, files| match message {
            ToRank::Welcome { incarnation } => Some((incarnation, files)),
            _ => None,
        })?;
        let [Some(page), Some(directory)] = files else {
            return Err("the agent's welcome came without the rank's page and the directory".into());
        };
        memory::map_page(&page)?;
        let mut bytes = Vec::new();
        let read = File::from(directory).read_to_end(&mut bytes);
        read.map_err(|e| format!("the directory cannot be read: {e}"))?;
        let directory = Directory::decode(&bytes)?;
        if directory.home.len() != self.size as usize {
            return Err("the directory is of another job".into());
        }
        self.instance.incarnation = incarnation;
        self.directory = directory;
        Ok(())
    }
}
