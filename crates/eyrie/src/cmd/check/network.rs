//! `eyrie check --network`: the network that a job on these hosts would have, as it is given or as
//! it is found out, where that is from, and how sure it is. Starts no job.

use crate::cmd::network::{find, names, Found, Sureness, Way, AUTO};
use crate::cmd::run::allocation;
use anyhow::Context;
use eyrie_cli::instance::as_option;
use eyrie_cli::out;
use eyrie_controller::hosts::Host;
use eyrie_controller::runtime::Launcher;
use eyrie_host::Finding;
use eyrie_interface::options::LAUNCHER_EXEC;
use eyrie_placement::{start, Words};
use eyrie_topology::spec::{Files, Parsed};
use eyrie_topology::{picture, NetworkNode};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is known of the network.
#[derive(Serialize)]
struct Report {
    /// Words for `eyrie plan` and `eyrie run`, and the text of their file where there is none.
    network: String,
    text: Option<String>,
    description: String,
    source: String,
    sureness: Sureness,
    /// Why it is from nowhere better.
    notes: Vec<String>,
    nodes: usize,
    /// The network's node of each host.
    hosts: Vec<HostAt>,
}

#[derive(Serialize)]
struct HostAt {
    host: String,
    node: NetworkNode,
}

/// `named`: the hosts that the user names; else those of an allocation of Slurm.
///
/// # Errors
/// Names what is wrong with the network, or that there are no hosts.
pub fn run(words: &str, named: Vec<Host>, json: bool) -> anyhow::Result<i32> {
    let in_allocation = if named.is_empty() { allocation()? } else { None };
    let (hosts, launcher) = match in_allocation {
        Some(hosts) => (hosts, Launcher::Slurm),
        None => (named, Launcher::Ssh(LAUNCHER_EXEC.into())),
    };
    let all: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let found = found(words, &all, &launcher)?;
    let named = names(all.iter().copied());
    let text = |path: &str| found.file(path);
    let files = Files { text: &text, slurm_topology: None, taper: 1.0 };
    let asked = Words::of_running_job(&found.words, &named, None, files);
    let at = start::positions(&asked).map_err(as_option)?;
    let at: Vec<(&str, NetworkNode)> = named.into_iter().zip(at).collect();
    let parsed = found.parsed().map_err(|why| anyhow::anyhow!("--network: {why}"))?;
    if json {
        out::line(serde_json::to_string(&report(found, &parsed, &at))?)?;
        return Ok(0);
    }
    findings(&found, &parsed.network.describe()).iter().try_for_each(out::line)?;
    out::text(&drawn(&parsed, &at))?;
    Ok(0)
}

fn found(words: &str, hosts: &[&str], launcher: &Launcher) -> anyhow::Result<Found> {
    if words != AUTO {
        return Ok(Found::said(words));
    }
    anyhow::ensure!(
        !hosts.is_empty(),
        "--network auto: name the hosts with --hosts, or run this in an allocation of Slurm"
    );
    let eyrie = std::env::current_exe().context("cannot find the eyrie command itself")?;
    Ok(find(hosts, Some(Way { launcher, eyrie: &eyrie })))
}

fn report(found: Found, parsed: &Parsed, at: &[(&str, NetworkNode)]) -> Report {
    let Found { words, text, source, sureness, notes } = found;
    Report {
        network: words,
        text,
        description: parsed.network.describe(),
        source,
        sureness,
        notes,
        nodes: parsed.network.nodes(),
        hosts: at
            .iter()
            .map(|(host, node)| HostAt { host: host.to_string(), node: *node })
            .collect(),
    }
}

/// The picture, with the hosts where they are; without hosts with all nodes.
fn drawn(Parsed { network, layout, names }: &Parsed, at: &[(&str, NetworkNode)]) -> String {
    let on: BTreeMap<NetworkNode, &str> = at.iter().map(|(host, node)| (*node, *host)).collect();
    let label = |node: NetworkNode| match (on.get(&node), names.get(node as usize)) {
        (Some(host), _) => Some(host.to_string()),
        (None, _) if !on.is_empty() => None,
        (None, Some(name)) => Some(name.clone()),
        (None, None) => Some(network.vertex_name(node)),
    };
    picture::text(network.as_ref(), layout.as_ref(), &label)
}

/// How sure it is, and why it is not surer.
fn findings(found: &Found, network: &str) -> Vec<Finding> {
    const SUBJECT: &str = "network";
    let text = found.sentence(network);
    let line = match found.sureness {
        Sureness::Unknown => {
            let remedy = "say it with --network, if it is another one (docs/plan.md)";
            Finding::warn(SUBJECT, text, remedy)
        }
        Sureness::Said | Sureness::Measured | Sureness::Guessed => Finding::ok(SUBJECT, text),
    };
    let remedy = "look whether the network below is right, or say it with --network";
    let note = |note: &String| Finding::warn(SUBJECT, note.clone(), remedy);
    found.notes.iter().map(note).chain([line]).collect()
}
