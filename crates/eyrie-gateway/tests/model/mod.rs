//! Domains in one process, the relay between them, and ranks that speak the protocol.

use crossbeam_channel::Receiver as Events;
use eyrie_gateway::Gateway;
use eyrie_router::{Config, Router, RouterCommand, RouterEvent};
use eyrie_transport::{role, Stream};
use eyrie_wire::auth::{random, Secret};
use eyrie_wire::control::Claim;
use eyrie_wire::data::{
    put_plain, Deliver, Envelope, Frame, Header, Message, Piece, Place, Received, Resume,
    SegmentRequest, StreamKind, MAX_INLINE,
};
use eyrie_wire::directory::{Directory, KeptUntil, MessagePath};
use eyrie_wire::domains::{self, Domain, LineKey};
use eyrie_wire::role_address::{Addr, Bind, Interface, Ports, Security};
use eyrie_wire::{DomainId, Incarnation, Rank, RankInstance, RouterId};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

const RANKS: u32 = 4;

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
    pub secret: Secret,
    pub gateway: Gateway,
    _home: Router,
    /// Where the home router and the gateway listen for ranks.
    addrs: Vec<Addr>,
    events: Events<(RouterId, RouterEvent)>,
    _dir: tempfile::TempDir,
}

impl Site {
    fn start(domains: domains::Domains) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let secret = Secret(random());
        let (sender, events) = crossbeam_channel::unbounded();
        let is_own: Vec<bool> = Rank::first(RANKS).map(|r| domains.own().has(r)).collect();
        let config = |id: u32, is_primary: Vec<bool>| Config {
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
        };
        let is_other = is_own.iter().map(|own| !own).collect();
        let home =
            Router::start(config(0, is_own.clone()), secret.clone(), sender.clone()).unwrap();
        let gateway = Some(eyrie_router::Gateway { domains, port: 0 });
        let config = Config { gateway, ..config(1, is_other) };
        let gateway = Gateway::start(config, secret.clone(), sender).unwrap();
        let mut addrs = vec![Addr::Unix("/".into()); 2];
        for _ in 0..2 {
            match events.recv_timeout(PATIENCE).unwrap() {
                (id, RouterEvent::Listening(addr)) => addrs[id.index()] = addr,
                (_, other) => panic!("{other:?}"),
            }
        }
        let primaries = is_own.iter().map(|own| RouterId(u32::from(!own))).collect();
        gateway.command(RouterCommand::Directory(Directory {
            epoch: 1,
            primaries,
            routers: addrs.clone(),
            beside: vec![],
            kept_until: KeptUntil::Received,
            path: MessagePath::Router,
        }));
        Site { secret, gateway, _home: home, addrs, events, _dir: dir }
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
    pub keys: [LineKey; 1],
}

impl Domains {
    pub fn start() -> Domains {
        let relays = [Relay::start(), Relay::start()];
        let domain = |at: usize, name: &str| Domain {
            name: name.into(),
            ranks: vec![(Rank(2 * at as u32), Rank(2 * at as u32 + 1))],
            gateway: format!("127.0.0.1:{}", relays[at].port),
        };
        let all = vec![domain(0, "home"), domain(1, "cloud")];
        let key = LineKey::new();
        let site = |own: u32| {
            let mut keys = vec![Some(key.clone()); 2];
            keys[own as usize] = None;
            let site = Site::start(domains::Domains { own: DomainId(own), all: all.clone(), keys });
            relays[own as usize].lead_to(site.gateway.port());
            site
        };
        Domains { sites: [site(0), site(1)], relays, keys: [key] }
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
    ssn: Vec<u64>,
    sent: u64,
    acknowledged: u64,
    segment: Option<(u32, u64, u64)>,
}

impl Sender {
    pub fn connect(site: &Site, rank: Rank) -> Sender {
        let mut frames = Frames::new(site.connect(1, rank, StreamKind::Send));
        while !matches!(frames.next().0, Header::Ready(_)) {}
        let ssn = vec![0; RANKS as usize];
        Sender { frames, rank, ssn, sent: 0, acknowledged: 0, segment: None }
    }

    fn say(&mut self, header: &Header, payload: &[u8]) {
        self.frames.say(header, payload);
        self.sent += 1;
    }

    /// Sends the next message.
    pub fn send(&mut self, destination: Rank, len: usize) {
        self.ssn[destination.index()] += 1;
        let ssn = self.ssn[destination.index()];
        let bytes = content(self.rank, destination, ssn, len);
        let envelope = Envelope::Tagged { tag: ssn, data: None };
        let size = len as u64;
        let place = (len > MAX_INLINE).then(|| self.put_pieces(&bytes));
        let message = Message { destination, ssn, clock: ssn, envelope, size, place };
        self.say(&Header::Message(message), if place.is_some() { &[] } else { &bytes });
    }

    fn put_pieces(&mut self, bytes: &[u8]) -> Place {
        let size = bytes.len() as u64;
        let (segment, total, used) = match self.segment {
            Some((segment, total, used)) if used + size <= total => (segment, total, used),
            _ => {
                self.say(&Header::SegmentRequest(SegmentRequest { bytes: size }), &[]);
                loop {
                    match self.frames.next().0 {
                        Header::Segment(s) => break (s.segment, s.bytes, 0),
                        Header::Ack(ack) => self.acknowledged = ack.frames,
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

    /// Asks what is safe.
    pub fn ask(&mut self) {
        self.say(&Header::Determinants, &[]);
    }

    /// The frames that are, after the next answer.
    pub fn acknowledged(&mut self) -> u64 {
        match self.frames.next().0 {
            Header::Ack(ack) => self.acknowledged = ack.frames,
            other => panic!("{other:?}"),
        }
        self.acknowledged
    }

    /// Waits, as at its end, until all is acknowledged.
    pub fn await_acknowledged(&mut self) {
        self.say(&Header::Flush, &[]);
        let all = self.sent;
        while self.acknowledged() < all {}
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
