//! `eyrie check --domains`: whether a job over several sites would work. Each site checks its own
//! hosts, its gateway is tried as the others would reach it, and what the sites have is compared.
//! No job is started, and nothing stays anywhere.

mod compare;
mod lines;
mod report;
mod sites;

use super::CheckArgs;
use crate::cmd::domains::{read, Usual};
use crate::cmd::run::allocation;
use eyrie_cli::out;
use eyrie_host::{Finding, Level};
use eyrie_interface::options;
use report::Report;
use std::path::Path;

/// Checks all domains of a file.
///
/// # Errors
/// When the file has a fault, or this process cannot say what it is.
pub fn run(file: &Path, args: &CheckArgs) -> anyhow::Result<i32> {
    let usual = Usual { ranks: None, spares: options::SPARES, job: None };
    let all = read(file, &usual, &allocation)?;
    let sites = sites::ask_all(&all, args)?;
    let tried = lines::try_all(&all.known, &sites);
    let differences = compare::between(&sites, args.cpu);
    let report = Report { file: file.display().to_string(), sites, tried, differences };
    if args.json {
        out::line(serde_json::to_string(&report)?)?;
    } else {
        report.lines().iter().try_for_each(out::line)?;
    }
    let fails = |finding: &Finding| finding.level == Level::Fail;
    Ok(report.lines().iter().any(fails).into())
}
