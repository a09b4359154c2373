//! Gathers the facts of this host (`eyrie_wire::facts`), to be compared with those of others.

use crate::program::{self, Start};
use crate::{file, identity, limits, node};
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
