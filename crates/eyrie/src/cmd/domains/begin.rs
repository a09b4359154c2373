//! What part this process has in a job over domains: the command that starts it reads the file of
//! domains and gives each domain its part, and the controller of another domain reads what it was
//! given.

use super::environment::passed;
use super::line::Line;
use super::order::{self, Order, Part};
use super::sites::Site;
use anyhow::{bail, Context};
use eyrie_controller::domains::file::{self, From, InFile, Via};
use eyrie_controller::domains::{nodes, shares};
use eyrie_controller::hosts::{self, Host};
use eyrie_controller::runtime::Ways;
use eyrie_supervision::place;
use eyrie_wire::domains::{Domain, Domains, LineKey};
use eyrie_wire::{DomainId, Rank};
use std::ffi::OsStr;
use std::path::Path;

/// The part of this process.
pub enum Begun {
    /// It starts the controllers of the other domains.
    Home(Part, Vec<Site>),
    /// It was started by that one, which goes on to tell it things; `None`: by hand.
    Site(Part, Option<Line>),
}

impl Begun {
    /// The part of this process's domain.
    pub fn part(&self) -> &Part {
        match self {
            Begun::Home(part, _) | Begun::Site(part, _) => part,
        }
    }

    /// How commands reach the sites of the domains that this process starts. `ssh`: the command
    /// that takes ssh's arguments; `eyrie`: that of eyrie at the sites.
    pub fn ways(&self, ssh: &OsStr, eyrie: &Path) -> Ways {
        let Begun::Home(_, sites) = self else { return Ways::default() };
        let destination = |site: &Site| {
            let destination = match &site.via {
                Via::Ssh(destination) => Some(destination.clone()),
                Via::Here | Via::Manual => None,
            };
            (site.order.part.name().to_string(), destination)
        };
        let destinations = sites.iter().map(destination).collect();
        Ways { ssh: ssh.into(), eyrie: eyrie.into(), destinations }
    }

    /// What users must know of it.
    pub fn note(&self) -> Option<String> {
        let Begun::Home(part, _) = self else { return None };
        let of_first = part.domains.of(Rank(0)).filter(|domain| *domain != part.domains.own)?;
        let name = &part.domains.all[of_first.index()].name;
        Some(format!("rank 0 is in domain {name}: it gets no standard input"))
    }
}

/// What options say of all domains.
pub struct Usual {
    pub ranks: Option<u32>,
    /// Of a domain for which the file does not say it.
    pub spares: u32,
    pub job: Option<String>,
}

/// Hosts of the allocation of Slurm that this process runs in.
type Allocation<'a> = &'a dyn Fn() -> anyhow::Result<Option<Vec<Host>>>;

/// A file without the domain of this process.
const NO_OWN: &str = "no domain is the one that this command runs in";

/// Reads the file of domains, or with `-` the order on standard input. `name`: the domain that it
/// must be for.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn begin(
    file: &Path,
    name: Option<&str>,
    usual: Usual,
    allocation: Allocation,
) -> anyhow::Result<Begun> {
    if file == Path::new("-") {
        return site(name);
    }
    home(read(file, &usual, allocation)?, usual)
}

/// The controller of another domain.
fn site(name: Option<&str>) -> anyhow::Result<Begun> {
    // The program's input is at home.
    let mut line = Line::take_stdin()?;
    let Order { part, environment, is_watched } = order::read(&mut line.0)?;
    if let Some(name) = name.filter(|name| *name != part.name()) {
        bail!("the order is for domain {}, not for {name}: take the other file", part.name());
    }
    for (name, value) in environment {
        std::env::set_var(name, value);
    }
    Ok(Begun::Site(part, is_watched.then_some(line)))
}

/// A domain with its hosts, as far as they are known.
pub struct Known {
    pub in_file: InFile,
    pub hosts: Option<Vec<Host>>,
    pub spares: u32,
}

/// The domains of a file, and as all of them would know them in a job.
pub struct FileOfDomains {
    pub known: Vec<Known>,
    pub all: Vec<Domain>,
}

/// Reads the file of domains.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn read(file: &Path, usual: &Usual, allocation: Allocation) -> anyhow::Result<FileOfDomains> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let dir = file.parent().unwrap_or(Path::new(""));
    read_text(&text, dir, usual, allocation).with_context(|| shown.to_string())
}

