//! The gateway of a domain, whose receivers are couriers of other domains. Its rules, each by
//! itself; `eyrie-gateway` has the random interleavings.

use super::*;
use eyrie_wire::data::{Received, Shown};

/// Rank 0 sends to rank 1, which is elsewhere.
fn one_gateway() -> (Protocol<MemoryStore>, Said) {
    let bounds = Bounds { memory: 64 << 20, disk: 1 << 30 };
    let store = MemoryStore::default();
    let protocol = Protocol::new(vec![false, true], bounds, store).as_gateway();
    (protocol, Said { room: 1000, ..Said::default() })
}

/// The headers that a connection was sent since the last look.
fn heard(said: &mut Said, conn: ConnId) -> Vec<Header> {
    let frames = said.frames.remove(&conn).unwrap_or_default();
    frames.iter().map(|(bytes, _)| Frame::parse(bytes).unwrap().unwrap().header).collect()
}

fn acknowledged(said: &mut Said, conn: ConnId) -> Option<u64> {
    let mut acks = heard(said, conn).into_iter().filter_map(|header| match header {
        Header::Ack(ack) => Some(ack.frames),
        _ => None,
    });
    acks.next_back()
}

/// Connects a courier for rank 1; returns what it has been sent.
fn fetch(router: &mut Protocol<MemoryStore>, said: &mut Said, conn: ConnId) -> Vec<Header> {
    router.connected(conn, instance(Rank(1), 1), StreamKind::Delivery, false, said);
    say(router, said, conn, &Header::Resume(Resume { rsn: 0, clock: 0 }));
    heard(said, conn)
}

fn receive(router: &mut Protocol<MemoryStore>, said: &mut Said, conn: ConnId, rsn: u64) {
    assert!(say(router, said, conn, &Header::Received(Received { rsn })));
    router.settle(conn, said);
}

/// However much a sender keeps, and however long it waits.
fn a_gateway_acknowledges_only_what_is_safe_elsewhere() {
    let (mut router, mut said) = one_gateway();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    let payload = vec![7; MAX_INLINE];
    let count = UNRECEIVED_BYTES / MAX_INLINE as u64 + 100;
    for ssn in 1..=count {
        let Header::Message(mut m) = message(ssn, 5, ssn) else { panic!() };
        m.size = payload.len() as u64;
        let mut bytes = Vec::new();
        put_plain(&mut bytes, &Header::Message(m), &payload);
        assert!(router.frame(1, &Frame::parse(&bytes).unwrap().unwrap(), &mut said));
        router.settle(1, &mut said);
    }
    assert!(say(&mut router, &mut said, 1, &Header::Flush));
    for second in 1..=15 {
        router.tick(Duration::from_secs(second), &mut said);
    }
    assert_eq!(acknowledged(&mut said, 1).unwrap_or(0), 0);
    assert_eq!(said.events, []);
    fetch(&mut router, &mut said, 2);
    receive(&mut router, &mut said, 2, 3);
    assert_eq!(acknowledged(&mut said, 1), Some(3));
    receive(&mut router, &mut said, 2, count);
    assert_eq!(acknowledged(&mut said, 1), Some(count + 1));
    assert_eq!(said.events, [], "none of it is the controller's");
    assert_eq!(router.stats().log_bytes, [0, 0], "it keeps what is safe elsewhere");
    assert!(router.stats().bytes > UNRECEIVED_BYTES);
}

