//! What Slurm says of the network: the running one by `scontrol show topology`, else its files
//! topology.yaml and topology.conf. What does not have all hosts of the job is not used.

use super::found::{Found, Sureness};
use eyrie_supervision::bounded;
use eyrie_topology::slurm::conf_of_shown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long Slurm may take to answer.
const LONGEST: Duration = Duration::from_secs(5);
/// Where Slurm has its files, unless SLURM_CONF says it.
const FOLDERS: [&str; 2] = ["/etc/slurm", "/etc/slurm-llnl"];

/// The network of these hosts; `notes` are why there is none, where Slurm is there.
pub fn look(hosts: &[&str], notes: &mut Vec<String>) -> Option<Found> {
    running(hosts, notes).or_else(|| in_files(hosts, notes))
}

/// What the running Slurm says.
fn running(hosts: &[&str], notes: &mut Vec<String>) -> Option<Found> {
    const ASKED: &str = "`scontrol show topology`";
    let mut command = Command::new("scontrol");
    // Its lines would be as short as this.
    command.args(["show", "topology"]).env_remove("SLURM_TOPO_LEN");
    let ran = match bounded::run(&mut command, LONGEST) {
        Ok(ran) => ran,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(e) => {
            notes.push(format!("{ASKED}: {e}"));
            return None;
        }
    };
    if ran.status.is_none() {
        let bound = eyrie_units::written(LONGEST);
        notes.push(format!("{ASKED} gives no answer within {bound}: Slurm is not asked any more"));
        return None;
    }
    if ran.stderr.contains("No topology information available") {
        return None;
    }
    if !ran.succeeded() {
        let why = ran.stderr.lines().map(str::trim).find(|line| !line.is_empty());
        let why = why.map(|why| why.trim_start_matches("scontrol: ").trim_start_matches("error: "));
        notes.push(format!("{ASKED} fails: {}", why.unwrap_or("without a word")));
        return None;
    }
    if ran.stdout.trim().is_empty() {
        return None;
    }
    let found = match conf_of_shown(&ran.stdout) {
        Ok(conf) => Found::conf(conf, ASKED.into(), Sureness::Said),
        Err(why) => {
            notes.push(format!("{ASKED}: {why}"));
            return None;
        }
    };
    complete(found, hosts, ASKED, notes)
}

/// What the files of Slurm say.
fn in_files(hosts: &[&str], notes: &mut Vec<String>) -> Option<Found> {
    let own = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let own = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    let usual =
        FOLDERS.map(PathBuf::from).into_iter().filter(|folder| own.as_ref() != Some(folder));
    let folders: Vec<PathBuf> = own.clone().into_iter().chain(usual).collect();
    let files =
        folders.iter().flat_map(|f| ["topology.yaml", "topology.conf"].map(|name| f.join(name)));
    for file in files.filter(|file| file.is_file()) {
        let Some(path) = file.to_str() else { continue };
        let found = Found { source: path.to_string(), ..Found::said(&format!("slurm:{path}")) };
        if let Some(found) = complete(found, hosts, path, notes) {
            return Some(found);
        }
    }
    None
}

/// The network, if it has all of the hosts.
fn complete(found: Found, hosts: &[&str], from: &str, notes: &mut Vec<String>) -> Option<Found> {
    match found.lacks(hosts) {
        Ok(lacking) if lacking.is_empty() => return Some(found),
        Ok(lacking) => {
            let (first, count) = (lacking[0], lacking.len());
            notes.push(format!(
                "{from} is not used: it lacks {count} of {} hosts, such as {first}",
                hosts.len()
            ));
        }
        Err(why) => notes.push(format!("{from} is not used: {why}")),
    }
    None
}
