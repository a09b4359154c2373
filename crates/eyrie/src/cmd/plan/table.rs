//! The short table that `eyrie plan` prints.

use std::fmt::Write;

use eyrie_placement::{Instance, Outcome};
use eyrie_topology::coords;

use super::{seconds, Plan};
use eyrie_cli::table::align;

pub fn text(plan: &Plan) -> anyhow::Result<String> {
    let Plan { instance, planner, failed, outcomes } = plan;
    let mut text = String::new();
    writeln!(
        text,
        "{}, job {} ({} ranks{}), spares {} ({}), {}",
        instance.network.describe(),
        coords::format_dims(&instance.shape),
        instance.job.ranks(),
        of_nodes(instance),
        instance.spares,
        instance.laid.spares.len(),
        instance.job.traffic.name,
    )?;
    let names: Vec<String> = failed.iter().map(|&n| instance.node_name(n)).collect();
    writeln!(
        text,
        "failed: {}; before: busiest link {} messages, step {}",
        names.join("  "),
        planner.before().score.messages,
        seconds(planner.before_s())
    )?;
    instance.laid.notes.iter().try_for_each(|note| writeln!(text, "note: {note}"))?;
    writeln!(text)?;
    let header = ["method", "busiest link", "slowdown", "step", "ranks moved", "break-even", ""];
    let mut rows = vec![header.map(String::from).to_vec()];
    rows.extend(outcomes.iter().map(row));
    text += &align(&rows);
    if let Some(outcome) = plan.chosen() {
        writeln!(text)?;
        if let Ok(placed) = &outcome.result {
            writeln!(text, "{}: {}", outcome.method.name(), summary(&placed.steps))?;
        }
        for line in plan.detour_lines(outcome)? {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

/// How many ranks a node has, where that is not one.
fn of_nodes(instance: &Instance) -> String {
    let ranks = instance.job.ranks();
    let nodes = instance.laid.home.len();
    match instance.job.slots {
        1 => String::new(),
        slots => format!(", {} a node of {slots} slots", ranks / nodes),
    }
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