fn a_courier_that_knows_nothing_goes_on_behind_what_is_safe() {
    let (mut router, mut said) = one_gateway();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    for ssn in 1..=5 {
        assert!(say(&mut router, &mut said, 1, &message(ssn, 5, ssn)));
    }
    assert_eq!(fetch(&mut router, &mut said, 2).len(), 6);
    receive(&mut router, &mut said, 2, 3);
    assert!(say(&mut router, &mut said, 1, &message(6, 5, 6)));
    router.disconnected(2, &mut said);
    let again = fetch(&mut router, &mut said, 3);
    let ready = eyrie_wire::data::Ready { up_to: 3, observed: 0 };
    assert_eq!(again[0], Header::Ready(ready));
    let rsn = |header: &Header| match header {
        Header::Deliver(deliver) => deliver.rsn,
        other => panic!("{other:?}"),
    };
    assert_eq!(again[1..].iter().map(rsn).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(said.events, []);
}

/// What comes before the first message is safe: only then was it acknowledged.
fn a_gateway_that_takes_over_goes_on_with_what_its_senders_keep() {
    let (router, mut said) = one_gateway();
    let mut router = router.taking_over();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    assert!(say(&mut router, &mut said, 1, &message(41, 5, 1)));
    assert!(say(&mut router, &mut said, 1, &message(42, 5, 1)));
    // A courier of before may say what it has: that does not count.
    router.connected(2, instance(Rank(1), 1), StreamKind::Delivery, false, &mut said);
    for header in [
        Header::Shown(Shown { source: Rank(0), sent: sent(41) }),
        Header::Received(Received { rsn: 41 }),
        Header::Resume(Resume { rsn: 41, clock: 0 }),
    ] {
        assert!(say(&mut router, &mut said, 2, &header));
    }
    let came = heard(&mut said, 2);
    let ssn = |header: &Header| match header {
        Header::Deliver(deliver) => Some(deliver.ssn),
        _ => None,
    };
    assert_eq!(came.iter().filter_map(ssn).collect::<Vec<_>>(), [41, 42]);
    receive(&mut router, &mut said, 2, 2);
    assert!(matches!(said.events[..], [RouterEvent::Heard { .. }]));
    assert!(!say(&mut router, &mut said, 1, &message(44, 5, 1)), "message 43 is missing");
}

/// A rank leaves the domain with what is not safe, and comes back when it has sent more elsewhere.
fn a_sender_that_was_in_another_domain_goes_on_with_any_message() {
    let (mut router, mut said) = one_gateway();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    for ssn in 1..=5 {
        assert!(say(&mut router, &mut said, 1, &message(ssn, 5, ssn)));
    }
    fetch(&mut router, &mut said, 2);
    receive(&mut router, &mut said, 2, 3);
    router.command(RouterCommand::Fence(instance(Rank(0), 2)), &mut said);
    router.command(RouterCommand::ForgetSenders, &mut said);
    assert_eq!(router.stats().log_bytes, [0, 0], "they are the rank's");
    // Back, with another incarnation.
    let back = instance(Rank(0), 4);
    router.command(RouterCommand::Fence(back), &mut said);
    router.command(RouterCommand::Leave(vec![Rank(0)]), &mut said);
    let determinants = Vec::new();
    let observed = Vec::new();
    let recover = RouterCommand::Recover { instance: back, determinants, observed };
    router.command(recover, &mut said);
    heard(&mut said, 3);
    router.connected(3, back, StreamKind::Send, false, &mut said);
    let greeting = heard(&mut said, 3);
    assert!(greeting.iter().all(|header| !matches!(header, Header::Known(_))), "{greeting:?}");
    for ssn in [9, 10] {
        assert!(say(&mut router, &mut said, 3, &message(ssn, 5, ssn)));
    }
    let came = fetch(&mut router, &mut said, 4);
    let ssn = |header: &Header| match header {
        Header::Deliver(deliver) => Some(deliver.ssn),
        _ => None,
    };
    assert_eq!(came.iter().filter_map(ssn).collect::<Vec<_>>(), [9, 10]);
    assert!(!say(&mut router, &mut said, 3, &message(12, 5, 1)), "message 11 is missing");
}

/// A sender gives up a router that says nothing for two minutes.
fn who_waits_for_a_line_hears_that_the_gateway_lives() {
    let (mut router, mut said) = one_gateway();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    assert!(say(&mut router, &mut said, 1, &message(1, 5, 1)));
    let mut signs = Vec::new();
    heard(&mut said, 1);
    for second in 1..=600 {
        router.tick(Duration::from_secs(second), &mut said);
        if let Some(frames) = acknowledged(&mut said, 1) {
            assert_eq!(frames, 0, "it is not safe");
            signs.push(second);
        }
    }
    let most = signs.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(most.is_some_and(|most| most <= 40), "{signs:?}");
    assert!(*signs.last().unwrap() > 560);
    // One that waits for nothing is left alone.
    fetch(&mut router, &mut said, 2);
    receive(&mut router, &mut said, 2, 1);
    assert!(say(&mut router, &mut said, 1, &Header::Determinants));
    heard(&mut said, 1);
    (601..700).for_each(|second| router.tick(Duration::from_secs(second), &mut said));
    assert_eq!(acknowledged(&mut said, 1), None);
}

/// A courier passes pieces on as they come, so it must know whose they are.
fn a_payload_is_announced() {
    let (mut router, mut said) = one_gateway();
    router.connected(1, instance(Rank(0), 1), StreamKind::Send, false, &mut said);
    let request = Header::SegmentRequest(SegmentRequest { bytes: 4 });
    assert!(say(&mut router, &mut said, 1, &request));
    let Some(Header::Segment(segment)) = heard(&mut said, 1).pop() else { panic!() };
    let segment = segment.segment;
    assert!(say(&mut router, &mut said, 1, &Header::Piece(Piece { segment, offset: 0 })));
    let Header::Message(m) = message(1, 5, 1) else { panic!() };
    let m = Message { place: Some(Place { segment, offset: 0 }), ..m };
    let mut bytes = Vec::new();
    put_plain(&mut bytes, &Header::Message(m), &[]);
    assert!(router.frame(1, &Frame::parse(&bytes).unwrap().unwrap(), &mut said));
    let came = fetch(&mut router, &mut said, 2);
    let [Header::Ready(_), Header::Announced(first), Header::Piece(_), Header::Deliver(then)] =
        came[..]
    else {
        panic!("{came:?}")
    };
    assert_eq!(first, then);
}

pub fn single_rules() {
    a_gateway_acknowledges_only_what_is_safe_elsewhere();
    a_courier_that_knows_nothing_goes_on_behind_what_is_safe();
    a_gateway_that_takes_over_goes_on_with_what_its_senders_keep();
    a_sender_that_was_in_another_domain_goes_on_with_any_message();
    who_waits_for_a_line_hears_that_the_gateway_lives();
    a_payload_is_announced();
}
