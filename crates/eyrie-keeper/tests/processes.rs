//! A keeper with real files and sockets, and ranks in processes of their own: this test program
//! again, with an environment variable that says which rank it is.

use crossbeam_channel::{unbounded, Receiver};
use eyrie_keeper::Keeper;
use eyrie_ledger::layout::Layout;
use eyrie_ledger::mapped::{Mapped, MappedView};
use eyrie_ledger::reader::Reader;
use eyrie_ledger::writer::{Message, Sent, Sizes, Writer};
use eyrie_ledger::Envelope;
use eyrie_router::{Config, RouterCommand, RouterEvent, SavedAt};
use eyrie_transport::{role, Stream};
use eyrie_wire::auth::{Secret, SECRET_LEN};
use eyrie_wire::control::Claim;
use eyrie_wire::directory::KeptUntil;
use eyrie_wire::keeper::{FromKeeper, Ledgers, ToKeeper};
use eyrie_wire::role_address::{Addr, Bind, Interface, Ports, Security};
use eyrie_wire::{Incarnation, Rank, RankInstance, RouterId};
use rustix::mm::{mmap, MapFlags, ProtFlags};
use rustix::net::{recvmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SECRET: Secret = Secret([7; SECRET_LEN]);
const RANKS: u32 = 2;
/// Longer than any machine needs.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a rank in a process of its own is told: where the keeper listens, and its incarnation.
const TOLD: &str = "EYRIE_KEEPER_TEST";
/// Messages that such a rank sends.
const MESSAGES: u64 = 1000;

fn config(dir: &Path, saved: Option<SavedAt>) -> Config {
    Config {
        id: RouterId(0),
        is_primary: vec![true; RANKS as usize],
        listen: Bind::Unix(dir.join("keeper")),
        spill_dir: dir.into(),
        log_memory: 64 << 20,
        log_disk: 0,
        kept_until: KeptUntil::Logged,
        takes_over: false,
        gateway: None,
        saved,
        incarnations: vec![Incarnation(1); RANKS as usize],
    }
}

/// A keeper, its events, and where it listens.
fn started(dir: &Path) -> (Keeper, Receiver<(RouterId, RouterEvent)>, Addr) {
    let (events, received) = unbounded();
    let keeper = Keeper::start(config(dir, None), SECRET, events).unwrap();
    let RouterEvent::Listening(addr) = next(&received) else { panic!("it listens first") };
    (keeper, received, addr)
}

fn next(events: &Receiver<(RouterId, RouterEvent)>) -> RouterEvent {
    events.recv_timeout(PATIENCE).expect("an event").1
}

fn instance(rank: u32, incarnation: u32) -> RankInstance {
    RankInstance { rank: Rank(rank), incarnation: Incarnation(incarnation) }
}

/// What a rank has of the keeper.
struct Connected {
    stream: Stream,
    ledgers: Ledgers,
    readable: OwnedFd,
    writable: OwnedFd,
}

impl Connected {
    /// Receives the ledgers on a connection.
    fn over(mut stream: Stream) -> Connected {
        let mut len = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut len)];
        let got = recvmsg(&stream, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert_eq!(got.bytes, 4);
        let mut files: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        stream.read_exact(&mut bytes).unwrap();
        let FromKeeper::Admitted { ledgers, .. } = postcard::from_bytes(&bytes).unwrap();
        let [readable, writable, _bells] = <[OwnedFd; 3]>::try_from(files).unwrap();
        Connected { stream, ledgers, readable, writable }
    }

    fn connect(addr: &Addr, instance: RankInstance) -> Connected {
        let stream = role::connect(addr, &SECRET, &Claim::Ledger { instance }).unwrap();
        stream.set_timeout(Some(PATIENCE)).unwrap();
        Connected::over(stream)
    }

    fn layout(&self, rank: u32) -> Layout {
        Layout::new(rank, self.ledgers.ranks, self.ledgers.region_bytes)
    }

    fn map(&self, rank: u32, prot: ProtFlags, file: &OwnedFd) -> *mut u8 {
        let bytes = self.ledgers.region_bytes;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let at = std::ptr::null_mut();
        let from = u64::from(rank) * bytes;
        // SAFETY: the kernel chooses the address, so that the mapping overlaps no other.
        unsafe { mmap(at, bytes as usize, prot, flags, file, from).unwrap().cast() }
    }

    fn writer(&self, rank: u32) -> Writer<Mapped> {
        let base = self.map(rank, ProtFlags::READ | ProtFlags::WRITE, &self.writable);
        // SAFETY: the mapping was just made and stays to the end of the process.
        let memory = unsafe { Mapped::new(base, self.ledgers.region_bytes) };
        Writer::open(memory, self.layout(rank), |_| 0, Sizes::default()).unwrap()
    }

    fn reader(&self, source: u32, to: u32) -> Reader<MappedView> {
        let base = self.map(source, ProtFlags::READ, &self.readable);
        // SAFETY: as in `writer`.
        let view = unsafe { MappedView::new(base, self.ledgers.region_bytes) };
        Reader::new(view, self.layout(source), to, 0)
    }

    fn say(&mut self, message: &ToKeeper) {
        let mut bytes = postcard::to_extend(message, vec![0; 4]).unwrap();
        let len = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        self.stream.write_all(&bytes).unwrap();
    }

    /// Waits for the end of the connection.
    fn wait_for_its_end(mut self) {
        assert_eq!(self.stream.read(&mut [0]).unwrap(), 0);
    }
}

