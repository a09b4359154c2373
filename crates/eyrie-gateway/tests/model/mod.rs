//! Domains in one process, the relay between them, and ranks that speak the protocol.
// Each test uses a part of it.
#![allow(dead_code)]

use crossbeam_channel::Receiver as Events;
use eyrie_gateway::Gateway;
use eyrie_router::{Config, Router, RouterCommand, RouterEvent};
use eyrie_transport::{role, Stream};
use eyrie_wire::auth::{random, Secret};
use eyrie_wire::control::Claim;
use eyrie_wire::data::{
    put_plain, Deliver, Envelope, Frame, Header, Message, Piece, Place, Received, Resume,
    SegmentDone, SegmentRequest, StreamKind, MAX_INLINE,
};
use eyrie_wire::directory::{Directory, KeptUntil, MessagePath};
use eyrie_wire::domains::{self, Domain, LineKey};
use eyrie_wire::role_address::{Addr, Bind, Interface, Ports, Security};
use eyrie_wire::traffic::Sent;
use eyrie_wire::{DomainId, Incarnation, Rank, RankInstance, RouterId};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

const RANKS: u32 = 14;
/// Ranks of each domain: more than there are trunks, so that some share one. The first two of each
/// are what most tests need.
const RANKS_OF: [[(Rank, Rank); 2]; 2] =
    [[(Rank(0), Rank(1)), (Rank(4), Rank(8))], [(Rank(2), Rank(3)), (Rank(9), Rank(13))]];

/// The content of a message.
pub fn content(source: Rank, destination: Rank, ssn: u64, len: usize) -> Vec<u8> {
    let seed = u64::from(source.0) << 40 ^ u64::from(destination.0) << 32 ^ ssn;
    let byte = |at: usize| (seed.wrapping_mul(0x9e37_79b9) >> 7 ^ at as u64 ^ at as u64 >> 8) as u8;
    (0..len).map(byte).collect()
}

