//! Finds where a file has content and where it has holes. Compiled into both sides; must not
//! allocate.

use crate::sys;

/// Calls `each` with every run of content between two offsets. A file system without holes has one
/// run.
pub fn data_runs(
    fd: i32,
    start: u64,
    end: u64,
    mut each: impl FnMut(u64, u64) -> Result<(), i32>,
) -> Result<(), i32> {
    const SEEK_DATA: usize = 3;
    const SEEK_HOLE: usize = 4;
    let mut at = start;
    while at < end {
        let from = match sys::lseek(fd, at as i64, SEEK_DATA) {
            Ok(from) => (from as u64).max(at),
            Err(sys::ENXIO) => return Ok(()),
            Err(_) => at,
        };
        if from >= end {
            return Ok(());
        }
        let to = sys::lseek(fd, from as i64, SEEK_HOLE).map_or(end, |to| to as u64);
        let to = to.clamp(from + 1, end);
        each(from, to)?;
        at = to;
    }
    Ok(())
}
