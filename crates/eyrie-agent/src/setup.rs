//! What processes of ranks are started with: the job, the newest directory of routers, the secret
//! and the limit of open files. It starts them, and knows none of them afterwards.

use crate::rank::launch::{launch, From, Launched};
use crate::rank::process::Process;
use anyhow::Context;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{JobOnHost, StartRank};
use eyrie_wire::directory::Directory;
use std::ffi::OsString;

/// What processes of ranks are started with.
pub struct Setup {
    /// The job, once the controller has sent it.
    job: Option<Box<JobOnHost>>,
    /// The newest directory, with its epoch.
    directory: Option<(u64, Vec<u8>)>,
    secret: Secret,
    /// The limit of open files that ranks get.
    open_files: libc::rlimit,
}

impl Setup {
    pub fn new(secret: Secret, open_files: libc::rlimit) -> Setup {
        Setup { job: None, directory: None, secret, open_files }
    }

    /// The controller has sent the job.
    pub fn join(&mut self, job: Box<JobOnHost>) {
        self.job = Some(job);
    }

    /// The controller has sent another environment for the ranks.
    pub fn set_environment(&mut self, env: Vec<(OsString, OsString)>) {
        if let Some(job) = &mut self.job {
            job.program.env = env;
        }
    }

    /// How many ranks the job has; `None`: it is not known yet.
    pub fn ranks(&self) -> Option<u32> {
        self.job.as_ref().map(|job| job.ranks)
    }

    /// Starts the process with the newest directory that this node has.
    ///
    /// # Errors
    /// When the controller has not said enough, or the process cannot be started.
    pub fn launch(&self, start: &StartRank, from: From) -> anyhow::Result<Launched> {
        let job = self.job.as_ref().context("the controller has not said what the job is")?;
        launch(job, start, from, self.newest_directory()?, &self.secret, self.open_files)
    }

    /// The newest directory, and its epoch.
    ///
    /// # Errors
    /// When the controller has sent none.
    pub fn newest_directory(&self) -> anyhow::Result<(u64, &[u8])> {
        let newest = self.directory.as_ref().map(|(epoch, directory)| (*epoch, &directory[..]));
        newest.context("the controller has not said where the routers are")
    }

    /// Gives a directory to these ranks, unless it is known. Returns what the user is told.
    pub fn hand_out<'a>(
        &mut self,
        directory: Directory,
        processes: impl Iterator<Item = &'a Process>,
    ) -> Vec<String> {
        if let Err(text) = directory.check() {
            return vec![text];
        }
        let epoch = directory.epoch;
        let directory = directory.encode();
        if self.directory.as_ref().is_some_and(|(newest, _)| *newest >= epoch) {
            return Vec::new();
        }
        let failed = processes.filter_map(|p| {
            let e = p.hand_directory(epoch, &directory).err()?;
            let instance = p.instance;
            Some(format!("{instance} cannot be given the directory of routers: {e}"))
        });
        let failed = failed.collect();
        self.directory = Some((epoch, directory));
        failed
    }
}
