//! Round trips and rates between hosts, measured over TCP, each two of them once: hosts that are
//! nearer to each other than to others are taken to be at one switch. On each host a process
//! listens and calls others, as `eyrie check --domains` has gateways do; it ends with this one.

use super::found::{Found, Sureness};
use crate::cmd::gateway::{Ask, Gateway, Listening, Told, TRIAL};
use eyrie_controller::runtime::{is_here, Launcher};
use eyrie_gateway::trial::{Fault, Reached};
use eyrie_host::shell;
use eyrie_topology::guess::{self, By, Groups};
use eyrie_units::{bytes, nanoseconds};
use eyrie_wire::domains::LineKey;
use eyrie_wire::DomainId;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Hosts of which each two are measured: with fewer there are no groups, with more it takes long.
const FEWEST: usize = 4;
const MOST: usize = 32;
/// How long a host may take to be reached and to listen, and a call; and all of it.
const LISTENS_WITHIN: Duration = Duration::from_secs(8);
const CALLS_WITHIN: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(30);
/// How long ssh may take to reach a host, in seconds.
const CONNECT_TIMEOUT_S: u32 = 5;

/// How processes are started on hosts.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    pub launcher: &'a Launcher,
    /// The eyrie command there.
    pub eyrie: &'a Path,
}

/// The network of these hosts, if they fall into groups. `named`: the same without users. `notes`:
/// why it is not known.
pub fn look(
    hosts: &[&str],
    named: &[&str],
    way: Way<'_>,
    notes: &mut Vec<String>,
) -> Option<Found> {
    let Launcher::Ssh(ssh) = way.launcher else {
        notes.push("nothing is measured between hosts: that goes over ssh only".into());
        return None;
    };
    if !(FEWEST..=MOST).contains(&hosts.len()) {
        notes.push(format!(
            "nothing is measured between hosts: that is done for {FEWEST} to {MOST} hosts, not {}",
            hosts.len()
        ));
        return None;
    }
    let measured = match Measured::between(hosts, &Calls { ssh, eyrie: way.eyrie.as_os_str() }) {
        Ok(measured) => measured,
        Err(why) => {
            notes.push(format!("nothing is measured between hosts: {why}"));
            return None;
        }
    };
    let between = |a: usize, b: usize| measured.ways[a.max(b)][a.min(b)];
    let Some(groups) = guess::by_ways(named, &between) else {
        notes.push(format!(
            "measured between hosts: {}, so no groups are seen",
            measured.in_words()
        ));
        return None;
    };
    let source = format!("what was measured between hosts: {}", in_words(&groups));
    Some(Found::conf(groups.conf, source, Sureness::Measured))
}

fn in_words(groups: &Groups) -> String {
    let Groups { within, between, by, .. } = *groups;
    let [within, between] = match by {
        By::RoundTrip => [within, between].map(|s| nanoseconds(s * 1e9)),
        By::Rate => [within, between].map(|rate| format!("{}/s", bytes(rate as u64))),
    };
    let (most, least) = match by {
        By::RoundTrip => ("round trips of at most", "of at least"),
        By::Rate => ("at least", "at most"),
    };
    format!(
        "{} groups, {most} {within} within them and {least} {between} between them ({:.1}x)",
        groups.groups.len(),
        groups.gap()
    )
}

/// How processes are started on hosts.
struct Calls<'a> {
    ssh: &'a OsStr,
    eyrie: &'a OsStr,
}

impl Calls<'_> {
    fn command(&self, host: &str) -> Command {
        let words = [self.eyrie].into_iter().chain(TRIAL.map(OsStr::new));
        if is_here(host) {
            let mut command = Command::new(self.eyrie);
            command.args(TRIAL);
            return command;
        }
        let mut line = OsString::from("exec ");
        line.push(shell::words(words));
        let mut command = shell::ssh(self.ssh, CONNECT_TIMEOUT_S, host);
        command.arg(line);
        command
    }
}

/// What was measured: of each host the ways to those before it.
struct Measured {
    ways: Vec<Vec<guess::Way>>,
}

impl Measured {
    /// # Errors
    /// Which host has not answered, or what cannot be measured.
    fn between(hosts: &[&str], calls: &Calls<'_>) -> Result<Measured, String> {
        let until = Instant::now() + LONGEST;
        let key = LineKey::new();
        let keys: Vec<(DomainId, LineKey)> =
            (0..hosts.len()).map(|n| (id(n), key.clone())).collect();
        let (mut running, listening) = start_all(hosts, calls, &keys)?;
        let at = addresses(hosts, &listening)?;
        let unknown = guess::Way { round_trip_s: f64::NAN, bytes_per_s: f64::NAN };
        let mut ways: Vec<Vec<guess::Way>> = (0..hosts.len()).map(|n| vec![unknown; n]).collect();
        for round in rounds(hosts.len()) {
            if Instant::now() > until {
                return Err(format!("it takes longer than {}", eyrie_units::written(LONGEST)));
            }
            for (a, b, way) in call_all(&mut running, &round, &at, &key) {
                let Reached { round_trip_s, bytes_per_s } =
                    way.map_err(|why| format!("{} does not reach {}: {why}", hosts[a], hosts[b]))?;
                ways[a.max(b)][a.min(b)] = guess::Way { round_trip_s, bytes_per_s };
            }
        }
        Ok(Measured { ways })
    }

