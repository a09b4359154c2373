//! What threads do to files other than the one that has called MPI_Init. It is not recorded: a rank
//! that was executed again may do it twice, which is said once.

use super::kernel::{file_at, link_of, File};
use super::memory;
use super::own_mapping;
use super::path::Path;
use super::saying;
use crate::observed::{is_executed_again, is_other_thread};

fn is_said() -> bool {
    is_executed_again() && is_other_thread()
}

/// An open file was changed by a call that is not recorded.
pub fn changed(fd: i32) {
    if !is_said() {
        return;
    }
    let is_one = |file: &File| !file.nameless && !memory::is_memory(file.number);
    if file_at(fd).is_some_and(|file| is_one(&file)) {
        let path = Path::of_link(link_of(fd, &mut [0; 32]));
        saying::changed_by_other_thread(path.as_ref().map_or(b"a file", |path| path.as_bytes()));
    }
}

/// Where memory stands in for files that are mapped, something is unmapped by a call that is not
/// recorded: what it has there does not get to its file.
pub fn unmapped() {
    if is_said() && own_mapping::any() {
        saying::changed_by_other_thread(b"what is mapped of files");
    }
}

/// Names were.
pub fn changed_names() {
    if is_said() {
        saying::changed_by_other_thread(b"names of files");
    }
}
