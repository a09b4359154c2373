//! Two domains in one process, each with a router and a gateway, over real sockets. The line
//! between them goes through a relay that the tests cut. Ranks are models that speak the protocol.

mod model;

use eyrie_router::trunk::{parse, put_frame, put_word, Word};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_transport::handshake::{self, HandshakeError};
use eyrie_transport::Stream;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::data::{put_plain, Header, Resume, StreamKind};
use eyrie_wire::domains::{DomainSays, Letter, LineKey};
use eyrie_wire::role_address::{Addr, Security};
use eyrie_wire::{DomainId, Incarnation, Rank, RankInstance};
use model::{content, Domains, Receiver, Sender, PATIENCE};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

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
    assert_eq!(sender.ask(), 0, "it was not received yet");
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
fn nothing_is_lost_or_comes_twice_when_gateways_are_lost() {
    let mut domains = Domains::start();
    let mut sender = Sender::connect(&domains.sites[0], Rank(1));
    let mut receiver = Receiver::connect(&domains.sites[1], Rank(3));
    let count = 200;
    let len = |ssn: u64| if ssn % 20 == 0 { 100_000 } else { (ssn as usize * 37) % 900 };
    for ssn in 1..=count {
        sender.send(Rank(3), len(ssn));
        if ssn % 10 == 0 {
            for _ in 0..5 {
                receiver.check_next(Rank(1), len);
            }
            receiver.received();
        }
        match ssn {
            40 | 150 => domains.lose_gateway(1),
            80 | 120 => {
                domains.lose_gateway(0);
                sender.connect_again(&domains.sites[0]);
            }
            _ => {}
        }
    }
    while receiver.rsn < count {
        receiver.check_next(Rank(1), len);
    }
    receiver.received();
    sender.await_acknowledged();
}

/// Bytes, and what comes back for them until the connection ends.
fn answer_to(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may be closed before all is written.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    let reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(end.as_ref().is_err_and(reset) || end.is_ok(), "{end:?}");
    answer
}

fn preamble(kind: u32, from: u32) -> Vec<u8> {
    [&b"EYRIELIN"[..], &kind.to_le_bytes(), &from.to_le_bytes()].concat()
}

/// A connection for messages or letters of this domain, with this key.
fn call(
    port: u16,
    kind: u32,
    from: u32,
    key: &Secret,
    claim: &Claim,
) -> Result<Stream, HandshakeError> {
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let addr = Addr::Tcp { at, security: Security::Encrypted };
    let mut stream = Stream::connect(&addr, PATIENCE).unwrap();
    stream.write_all(&preamble(kind, from)).unwrap();
    handshake::connect(&mut stream, key, claim).map(|()| stream)
}

#[test]
fn strangers_get_no_answer_and_nothing_else_suffers() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    let port = cloud.gateway.port();
    // Those that only wait are ended after some seconds.
    let strangers = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        preamble(1, 1),
        preamble(2, 1),
        preamble(3, 0),
        preamble(1, 7),
        [preamble(1, 0), vec![7; 300]].concat(),
        [preamble(2, 0), vec![7; 300]].concat(),
        preamble(1, 0),
        preamble(2, 0),
        vec![],
    ];
    std::thread::scope(|scope| {
        for bytes in &strangers {
            scope.spawn(move || assert_eq!(answer_to(port, bytes), [], "{bytes:?}"));
        }
    });
    // More than are held at a time.
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(("127.0.0.1", port))).collect();
    let mut sender = Sender::connect(home, Rank(0));
    let mut receiver = Receiver::connect(cloud, Rank(2));
    domains.cut();
    sender.send(Rank(2), 20_000);
    receiver.check_next(Rank(0), |_| 20_000);
    drop(silent);
}

