//! The lines between sites: the gateway of each is started on its host as a trial, and each
//! connects to each other one. A gateway makes one call at a time and gets one at a time, so that
//! calls do not slow each other down. Each wait has a bound.

use super::report::{GatewayTried, LineTried, Site, Tried};
use crate::cmd::check::report::skew;
use crate::cmd::domains::Known;
use crate::cmd::gateway::{command, Ask, Gateway, Told};
use eyrie_controller::domains::file::{GatewayAt, Via};
use eyrie_wire::domains::LineKey;
use eyrie_wire::DomainId;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a gateway's host may take to be reached and to listen: two times ssh, and some.
const START_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a call may take: several addresses of a name, and the measurement.
const CALL_TIMEOUT: Duration = Duration::from_secs(45);

/// A key for each two domains: as in a job, no third one knows it.
struct Keys(Vec<Vec<LineKey>>);

impl Keys {
    fn new(domains: usize) -> Keys {
        let row = |first: usize| (0..first).map(|_| LineKey::new()).collect();
        Keys((0..domains).map(row).collect())
    }

    /// That of two different ones.
    fn of(&self, a: usize, b: usize) -> LineKey {
        self.0[a.max(b)][a.min(b)].clone()
    }

    /// Those that a domain has in common with the others.
    fn with(&self, domain: usize) -> Vec<(DomainId, LineKey)> {
        let others = (0..self.0.len()).filter(|other| *other != domain);
        others.map(|other| (id(other), self.of(domain, other))).collect()
    }
}

/// The number of a domain by its place in the file.
fn id(at: usize) -> DomainId {
    DomainId(at as u32)
}

/// Tries the gateways of those sites that have answered, and the lines between them.
pub fn try_all(known: &[Known], sites: &[Site]) -> Tried {
    let keys = Keys::new(known.len());
    let started = start_all(known, sites, &keys);
    let (gateways, mut running): (Vec<GatewayTried>, Vec<Option<Gateway>>) =
        started.into_iter().unzip();
    let steps = 1..known.len();
    let mut lines: Vec<LineTried> =
        steps.flat_map(|step| call_all(known, &keys, &gateways, &mut running, step)).collect();
    lines.sort_by_key(|line| (line.from, line.to));
    Tried { gateways, lines }
}

/// All gateways begin at the same time.
fn start_all(known: &[Known], sites: &[Site], keys: &Keys) -> Vec<(GatewayTried, Option<Gateway>)> {
    std::thread::scope(|scope| {
        let each = known.iter().zip(sites).enumerate();
        let started: Vec<_> = each
            .map(|(at, (known, site))| scope.spawn(move || start(known, site, keys.with(at))))
            .collect();
        started.into_iter().map(|started| started.join().expect("a panic ends us")).collect()
    })
}

/// Each gateway calls the one that comes so many steps after it, all at the same time.
fn call_all(
    known: &[Known],
    keys: &Keys,
    tried: &[GatewayTried],
    running: &mut [Option<Gateway>],
    step: usize,
) -> Vec<LineTried> {
    std::thread::scope(|scope| {
        let each = running.iter_mut().enumerate();
        let calls: Vec<_> = each
            .map(|(from, gateway)| {
                let to = (from + step) % known.len();
                let at = &known[to].in_file.gateway;
                let key = keys.of(from, to);
                scope.spawn(move || call(gateway, (id(from), at, key), tried, (from, to)))
            })
            .collect();
        calls.into_iter().map(|call| call.join().expect("a panic ends us")).collect()
    })
}

/// Starts the gateway of a site as a trial.
fn start(
    known: &Known,
    site: &Site,
    keys: Vec<(DomainId, LineKey)>,
) -> (GatewayTried, Option<Gateway>) {
    let GatewayAt { host, address, port } = known.in_file.gateway.clone();
    let mut tried = GatewayTried {
        domain: known.in_file.name.clone(),
        host,
        address,
        port,
        clock_skew_s: 0.0,
        error: None,
        is_known: site.runs_our_version(),
    };
    if !tried.is_known {
        return (tried, None);
    }
    let via = match &known.in_file.via {
        Via::Ssh(destination) => Some(destination.as_str()),
        Via::Here | Via::Manual => None,
    };
    let begun = command(via, &tried.host).and_then(|command| Ok(Gateway::start(command)?));
    let mut gateway = match begun {
        Ok(gateway) => gateway,
        Err(e) => {
            tried.error = Some(tried.not_started(&format!("{e:#}")));
            return (tried, None);
        }
    };
    let asked = now_ns();
    match gateway.ask(&Ask::Listen { port: tried.port, keys }, START_TIMEOUT) {
        Ok(Told::Listens(Ok(listening))) => {
            tried.clock_skew_s = skew(listening.clock, asked, now_ns());
            (tried, Some(gateway))
        }
        Ok(Told::Listens(Err(why))) => {
            tried.error = Some(tried.not_listening(&why));
            (tried, Some(gateway))
        }
        Ok(Told::Reached(_)) => {
            tried.error = Some(tried.not_started("it has answered something else"));
            (tried, None)
        }
        Err(why) => {
            tried.error = Some(tried.not_started(&why));
            (tried, None)
        }
    }
}

/// The gateway of one site calls that of another one. One that does not answer is asked no more: it
/// may answer later.
fn call(
    gateway: &mut Option<Gateway>,
    (own, at, key): (DomainId, &GatewayAt, LineKey),
    tried: &[GatewayTried],
    (from, to): (usize, usize),
) -> LineTried {
    let mut line = LineTried { from, to, reached: None, error: None };
    let caller = &tried[from];
    let called = &tried[to];
    let may_be_called = called.is_known && called.error.is_none();
    let Some(asked) = gateway.as_mut().filter(|_| may_be_called) else { return line };
    let ask = Ask::Reach { own, address: at.address.clone(), key };
    let why = match asked.ask(&ask, CALL_TIMEOUT) {
        Ok(Told::Reached(Ok(reached))) => {
            line.reached = Some(reached);
            return line;
        }
        Ok(Told::Reached(Err(unreached))) => {
            line.error = Some(caller.cannot_reach(called, &unreached));
            return line;
        }
        Ok(Told::Listens(_)) => "it has answered something else".to_string(),
        Err(why) => why,
    };
    line.error = Some(caller.lost(&why));
    *gateway = None;
    line
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
