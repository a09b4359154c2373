//! The gateway's loop: one thread, one epoll. It moves bytes between sockets and couriers, takes
//! connections of other domains, and passes letters on. It decides nothing of messages. It must
//! never wait for a peer, and never hold more of a stranger than a preamble.

use crate::courier::{Courier, Link, Output, Taken};
use crate::dial::{self, Answer, Call, Target};
use crate::images::Images;
use crate::letters;
use crate::preamble::{Kind, Preamble, PREAMBLE_LEN};
use crate::sockets::{Sockets, Token};
use eyrie_router::conn::{Accepted, Conn};
use eyrie_router::{Router, RouterEvent};
use eyrie_transport::handshake::{verdict, Step};
use eyrie_transport::{Listener, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::data::{put_plain, Frame, Header, StreamKind};
use eyrie_wire::directory::{Directory, KeptUntil};
use eyrie_wire::domains::{Domain, Domains, Letter};
use eyrie_wire::role_address::{Bind, Interface, Ports, Security};
use eyrie_wire::{DomainId, Incarnation, RankInstance, RouterId};
use rustc_hash::FxHashMap;
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What is asked of the loop.
pub enum Input {
    Directory(Directory),
    Letter {
        domain: DomainId,
        letter: Letter,
    },
    /// Ranks have gone from one domain to another.
    Domains(Domains),
    /// Messages are fetched from now on, or are not.
    Fetch(bool),
    Answer(Answer<Peer>),
    Stop,
}

/// The queue of inputs and the descriptor that wakes the loop.
pub struct Mailbox {
    inputs: Mutex<Vec<Input>>,
    wake: OwnedFd,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// When no descriptor is free.
    pub fn new() -> io::Result<Mailbox> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { inputs: Mutex::new(Vec::new()), wake })
    }

    pub fn put(&self, input: Input) {
        if let Ok(mut inputs) = self.inputs.lock() {
            inputs.push(input);
        }
        // The counter cannot overflow: the loop resets it.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Input> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.inputs.lock().map(|mut inputs| std::mem::take(&mut *inputs)).unwrap_or_default()
    }
}

const LISTENER: Token = 0;
const WAKE: Token = 1;
const FIRST: Token = 2;
/// Connections whose preamble has not come have this bit in their number.
const STRANGER: Token = 1 << 63;

/// How long a preamble and a handshake may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most connections whose preamble has not come.
const MAX_STRANGERS: usize = 256;
/// The time between two looks at what is due, where something is due soon, and else.
const SHORT_TICK: Duration = Duration::from_millis(10);
const TICK: Duration = Duration::from_millis(250);
/// The time from one sign of life to the next on a connection for letters, and after how long
/// without one it is lost.
const SIGN_EVERY: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(7);
/// The pauses between attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Most bytes of letters that wait for a slow line.
const MAX_LETTERS: usize = 64 << 20;
/// Threads that connect to routers of this domain, and to other gateways.
const HOME_CALLERS: usize = 4;
const LINE_CALLERS: usize = 8;
/// How long a port is waited for that a process before may still have.
const PORT_PATIENCE: Duration = Duration::from_secs(10);
const PORT_PAUSE: Duration = Duration::from_millis(100);

/// What a connection is for, proven or to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A connection of the courier from the domain with this place among the others.
    Courier(usize, Link),
    /// Letters of the domain with this place.
    Letters(usize),
    /// One that says to be for letters of the domain with this place, and has not proven it.
    Caller(usize),
}

/// Where the loop's output goes, besides sockets.
pub struct Out {
    pub router: Arc<Router>,
    pub images: Arc<Images>,
    pub id: RouterId,
    pub events: crossbeam_channel::Sender<(RouterId, RouterEvent)>,
}

impl Out {
    fn event(&self, event: RouterEvent) {
        tracing::debug!(?event);
        // The receiver is gone only while the job ends.
        let _ = self.events.send((self.id, event));
    }
}

