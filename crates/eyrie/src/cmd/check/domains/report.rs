//! What was found out of the sites and of the lines between them, for people and for programs. No
//! I/O.

use crate::cmd::check::report::{line_of, wrong_clock, HostReport, Several};
use eyrie_gateway::trial::{Fault, Reached, Unreached};
use eyrie_host::{Difference, Finding, Level};
use serde::Serialize;
use std::time::Duration;

/// All of it.
#[derive(Serialize)]
pub struct Report {
    pub file: String,
    pub sites: Vec<Site>,
    #[serde(flatten)]
    pub tried: Tried,
    /// Of sites.
    pub differences: Vec<Difference>,
}

/// A site.
#[derive(Serialize)]
pub struct Site {
    /// The name of its domain.
    pub name: String,
    /// How many ranks it would have.
    pub ranks: usize,
    /// An ssh destination, `here` or `manual`.
    pub via: String,
    /// What its login node says of itself and of its hosts.
    pub hosts: Option<Several>,
    /// Why nothing is known of them.
    pub error: Option<Finding>,
    /// By how much the clock of its login node is wrong at least, in seconds: ahead is positive.
    pub clock_skew_s: f64,
}

impl Site {
    /// The first of its hosts that has answered, by its name.
    pub fn first(&self) -> Option<(&str, &HostReport)> {
        let answered = self.hosts.iter().flat_map(|hosts| &hosts.hosts);
        answered.filter_map(|a| Some((a.host.as_str(), a.report.as_ref()?))).next()
    }

    /// Whether its Eyrie can be asked for more than for its hosts.
    pub fn runs_our_version(&self) -> bool {
        let here = self.hosts.as_ref().map(|hosts| &hosts.here);
        here.is_some_and(|here| here.facts.version == env!("CARGO_PKG_VERSION"))
    }
}

/// What was tried of gateways.
#[derive(Serialize)]
pub struct Tried {
    pub gateways: Vec<GatewayTried>,
    /// From each to each other one.
    pub lines: Vec<LineTried>,
}

/// The gateway of a domain.
#[derive(Clone, Serialize)]
pub struct GatewayTried {
    pub domain: String,
    /// As its site calls it.
    pub host: String,
    /// By which others reach it.
    pub address: String,
    /// At which it listens.
    pub port: u16,
    /// Once it listened: by how much its clock is wrong at least, in seconds: ahead is positive.
    pub clock_skew_s: f64,
    pub error: Option<Finding>,
    /// It was tried: its site has answered.
    pub is_known: bool,
}

/// The way from a gateway to another one, by their numbers in the file.
#[derive(Serialize)]
pub struct LineTried {
    pub from: usize,
    pub to: usize,
    /// `None` and no error: it was not tried.
    pub reached: Option<Reached>,
    pub error: Option<Finding>,
}

impl GatewayTried {
    fn finding(&self, text: String, remedy: String) -> Finding {
        Finding::fail(&format!("{}: gateway", self.domain), text, remedy)
    }

    /// No process of it runs on its host.
    pub fn not_started(&self, why: &str) -> Finding {
        let GatewayTried { host, .. } = self;
        self.finding(
            format!("it cannot be started on {host}: {why}"),
            format!("make `ssh -o BatchMode=yes {host} true` work at that site"),
        )
    }

    /// Its process is there no more, or does not answer.
    pub fn lost(&self, why: &str) -> Finding {
        let text = format!("it was tried on {}, and is lost: {why}", self.host);
        self.finding(text, "check again".into())
    }

    /// Its port cannot be had.
    pub fn not_listening(&self, why: &str) -> Finding {
        let GatewayTried { host, port, .. } = self;
        self.finding(
            format!("on {host} {why}"),
            format!(
                "end what has port {port} there (`ss -ltnp`; another job's gateway, perhaps), or \
                 write another port in gateway.address"
            ),
        )
    }