/// Passes connections on to a port, until it is told to cut them.
pub struct Relay {
    pub port: u16,
    to: Arc<Mutex<u16>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start() -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = Arc::new(Mutex::new(0));
        let open = Arc::new(Mutex::new(Vec::new()));
        let relay = Relay { port, to: Arc::clone(&to), open: Arc::clone(&open) };
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let Ok(far) = TcpStream::connect(("127.0.0.1", *to.lock().unwrap())) else {
                    continue;
                };
                let streams = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                open.lock().unwrap().extend(streams);
                let (near_out, far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (mut from, mut to) in [(near, far_out), (far, near_out)] {
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        relay
    }

    fn lead_to(&self, port: u16) {
        *self.to.lock().unwrap() = port;
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// One domain.
pub struct Site {
    domains: domains::Domains,
    pub secret: Secret,
    pub gateway: Gateway,
    _home: Router,
    epoch: u64,
    /// Where the home router and the gateway listen for ranks.
    addrs: Vec<Addr>,
    sender: crossbeam_channel::Sender<(RouterId, RouterEvent)>,
    events: Events<(RouterId, RouterEvent)>,
    dir: tempfile::TempDir,
}

/// The configuration of a router.
fn config(id: u32, is_primary: Vec<bool>, dir: &tempfile::TempDir) -> Config {
    Config {
        id: RouterId(id),
        is_primary,
        listen: Bind::Tcp {
            interface: Interface::LOOPBACK,
            ports: Ports::ANY,
            security: Security::Encrypted,
        },
        spill_dir: dir.path().to_owned(),
        log_memory: 64 << 20,
        log_disk: 256 << 20,
        kept_until: KeptUntil::Received,
        takes_over: false,
        saved: None,
        incarnations: vec![Incarnation(1); RANKS as usize],
        gateway: None,
    }
}

impl Site {
    fn start(domains: domains::Domains) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let secret = Secret(random());
        let (sender, events) = crossbeam_channel::unbounded();
        let is_own = Rank::first(RANKS).map(|r| domains.own().has(r)).collect();
        let home = config(0, is_own, &dir);
        let home = Router::start(home, secret.clone(), sender.clone()).unwrap();
        let mut addrs = vec![Addr::Unix("/".into()); 2];
        let gateway = Site::gateway(&domains, &secret, (sender.clone(), &dir), false);
        for _ in 0..2 {
            match events.recv_timeout(PATIENCE).unwrap() {
                (id, RouterEvent::Listening(addr)) => addrs[id.index()] = addr,
                (_, other) => panic!("{other:?}"),
            }
        }
        let epoch = 0;
        let mut site =
            Site { domains, secret, gateway, _home: home, epoch, addrs, sender, events, dir };
        site.direct();
        site
    }

    fn gateway(
        domains: &domains::Domains,
        secret: &Secret,
        (sender, dir): (crossbeam_channel::Sender<(RouterId, RouterEvent)>, &tempfile::TempDir),
        takes_over: bool,
    ) -> Gateway {
        let is_other = Rank::first(RANKS).map(|r| !domains.own().has(r)).collect();
        let gateway = Some(eyrie_router::Gateway { domains: domains.clone(), port: 0 });
        let config = Config { gateway, takes_over, ..config(1, is_other, dir) };
        Gateway::start(config, secret.clone(), sender).unwrap()
    }

    /// Another gateway takes the place of the one that there was.
    pub fn replace_gateway(&mut self) {
        let source = (self.sender.clone(), &self.dir);
        self.gateway = Site::gateway(&self.domains, &self.secret, source, true);
        let deadline = Instant::now() + PATIENCE;
        self.addrs[1] = loop {
            let (_, event) = self.events.recv_deadline(deadline).expect("it listens");
            if let RouterEvent::Listening(addr) = event {
                break addr;
            }
        };
        // It may hear of the domains before it has a directory.
        self.learn(self.domains.clone());
        self.direct();
    }

    /// Another domain has ended.
    pub fn end_domain(&mut self, domain: DomainId) {
        let mut domains = self.domains.clone();
        domains.end(domain);
        self.learn(domains);
    }

    /// The ranks of one domain go to another one.
    pub fn give(&mut self, from: DomainId, to: DomainId) {
        let mut domains = self.domains.clone();
        domains.give(from, to);
        self.learn(domains);
    }

    /// The domains are these from now on.
    fn learn(&mut self, domains: domains::Domains) {
        self.domains = domains;
        self.gateway.command(RouterCommand::Domains(self.domains.clone()));
    }

    /// Tells the gateway where the routers are.
    fn direct(&mut self) {
        self.direct_but(None);
    }

    /// The same, and that this rank has a router which is not there.
    pub fn direct_but(&mut self, lost: Option<Rank>) {
        self.epoch += 1;
        let own = self.domains.own();
        let primary = |rank| {
            let here = RouterId(u32::from(!own.has(rank)));
            if lost == Some(rank) {
                RouterId(2)
            } else {
                here
            }
        };
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nowhere = Addr::Tcp { at: closed, security: Security::Encrypted };
        self.gateway.command(RouterCommand::Directory(Directory {
            epoch: self.epoch,
            primaries: Rank::first(RANKS).map(primary).collect(),
            routers: self.addrs.iter().cloned().chain([nowhere]).collect(),
            beside: vec![],
            gateway: None,
            kept_until: KeptUntil::Received,
            path: MessagePath::Router,
        }));
    }

    /// Waits for an event; others are dropped.
    pub fn await_event(&self, is_it: impl Fn(&RouterEvent) -> bool) {
        self.find_event(|event| is_it(event).then_some(()));
    }

    /// What an event has that is waited for; others are dropped.
    pub fn find_event<T>(&self, has: impl Fn(&RouterEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (_, event) = self.events.recv_deadline(deadline).expect("an event comes");
            assert!(!matches!(event, RouterEvent::Fatal { .. }), "{event:?}");
            if let Some(found) = has(&event) {
                return found;
            }
        }
    }

    fn connect(&self, router: usize, rank: Rank, stream: StreamKind) -> Stream {
        let instance = RankInstance { rank, incarnation: Incarnation(1) };
        let claim = Claim::Rank { instance, stream };
        let stream = role::connect(&self.addrs[router], &self.secret, &claim).unwrap();
        stream.set_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// Two domains and the line between them.
pub struct Domains {
    pub sites: [Site; 2],
    relays: [Relay; 2],
    pub key: LineKey,
}

impl Domains {
    pub fn start() -> Domains {
        Domains::with(true)
    }

    /// Home learns of the other domain when that is there.
    pub fn one_after_the_other() -> Domains {
        let mut domains = Domains::with(false);
        let [home, cloud] = &mut domains.sites;
        let all = cloud.domains.all.clone();
        let keys = vec![None, Some(domains.key.clone())];
        home.learn(domains::Domains { all, keys, ..home.domains.clone() });
        domains
    }

    /// `known`: by home.
    fn with(known: bool) -> Domains {
        let relays = [Relay::start(), Relay::start()];
        let domain = |at: usize, name: &str| Domain {
            name: name.into(),
            ranks: RANKS_OF[at].to_vec(),
            gateway: format!("127.0.0.1:{}", relays[at].port),
        };
        let all = vec![domain(0, "home"), domain(1, "cloud")];
        let key = LineKey::new();
        let site = |own: u32| {
            let mut keys = vec![Some(key.clone()); 2];
            keys[own as usize] = None;
            let mut all = all.clone();
            if own == 0 && !known {
                keys.truncate(1);
                all.truncate(1);
            }
            let shows = DomainId(0);
            let site = Site::start(domains::Domains { own: DomainId(own), all, keys, shows });
            relays[own as usize].lead_to(site.gateway.port());
            site
        };
        Domains { sites: [site(0), site(1)], relays, key }
    }

    /// Another gateway takes the place of one that is lost; nothing of the old one is reached.
    pub fn lose_gateway(&mut self, at: usize) {
        self.relays[at].lead_to(0);
        self.sites[at].replace_gateway();
        self.relays[at].lead_to(self.sites[at].gateway.port());
        self.relays[at].cut();
    }

    /// Cuts all connections between the domains.
    pub fn cut(&self) {
        self.relays.iter().for_each(Relay::cut);
    }
}

/// Frames of a stream.
struct Frames {
    stream: Stream,
    input: Vec<u8>,
}

impl Frames {
    fn new(stream: Stream) -> Frames {
        Frames { stream, input: Vec::new() }
    }

    fn say(&mut self, header: &Header, payload: &[u8]) {
        let mut out = Vec::new();
        put_plain(&mut out, header, payload);
        self.stream.write_all(&out).unwrap();
    }

    fn next(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some(frame) = Frame::parse(&self.input).unwrap() {
                let (header, payload, len) = (frame.header, frame.payload.to_vec(), frame.len);
                self.input.drain(..len);
                return (header, payload);
            }
            let mut more = [0; 65536];
            let n = self.stream.read(&mut more).expect("something comes");
            assert!(n > 0, "the router has closed the stream");
            self.input.extend_from_slice(&more[..n]);
        }
    }
}

/// A rank that sends to the gateway of its domain.
pub struct Sender {
    frames: Frames,
    rank: Rank,
    sent: Vec<Sent>,
    /// What is not acknowledged: a message and its length, or another frame.
    kept: VecDeque<Option<(Rank, Sent, usize)>>,
    acknowledged: u64,
    segment: Option<(u32, u64, u64)>,
}

impl Sender {
    pub fn connect(site: &Site, rank: Rank) -> Sender {
        let sent = vec![Sent::default(); RANKS as usize];
        let frames = Sender::begin(site, rank, &mut vec![0; RANKS as usize]);
        Sender { frames, rank, sent, kept: VecDeque::new(), acknowledged: 0, segment: None }
    }

    /// A new connection; `known`: what the router has.
    fn begin(site: &Site, rank: Rank, known: &mut [u64]) -> Frames {
        let mut frames = Frames::new(site.connect(1, rank, StreamKind::Send));
        loop {
            match frames.next().0 {
                Header::Known(k) => known[k.destination.index()] = k.ssn,
                Header::Ready(_) => return frames,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends what is kept on a new connection.
    pub fn connect_again(&mut self, site: &Site) {
        let mut known = vec![0; RANKS as usize];
        self.frames = Sender::begin(site, self.rank, &mut known);
        (self.acknowledged, self.segment) = (0, None);
        for (destination, sent, len) in std::mem::take(&mut self.kept).into_iter().flatten() {
            if sent.messages > known[destination.index()] {
                self.send_one(destination, sent, len);
            }
        }
    }

    fn say(&mut self, header: &Header, payload: &[u8]) {
        self.frames.say(header, payload);
        self.kept.push_back(None);
    }

    /// Sends the next message.
    pub fn send(&mut self, destination: Rank, len: usize) {
        let sent = self.sent[destination.index()].and(len as u64);
        self.sent[destination.index()] = sent;
        self.send_one(destination, sent, len);
    }

    fn send_one(&mut self, destination: Rank, sent: Sent, len: usize) {
        let Sent { messages: ssn, bytes: sent_bytes } = sent;
        let bytes = content(self.rank, destination, ssn, len);
        let envelope = Envelope::Tagged { tag: ssn, data: None };
        let size = len as u64;
        let place = (len > MAX_INLINE).then(|| self.put_pieces(&bytes));
        let message = Message { destination, ssn, clock: ssn, envelope, size, sent_bytes, place };
        self.frames.say(&Header::Message(message), if place.is_some() { &[] } else { &bytes });
        self.kept.push_back(Some((destination, sent, len)));
    }

    fn put_pieces(&mut self, bytes: &[u8]) -> Place {
        let size = bytes.len() as u64;
        let (segment, total, used) = match self.segment {
            Some((segment, total, used)) if used + size <= total => (segment, total, used),
            old => {
                if let Some((segment, ..)) = old {
                    self.say(&Header::SegmentDone(SegmentDone { segment }), &[]);
                }
                self.say(&Header::SegmentRequest(SegmentRequest { bytes: size }), &[]);
                loop {
                    match self.frames.next().0 {
                        Header::Segment(s) => break (s.segment, s.bytes, 0),
                        Header::Ack(ack) => self.acknowledge(ack.frames),
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        let mut offset = used;
        for piece in bytes.chunks(MAX_INLINE) {
            self.frames.say(&Header::Piece(Piece { segment, offset }), piece);
            offset += piece.len() as u64;
        }
        self.segment = Some((segment, total, used + size));
        Place { segment, offset: used }
    }

    fn acknowledge(&mut self, frames: u64) {
        self.kept.drain(..(frames - self.acknowledged) as usize);
        self.acknowledged = frames;
    }

    /// Asks what is safe, and waits for the answer: so many frames.
    pub fn ask(&mut self) -> u64 {
        self.say(&Header::Determinants, &[]);
        self.next_answer();
        self.acknowledged
    }

    fn next_answer(&mut self) {
        match self.frames.next().0 {
            Header::Ack(ack) => self.acknowledge(ack.frames),
            other => panic!("{other:?}"),
        }
    }

    /// Waits, as at its end, until all is acknowledged.
    pub fn await_acknowledged(&mut self) {
        self.say(&Header::Flush, &[]);
        while !self.kept.is_empty() {
            self.next_answer();
        }
    }
}

/// A rank that receives from its router.
pub struct Receiver {
    frames: Frames,
    rank: Rank,
    pub rsn: u64,
    ahead: Vec<u8>,
}

impl Receiver {
    pub fn connect(site: &Site, rank: Rank) -> Receiver {
        let mut frames = Frames::new(site.connect(0, rank, StreamKind::Delivery));
        frames.say(&Header::Resume(Resume { rsn: 0, clock: 0 }), &[]);
        while !matches!(frames.next().0, Header::Ready(_)) {}
        Receiver { frames, rank, rsn: 0, ahead: Vec::new() }
    }

    /// The next message.
    pub fn next(&mut self) -> (Deliver, Vec<u8>) {
        loop {
            let (header, payload) = self.frames.next();
            match header {
                Header::Piece(_) => self.ahead.extend(payload),
                Header::Deliver(deliver) => {
                    self.rsn += 1;
                    assert_eq!(deliver.rsn, self.rsn);
                    let ahead = std::mem::take(&mut self.ahead);
                    return (deliver, if deliver.place.is_some() { ahead } else { payload });
                }
                Header::SegmentDrop(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next message is the next one of this source, of this length by its number.
    pub fn check_next(&mut self, source: Rank, len: impl Fn(u64) -> usize) {
        let (deliver, payload) = self.next();
        assert_eq!((deliver.source, deliver.ssn), (source, self.rsn));
        assert!(payload == content(source, self.rank, deliver.ssn, len(deliver.ssn)));
    }

    /// Tells the router that all of it was received.
    pub fn received(&mut self) {
        let rsn = self.rsn;
        self.frames.say(&Header::Received(Received { rsn }), &[]);
    }
}
