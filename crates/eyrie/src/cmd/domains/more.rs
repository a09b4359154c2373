//! The file from which domains join a running job: which of its tables are new ones. It may have
//! all domains of the job, or the new ones only.

use super::begin::{check_apart, hosts_of, Known};
use anyhow::{bail, Context};
use eyrie_controller::domains::file::{self, InFile, Via};
use eyrie_interface::request::{NewDomain, NewGateway};
use eyrie_interface::status::DomainStatus;
use eyrie_interface::Status;
use std::path::Path;

/// The domains in a file that are no parts of the job, in order. `status`: that of the job, at the
/// site where it was started.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn new_domains(file: &Path, status: &Status) -> anyhow::Result<Vec<NewDomain>> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let dir = file.parent().unwrap_or(Path::new(""));
    let Some(own) = &status.domain else {
        let job = &status.job;
        bail!("job {job} runs in one domain only: `eyrie run --domains` starts one over several")
    };
    read_text(&text, dir, &Parts { own, others: &status.domains })
        .with_context(|| shown.to_string())
}

/// The domains of a job.
struct Parts<'a> {
    /// The one where it was started.
    own: &'a str,
    others: &'a [DomainStatus],
}

/// As [`new_domains`]; paths in it begin in `dir`.
fn read_text(text: &str, dir: &Path, parts: &Parts) -> anyhow::Result<Vec<NewDomain>> {
    let mut known = Vec::new();
    for in_file in file::parse_some(text).map_err(anyhow::Error::msg)? {
        let is_new = is_new(&in_file, parts)?;
        // Those of the others were read when the job was started.
        let hosts = match hosts_of(&in_file, dir, &|| Ok(None)) {
            Err(e) if is_new => return Err(e.context(format!("domain {}", in_file.name))),
            hosts => hosts.unwrap_or_default(),
        };
        known.push((Known { in_file, hosts, spares: 0 }, is_new));
    }
    check_apart(known.iter().map(|(known, _)| known))?;
    let new = known.into_iter().filter(|(_, is_new)| *is_new);
    let new: Vec<NewDomain> = new.map(|(known, _)| new_domain(known)).collect::<Result<_, _>>()?;
    if new.is_empty() {
        bail!(
            "all of its domains are parts of the job: add a table [domain.NAME] for the one that is \
             to join"
        );
    }
    Ok(new)
}

/// Whether it is no part of the job. One that is must be as it is there.
fn is_new(in_file: &InFile, parts: &Parts) -> anyhow::Result<bool> {
    let InFile { name, gateway, .. } = in_file;
    if name == parts.own {
        return Ok(false);
    }
    let is_it = |domain: &&DomainStatus| domain.name == *name && !domain.gone;
    let Some(known) = parts.others.iter().find(is_it) else { return Ok(true) };
    if known.gateway != gateway.address {
        bail!(
            "domain {name} is a part of the job, and its gateway has the address {}, not {}: leave \
             its table as it was, or take it out",
            known.gateway,
            gateway.address
        );
    }
    Ok(false)
}

fn new_domain(Known { in_file, hosts, .. }: Known) -> anyhow::Result<NewDomain> {
    let InFile { name, spares, launcher, gateway, via, ranks, .. } = in_file;
    if ranks.is_some() {
        bail!(
            "domain {name} joins without ranks: take its `ranks` out; `eyrie migrate-domain JOB --to \
             {name}` brings some there"
        );
    }
    if let Some((hosts, spares)) = hosts.as_ref().zip(spares) {
        let all = hosts.len();
        if spares as usize >= all {
            bail!(
                "domain {name}: of {all} hosts, {spares} cannot be spares: ranks need one at least"
            );
        }
    }
    let via = match via {
        Via::Ssh(destination) => Some(destination),
        Via::Manual => None,
        Via::Here => bail!(
            "domain {name} is to be at this site, which has one: write via = \"SSH DESTINATION\" of \
             its login node"
        ),
    };
    let gateway = NewGateway { host: gateway.host, address: gateway.address, port: gateway.port };
    let hosts = hosts.map(|hosts| hosts.into_iter().map(|host| (host.name, host.slots)).collect());
    Ok(NewDomain { name, hosts, spares, launcher, gateway, via })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [domain.home]
        hosts = "a:2,b:2"
        gateway = { host = "gw", address = "gw.home:7411" }
        [domain.cloud]
        hosts = "c:4"
        via = "login.cloud"
        gateway = { host = "c", address = "c.cloud:7411" }
        [domain.lab]
        hosts = "d:4,e:4"
        spares = 1
        via = "login.lab"
        gateway = { host = "d", address = "d.lab:7411", port = 7000 }
    "#;

    fn cloud(gone: bool) -> [DomainStatus; 1] {
        [DomainStatus {
            name: "cloud".into(),
            ranks: 4,
            gateway: "c.cloud:7411".into(),
            line: None,
            traffic: None,
            waiting_bytes: 0,
            letters: 0,
            finished: None,
            gone,
            joins: false,
        }]
    }

    fn read(text: &str, gone: bool) -> anyhow::Result<Vec<NewDomain>> {
        read_text(text, Path::new(""), &Parts { own: "home", others: &cloud(gone) })
    }

    fn names(text: &str, gone: bool) -> Vec<String> {
        read(text, gone).unwrap().into_iter().map(|new| new.name).collect()
    }

    #[test]
    fn new_ones_are_those_that_are_no_part_of_the_job() {
        assert_eq!(names(FILE, false), ["lab"]);
        assert_eq!(names(FILE, true), ["cloud", "lab"], "it had ended");
        let only = &FILE[FILE.find("[domain.lab]").unwrap()..];
        let [lab] = &read(only, false).unwrap()[..] else { panic!("one") };
        assert_eq!(lab.via.as_deref(), Some("login.lab"));
        let hosts = [("d", Some(4)), ("e", Some(4))].map(|(name, slots)| (name.into(), slots));
        assert_eq!((lab.hosts.as_deref(), lab.spares), (Some(&hosts[..]), Some(1)));
        assert_eq!((lab.gateway.host.as_str(), lab.gateway.port), ("d", 7000));
    }

    #[test]
    fn what_contradicts_the_job_is_refused_with_the_remedy() {
        let refused = |from: &str, to: &str, fault: &str| {
            assert!(FILE.contains(from), "{from}");
            let error = format!("{:#}", read(&FILE.replacen(from, to, 1), false).unwrap_err());
            assert!(error.contains(fault) && !error.contains('\n'), "{error}\nnot\n{fault}");
        };
        refused("c.cloud:7411", "c.cloud:7412", "leave its table as it was, or take it out");
        refused("\"login.lab\"", "\"here\"", "domain lab is to be at this site");
        refused("spares = 1", "ranks = \"0\"", "domain lab joins without ranks");
        refused("spares = 1", "spares = 2", "of 2 hosts, 2 cannot be spares");
        refused("d:4,e:4", "d:4,b:4", "host b is in two domains, home and lab");
        let no_new = &FILE[..FILE.find("[domain.lab]").unwrap()];
        let error = read(no_new, false).unwrap_err().to_string();
        assert!(error.contains("add a table [domain.NAME]"), "{error}");
    }
}
