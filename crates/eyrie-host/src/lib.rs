//! The properties of a host that matter for a rank that moves to another host, and the differences
//! between two hosts. Facts are gathered in milliseconds, without root. [`differences`]
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
pub use file::{look as look_at_file, mapped_by};
pub use finding::{Finding, Level};
pub use program::Start;

use eyrie_wire::facts::{cut, Facts, Role, FILES_MAX};
use std::path::Path;

/// Gathers the facts of this host. `start`: how ranks are started; `also`: other files that they
/// load.
pub fn gather(version: &str, start: Option<&Start>, also: &[&Path]) -> Facts {
    let mut files = start.map(program::files).unwrap_or_default();
    files.extend(also.iter().map(|path| file::look(Role::Library, path)));
    files.truncate(FILES_MAX);
    Facts {
        version: cut(version),
        command: file::look(Role::Program, Path::new("/proc/self/exe")),
        identity: identity::look(),
        node: node::look(),
        limits: limits::look(),
        files,
    }
}
