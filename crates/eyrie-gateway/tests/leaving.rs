//! What gateways do when the ranks of a domain go to another one: images go through them from store
//! to store, messages are not fetched meanwhile, and go where the ranks are afterwards.

#[path = "../../eyrie-store/tests/common/mod.rs"]
mod common;
mod model;
#[path = "../../eyrie-store/tests/common/role.rs"]
mod shared;

use common::{Process, PAGES_PER_WINDOW};
use eyrie_router::{RouterCommand, RouterEvent};
use eyrie_store::role::{StoreCommand, StoreEvent, StoreRole};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{ImageAnswer, StoreAt};
use eyrie_wire::domains::Letter;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{DomainId, ImageId, Incarnation, Rank, RankInstance, StoreId};
use model::{Domains, Receiver, Sender, Site, PATIENCE};
use shared::{config, sealed, upload_with};
use std::sync::Arc;

struct Store {
    role: Arc<StoreRole>,
    addr: Addr,
    events: crossbeam_channel::Receiver<StoreEvent>,
    _dir: tempfile::TempDir,
}

impl Store {
    fn start(secret: &Secret) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let (told, events) = crossbeam_channel::unbounded();
        let tell = move |event| drop(told.send(event));
        let role = StoreRole::start(&config(dir.path(), sealed()), secret.clone(), tell).unwrap();
        let StoreEvent::Listening(addr) = events.recv().unwrap() else { panic!() };
        Store { role, addr, events, _dir: dir }
    }

    fn at(&self, number: u32) -> StoreAt {
        StoreAt { store: StoreId(number), addr: Some(self.addr.clone()) }
    }

    /// Takes an image from an agent.
    fn take(&self, secret: &Secret, instance: RankInstance, image: u64, bytes: &[u8]) {
        std::thread::scope(|scope| {
            let agent =
                scope.spawn(|| upload_with(secret, &self.addr, instance, image, bytes).unwrap());
            while !matches!(self.next_event(), StoreEvent::Stored { .. }) {}
            self.role.command(StoreCommand::Heard { instance, image: ImageId(image) }).unwrap();
            assert_eq!(agent.join().unwrap(), ImageAnswer::Stored);
        });
    }

    fn next_event(&self) -> StoreEvent {
        self.events.recv_timeout(PATIENCE).unwrap()
    }

    /// Fetches an image by a gateway. The bytes that all images take then.
    fn copy(&self, instance: RankInstance, image: u64, from: &Addr) -> Result<u64, String> {
        let from = StoreAt { store: StoreId(9), addr: Some(from.clone()) };
        let image = ImageId(image);
        self.role.command(StoreCommand::Copy { instance, image, from }).unwrap();
        match self.next_event() {
            StoreEvent::Stored { live_bytes, .. } => Ok(live_bytes),
            StoreEvent::Failed { reason, .. } => Err(reason),
            other => panic!("{other:?}"),
        }
    }
}

fn rank(rank: u32) -> RankInstance {
    RankInstance { rank: Rank(rank), incarnation: Incarnation(3) }
}

/// Where the stores of a site fetch images of other domains' ranks.
fn images_at(site: &Site) -> Addr {
    site.find_event(|event| match event {
        RouterEvent::ImagesAt(addr) => Some(addr.clone()),
        _ => None,
    })
}

#[test]
fn an_image_goes_from_a_store_of_one_domain_to_one_of_another() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    let (empty, has) = (Store::start(&cloud.secret), Store::start(&cloud.secret));
    let wants = Store::start(&home.secret);
    let mut process = Process::new(2, 60 * PAGES_PER_WINDOW);
    let first = process.stream(1);
    has.take(&cloud.secret, rank(2), 1, &first);
    let from = images_at(home);
    let stores = |to| RouterCommand::Stores { stores: vec![empty.at(0), has.at(1)], to };
    for other in [None, Some(DomainId(7))] {
        cloud.gateway.command(stores(other));
        assert!(wants.copy(rank(2), 1, &from).is_err(), "the ranks do not go to home");
    }
    cloud.gateway.command(stores(Some(DomainId(0))));
    let whole = wants.copy(rank(2), 1, &from).unwrap();
    assert!(whole > first.len() as u64 / 2, "{whole} bytes of {}", first.len());
    // Only what the next one has besides goes over the line.
    process.touch(2, 100, 10 * PAGES_PER_WINDOW);
    has.take(&cloud.secret, rank(2), 2, &process.stream(2));
    let more = wants.copy(rank(2), 2, &from).unwrap() - whole;
    assert!(more < whole / 2, "{more} bytes for the second image, {whole} for the first");
    // Nothing but images of the other domain's ranks is to be had this way.
    assert!(wants.copy(rank(0), 1, &from).is_err() && wants.copy(rank(2), 7, &from).is_err());
    domains.cut();
    assert!(wants.copy(rank(2), 2, &from).is_ok(), "it has that already");
}

/// As long as both live: only the one that is told ends it.
#[test]
fn a_line_to_a_domain_that_has_ended_ends() {
    let mut domains = Domains::start();
    let [home, cloud] = &mut domains.sites;
    let line = |up| move |event: &RouterEvent| matches!(event, RouterEvent::Line { up: is, .. } if *is == up);
    home.await_event(line(true));
    cloud.await_event(line(true));
    home.end_domain(DomainId(1));
    home.await_event(line(false));
    cloud.await_event(line(false));
    // A gateway that takes its place knows it, too: nothing is tried or taken.
    home.replace_gateway();
    let letter = Letter { number: 1, heard: 0, says: None };
    home.gateway.command(RouterCommand::ToDomain { domain: DomainId(1), letter });
    home.gateway.command(RouterCommand::Fetch(true));
    home.await_event(|event| *event == RouterEvent::Fetches(true));
}

#[test]
fn a_domain_that_comes_later_gets_a_line_and_messages() {
    let domains = Domains::one_after_the_other();
    let [home, cloud] = &domains.sites;
    let is_up = |event: &RouterEvent| matches!(event, RouterEvent::Line { up: true, .. });
    home.await_event(is_up);
    cloud.await_event(is_up);
    let mut sender = Sender::connect(home, Rank(0));
    let mut receiver = Receiver::connect(cloud, Rank(2));
    sender.send(Rank(2), 1000);
    receiver.check_next(Rank(0), |_| 1000);
    receiver.received();
    sender.await_acknowledged();
}

#[test]
fn messages_are_not_fetched_meanwhile_and_then_come_in_order() {
    let domains = Domains::start();
    let [home, cloud] = &domains.sites;
    let mut sender = Sender::connect(home, Rank(0));
    let mut receiver = Receiver::connect(cloud, Rank(2));
    let len = |ssn: u64| ssn as usize * 1000;
    sender.send(Rank(2), len(1));
    receiver.check_next(Rank(0), len);
    cloud.gateway.command(RouterCommand::Fetch(false));
    // What was fetched is safe only when it was received.
    receiver.received();
    cloud.await_event(|event| *event == RouterEvent::Fetches(false));
    for ssn in 2..=20 {
        sender.send(Rank(2), len(ssn));
    }
    let before = sender.ask();
    cloud.gateway.command(RouterCommand::Fetch(true));
    cloud.await_event(|event| *event == RouterEvent::Fetches(true));
    for _ in 2..=20 {
        receiver.check_next(Rank(0), len);
    }
    receiver.received();
    sender.await_acknowledged();
    assert!(before < 20, "{before} were safe while none was fetched");
}
