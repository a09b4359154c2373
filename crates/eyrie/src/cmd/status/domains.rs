//! The domains of a job in words: a line for each, with the line to it, and one for ranks that go
//! from one to another.

use eyrie_interface::record::MovePhase;
use eyrie_interface::status::{
    DomainMoveStatus, DomainStatus, LeavingStatus, LineStatus, LineTraffic,
};
use eyrie_interface::Status;
use eyrie_units::{bytes, counted, time};
use std::collections::BTreeMap;
use std::time::Duration;

/// All lines about domains; none where the job has one.
pub fn lines(status: &Status) -> Vec<String> {
    let own = status.domain.iter().map(|name| own(name, status));
    // One that has come back has the name of the one that had ended.
    let is_back = |gone: &DomainStatus| {
        status.domains.iter().any(|domain| !domain.gone && domain.name == gone.name)
    };
    let others = status.domains.iter().filter(|domain| !domain.gone || !is_back(domain)).map(other);
    let domains = own.chain(others).map(|words| format!("domain      {words}"));
    let moves = status.domain_moves.iter().map(|of| format!("leaves      {}", moving(of)));
    let output = status.output.iter().map(|file| format!("output      of all ranks: in {file}"));
    domains.chain(moves).chain(output).collect()
}

/// This domain, and what its ranks do.
fn own(name: &str, status: &Status) -> String {
    let mut states = BTreeMap::<&str, u32>::new();
    for rank in &status.ranks {
        *states.entry(&rank.state).or_default() += 1;
    }
    let states: Vec<String> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
    let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
    format!("{name} ({}), this one{states}", counted(status.ranks.len() as u64, "rank"))
}

/// Another domain, the line to it, what goes over that, and what it has not confirmed.
fn other(domain: &DomainStatus) -> String {
    let DomainStatus { name, ranks, gateway, line, .. } = domain;
    if domain.gone {
        return format!("{name}: has ended, its ranks are in other domains");
    }
    let joins = domain.joins.then(|| "joins the job".to_string());
    let mut words: Vec<String> = joins.into_iter().collect();
    words.push(match line {
        None => format!("no line to {gateway} yet"),
        Some(LineStatus { up: true, seconds }) => format!("line up for {seconds:.1} s"),
        Some(LineStatus { seconds, .. }) => {
            format!("line to {gateway} broken for {seconds:.1} s")
        }
    });
    let is_up = line.as_ref().is_some_and(|line| line.up);
    if let Some(traffic) = domain.traffic.filter(|_| is_up) {
        words.extend(traffic_in_words(&traffic));
    }
    if domain.waiting_bytes > 0 {
        words.push(format!("{} to it wait at the gateway", bytes(domain.waiting_bytes)));
    }
    match domain.letters {
        0 => {}
        1 => words.push("1 letter of its controller not confirmed".into()),
        many => words.push(format!("{many} letters of its controller not confirmed")),
    }
    words.extend(domain.finished.map(|code| format!("finished with code {code}")));
    format!("{name} ({}): {}", counted(*ranks, "rank"), words.join(", "))
}

fn traffic_in_words(traffic: &LineTraffic) -> Vec<String> {
    let seconds = |s: f64| time(Duration::from_secs_f64(s.max(0.0)));
    let round_trip = traffic.round_trip_s.map(|s| format!("round trip {}", seconds(s)));
    let LineTraffic { last_second_bytes, most_in_a_second_bytes, .. } = *traffic;
    let rate = format!(
        "{}/s from there (at most {}/s)",
        bytes(last_second_bytes),
        bytes(most_in_a_second_bytes)
    );
    round_trip.into_iter().chain([rate]).collect()
}

fn moving(of: &DomainMoveStatus) -> String {
    let DomainMoveStatus { from, to, leaving } = of;
    let way = format!("{from} to {to}");
    let Some(LeavingStatus { phase, round, left, left_bytes }) = leaving else { return way };
    let images = || match left {
        0 => "all images are there".to_string(),
        left => format!(
            "images of {}, at most {}, are to go",
            counted(*left, "rank"),
            bytes(*left_bytes)
        ),
    };
    let stage = match (phase, round) {
        (MovePhase::Requested, 0) => "requested: gateways get ready".to_string(),
        (MovePhase::Requested, round) => format!("round {round}, ranks compute: {}", images()),
        (MovePhase::Flushed, _) => format!("flushed, ranks stand still: {}", images()),
        (MovePhase::Imaged, _) => "imaged: the ranks end here".into(),
        (MovePhase::Moved, _) => "moved: the ranks start there".into(),
        (MovePhase::Resumed, _) => "resumed".into(),
        (MovePhase::Cancelled, _) => "cancelled".into(),
    };
    format!("{way}: {stage}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cloud() -> DomainStatus {
        DomainStatus {
            name: "cloud".into(),
            ranks: 4,
            gateway: "gw:7411".into(),
            line: Some(LineStatus { up: true, seconds: 12.34 }),
            traffic: Some(LineTraffic {
                round_trip_s: Some(0.0125),
                received_bytes: 1 << 30,
                last_second_bytes: 3 << 20,
                most_in_a_second_bytes: 110 << 20,
            }),
            waiting_bytes: 2048,
            letters: 1,
            finished: None,
            gone: false,
            joins: false,
        }
    }

    #[test]
    fn a_domain_is_a_line_with_what_goes_over_the_line_to_it() {
        assert_eq!(
            other(&cloud()),
            "cloud (4 ranks): line up for 12.3 s, round trip 12.5 ms, 3 MiB/s from there (at most \
             110 MiB/s), 2 KiB to it wait at the gateway, 1 letter of its controller not confirmed"
        );
        let line = Some(LineStatus { up: false, seconds: 4.5 });
        let broken = DomainStatus { line, letters: 0, finished: Some(3), ..cloud() };
        assert_eq!(
            other(&broken),
            "cloud (4 ranks): line to gw:7411 broken for 4.5 s, 2 KiB to it wait at the gateway, \
             finished with code 3"
        );
        let gone = DomainStatus { gone: true, ..cloud() };
        assert_eq!(other(&gone), "cloud: has ended, its ranks are in other domains");
        let none = DomainStatus { line: None, waiting_bytes: 0, letters: 0, ..cloud() };
        assert_eq!(other(&none), "cloud (4 ranks): no line to gw:7411 yet");
    }

    #[test]
    fn a_move_says_what_remains() {
        let of = |leaving| {
            moving(&DomainMoveStatus { from: "home".into(), to: "cloud".into(), leaving })
        };
        assert_eq!(of(None), "home to cloud");
        let leaving = |phase, round, left| {
            of(Some(LeavingStatus { phase, round, left, left_bytes: 3 << 20 }))
        };
        assert_eq!(
            leaving(MovePhase::Requested, 2, 1),
            "home to cloud: round 2, ranks compute: images of 1 rank, at most 3 MiB, are to go"
        );
        assert_eq!(
            leaving(MovePhase::Flushed, 0, 0),
            "home to cloud: flushed, ranks stand still: all images are there"
        );
        assert_eq!(leaving(MovePhase::Moved, 0, 0), "home to cloud: moved: the ranks start there");
    }
}