/// A listener for other domains at this port of all interfaces; 0: any port.
///
/// # Errors
/// When the port is not free.
pub fn bind(port: u16) -> io::Result<Listener> {
    let ports = if port == 0 { Ports::ANY } else { port.to_string().parse().unwrap_or(Ports::ANY) };
    let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let begun = Instant::now();
    loop {
        let bind = |ip: &IpAddr| {
            let interface = Interface::Ip(*ip);
            Listener::bind(&Bind::Tcp { interface, ports, security: Security::Encrypted })
        };
        // A host without IPv6 has only the second one.
        match bind(&all[0]).or_else(|_| bind(&all[1])) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && begun.elapsed() < PORT_PATIENCE => {
                std::thread::sleep(PORT_PAUSE);
            }
            bound => return bound,
        }
    }
}

/// A connection that this side makes.
#[derive(Clone, Copy)]
enum State {
    /// It is to be made from then on; with the pause until another attempt.
    Idle {
        from: Instant,
        pause: Duration,
    },
    Calling {
        pause: Duration,
    },
    Up(Token),
}

impl State {
    fn lost() -> State {
        State::Idle { from: Instant::now() + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    fn failed(pause: Duration) -> State {
        State::Idle { from: Instant::now() + pause, pause: (pause * 2).min(LONGEST_PAUSE) }
    }

    fn token(self) -> Option<Token> {
        match self {
            State::Up(token) => Some(token),
            _ => None,
        }
    }

    /// The pause, if an attempt is due.
    fn due(self, now: Instant) -> Option<Duration> {
        match self {
            State::Idle { from, pause } if from <= now => Some(pause),
            _ => None,
        }
    }
}

/// The connection for letters.
struct Post {
    state: State,
    reader: letters::Reader,
    heard: Instant,
    said: Instant,
}

/// All that there is with one other domain.
struct Line {
    id: DomainId,
    domain: Arc<Domain>,
    key: Secret,
    courier: Courier,
    links: FxHashMap<Link, State>,
    /// Connections to its gateway that stand, and that are being made.
    fetching: usize,
    calling: usize,
    post: Post,
}

/// A connection whose preamble has not come.
struct Stranger {
    stream: Stream,
    bytes: [u8; PREAMBLE_LEN],
    filled: usize,
    since: Instant,
}

/// Where a courier's frames go.
struct Outlet<'a> {
    sockets: &'a mut Sockets<Peer>,
    links: &'a FxHashMap<Link, State>,
}

impl Outlet<'_> {
    fn token(&self, link: Link) -> Option<Token> {
        self.links.get(&link).and_then(|state| state.token())
    }
}

impl Output for Outlet<'_> {
    fn frame(&mut self, link: Link, header: &Header, payload: &[u8]) {
        if let Some(token) = self.token(link) {
            self.sockets.queue(token, |conn| put_plain(&mut conn.out, header, payload));
        }
    }

    fn has_room(&self, link: Link) -> bool {
        self.token(link).is_some_and(|token| self.sockets.has_room(token))
    }
}

fn is_fetch(link: Link) -> bool {
    matches!(link, Link::Fetch(_))
}

/// The loop.
pub struct Loop {
    domains: Domains,
    lines: Vec<Line>,
    directory: Directory,
    secret: Secret,
    sockets: Sockets<Peer>,
    strangers: FxHashMap<Token, Stranger>,
    next_stranger: Token,
    listener: Listener,
    mailbox: Arc<Mailbox>,
    out: Out,
    home: crossbeam_channel::Sender<Call<Peer>>,
    away: crossbeam_channel::Sender<Call<Peer>>,
    /// Connections of other gateways whose next frame has no room yet.
    held: Vec<Token>,
    /// Connections that may have more to be read than epoll reports.
    again: Vec<Token>,
    begun: Instant,
    /// How many ranks the job has.
    ranks: usize,
    fetching: Fetching,
}

/// Whether messages of other domains are fetched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fetching {
    On,
    /// No more are fetched; some that were may not be safe yet.
    Ending,
    Off,
}

