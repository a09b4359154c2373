//! Who this process is in its job. What is the same in each incarnation comes from the environment;
//! the rest comes over the agent channel, because the environment lies on the stack and moves
//! addresses, and because it must not be part of an image.

use crate::descriptors::move_up;
use crate::signals::Signals;
use crate::{channel, memory};
use eyrie_wire::agent::{ToRank, ENV_AGENT_FD, ENV_RANK, ENV_SIZE};
use eyrie_wire::directory::Directory;
use eyrie_wire::page::Endpoint;
use eyrie_wire::{Incarnation, Rank, RankInstance, RouterId};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// This process in its job.
pub struct Identity {
    pub instance: RankInstance,
    /// Ranks of the job.
    pub size: u32,
    pub directory: Directory,
    endpoint: Endpoint,
    pub signals: Signals,
    /// Where newer directories come.
    file: Option<File>,
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

/// The number that this process has now: getpid(2) tells the program that of the rank's first one.
pub fn process_id() -> u32 {
    // SAFETY: getpid(2) has no arguments and touches no memory.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

impl Identity {
    /// Reads environment and welcome.
    ///
    /// # Errors
    /// What is missing, in words for the user.
    pub fn of_this_process() -> Result<Identity, String> {
        let (rank, size) = (number(ENV_RANK)?, number(ENV_SIZE)?);
        let instance = RankInstance { rank: Rank(rank), incarnation: Incarnation(0) };
        let directory = Directory::default();
        let endpoint = Endpoint::None;
        let signals = Signals::default();
        let mut identity = Identity { instance, size, directory, endpoint, signals, file: None };
        identity.be_welcomed()?;
        Ok(identity)
    }

    /// Waits for the agent to say which incarnation this is and where the routers are, and maps the
    /// rank's page. Every incarnation is welcomed, new or restored.
    ///
    /// # Errors
    /// When the agent does not say it in time, or says nonsense.
    pub fn be_welcomed(&mut self) -> Result<(), String> {
        // In a restored process its number is free, and may be given to the new one.
        self.file = None;
        let (incarnation, files) = channel::await_agent(|message, files| match message {
            ToRank::Welcome { incarnation } => Some((incarnation, files)),
            _ => None,
        })?;
        let [Some(page), Some(directory)] = files else {
            return Err(
                "the agent's welcome came without the rank's page and the directory of routers"
                    .into(),
            );
        };
        memory::map_page(&page)?;
        memory::page().set_endpoint(self.endpoint);
        self.signals.begin();
        let directory = File::from(move_up(directory));
        self.instance.incarnation = incarnation;
        self.directory = self.read(&directory)?;
        self.file = Some(directory);
        Ok(())
    }

    /// What became of the rank's endpoint. The agent can read it when this process is gone, and in
    /// each incarnation.
    pub fn set_endpoint(&mut self, endpoint: Endpoint) {
        self.endpoint = endpoint;
        memory::page().set_endpoint(endpoint);
    }

    fn read(&self, file: &File) -> Result<Directory, String> {
        let read = || {
            let mut bytes = vec![0; file.metadata()?.len() as usize];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = read()
            .map_err(|e: std::io::Error| format!("cannot read the directory of routers: {e}"))?;
        let directory = Directory::last(&bytes)?;
        if directory.primaries.len() != self.size as usize {
            return Err("the directory of routers belongs to another job".into());
        }
        Ok(directory)
    }

    /// Takes a newer directory, which is there: the routers that are elsewhere by now, or serve
    /// other ranks. One that makes no sense is left: the rank goes on with the last, and says which
    /// router it misses.
    pub fn take_directory(&mut self) -> Vec<RouterId> {
        let newer = self.file.as_ref().and_then(|file| self.read(file).ok());
        let older = &self.directory;
        let fits = |d: &Directory| d.epoch > older.epoch && d.routers.len() == older.routers.len();
        let Some(newer) = newer.filter(fits) else { return Vec::new() };
        let changed = newer.changed_since(older);
        self.directory = newer;
        changed
    }

    /// The number of the file of directories, for the capture of an image.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }
}
