//! What a host is, as far as a rank that moves to another host depends on it, and in what two hosts
//! differ. [`Facts`] are gathered in milliseconds, without root; [`differences`] compares and does
//! no I/O. [`checks`] and [`trial`] say what works on this host. Nothing here decides what becomes
//! of a job, and nothing is changed on the host.

pub mod bounded;
pub mod checks;
mod differences;
mod elf;
pub mod enough;
mod file;
pub mod finding;
mod identity;
mod limits;
mod node;
mod old_libc;
pub mod program;
pub mod shell;
pub mod trial;

pub use differences::{differences, same_host, Difference, Severity, What};
pub use file::{mapped_by, File, Role};
pub use finding::{Finding, Level};
pub use limits::Limits;
pub use node::Platform;
pub use program::Start;

use serde::{Deserialize, Serialize};
use std::path::Path;

/// Longest text in facts, bytes: what is longer is cut.
pub const TEXT_MAX: usize = 4096;
/// Most files in facts.
pub const FILES_MAX: usize = 1024;

/// What must be equal on two hosts, or nearly so, for an image of one to become a process on the
/// other that goes on as it would have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Eyrie's version, and the file that runs.
    pub version: String,
    pub command: File,
    /// Which host it is: equal texts are one host, unless they are empty.
    #[serde(default)]
    pub identity: String,
    pub node: Platform,
    pub limits: Limits,
    /// The program, what interprets it, and all that the loader loads with it: the C library, too.
    /// What a program loads while it runs (Python's modules) is not among them.
    pub files: Vec<File>,
}

impl Facts {
    /// What this host is. `start`: how ranks are started; `also`: other files that they load.
    pub fn gather(version: &str, start: Option<&Start>, also: &[&Path]) -> Facts {
        let mut files = start.map(program::files).unwrap_or_default();
        files.extend(also.iter().map(|path| File::look(Role::Library, path)));
        files.truncate(FILES_MAX);
        Facts {
            version: cut(version),
            command: File::look(Role::Program, Path::new("/proc/self/exe")),
            identity: identity::look(),
            node: Platform::look(),
            limits: Limits::look(),
            files,
        }
    }

    /// The files that a process of a rank has mapped by now, in place of those that could be known
    /// before it ran.
    pub fn with_mapped_by(mut self, pid: u32) -> Facts {
        for file in mapped_by(pid) {
            if self.files.len() < FILES_MAX && !self.files.iter().any(|f| f.path == file.path) {
                self.files.push(file);
            }
        }
        self
    }
}

/// A text within its bounds.
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}