fn send(writer: &mut Writer<Mapped>, n: u64) -> Sent {
    let payload = n.to_le_bytes();
    let message =
        Message { to: 1, envelope: Envelope::default(), clock: n as u32, payload: &payload };
    writer.append(&message, || ()).unwrap()
}

/// Starts rank 0 in a process of its own.
fn spawn(addr: &Addr, incarnation: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_rank_in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env(TOLD, format!("{incarnation} {addr}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until it has sent all its messages; returns how many were there before.
fn wait_until_sent(child: &mut Child) -> u64 {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find_map(|line| {
        line.split_once("sent again: ").and_then(|(_, again)| again.trim().parse().ok())
    });
    said.expect("it has sent")
}

#[test]
#[ignore = "the other tests start it"]
fn a_rank_in_a_process_of_its_own() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let (incarnation, addr) = told.split_once(' ').unwrap();
    let instance = instance(0, incarnation.parse().unwrap());
    let connected = Connected::connect(&addr.parse().unwrap(), instance);
    let mut writer = connected.writer(0);
    let again = (1..=MESSAGES).filter(|n| send(&mut writer, *n) == Sent::Again).count();
    println!("sent again: {again}");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_fence_ends_the_process_of_a_rank_and_the_next_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, events, addr) = started(dir.path());
    let mut first = spawn(&addr, 1);
    assert_eq!(next(&events), RouterEvent::Connected(instance(0, 1)));
    let mut receiver = Connected::connect(&addr, instance(1, 1));
    assert_eq!(next(&events), RouterEvent::Connected(instance(1, 1)));
    assert_eq!(wait_until_sent(&mut first), 0);
    let mut reader = receiver.reader(0, 1);
    for n in 1..=MESSAGES {
        let entry = reader.look().unwrap().expect("it was sent");
        let mut payload = [0; 8];
        reader.read(&entry, 0, &mut payload);
        assert_eq!(u64::from_le_bytes(payload), n);
        reader.pass(&entry);
    }
    keeper.command(RouterCommand::Fence(instance(0, 2)));
    let determinants = Vec::new();
    let observed = Vec::new();
    let fenced = RouterEvent::Fenced { instance: instance(0, 2), determinants, observed };
    assert_eq!(next(&events), fenced);
    let ended = first.try_wait().unwrap().expect("it has ended before the rank was fenced");
    assert_eq!(ended.signal(), Some(9));
    // An older incarnation is refused by name, and does not count.
    let claim = Claim::Ledger { instance: instance(0, 1) };
    let said = role::connect(&addr, &SECRET, &claim).unwrap_err().to_string();
    assert_eq!(said, "incarnation 1 of rank 0 has been replaced by 2");
    let refused = RouterEvent::Refused { instance: Some(instance(0, 1)), reason: said };
    assert_eq!(next(&events), refused);
    let mut second = spawn(&addr, 2);
    let determinants = Vec::new();
    let observed = Vec::new();
    keeper.command(RouterCommand::Recover { instance: instance(0, 2), determinants, observed });
    assert_eq!(next(&events), RouterEvent::Connected(instance(0, 2)));
    assert_eq!(wait_until_sent(&mut second), MESSAGES, "all lie there");
    receiver.say(&ToKeeper::Replayed { messages: 3 });
    let replayed = RouterEvent::Replayed { instance: instance(1, 1), messages: 3 };
    assert_eq!(next(&events), replayed);
    second.kill().unwrap();
    second.wait().unwrap();
    assert_eq!(next(&events), RouterEvent::Disconnected(instance(0, 2)));
}

#[test]
fn a_connection_that_breaks_comes_again_and_the_end_of_the_keeper_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, events, addr) = started(dir.path());
    let rank = instance(1, 1);
    let first = Connected::connect(&addr, rank);
    assert_eq!(next(&events), RouterEvent::Connected(rank));
    keeper.command(RouterCommand::BreakConnections(Rank(1)));
    assert_eq!(next(&events), RouterEvent::Disconnected(rank));
    first.wait_for_its_end();
    let second = Connected::connect(&addr, rank);
    assert_eq!(next(&events), RouterEvent::Connected(rank));
    let claim = Claim::User;
    assert!(role::connect(&addr, &SECRET, &claim).unwrap_err().to_string().contains("ranks only"));
    let RouterEvent::Refused { instance: None, reason } = next(&events) else { panic!() };
    assert_eq!(reason, "a peer that is no rank");
    drop(keeper);
    second.wait_for_its_end();
    assert!(role::connect(&addr, &SECRET, &Claim::Ledger { instance: rank }).is_err());
}