    /// It does not reach another one.
    pub fn cannot_reach(&self, other: &GatewayTried, unreached: &Unreached) -> Finding {
        let Unreached { fault, from } = unreached;
        let from = from.map_or("its address".to_string(), |from| from.to_string());
        let own = &self.host;
        let at = &other.address;
        let leads = format!("{} at port {}", other.host, other.port);
        let open = || {
            format!(
                "have the firewalls between let TCP from {from} to {at}, and have that lead to \
                 {leads}"
            )
        };
        let (text, remedy) = match fault {
            Fault::NoAddress(why) => (
                format!("{own} knows no address of {at}: {why}"),
                format!("write an address of {} that other sites know", other.host),
            ),
            Fault::Silent => (format!("{own} ({from}) gets no answer from {at}"), open()),
            Fault::Refused => {
                (format!("{own} ({from}) is refused at {at}, and {leads} listens"), open())
            }
            Fault::NoWay(why) => (
                format!("{own} ({from}) has no way to {at}: {why}"),
                format!("write an address that is reached from there; it must lead to {leads}"),
            ),
            Fault::Other(why) => (
                format!("what answers {own} at {at} is not {leads}: {why}"),
                format!("write the address that leads to {leads}"),
            ),
            Fault::Broken(why) => (
                format!("the connection from {own} ({from}) to {at} broke: {why}"),
                "look for a firewall that cuts long connections or large packets (MTU)".into(),
            ),
        };
        Finding::fail(&format!("{} to {}", self.domain, other.domain), text, remedy)
    }
}

impl Report {
    /// All of it, a line each.
    pub fn lines(&self) -> Vec<Finding> {
        let all: usize = self.sites.iter().map(|site| site.ranks).sum();
        let share = |site: &Site| format!("{} {}", site.name, site.ranks);
        let each: Vec<_> = self.sites.iter().map(share).collect();
        let text = format!("{}: {}", eyrie_units::counted(all as u64, "rank"), each.join(", "));
        let mut lines = vec![Finding::ok(&self.file, text)];
        for site in &self.sites {
            let of_site = |finding: Finding| {
                let subject = format!("{}: {}", site.name, finding.subject);
                Finding { subject, ..finding }
            };
            let hosts = site.hosts.iter().flat_map(|hosts| hosts.lines("login node"));
            let clock = wrong_clock("login node", site.clock_skew_s);
            lines.extend(hosts.chain(site.error.clone()).chain(clock).map(of_site));
        }
        for gateway in &self.tried.gateways {
            let subject = format!("{}: {}", gateway.domain, gateway.host);
            lines.extend(gateway.error.clone());
            lines.extend(wrong_clock(&subject, gateway.clock_skew_s));
        }
        lines.extend(self.tried.lines.iter().map(|line| self.line(line)));
        lines.extend(self.differences.iter().map(line_of));
        lines.extend(self.are_alike());
        let are_reached = self.tried.lines.iter().all(|line| line.reached.is_some());
        if are_reached && lines.iter().all(|line| line.level != Level::Fail) {
            let text = format!("a job can run over these {}", self.sites.len());
            lines.push(Finding::ok("domains", text));
        }
        lines
    }

    /// What is said where the sites do not differ.
    fn are_alike(&self) -> Option<Finding> {
        let answered: Vec<(&str, &HostReport)> =
            self.sites.iter().filter_map(Site::first).collect();
        let (_, first) = answered.first().filter(|_| answered.len() > 1)?;
        let mpi = first.mpi.as_ref().map_or(String::new(), |mpi| format!(", {}", mpi.name));
        let text = format!(
            "the first hosts of {} have the same program, libraries, kernel and processor (Eyrie \
             {}{mpi}): ranks can go from each site to each other",
            answered.len(),
            first.facts.version
        );
        self.differences.is_empty().then(|| Finding::ok("sites", text))
    }

