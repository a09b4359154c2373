//! `eyrie health`: how healthy the nodes of a running job are. The job knows it; here it is asked
//! and shown.

use super::JobPlace;
use eyrie_cli::out;
use eyrie_controller::runtime::users::ask;
use eyrie_interface::health::{FindingStatus, Health, NodeHealth, Sampled};
use eyrie_interface::Request;
use eyrie_units::{bytes, plain, time};
use eyrie_wire::health::HealthState;
use std::fmt::Write;
use std::time::Duration;

/// Show how healthy the nodes of a running job are: what health rules find there, since when, and
/// what was done about it.
///
/// A node is suspect when it may fail, and failing when it should be left; `eyrie monitor rules`
/// prints the rules. What is done is said by `--on-suspect` and `--on-failing` of `eyrie run`.
#[derive(clap::Args)]
pub struct HealthArgs {
    /// Name of the job (see `eyrie status`)
    job: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: JobPlace,
}

pub fn run(args: &HealthArgs) -> anyhow::Result<i32> {
    args.place.at(&args.job, |dir| {
        let health: Health = ask(dir, &Request::Health)?;
        if args.json {
            out::line(serde_json::to_string(&health)?)?;
        } else {
            out::text(&in_full(&health)?)?;
        }
        Ok(0)
    })
}

fn seconds(seconds: f64) -> String {
    time(Duration::from_secs_f64(seconds.max(0.0)))
}

fn in_full(health: &Health) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    if health.interval.is_none() {
        writeln!(out, "nodes are not sampled: the job was started with --monitor off")?;
    }
    for node in &health.nodes {
        of_node(&mut out, node)?;
    }
    Ok(out)
}

fn of_node(out: &mut String, node: &NodeHealth) -> std::fmt::Result {
    let host = node.host.as_ref().map_or(String::new(), |host| format!(" ({host})"));
    let name = format!("node {}{host}", node.node);
    let state = match node.state {
        _ if !node.up => "lost".into(),
        HealthState::Ok => HealthState::Ok.to_string(),
        state => format!("{state} for {}", seconds(node.seconds)),
    };
    let sampled = node.sampled.as_ref().filter(|_| node.up);
    let sampled = sampled.map_or(String::new(), in_words);
    writeln!(out, "{}", format!("{name:<16} {state:<18} {sampled}").trim_end())?;
    for FindingStatus { rule, what, state, said, seconds: since, muted } in &node.findings {
        let muted = muted.map_or(String::new(), |left| {
            format!(" (muted for {}: it fires too often)", seconds(left))
        });
        let [rule, what, said] = [rule, what, said].map(|text| plain::line(text));
        writeln!(out, "    {rule}: {what} is {state} for {}: {said}{muted}", seconds(*since))?;
    }
    for done in &node.done {
        writeln!(out, "    {} ago: {}", seconds(done.seconds_ago), plain::line(&done.what))?;
    }
    Ok(())
}

/// What was sampled of a node.
fn in_words(sampled: &Sampled) -> String {
    let busy = sampled.busy.map_or(String::new(), |busy| format!("busy {:.0} %, ", busy * 100.0));
    let (available, memory) = (bytes(sampled.available_bytes), bytes(sampled.memory_bytes));
    format!("{busy}{available} of {memory} available, sampled {} ago", seconds(sampled.seconds_ago))
}
