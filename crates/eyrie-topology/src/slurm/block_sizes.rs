//! The block sizes of topology/block. They say nothing about links, but Slurm refuses a file with
//! wrong ones.

use crate::error::TopologyError;

/// How many times larger than the first a block may be, as a power of two.
const MOST_LEVELS: u32 = 15;

/// # Errors
/// When a size is not a power of two times the first.
pub fn check(sizes: &[u64]) -> Result<(), TopologyError> {
    let first = sizes.first().copied().unwrap_or(1);
    for &size in sizes {
        let times = size.checked_div(first).unwrap_or(0);
        if !times.is_power_of_two() || size % first != 0 || times > 1 << MOST_LEVELS {
            return crate::refuse!(
                "block size {size}: sizes are the first one times 1, 2, 4 ... {}",
                1 << MOST_LEVELS
            );
        }
    }
    Ok(())
}