    fn in_words(&self) -> String {
        let all = || self.ways.iter().flatten();
        let ends = |of: fn(&guess::Way) -> f64| {
            all().map(of).fold((f64::MAX, 0.0f64), |(low, high), x| (low.min(x), high.max(x)))
        };
        let (soon, late) = ends(|way| way.round_trip_s);
        let (slow, fast) = ends(|way| way.bytes_per_s);
        format!(
            "round trips of {} to {} and {}/s to {}/s",
            nanoseconds(soon * 1e9),
            nanoseconds(late * 1e9),
            bytes(slow as u64),
            bytes(fast as u64)
        )
    }
}

fn id(host: usize) -> DomainId {
    DomainId(host as u32)
}

/// All hosts listen.
fn start_all(
    hosts: &[&str],
    calls: &Calls<'_>,
    keys: &[(DomainId, LineKey)],
) -> Result<(Vec<Gateway>, Vec<Listening>), String> {
    let start = |host: &str| {
        let mut gateway = Gateway::start(calls.command(host)).map_err(|e| e.to_string())?;
        let asked = Ask::Listen { port: 0, keys: keys.to_vec() };
        match gateway.ask(&asked, LISTENS_WITHIN)? {
            Told::Listens(listening) => Ok((gateway, listening?)),
            Told::Reached(_) => Err("it answers something else".to_string()),
        }
    };
    let started: Vec<Result<_, String>> = std::thread::scope(|scope| {
        let all: Vec<_> = hosts.iter().map(|host| scope.spawn(move || start(host))).collect();
        all.into_iter().map(|one| one.join().expect("a panic ends us")).collect()
    });
    let named = hosts.iter().zip(started);
    named.map(|(host, started)| started.map_err(|why| format!("{host}: {why}"))).collect()
}

/// The address by which others reach each host: the one by which ssh did. That of this host is the
/// one from which another was reached.
fn addresses(hosts: &[&str], listening: &[Listening]) -> Result<Vec<SocketAddr>, String> {
    let here = listening.iter().find_map(|of| of.called.map(|(from, _)| from));
    let address = |(host, of): (&&str, &Listening)| {
        let ip: Option<IpAddr> = of.called.map(|(_, to)| to).or(here);
        let ip = ip.ok_or_else(|| format!("no address is known of {host}"))?;
        Ok(SocketAddr::new(ip, of.port))
    };
    hosts.iter().zip(listening).map(address).collect()
}

/// Rounds in which each two meet once; those of a round are different hosts (the circle method).
fn rounds(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    let places = hosts + hosts % 2;
    let last = places.saturating_sub(1);
    let round = |n: usize| {
        let mut pairs = vec![(last, n)];
        pairs.extend((1..places / 2).map(|k| ((n + k) % last, (n + last - k) % last)));
        pairs.retain(|(a, b)| *a < hosts && *b < hosts);
        pairs
    };
    (0..last).map(round).collect()
}

type Called = (usize, usize, Result<Reached, String>);

/// The first of each pair calls the second one, all at the same time.
fn call_all(
    running: &mut [Gateway],
    round: &[(usize, usize)],
    at: &[SocketAddr],
    key: &LineKey,
) -> Vec<Called> {
    let call = |gateway: &mut Gateway, a: usize, b: usize| {
        let asked = Ask::Reach { own: id(a), address: at[b].to_string(), key: key.clone() };
        match gateway.ask(&asked, CALLS_WITHIN)? {
            Told::Reached(reached) => reached.map_err(|unreached| in_short(unreached.fault)),
            Told::Listens(_) => Err("it answers something else".to_string()),
        }
    };
    let call = &call;
    std::thread::scope(|scope| {
        let mut calls = Vec::new();
        for (n, gateway) in running.iter_mut().enumerate() {
            if let Some((a, b)) = round.iter().copied().find(|(a, _)| *a == n) {
                calls.push(scope.spawn(move || (a, b, call(gateway, a, b))));
            }
        }
        calls.into_iter().map(|one| one.join().expect("a panic ends us")).collect()
    })
}

fn in_short(fault: Fault) -> String {
    match fault {
        Fault::Silent => "nothing answers".into(),
        Fault::Refused => "it is refused".into(),
        Fault::NoAddress(why) | Fault::NoWay(why) | Fault::Other(why) | Fault::Broken(why) => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_two_meet_once_and_a_host_is_once_in_a_round() {
        for hosts in 0..12 {
            let mut met = BTreeSet::new();
            for round in rounds(hosts) {
                let all: BTreeSet<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(all.len(), 2 * round.len(), "{hosts}: {round:?}");
                met.extend(round.iter().map(|(a, b)| (*a.min(b), *a.max(b))));
            }
            assert_eq!(met.len(), hosts * hosts.saturating_sub(1) / 2, "{hosts}");
        }
    }

    #[test]
    fn the_address_of_this_host_is_the_one_that_others_were_called_from() {
        let called = |from: &str, to: &str| Some((from.parse().unwrap(), to.parse().unwrap()));
        let other = Listening { clock: 0, port: 7, called: called("10.0.0.1", "10.0.0.2") };
        let here = Listening { clock: 0, port: 9, called: None };
        let at = addresses(&["here", "b"], &[here, other]).unwrap();
        let at: Vec<String> = at.iter().map(ToString::to_string).collect();
        assert_eq!(at, ["10.0.0.1:9", "10.0.0.2:7"]);
        let none = Listening { clock: 0, port: 9, called: None };
        assert!(addresses(&["a"], &[none]).unwrap_err().contains("no address is known of a"));
    }
}
