//! What a gateway tells of its lines when it is asked for figures: two domains in one process, over
//! real sockets.

mod model;

use eyrie_router::{LineFigures, RouterCommand, RouterEvent};
use eyrie_wire::{DomainId, Rank};
use model::{Domains, Receiver, Sender, Site, PATIENCE};
use std::time::{Duration, Instant};

/// The figures of the one line of a gateway, and the bytes that it holds for a rank.
fn figures(site: &Site, rank: Rank) -> (LineFigures, u64) {
    site.gateway.command(RouterCommand::Stats);
    // They come in this order: who waits for the second has both.
    let line = site.find_event(|event| match event {
        RouterEvent::Lines(lines) => Some(lines[0]),
        _ => None,
    });
    let held = site.find_event(|event| match event {
        RouterEvent::Stats(stats) => Some(stats.log_bytes[rank.index()]),
        _ => None,
    });
    (line, held)
}

fn await_true(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn round_trip_bytes_that_come_and_bytes_that_wait_are_told() {
    const LEN: usize = 300_000;
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    for (site, other) in [(home, 1), (cloud, 0)] {
        let domain = DomainId(other);
        site.await_event(|event| *event == RouterEvent::Line { domain, up: true });
        await_true("a round trip", || figures(site, Rank(0)).0.round_trip.is_some());
        assert_eq!(figures(site, Rank(0)).0.domain, domain);
    }
    let mut sender = Sender::connect(home, Rank(0));
    let mut receiver = Receiver::connect(cloud, Rank(2));
    sender.send(Rank(2), LEN);
    // The receiver has not said yet that it has it.
    await_true("bytes that come", || figures(cloud, Rank(0)).0.received >= LEN as u64);
    assert!(figures(home, Rank(2)).1 >= LEN as u64, "the gateway keeps it");
    receiver.check_next(Rank(0), |_| LEN);
    receiver.received();
    sender.await_acknowledged();
    await_true("nothing that waits", || figures(home, Rank(2)).1 == 0);
    await_true("the busiest second", || figures(cloud, Rank(0)).0.most_in_a_second > 0);
}
