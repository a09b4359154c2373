//! The files in which a job is shown whose first domain has left it: the controller's own output
//! ends with the command that has started the job, and these stay. They lie where the ranks were
//! started, and are only ever added to.

use super::job::Job;
use super::journal::Beginning;
use crate::machine::{Event, Machine};
use anyhow::Context;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Their paths: standard output, and standard error with Eyrie's own lines.
pub fn paths(beginning: &Beginning) -> [PathBuf; 2] {
    let cwd = Path::new(&beginning.program.cwd);
    let path = |end: &str| cwd.join(format!("eyrie-{}.{end}", beginning.name));
    ["out", "err"].map(path)
}

/// Opens them.
fn open(beginning: &Beginning) -> Result<[File; 2], String> {
    let [out, err] = paths(beginning);
    let open = |path: PathBuf| {
        let file = File::options().append(true).create(true).open(&path);
        file.map_err(|e| format!("cannot write {}: {e}", path.display()))
    };
    Ok([open(out)?, open(err)?])
}

impl Job {
    /// Finds out whether they can be written; the machine hears that.
    pub fn open_output(&mut self) {
        if !self.is_replaying {
            let opened = open(&self.beginning);
            let path = || paths(&self.beginning)[0].display().to_string();
            self.hear_later([Event::OutputOpened(opened.map(|_| path()))]);
        }
    }

    /// All that is shown from now on goes into them.
    pub fn take_output(&mut self) {
        let redirected = open(&self.beginning);
        match redirected {
            Ok(files) => self.outlet.redirect(files),
            Err(cause) => self.events.push_back(Event::Stop { code: 1, cause }),
        }
    }

    /// The file with standard output, when all is shown in them.
    pub fn taken_output(&self) -> Option<String> {
        let [out, _] = paths(&self.beginning);
        self.machine.is_shown_in_files().then(|| out.display().to_string())
    }

    /// As [`Job::take_output`], in a controller that goes on from a snapshot.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn take_output_again(&mut self) -> anyhow::Result<()> {
        if self.machine.is_shown_in_files() {
            let files = open(&self.beginning).map_err(io::Error::other);
            self.outlet.redirect(files.context("the job's output")?);
        }
        Ok(())
    }
}

/// What is said at the end of a controller, behind all else: with which code a job has ended that
/// is shown in files, or where one goes on.
pub fn last_words(machine: &Machine, name: &str, code: i32) -> Option<String> {
    if let Some((domain, file)) = machine.successor() {
        let err = file.strip_suffix("out").unwrap_or(file);
        return Some(format!(
            "the job goes on without this site. At the site of domain {domain} what ranks print is \
             in {file}; Eyrie's lines, and in the end the exit code, are in {err}err. There \
             `eyrie status {name}` shows it"
        ));
    }
    machine.is_shown_in_files().then(|| format!("the job has ended with code {code}"))
}
