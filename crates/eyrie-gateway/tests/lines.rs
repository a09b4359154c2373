//! Two domains in one process, each with a router and a gateway, over real sockets. The line
//! between them goes through a relay that the tests cut. Ranks are models that speak the protocol.

mod model;

use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_wire::domains::{DomainSays, Letter};
use eyrie_wire::{DomainId, Rank};
use model::{content, Domains, Receiver, Sender};

#[test]
fn small_and_large_messages_go_both_ways_and_are_acknowledged() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    let lens = [0, 8, 16 << 10, 100_000, 5, 3 << 20, 17 << 10, 1];
    for (from, to, source, destination) in [(home, cloud, 0, 2), (cloud, home, 3, 1)] {
        let mut sender = Sender::connect(from, Rank(source));
        let mut receiver = Receiver::connect(to, Rank(destination));
        for len in lens {
            sender.send(Rank(destination), len);
        }
        for (ssn, len) in (1..).zip(lens) {
            let (deliver, payload) = receiver.next();
            assert_eq!((deliver.source, deliver.ssn, payload.len()), (Rank(source), ssn, len));
            assert_eq!(payload, content(Rank(source), Rank(destination), ssn, len));
        }
        receiver.received();
        sender.await_acknowledged();
    }
}

#[test]
fn a_message_is_acknowledged_only_when_it_was_received() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    let mut sender = Sender::connect(home, Rank(0));
    let mut receiver = Receiver::connect(cloud, Rank(2));
    sender.send(Rank(2), 10);
    receiver.next();
    sender.ask();
    assert_eq!(sender.acknowledged(), 0, "it was not received yet");
    receiver.received();
    sender.await_acknowledged();
}

#[test]
fn nothing_is_lost_or_comes_twice_when_the_line_is_cut() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    let mut sender = Sender::connect(home, Rank(1));
    let mut receiver = Receiver::connect(cloud, Rank(3));
    let count = 300;
    let len = |ssn: u64| if ssn % 20 == 0 { 200_000 } else { (ssn as usize * 37) % 9000 };
    for ssn in 1..=count {
        sender.send(Rank(3), len(ssn));
        if ssn % 50 == 0 {
            domains.cut();
        }
        if ssn % 10 == 0 {
            for _ in 0..5 {
                receiver.check_next(Rank(1), len);
            }
            receiver.received();
        }
    }
    while receiver.rsn < count {
        receiver.check_next(Rank(1), len);
    }
    receiver.received();
    sender.await_acknowledged();
}

#[test]
fn letters_pass_and_the_line_is_known_to_be_there_or_not() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    home.await_event(|e| *e == RouterEvent::Line { domain: DomainId(1), up: true });
    cloud.await_event(|e| *e == RouterEvent::Line { domain: DomainId(0), up: true });
    let letter = |number| {
        let says = Some(DomainSays::Arrived { barrier: number as u32 });
        Letter { number, heard: 0, says }
    };
    let exchange = |number| {
        for (from, to, here, there) in [(home, cloud, 0, 1), (cloud, home, 1, 0)] {
            let domain = DomainId(there);
            from.gateway.command(RouterCommand::ToDomain { domain, letter: letter(number) });
            let domain = DomainId(here);
            let come = RouterEvent::FromDomain { domain, letter: letter(number) };
            to.await_event(|e| *e == come);
        }
    };
    exchange(1);
    domains.cut();
    home.await_event(|e| *e == RouterEvent::Line { domain: DomainId(1), up: false });
    cloud.await_event(|e| *e == RouterEvent::Line { domain: DomainId(0), up: false });
    home.await_event(|e| *e == RouterEvent::Line { domain: DomainId(1), up: true });
    cloud.await_event(|e| *e == RouterEvent::Line { domain: DomainId(0), up: true });
    exchange(2);
}
