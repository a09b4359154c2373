//! The short table that `eyrie plan` prints.

use eyrie_placement::{Outcome, Planner};
use eyrie_topology::{coords, NodeId};

use super::instance::Instance;
use super::{chosen, detour_lines, seconds};

/// Columns aligned by their widest cell, the first to the left, the others to the right.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(c, s)| match c {
            0 => format!("{s:<w$}", w = widths[c]),
            _ if c + 1 == columns => s.clone(),
            _ => format!("{s:>w$}", w = widths[c]),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out += "\n";
    }
    out
}

pub fn print(
    instance: &Instance,
    planner: &Planner,
    failed: &[NodeId],
    outcomes: &[Outcome],
) -> anyhow::Result<()> {
    println!(
        "{}, job {} ({} ranks), spares {} ({}), {}",
        instance.network.describe(),
        coords::format_dims(&instance.laid.shape),
        instance.job.ranks(),
        instance.spares,
        instance.laid.spares.len(),
        instance.job.traffic.name,
    );
    let names: Vec<String> = failed.iter().map(|&n| instance.node_name(n)).collect();
    println!(
        "failed: {}; before: busiest link {} messages, step {}",
        names.join("  "),
        planner.before().score.messages,
        seconds(planner.before_s())
    );
    instance.laid.notes.iter().for_each(|note| println!("note: {note}"));
    println!();
    let header = ["method", "busiest link", "slowdown", "step", "ranks moved", "break-even", ""];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(outcomes.iter().map(row));
    print!("{}", align(&rows));
    if let Some(outcome) = chosen(outcomes) {
        println!();
        if let Ok(placed) = &outcome.result {
            println!("{}: {}", outcome.method.name(), summary(&placed.steps));
        }
        detour_lines(planner, failed, outcome)?.iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

fn row(outcome: &Outcome) -> Vec<String> {
    match &outcome.result {
        Ok(placed) => {
            let break_even = match placed.break_even {
                None => "never".into(),
                Some(0) => "at once".into(),
                Some(n) => format!("{n} iterations"),
            };
            let remark = placed.squeezed.as_ref().map_or(String::new(), |s| {
                format!(
                    "work {:.1}x, {} partners, efficiency {:.1} %, program rewritten",
                    s.work,
                    s.partners,
                    100.0 * s.efficiency
                )
            });
            vec![
                outcome.method.name(),
                placed.score.messages.to_string(),
                format!("{:.2}x", placed.ratio),
                seconds(placed.step_s),
                placed.moved.to_string(),
                break_even,
                remark,
            ]
        }
        Err(stuck) => {
            let dash = || "-".to_string();
            let why = format!("stuck after {} failures: {}", stuck.after, stuck.why);
            vec![outcome.method.name(), dash(), dash(), dash(), dash(), dash(), why]
        }
    }
}

fn summary(steps: &[String]) -> String {
    const SHOWN: usize = 6;
    match steps.len() {
        0 => "nothing has to move".into(),
        n if n > SHOWN => format!("{}; and {} more", steps[..SHOWN].join("; "), n - SHOWN),
        _ => steps.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::align;

    #[test]
    fn columns_line_up() {
        let row = |a: &str, b: &str, c: &str| [a, b, c].map(String::from).to_vec();
        assert_eq!(
            align(&[row("m", "load", ""), row("search", "1", "x")]),
            "m       load\nsearch     1  x\n"
        );
    }
}
