//! The sites: each checks its own hosts, from its login node, as `eyrie check --hosts` does. All at
//! the same time.

use super::report::Site;
use crate::cmd::check::remote::{self, Asked};
use crate::cmd::check::report::Several;
use crate::cmd::check::{here, CheckArgs};
use crate::cmd::domains::{FileOfDomains, Known};
use eyrie_controller::domains::file::Via;
use eyrie_controller::domains::nodes::place;
use eyrie_host::{Difference, Finding, Severity, What};

/// Asks all of them, in their order.
///
/// # Errors
/// When this process cannot say what it is.
pub fn ask_all(all: &FileOfDomains, args: &CheckArgs) -> anyhow::Result<Vec<Site>> {
    std::thread::scope(|scope| {
        let each = all.known.iter().zip(&all.all);
        let asked = each.map(|(known, domain)| {
            let ranks = domain.ranks().count();
            scope.spawn(move || ask(known, ranks, args))
        });
        let asked: Vec<_> = asked.collect();
        asked.into_iter().map(|site| site.join().expect("a panic ends us")).collect()
    })
}

/// The hosts of a domain by their names; that of the gateway is one of them, or comes last.
fn names(known: &Known) -> Vec<String> {
    let hosts = known.hosts.iter().flatten();
    let mut names: Vec<String> = hosts.map(|host| host.name.clone()).collect();
    if !has_ranks(known, &known.in_file.gateway.host) {
        names.push(known.in_file.gateway.host.clone());
    }
    names
}

/// Whether ranks may start on a host of the domain.
fn has_ranks(known: &Known, host: &str) -> bool {
    known.hosts.iter().flatten().any(|known| place(&known.name) == place(host))
}

fn ask(known: &Known, ranks: usize, args: &CheckArgs) -> anyhow::Result<Site> {
    let name = known.in_file.name.clone();
    let names = names(known);
    let asked = match &known.in_file.via {
        Via::Here => {
            let here = here::look(args);
            let answers = remote::ask_all(&names, args)?;
            Asked { report: Ok(Several::new(here, answers, args.cpu)), clock_skew_s: 0.0 }
        }
        Via::Ssh(destination) => remote::ask_site(destination, &names, args)?,
        Via::Manual => Asked { report: Err(by_hand(&names, known)), clock_skew_s: 0.0 },
    };
    let via = match &known.in_file.via {
        Via::Here => "here".to_string(),
        Via::Ssh(destination) => destination.clone(),
        Via::Manual => "manual".to_string(),
    };
    let Asked { report, clock_skew_s } = asked;
    let (hosts, error) = match report {
        Ok(mut hosts) => {
            if !has_ranks(known, &known.in_file.gateway.host) {
                soften(&mut hosts.differences, &known.in_file.gateway.host);
            }
            (Some(hosts), None)
        }
        Err(error) => (None, Some(error)),
    };
    Ok(Site { name, ranks, via, hosts, error, clock_skew_s })
}

/// A gateway on which no rank starts may differ from the hosts that have ranks.
fn soften(differences: &mut [Difference], gateway: &str) {
    for d in differences.iter_mut().filter(|d| d.host == gateway || d.than == gateway) {
        if !matches!(d.what, What::Version | What::SameHost) {
            d.severity = Severity::Warn;
        }
    }
}

/// What is said of a site to which no ssh leads.
fn by_hand(names: &[String], known: &Known) -> Finding {
    let hosts = match &known.hosts {
        Some(_) => names.join(","),
        None => "HOSTS".into(),
    };
    Finding::warn(
        "hosts",
        "it is started by hand (via = \"manual\"): nothing of it is known here",
        format!("run `eyrie check --hosts {hosts} PROGRAM` there"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_without_ranks_may_have_another_processor_but_no_other_eyrie() {
        let d = |host: &str, than: &str, what| Difference {
            severity: Severity::Refuse,
            what,
            host: host.into(),
            value: String::new(),
            than: than.into(),
            other_value: String::new(),
            text: String::new(),
        };
        let mut all = vec![
            d("gw", "a", What::Instructions),
            d("a", "gw", What::CpuVendor),
            d("gw", "a", What::Version),
            d("b", "a", What::Instructions),
        ];
        soften(&mut all, "gw");
        let severities: Vec<_> = all.iter().map(|d| d.severity).collect();
        use Severity::{Refuse, Warn};
        assert_eq!(severities, [Warn, Warn, Refuse, Refuse]);
    }
}
