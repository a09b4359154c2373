//! The properties of a host that matter for a rank that moves to another host, and the differences
//! between two hosts. [`Facts`] are gathered in milliseconds, without root. [`differences`]
//! compares and does no I/O. [`checks`] and [`trial`] say what works on this host. Nothing here
//! decides about a job, and nothing changes the host.

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

/// Longest text in facts, bytes: longer texts are cut.
pub const TEXT_MAX: usize = 4096;
/// Most files in facts.
pub const FILES_MAX: usize = 1024;

/// What must be equal on two hosts, or nearly so, so that an image of one becomes a process on the
/// other that continues correctly.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Eyrie's version, and the file that runs.
    pub version: String,
    pub command: File,
    /// Identifies the host: equal texts are the same host, unless they are empty.
    #[serde(default)]
    pub identity: String,
    pub node: Platform,
    pub limits: Limits,
    /// The program, its interpreter, and all that the loader loads with it, including the C
    /// library. Files that a program loads while it runs (Python's modules) are not among them.
    pub files: Vec<File>,
}

impl Facts {
    /// Gathers the facts of this host. `start`: how ranks are started; `also`: other files that
    /// they load.
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

    /// Replaces the files that were known before the rank ran by those that this process of it has
    /// mapped now.
    pub fn with_mapped_by(mut self, pid: u32) -> Facts {
        for file in mapped_by(pid) {
            if self.files.len() < FILES_MAX && !self.files.iter().any(|f| f.path == file.path) {
                self.files.push(file);
            }
        }
        self
    }
}

/// Cuts a text to its bound.
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}