#[test]
fn saved_ledgers_are_read_by_another_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, events, addr) = started(dir.path());
    let connected = Connected::connect(&addr, instance(0, 1));
    let mut writer = connected.writer(0);
    (1..=MESSAGES).for_each(|n| assert_eq!(send(&mut writer, n), Sent::New));
    let path = dir.path().join("router-0");
    keeper.command(RouterCommand::Save(SavedAt::File(path.clone())));
    let saved = events.iter().find_map(|(_, event)| match event {
        RouterEvent::Saved(saved) => Some(saved),
        _ => None,
    });
    assert_eq!(saved, Some(Ok(std::fs::metadata(&path).unwrap().len())));
    eyrie_keeper::verify(&path).unwrap();
    keeper.command(RouterCommand::Save(SavedAt::Controller(addr)));
    let RouterEvent::Saved(Err(said)) = next(&events) else {
        panic!("it is not for several hosts")
    };
    assert!(said.contains("routers"), "{said}");
    drop(keeper);
    let other = tempfile::tempdir().unwrap();
    let (events, received) = unbounded();
    let config = config(other.path(), Some(SavedAt::File(path.clone())));
    let keeper = Keeper::start(config.clone(), SECRET, events.clone()).unwrap();
    let RouterEvent::Listening(addr) = next(&received) else { panic!("it listens first") };
    let connected = Connected::connect(&addr, instance(0, 1));
    let mut writer = connected.writer(0);
    (1..=MESSAGES).for_each(|n| assert_eq!(send(&mut writer, n), Sent::Again));
    assert_eq!(send(&mut writer, MESSAGES + 1), Sent::New);
    drop(keeper);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let said = Keeper::start(config, SECRET, events).err().unwrap().to_string();
    assert!(said.contains("the log that was saved in") && said.contains("is damaged"), "{said}");
}

#[test]
fn an_address_over_which_no_descriptor_goes_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), None);
    let interface = Interface::LOOPBACK;
    let ports = Ports::ANY;
    let security = Security::Off;
    config.listen = Bind::Tcp { interface, ports, security };
    let said = Keeper::start(config, SECRET, unbounded().0).err().unwrap().to_string();
    assert!(said.contains("a Unix socket"), "{said}");
}