impl Loop {
    /// A loop for these domains of a job of so many ranks.
    ///
    /// # Errors
    /// When a descriptor or a thread cannot be had.
    pub fn new(
        domains: Domains,
        ranks: usize,
        listener: Listener,
        secret: Secret,
        out: Out,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Loop> {
        listener.set_nonblocking(true)?;
        let sockets = Sockets::new(FIRST)?;
        let data = epoll::EventData::new_u64;
        epoll::add(sockets.epoll(), &listener, data(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(sockets.epoll(), &mailbox.wake, data(WAKE), epoll::EventFlags::IN)?;
        let answers = Arc::clone(&mailbox);
        let answer = move |answer| answers.put(Input::Answer(answer));
        let own: Vec<_> = domains.own().ranks().collect();
        let line = |(id, domain): (DomainId, &Domain)| {
            let now = Instant::now();
            Some(Line {
                id,
                domain: Arc::new(domain.clone()),
                key: domains.key(id)?.secret(),
                courier: Courier::new(own.clone(), domain.ranks().collect(), ranks),
                links: FxHashMap::default(),
                fetching: 0,
                calling: 0,
                post: Post {
                    state: State::Idle { from: now, pause: FIRST_PAUSE },
                    reader: letters::Reader::default(),
                    heard: now,
                    said: now,
                },
            })
        };
        Ok(Loop {
            lines: domains.others().filter_map(line).collect(),
            domains,
            directory: Directory::default(),
            secret,
            sockets,
            strangers: FxHashMap::default(),
            next_stranger: STRANGER,
            listener,
            mailbox,
            out,
            home: dial::start(HOME_CALLERS, answer.clone())?,
            away: dial::start(LINE_CALLERS, answer)?,
            held: Vec::new(),
            again: Vec::new(),
            begun: Instant::now(),
            ranks,
            fetching: Fetching::On,
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut last_tick = Instant::now();
        self.tick();
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(self.sockets.epoll(), spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return self.out.event(RouterEvent::Fatal { reason: e.to_string() }),
            }
            if self.serve_all(&events) {
                return;
            }
            self.offer_held();
            if last_tick.elapsed() >= SHORT_TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    fn timeout(&self) -> Timespec {
        let fetches = self.fetching == Fetching::On;
        let is_due = |(link, state): (&Link, &State)| {
            matches!(state, State::Idle { .. }) && (fetches || !is_fetch(*link))
        };
        let soon = |line: &Line| line.courier.is_busy() || line.links.iter().any(is_due);
        let timeout = match () {
            () if !self.again.is_empty() => Duration::ZERO,
            () if self.lines.iter().any(soon) => SHORT_TICK,
            () => TICK,
        };
        timeout.try_into().expect("a short time")
    }

    /// Serves all connections with events. True: stop.
    fn serve_all(&mut self, events: &[epoll::Event]) -> bool {
        for token in std::mem::take(&mut self.again) {
            self.read(token);
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKE => {
                    for input in self.mailbox.take() {
                        if !self.take_input(input) {
                            return true;
                        }
                    }
                }
                token if token & STRANGER != 0 => self.read_preamble(token),
                token => self.serve(token, event.flags),
            }
            self.write();
        }
        false
    }

    /// Writes what is queued, and removes what cannot be written.
    fn write(&mut self) {
        loop {
            self.sockets.write_touched();
            match self.sockets.next_broken() {
                Some(token) => self.lost(token, "it cannot be written"),
                None => return,
            }
        }
    }

    /// False: stop.
    fn take_input(&mut self, input: Input) -> bool {
        match input {
            Input::Directory(directory) => self.follow(directory),
            Input::Letter { domain, letter } => self.send_letter(domain, &letter),
            Input::Domains(domains) => self.divide(domains),
            Input::Fetch(on) => self.fetch(on),
            Input::Answer(answer) => self.answered(answer),
            Input::Stop => return false,
        }
        true
    }

    /// Follows a new directory.
    fn follow(&mut self, directory: Directory) {
        if directory.epoch < self.directory.epoch || directory.check().is_err() {
            return;
        }
        if directory.kept_until != KeptUntil::Received {
            let reason = "between domains routers must keep messages until they are received";
            return self.out.event(RouterEvent::Fatal { reason: reason.into() });
        }
        let before = std::mem::replace(&mut self.directory, directory);
        let now = Instant::now();
        let mut replaced = Vec::new();
        for line in &mut self.lines {
            let mut outlet = Outlet { sockets: &mut self.sockets, links: &line.links };
            line.courier.set_primaries(&self.directory.primaries, &mut outlet);
            for link in line.courier.links() {
                let idle = State::Idle { from: now, pause: FIRST_PAUSE };
                let state = *line.links.entry(link).or_insert(idle);
                let Link::Give { router, .. } = link else { continue };
                let moved = before.routers.get(router.index()).is_some_and(|was| {
                    self.directory.routers.get(router.index()).is_some_and(|is| is != was)
                });
                replaced.extend(state.token().filter(|_| moved));
            }
        }
        for token in replaced {
            self.lost(token, "another router has taken its place");
        }
        self.tick();
    }

    /// Ranks have gone from one domain to another: what was under way for a domain whose ranks, or
    /// this one's, are others now begins anew.
    fn divide(&mut self, domains: Domains) {
        let before = std::mem::replace(&mut self.domains, domains);
        let same_here = before.own().ranks == self.domains.own().ranks;
        let own: Vec<_> = self.domains.own().ranks().collect();
        for at in 0..self.lines.len() {
            let Some(domain) = self.domains.all.get(self.lines[at].id.index()).cloned() else {
                continue;
            };
            if same_here && domain.ranks == self.lines[at].domain.ranks {
                continue;
            }
            self.end_links(at, |_| true);
            let line = &mut self.lines[at];
            line.links.clear();
            line.courier = Courier::new(own.clone(), domain.ranks().collect(), self.ranks);
            line.domain = Arc::new(domain);
        }
        let directory = self.directory.clone();
        self.follow(directory);
    }

    /// Messages are fetched from now on, or are not: then other gateways keep them.
    fn fetch(&mut self, on: bool) {
        if on {
            self.fetching = Fetching::On;
            self.out.event(RouterEvent::Fetches(true));
        } else {
            self.fetching = Fetching::Ending;
            (0..self.lines.len()).for_each(|at| self.end_links(at, is_fetch));
        }
        self.tick();
    }

    /// Ends connections of a courier.
    fn end_links(&mut self, at: usize, which: impl Fn(Link) -> bool) {
        let links = self.lines[at].links.iter().filter(|(link, _)| which(**link));
        let tokens: Vec<Token> = links.filter_map(|(_, state)| state.token()).collect();
        tokens.into_iter().for_each(|token| self.lost(token, "it is not needed any more"));
    }

    /// Says when all that was fetched is safe, and no more is fetched.
    fn watch_fetching(&mut self) {
        let is_over = |line: &Line| line.fetching == 0 && !line.courier.is_busy();
        if self.fetching == Fetching::Ending && self.lines.iter().all(is_over) {
            self.fetching = Fetching::Off;
            self.out.event(RouterEvent::Fetches(false));
        }
    }

    // Connections of other domains.

    fn accept(&mut self) {
        while let Ok(stream) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() || dial::prepare_line(&stream).is_err() {
                continue;
            }
            if self.strangers.len() >= MAX_STRANGERS {
                let oldest = self.strangers.iter().min_by_key(|(_, s)| s.since).map(|(t, _)| *t);
                oldest.map(|token| self.strangers.remove(&token));
            }
            let token = self.next_stranger;
            self.next_stranger += 1;
            let data = epoll::EventData::new_u64(token);
            if epoll::add(self.sockets.epoll(), &stream, data, epoll::EventFlags::IN).is_ok() {
                let (bytes, since) = ([0; PREAMBLE_LEN], Instant::now());
                self.strangers.insert(token, Stranger { stream, bytes, filled: 0, since });
            }
        }
    }

    fn read_preamble(&mut self, token: Token) {
        let Some(Stranger { stream, bytes, filled, .. }) = self.strangers.get_mut(&token) else {
            return;
        };
        match stream.read(&mut bytes[*filled..]) {
            Ok(0) => drop(self.strangers.remove(&token)),
            Ok(n) => {
                *filled += n;
                if *filled == PREAMBLE_LEN {
                    self.admit_stranger(token);
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => drop(self.strangers.remove(&token)),
        }
    }

    /// The preamble has come: who can prove to be that one is found out by its key.
    fn admit_stranger(&mut self, token: Token) {
        let Some(Stranger { stream, bytes, .. }) = self.strangers.remove(&token) else { return };
        // The router's loop, or this one by another number, is to be told of what comes.
        let _ = epoll::delete(self.sockets.epoll(), &stream);
        let Some(Preamble { kind, from }) = Preamble::decode(&bytes) else { return };
        let Some(at) = self.lines.iter().position(|line| line.id == from) else { return };
        let line = &self.lines[at];
        match kind {
            Kind::Rank => {
                let (key, domain) = (line.key.clone(), Arc::clone(&line.domain));
                self.out.router.accept(Accepted { socket: stream, key, domain });
            }
            // Of two domains the one with the lower number calls.
            Kind::Letters if from < self.domains.own => {
                if let Ok(token) = self.sockets.add(Conn::new(stream), Peer::Caller(at)) {
                    self.again.push(token);
                }
            }
            Kind::Letters => {}
            Kind::Image => self.out.images.give(from, stream),
        }
    }

    /// Makes the steps of a handshake for which all has come. False: the connection is over.
    fn handshake(&mut self, token: Token, at: usize) -> bool {
        loop {
            let Some((conn, _)) = self.sockets.get(token).filter(|(conn, _)| conn.can_step())
            else {
                return true;
            };
            let line = &self.lines[at];
            let step = conn.handshake(&line.key);
            match step {
                Ok(Step::More) => {}
                Ok(Step::Proven(claim, keys)) if claim == (Claim::Letters { from: line.id }) => {
                    conn.open(keys);
                    conn.out.extend(verdict(Ok(())));
                    self.sockets.queue(token, |_| {});
                    self.begin_letters(at, token);
                    return true;
                }
                Ok(Step::Proven(..)) | Err(_) => {
                    tracing::info!(domain = %line.domain.name, "a caller has not proven itself");
                    return false;
                }
            }
            self.sockets.queue(token, |_| {});
        }
    }

    // Letters.

    /// A connection for letters stands.
    fn begin_letters(&mut self, at: usize, token: Token) {
        if let Some(old) = self.lines[at].post.state.token() {
            self.lost(old, "another one replaces it");
        }
        self.sockets.set_peer(token, Peer::Letters(at));
        let line = &mut self.lines[at];
        let now = Instant::now();
        let reader = letters::Reader::default();
        line.post = Post { state: State::Up(token), reader, heard: now, said: now };
        tracing::info!(domain = %line.domain.name, "there is a line for letters");
        self.out.event(RouterEvent::Line { domain: line.id, up: true });
    }

    fn send_letter(&mut self, domain: DomainId, letter: &Letter) {
        let Some(line) = self.lines.iter_mut().find(|line| line.id == domain) else { return };
        let Some(token) = line.post.state.token() else { return };
        line.post.said = Instant::now();
        let mut fits = true;
        self.sockets.queue(token, |conn| {
            fits = conn.waiting() < MAX_LETTERS && letters::put(&mut conn.out, letter).is_ok();
        });
        if !fits {
            self.lost(token, "a letter does not fit");
        }
    }

    /// Takes the letters that have come. False: the connection is over.
    fn take_letters(&mut self, token: Token, at: usize) -> bool {
        let Some((conn, _)) = self.sockets.get(token) else { return true };
        let (input, filled) = conn.take_input();
        let line = &mut self.lines[at];
        line.post.heard = Instant::now();
        let come = line.post.reader.add(&input[..filled]);
        conn.put_back(input, filled);
        let domain = line.id;
        match come {
            Ok(come) => {
                for letter in come {
                    self.out.event(RouterEvent::FromDomain { domain, letter });
                }
                true
            }
            Err(_) => false,
        }
    }

    // All connections.

    fn serve(&mut self, token: Token, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        if flags.contains(F::OUT) {
            self.sockets.write(token);
        }
        if flags.intersects(F::IN | F::HUP | F::ERR) {
            self.read(token);
        }
    }

    /// Reads what is there and handles it.
    fn read(&mut self, token: Token) {
        loop {
            let Some((conn, peer)) = self.sockets.get(token).filter(|(conn, _)| !conn.held) else {
                return;
            };
            let before = conn.received;
            match conn.read() {
                Ok(true) if conn.received == before => return,
                Ok(true) => {}
                Ok(false) => return self.lost(token, "the other side has closed it"),
                Err(e) => return self.lost(token, &e.to_string()),
            }
            if !self.process(token, peer) {
                return self.lost(token, "what came is not sound");
            }
            if !self.sockets.get(token).is_some_and(|(conn, _)| conn.has_more()) {
                return;
            }
        }
    }

    /// Handles what was read. False: the connection is over.
    fn process(&mut self, token: Token, peer: Peer) -> bool {
        match peer {
            Peer::Caller(at) => self.handshake(token, at),
            Peer::Letters(at) => self.take_letters(token, at),
            Peer::Courier(at, link) => self.take_frames(token, at, link),
        }
    }

    /// Gives a courier the frames that were read. False: the connection is over.
    fn take_frames(&mut self, token: Token, at: usize, link: Link) -> bool {
        let Some((conn, _)) = self.sockets.get(token) else { return true };
        let (input, filled) = conn.take_input();
        let Line { courier, links, .. } = &mut self.lines[at];
        let mut outlet = Outlet { sockets: &mut self.sockets, links };
        let mut used = 0;
        let end = loop {
            match Frame::parse(&input[used..filled]) {
                Ok(Some(frame)) => match courier.frame(link, &frame, &mut outlet) {
                    Ok(Taken::Yes) => used += frame.len,
                    Ok(Taken::Later) => break Ok(true),
                    Err(reason) => break Err(reason),
                },
                Ok(None) => break Ok(false),
                Err(reason) => break Err(reason.to_owned()),
            }
        };
        if let Some((conn, _)) = self.sockets.get(token) {
            conn.put_back(input, used);
        }
        match end {
            Ok(held) => {
                if held && !self.held.contains(&token) {
                    self.held.push(token);
                }
                self.sockets.hold(token, held);
                true
            }
            Err(reason) => {
                tracing::warn!(?link, reason, "a connection of the courier is refused");
                false
            }
        }
    }

    /// Offers the frames that had no room again, as long as some of them find it.
    fn offer_held(&mut self) {
        loop {
            self.write();
            let held = std::mem::take(&mut self.held);
            let count = held.len();
            for token in held {
                let Some((_, peer)) = self.sockets.get(token) else { continue };
                if !self.process(token, peer) {
                    self.lost(token, "what came is not sound");
                } else if !self.held.contains(&token) {
                    self.again.push(token);
                }
            }
            if self.held.len() == count || self.held.is_empty() {
                return self.write();
            }
        }
    }

    /// A connection is over.
    fn lost(&mut self, token: Token, why: &str) {
        let Some(peer) = self.sockets.remove(token) else { return };
        tracing::debug!(?peer, why, "a connection is lost");
        match peer {
            Peer::Caller(_) => {}
            Peer::Letters(at) => {
                let line = &mut self.lines[at];
                if line.post.state.token() == Some(token) {
                    line.post.state = State::lost();
                    tracing::info!(domain = %line.domain.name, why, "the line for letters is lost");
                    self.out.event(RouterEvent::Line { domain: line.id, up: false });
                }
            }
            Peer::Courier(at, link) => {
                let line = &mut self.lines[at];
                line.links.insert(link, State::lost());
                if let Link::Fetch(_) = link {
                    line.fetching -= 1;
                    if line.fetching == 0 {
                        tracing::info!(domain = %line.domain.name, why, "the line is lost");
                    }
                }
                let Line { courier, links, .. } = line;
                let mut outlet = Outlet { sockets: &mut self.sockets, links };
                courier.lost(link, &mut outlet);
            }
        }
    }

    // What is due.

    fn tick(&mut self) {
        let now = Instant::now();
        self.strangers.retain(|_, stranger| now - stranger.since < PATIENCE);
        let late = |conn: &Conn, peer: Peer| {
            matches!(peer, Peer::Caller(_)) && now - conn.since > PATIENCE
        };
        for token in self.sockets.which(late) {
            self.lost(token, "it takes too long");
        }
        for at in 0..self.lines.len() {
            self.call(at, now);
            self.sign(at, now);
            let Line { courier, links, .. } = &mut self.lines[at];
            let mut outlet = Outlet { sockets: &mut self.sockets, links };
            courier.tick(now - self.begun, &mut outlet);
        }
        self.watch_fetching();
        self.write();
    }

    /// Shows the other side that this one lives, and finds out whether that one does.
    fn sign(&mut self, at: usize, now: Instant) {
        let post = &mut self.lines[at].post;
        let Some(token) = post.state.token() else { return };
        if now - post.heard > SILENCE {
            return self.lost(token, "the other side is silent");
        }
        if now - post.said >= SIGN_EVERY {
            post.said = now;
            self.sockets.queue(token, |conn| letters::put_sign(&mut conn.out));
        }
    }

    /// Has connections made that are due.
    fn call(&mut self, at: usize, now: Instant) {
        let fetches = self.fetching == Fetching::On;
        let line = &mut self.lines[at];
        for (link, state) in &mut line.links {
            let Some(pause) = state.due(now).filter(|_| fetches || !is_fetch(*link)) else {
                continue;
            };
            let (rank, stream) = match *link {
                Link::Give { source, .. } => (source, StreamKind::Send),
                Link::Fetch(rank) => (rank, StreamKind::Delivery),
            };
            let claim = Claim::Rank {
                instance: RankInstance { rank, incarnation: Incarnation(1) },
                stream,
            };
            let id = Peer::Courier(at, *link);
            match *link {
                Link::Give { router, .. } => {
                    let Some(addr) = self.directory.routers.get(router.index()) else { continue };
                    let target = Target::Home(addr.clone());
                    let secret = self.secret.clone();
                    // The callers end only after this loop.
                    let _ = self.home.send(Call { id, target, secret, claim });
                }
                // One finds out whether the other gateway can be reached at all.
                Link::Fetch(_) if line.fetching == 0 && line.calling > 0 => continue,
                Link::Fetch(_) => {
                    line.calling += 1;
                    let preamble = Preamble { kind: Kind::Rank, from: self.domains.own };
                    let target = Target::Line { gateway: line.domain.gateway.clone(), preamble };
                    let secret = line.key.clone();
                    let _ = self.away.send(Call { id, target, secret, claim });
                }
            }
            *state = State::Calling { pause };
        }
        let due = line.post.state.due(now).filter(|_| self.domains.own < line.id);
        if let Some(pause) = due {
            line.post.state = State::Calling { pause };
            let preamble = Preamble { kind: Kind::Letters, from: self.domains.own };
            let target = Target::Line { gateway: line.domain.gateway.clone(), preamble };
            let claim = Claim::Letters { from: self.domains.own };
            let secret = line.key.clone();
            let _ = self.away.send(Call { id: Peer::Letters(at), target, secret, claim });
        }
    }

    /// A connection was made, or could not be.
    fn answered(&mut self, answer: Answer<Peer>) {
        let Answer { id, target, stream } = answer;
        let conn = stream.and_then(|stream| Conn::connected(stream).map_err(|e| e.to_string()));
        match id {
            Peer::Letters(at) | Peer::Caller(at) => {
                let State::Calling { pause } = self.lines[at].post.state else { return };
                let token = conn.and_then(|conn| {
                    self.sockets.add(conn, Peer::Letters(at)).map_err(|e| e.to_string())
                });
                match token {
                    Ok(token) => {
                        self.begin_letters(at, token);
                        self.again.push(token);
                    }
                    Err(reason) => {
                        let line = &mut self.lines[at];
                        tracing::debug!(domain = %line.domain.name, reason, "no line for letters");
                        line.post.state = State::failed(pause);
                    }
                }
            }
            Peer::Courier(at, link) => self.courier_answered((at, link), &target, conn),
        }
    }

    fn courier_answered(
        &mut self,
        (at, link): (usize, Link),
        target: &Target,
        conn: Result<Conn, String>,
    ) {
        let fetches = self.fetching == Fetching::On;
        let line = &mut self.lines[at];
        line.calling -= usize::from(is_fetch(link));
        let Some(State::Calling { pause }) = line.links.get(&link).copied() else { return };
        let outdated = match (link, target) {
            (Link::Give { router, .. }, Target::Home(addr)) => {
                self.directory.routers.get(router.index()) != Some(addr)
            }
            (Link::Fetch(_), _) => !fetches,
            _ => false,
        };
        if outdated {
            line.links.insert(link, State::Idle { from: Instant::now(), pause: FIRST_PAUSE });
            return;
        }
        let token = conn.and_then(|conn| {
            self.sockets.add(conn, Peer::Courier(at, link)).map_err(|e| e.to_string())
        });
        match token {
            Ok(token) => {
                line.links.insert(link, State::Up(token));
                if let Link::Fetch(_) = link {
                    line.fetching += 1;
                    if line.fetching == 1 {
                        tracing::info!(domain = %line.domain.name, "there is a line");
                    }
                }
                let Line { courier, links, .. } = line;
                let mut outlet = Outlet { sockets: &mut self.sockets, links };
                courier.connected(link, &mut outlet);
                self.again.push(token);
                self.call(at, Instant::now());
            }
            Err(reason) => {
                tracing::debug!(?link, reason, "no connection");
                line.links.insert(link, State::failed(pause));
            }
        }
    }
}