/// As [`read`]; paths in it begin in `dir`.
fn read_text(
    text: &str,
    dir: &Path,
    usual: &Usual,
    allocation: Allocation,
) -> anyhow::Result<FileOfDomains> {
    let wrong = anyhow::Error::msg;
    let mut known = Vec::new();
    for in_file in file::parse(text).map_err(wrong)? {
        let hosts = hosts_of(&in_file, dir, allocation)
            .with_context(|| format!("domain {}", in_file.name))?;
        let spares = in_file.spares.unwrap_or(usual.spares);
        known.push(Known { in_file, hosts, spares });
    }
    check_apart(&known)?;
    let all = domains(&known, usual.ranks).map_err(wrong)?;
    Ok(FileOfDomains { known, all })
}

/// Refuses hosts that are in two of them.
pub fn check_apart<'a>(known: impl IntoIterator<Item = &'a Known>) -> anyhow::Result<()> {
    let apart = known.into_iter().map(|Known { in_file, hosts, .. }| {
        (in_file.name.as_str(), hosts.as_deref().unwrap_or_default(), in_file.gateway.host.as_str())
    });
    nodes::check_apart(apart).map_err(anyhow::Error::msg)
}

fn home(FileOfDomains { known, all }: FileOfDomains, usual: Usual) -> anyhow::Result<Begun> {
    let job = usual.job.unwrap_or_else(|| format!("job-{}", std::process::id()));
    let kvsname = place::new_name();
    let is_here = |known: &Known| known.in_file.via == Via::Here;
    let shows = known.iter().position(is_here);
    let shows = shows.context(NO_OWN)?;
    let shows = DomainId(shows as u32);
    let keys = keys(all.len());
    let mut own = None;
    let mut sites = Vec::new();
    for (id, (Known { in_file, hosts, spares }, keys)) in (0..).zip(known.into_iter().zip(keys)) {
        let part = Part {
            domains: Domains { own: DomainId(id), all: all.clone(), keys, shows },
            job: job.clone(),
            kvsname: kvsname.clone(),
            hosts,
            spares,
            launcher: in_file.launcher,
            gateway: in_file.gateway.host,
            port: in_file.gateway.port,
            joins: false,
        };
        match in_file.via {
            Via::Here => own = Some(part),
            via => {
                let is_watched = via != Via::Manual;
                let environment = passed(std::env::vars_os());
                sites.push(Site { via, order: Order { part, environment, is_watched } });
            }
        }
    }
    let own = own.context(NO_OWN)?;
    Ok(Begun::Home(own, sites))
}

/// The hosts of a domain; `None`: they are known where it is started by hand.
///
/// # Errors
/// When a file cannot be read, or there is no allocation.
pub fn hosts_of(
    domain: &InFile,
    dir: &Path,
    allocation: Allocation,
) -> anyhow::Result<Option<Vec<Host>>> {
    match (&domain.hosts, &domain.via) {
        (From::List(hosts), _) => Ok(Some(hosts.clone())),
        (From::File(file), _) => {
            hosts::named(None, Some(&dir.join(file))).map_err(anyhow::Error::msg)
        }
        (From::Slurm, Via::Manual) => Ok(None),
        (From::Slurm, Via::Ssh(_)) => bail!(
            "slurm = true, but a session of ssh is in no allocation: write via = \"manual\", and \
             start it within salloc or sbatch there"
        ),
        (From::Slurm, Via::Here) => match allocation()? {
            Some(hosts) => Ok(Some(hosts)),
            None => bail!(
                "slurm = true, but this command runs in no allocation: run it within salloc or \
                 sbatch"
            ),
        },
    }
}

/// The domains as all of them know them.
fn domains(known: &[Known], ranks: Option<u32>) -> Result<Vec<Domain>, String> {
    let mut asking = Vec::new();
    for Known { in_file, hosts, spares } in known {
        let name = &in_file.name;
        let slots = hosts.as_ref().map(|hosts| shares::slots(hosts, *spares)).transpose();
        let slots = slots.map_err(|e| format!("domain {name}: {e}"))?;
        asking.push(shares::Asking { name, ranks: in_file.ranks.as_deref(), slots });
    }
    let shares = shares::shares(&asking, ranks)?;
    let domain = |(known, share): (&Known, Vec<_>)| Domain {
        name: known.in_file.name.clone(),
        ranks: shares::runs(&share),
        gateway: known.in_file.gateway.address.clone(),
    };
    Ok(known.iter().zip(shares).map(domain).collect())
}