    fn line(&self, line: &LineTried) -> Finding {
        let from = &self.tried.gateways[line.from];
        let to = &self.tried.gateways[line.to];
        let subject = format!("{} to {}", from.domain, to.domain);
        match (&line.error, line.reached) {
            (Some(error), _) => error.clone(),
            (None, Some(Reached { round_trip_s, bytes_per_s })) => {
                let round_trip = eyrie_units::time(Duration::from_secs_f64(round_trip_s.max(0.0)));
                let rate = eyrie_units::bytes(bytes_per_s as u64);
                let text = format!(
                    "{} reaches {}, round trip {round_trip}, {rate}/s from there over one \
                     connection",
                    from.host, to.address
                );
                Finding::ok(&subject, text)
            }
            (None, None) => {
                let named = |gateway: &GatewayTried| !gateway.is_known || gateway.error.is_some();
                let why = [to, from].into_iter().find(|gateway| named(gateway)).unwrap_or(to);
                let text = format!("not tried: see {}", why.domain);
                Finding::warn(&subject, text, "check again when that is mended")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn gateway(domain: &str, host: &str, address: &str) -> GatewayTried {
        GatewayTried {
            domain: domain.into(),
            host: host.into(),
            address: address.into(),
            port: 7411,
            clock_skew_s: 0.0,
            error: None,
            is_known: true,
        }
    }

    /// A site of which nothing is known.
    fn site(name: &str, ranks: usize) -> Site {
        let name = name.to_string();
        let via = "here".to_string();
        Site { name, ranks, via, hosts: None, error: None, clock_skew_s: 0.0 }
    }

    fn report() -> Report {
        let gateways = vec![gateway("home", "gw", "a:7411"), gateway("cloud", "head", "b:7000")];
        let reached = Some(Reached { round_trip_s: 0.0125, bytes_per_s: 2.5e8 });
        let lines = vec![
            LineTried { from: 0, to: 1, reached, error: None },
            LineTried { from: 1, to: 0, reached, error: None },
        ];
        Report {
            file: "sites.toml".into(),
            sites: vec![site("home", 3), site("cloud", 1)],
            tried: Tried { gateways, lines },
            differences: vec![],
        }
    }

    fn shown(report: &Report) -> Vec<String> {
        report.lines().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn lines_that_are_well_have_their_figures() {
        let lines = shown(&report());
        assert_eq!(lines[0], "ok    sites.toml: 4 ranks: home 3, cloud 1");
        assert_eq!(
            lines[1],
            "ok    home to cloud: gw reaches b:7000, round trip 12.5 ms, 238 MiB/s from there over \
             one connection"
        );
        assert!(lines[3].starts_with("ok    domains: a job can run"), "{lines:?}");
    }

    #[test]
    fn a_blocked_direction_is_named_with_who_must_let_what_through() {
        let mut report = report();
        let from: IpAddr = "203.0.113.7".parse().unwrap();
        let said = |fault| {
            let [home, cloud] = &report.tried.gateways[..] else { panic!("two") };
            home.cannot_reach(cloud, &Unreached { fault, from: Some(from) }).to_string()
        };
        let silent = said(Fault::Silent);
        assert_eq!(
            silent,
            "fail  home to cloud: gw (203.0.113.7) gets no answer from b:7000; have the firewalls \
             between let TCP from 203.0.113.7 to b:7000, and have that lead to head at port 7411"
        );
        for (fault, words) in [
            (
                Fault::Refused,
                "gw (203.0.113.7) is refused at b:7000, and head at port 7411 listens",
            ),
            (Fault::NoAddress("x".into()), "gw knows no address of b:7000: x; write an address of"),
            (Fault::NoWay("x".into()), "has no way to b:7000: x; write an address that is reached"),
            (Fault::Other("x".into()), "what answers gw at b:7000 is not head at port 7411: x;"),
            (Fault::Broken("x".into()), "to b:7000 broke: x; look for a firewall"),
        ] {
            let line = said(fault);
            assert!(line.contains(words), "{line}\nhas not\n{words}");
        }
        report.sites[1].clock_skew_s = -90.0;
        let late = "warn  cloud: login node: clock: it is at least 90.0 s behind; set it";
        assert!(shown(&report)[1].starts_with(late), "{:?}", shown(&report));
        report.sites[1].clock_skew_s = 0.0;
        report.tried.gateways[1].error =
            Some(report.tried.gateways[1].not_listening("port 7411 is taken"));
        report.tried.lines[0].reached = None;
        let lines = shown(&report);
        assert!(lines[1].starts_with("fail  cloud: gateway: on head port 7411 is taken; end what"));
        assert!(lines[2].starts_with("warn  home to cloud: not tried: see cloud; "), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("a job can run")));
    }
}
