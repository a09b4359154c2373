//! A node of a migration: ranks begin on it or come from the node before it, and end on it or leave
//! for the next one. Any failure ends the process, and its ranks with it.

use crate::ppmr::held::HeldRank;
use crate::ppmr::orders::{write_line, Driver};
use crate::ppmr::rank::READY;
use crate::ppmr::source::leave;
use crate::ppmr::target::arrive;
use crate::ppmr::task::{Feed, Task};

/// The word for a node on which ranks begin; on others they arrive.
pub const BEGIN: &str = "begin";
/// The word for a node on which they end; others they leave.
pub const END: &str = "end";

/// Runs as a node.
///
/// # Errors
/// Any failure.
pub fn be_node(task: &Task, begin: bool, end: bool) -> anyhow::Result<()> {
    let driver = Driver::listen();
    let mut ranks = if begin { filled(&driver, task)? } else { arrive(&driver, task)? };
    ranks.iter_mut().try_for_each(|rank| rank.send_line(""))?;
    if end {
        let results = ranks.iter_mut().map(HeldRank::result).collect::<anyhow::Result<Vec<_>>>()?;
        return write_line(&serde_json::to_string(&results)?);
    }
    ranks.iter_mut().try_for_each(|rank| rank.expect_line(READY))?;
    leave(&driver, task, ranks)
}

/// Starts ranks that fill their memory, and returns when the driver lets them go on.
fn filled(driver: &Driver, task: &Task) -> anyhow::Result<Vec<HeldRank>> {
    let numbers = match task.feed {
        Feed::Ranks => 0..task.ranks,
        Feed::Memory(_) => 0..0,
    };
    let ranks: anyhow::Result<Vec<HeldRank>> =
        numbers.map(|number| HeldRank::start(&task.work, number)).collect();
    let mut ranks = ranks?;
    ranks.iter_mut().try_for_each(|rank| rank.expect_line(READY))?;
    write_line(READY)?;
    driver.line()?;
    Ok(ranks)
}