/// For each of so many domains the keys that it has in common with each.
fn keys(domains: usize) -> Vec<Vec<Option<LineKey>>> {
    let mut keys: Vec<Vec<Option<LineKey>>> = Vec::new();
    for _ in 0..domains {
        let mut new: Vec<_> = keys.iter().map(|_| Some(LineKey::new())).collect();
        for (earlier, key) in keys.iter_mut().zip(&new) {
            earlier.push(key.clone());
        }
        new.push(None);
        keys.push(new);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [domain.home]
        hosts = "a:2,b:2"
        gateway = { host = "gw", address = "gw.home:7411" }
        [domain.cloud]
        hostfile = "cloud.hosts"
        spares = 1
        via = "login.cloud"
        gateway = { host = "c", address = "c.cloud:7411" }
        [domain.lab]
        slurm = true
        ranks = "0,9"
        via = "manual"
        gateway = { host = "d", address = "d.lab:7411" }
    "#;

    fn begun(text: &str, ranks: Option<u32>) -> anyhow::Result<Begun> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("cloud.hosts"), "c:4\ne:4\n")?;
        let usual = Usual { ranks, spares: 0, job: Some("job".into()) };
        home(read_text(text, dir.path(), &usual, &|| Ok(None))?, usual)
    }

    #[test]
    fn each_domain_gets_its_part_and_each_two_a_key_of_their_own() {
        let Begun::Home(own, sites) = begun(TEXT, None).unwrap() else { panic!("no home") };
        let parts: Vec<&Part> =
            std::iter::once(&own).chain(sites.iter().map(|site| &site.order.part)).collect();
        let run = |first, last| (Rank(first), Rank(last));
        let ranks: Vec<_> = parts.iter().map(|part| part.domains.own().ranks.clone()).collect();
        assert_eq!(ranks, [vec![run(1, 4)], vec![run(5, 8)], vec![run(0, 0), run(9, 9)]]);
        for (first, one) in parts.iter().enumerate() {
            for (second, other) in parts.iter().enumerate() {
                let key = one.domains.keys[second].as_ref();
                assert_eq!(key, other.domains.keys[first].as_ref());
                assert_eq!(key.is_none(), first == second);
            }
            assert_eq!((&one.kvsname, &one.domains.all), (&own.kvsname, &own.domains.all));
        }
        assert_ne!(own.domains.keys[1], own.domains.keys[2]);
        let of = |part: &Part| part.hosts.as_ref().map(Vec::len);
        assert_eq!(parts.iter().map(|part| of(part)).collect::<Vec<_>>(), [Some(2), Some(2), None]);
        assert_eq!((own.spares, sites[0].order.part.spares), (0, 1));
        assert!(sites[0].order.is_watched && !sites[1].order.is_watched);
    }

    #[test]
    fn what_does_not_fit_together_is_one_line() {
        let refused = |from: &str, to: &str, ranks, fault: &str| {
            assert!(TEXT.contains(from), "{from}");
            let Err(error) = begun(&TEXT.replacen(from, to, 1), ranks) else { panic!("{fault}") };
            let error = format!("{error:#}");
            assert!(error.contains(fault) && !error.contains('\n'), "{error}\nnot\n{fault}");
        };
        refused("cloud.hosts", "no.hosts", None, "domain cloud: reading ");
        refused("a:2,b:2", "a:2,c:2", None, "host c is in two domains, home and cloud");
        refused("\"manual\"", "\"lab\"", None, "domain lab: slurm = true, but a session of ssh");
        refused("hosts = \"a:2,b:2\"", "slurm = true", None, "this command runs in no allocation");
        refused("spares = 1", "spares = 2", None, "domain cloud: of 2 hosts, 2 cannot be spares");
        refused("0,9", "0,9", Some(12), "2 ranks do not fit into the 8 slots");
        refused("0,9", "0,12", None, "domain lab: ranks: rank 12 is not one of the job's 10");
    }
}