#[test]
fn only_the_right_key_opens_a_line_and_only_for_what_it_is_for() {
    let domains = Domains::start();
    let port = domains.sites[1].gateway.port();
    let key = domains.key.secret();
    let claim = |rank, incarnation, stream| Claim::Rank {
        instance: RankInstance { rank: Rank(rank), incarnation: Incarnation(incarnation) },
        stream,
    };
    let letters = |from| Claim::Letters { from: DomainId(from) };
    let wrong = LineKey::new().secret();
    for (kind, claim) in [(1, &Claim::Trunk), (2, &letters(0))] {
        let silent = call(port, kind, 0, &wrong, claim);
        assert!(matches!(silent, Err(HandshakeError::Silent | HandshakeError::Io(_))), "{claim:?}");
    }
    for claim in [
        claim(0, 1, StreamKind::Delivery),
        claim(2, 1, StreamKind::Delivery),
        claim(0, 1, StreamKind::Send),
        letters(0),
    ] {
        let refused = call(port, 1, 0, &key, &claim);
        assert!(matches!(refused, Err(HandshakeError::Refused(_))), "{claim:?}");
    }
    for claim in [&Claim::Trunk, &letters(1)] {
        assert!(call(port, 2, 0, &key, claim).is_err(), "{claim:?} is not for letters");
    }
    assert!(call(port, 1, 0, &key, &Claim::Trunk).is_ok());
    assert!(call(port, 2, 0, &key, &letters(0)).is_ok());
}

#[test]
fn a_trunk_is_for_the_ranks_of_its_domain_and_only_to_receive() {
    let domains = Domains::start();
    let port = domains.sites[1].gateway.port();
    let resume = Header::Resume(Resume { rsn: 0, clock: 0 });
    let message = Header::Determinants;
    let frame = |rank, header: &Header| {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, Rank(rank), |out| put_plain(out, header, &[]));
        bytes
    };
    let word = |word| {
        let mut bytes = Vec::new();
        put_word(&mut bytes, Rank(0), word);
        bytes
    };
    // What is said on a trunk of the domain of rank 0, and whether it ends the trunk.
    for (bytes, ends) in [
        (frame(2, &resume), true),
        (frame(13, &resume), true),
        (frame(99, &resume), true),
        (vec![0xff; 8], true),
        (word(Word::Closed), true),
        (word(Word::Stop), false),
        (frame(0, &message), false),
        (frame(0, &resume), false),
    ] {
        let mut trunk = call(port, 1, 0, &domains.key.secret(), &Claim::Trunk).unwrap();
        trunk.set_timeout(Some(PATIENCE)).unwrap();
        trunk.write_all(&bytes).unwrap();
        // The answer to it, or the end, comes before that to a stream that may begin.
        let _ = trunk.write_all(&frame(1, &resume));
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        let first = loop {
            match trunk.read(&mut part) {
                Ok(n) if n > 0 => answer.extend_from_slice(&part[..n]),
                _ => break None,
            }
            let mut rest = &answer[..];
            let mut begun = None;
            while let Some((rank, _, len)) = parse(rest).unwrap() {
                begun = begun.or((rank == Rank(1)).then_some(rank));
                rest = &rest[len..];
            }
            if begun.is_some() {
                break begun;
            }
        };
        assert_eq!(first.is_none(), ends, "{bytes:?}");
    }
}

#[test]
fn a_trunk_ends_when_the_ranks_of_its_domain_have_gone() {
    let mut domains = Domains::start();
    let port = domains.sites[1].gateway.port();
    let mut trunk = call(port, 1, 0, &domains.key.secret(), &Claim::Trunk).unwrap();
    trunk.set_timeout(Some(PATIENCE)).unwrap();
    domains.sites[1].give(DomainId(0), DomainId(1));
    let ended = trunk.read(&mut [0; 64]).expect_err("it has the right to nothing");
    assert_eq!(ended.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_rank_without_room_holds_no_other_one_back() {
    let mut domains = Domains::start();
    domains.sites[1].direct_but(Some(Rank(2)));
    let mut sender = Sender::connect(&domains.sites[0], Rank(0));
    let (count, len) = (20, 1 << 20);
    for _ in 0..count {
        sender.send(Rank(2), len);
    }
    // Rank 11 is on the same trunk, by its place among the ranks of its domain.
    let mut other = Sender::connect(&domains.sites[0], Rank(1));
    let mut receiver = Receiver::connect(&domains.sites[1], Rank(11));
    for ssn in 1..=50 {
        other.send(Rank(11), 1000);
        receiver.check_next(Rank(1), |_| 1000);
        receiver.received();
        assert_eq!(receiver.rsn, ssn);
    }
    domains.sites[1].direct_but(None);
    let mut late = Receiver::connect(&domains.sites[1], Rank(2));
    for _ in 0..count {
        late.check_next(Rank(0), |_| len);
        late.received();
    }
    sender.await_acknowledged();
    other.await_acknowledged();
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
