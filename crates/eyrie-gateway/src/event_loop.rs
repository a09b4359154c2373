//! The gateway's loop: one thread, one epoll. It moves bytes between sockets and couriers, takes
//! connections of other domains, and passes letters on. It decides nothing of messages. It must
//! never wait for a peer, and never hold more of a stranger than a preamble.

use crate::courier::{Courier, Link, Taken};
use crate::dial::{self, Answer, Call, Target};
use crate::images::Images;
use crate::letters;
use crate::line::{Line, Outlet, Peer, Post};
use crate::links::{Links, Need, State};
use crate::mailbox::{Input, Mailbox};
use crate::preamble::{Kind, Preamble};
use crate::sockets::{Sockets, Token};
use crate::strangers::{Strangers, PATIENCE};
use crate::trunks::Trunks;
use eyrie_router::conn::{Accepted, Conn};
use eyrie_router::spin::{Sizes, Spin, Traffic, AT_ONCE};
use eyrie_router::{LineFigures, Router, RouterCommand, RouterEvent};
use eyrie_transport::handshake::{verdict, Step};
use eyrie_transport::{round_trip, Listener, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::data::{Frame, StreamKind};
use eyrie_wire::directory::{Directory, KeptUntil};
use eyrie_wire::domains::{Domains, Letter};
use eyrie_wire::{DomainId, Incarnation, RankInstance, RouterId};
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, Timespec};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LISTENER: Token = 0;
const WAKE: Token = 1;
const FIRST: Token = 2;

/// Most connections that say to be for letters and have not proven it.
const MAX_CALLERS: usize = 64;
/// The time between two looks at what is due, where something is due soon, and else.
const SHORT_TICK: Duration = Duration::from_millis(10);
const TICK: Duration = Duration::from_millis(250);
/// The time from one sign of life to the next on a connection for letters, and after how long
/// without one it is lost.
const SIGN_EVERY: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(7);
/// Most bytes of letters that wait for a slow line.
const MAX_LETTERS: usize = 64 << 20;
/// Threads that connect to routers of this domain, and to other gateways.
const HOME_CALLERS: usize = 4;
const LINE_CALLERS: usize = 8;
/// With this many bytes queued, writing is not deferred until all connections were read.
const DEFERRED_BYTES: usize = 16 * 1024;

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

/// The loop.
pub struct Loop {
    domains: Domains,
    lines: Vec<Line>,
    directory: Directory,
    secret: Secret,
    sockets: Sockets<Peer>,
    strangers: Strangers,
    mailbox: Arc<Mailbox>,
    out: Out,
    home: crossbeam_channel::Sender<Call<Peer>>,
    away: crossbeam_channel::Sender<Call<Peer>>,
    /// Connections that say to be for letters, and have not proven it.
    callers: BTreeSet<Token>,
    /// Connections that may have more to be read than epoll reports.
    again: Vec<Token>,
    sizes: Sizes,
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
        let strangers = Strangers::at(listener)?;
        let sockets = Sockets::new(FIRST)?;
        let data = epoll::EventData::new_u64;
        epoll::add(sockets.epoll(), strangers.listener(), data(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(sockets.epoll(), mailbox.wake(), data(WAKE), epoll::EventFlags::IN)?;
        let answers = Arc::clone(&mailbox);
        let answer = move |answer| answers.put(Input::Answer(answer));
        Ok(Loop {
            lines: domains.others().filter_map(|(id, _)| Line::to(&domains, id, ranks)).collect(),
            domains,
            directory: Directory::default(),
            secret,
            sockets,
            strangers,
            mailbox,
            out,
            home: dial::start(HOME_CALLERS, answer.clone())?,
            away: dial::start(LINE_CALLERS, answer)?,
            callers: BTreeSet::new(),
            again: Vec::new(),
            sizes: Sizes::default(),
            begun: Instant::now(),
            ranks,
            fetching: Fetching::On,
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut events = Vec::with_capacity(256);
        let mut last_tick = Instant::now();
        let mut spin = Spin::default();
        self.tick();
        loop {
            events.clear();
            match self.wait(&mut spin, &mut events) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(e) => return self.out.event(RouterEvent::Fatal { reason: e.to_string() }),
            }
            if self.serve_all(&events) {
                return;
            }
            self.offer_stalled();
            if last_tick.elapsed() >= SHORT_TICK {
                last_tick = Instant::now();
                self.tick();
            }
        }
    }

    /// Waits for an event, or until something is due.
    fn wait(&self, spin: &mut Spin, events: &mut Vec<epoll::Event>) -> Result<(), Errno> {
        let epoll = self.sockets.epoll();
        if !self.again.is_empty() {
            return epoll::wait(epoll, spare_capacity(events), Some(&AT_ONCE)).map(drop);
        }
        let connections = self.sockets.count();
        let traffic = Traffic { connections, short: self.sizes.are_short() };
        spin.wait(epoll, events, &self.timeout(), &traffic, None::<fn() -> bool>)
    }

    fn timeout(&self) -> Timespec {
        let now = Instant::now();
        let soon = |line: &Line| {
            let call = line.links.next().map(|next| next.saturating_duration_since(now));
            let ask = line.courier.is_busy().then_some(SHORT_TICK);
            [call, ask].into_iter().flatten().min()
        };
        let soon = self.lines.iter().filter_map(soon).min();
        let timeout = soon.map_or(TICK, |soon| soon.clamp(SHORT_TICK, TICK));
        timeout.try_into().expect("a short time")
    }

    /// Serves all connections with events. True: stop.
    fn serve_all(&mut self, events: &[epoll::Event]) -> bool {
        for token in std::mem::take(&mut self.again) {
            self.read(token);
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.strangers.accept(self.sockets.epoll().as_fd()),
                WAKE => {
                    for input in self.mailbox.take() {
                        if !self.take_input(input) {
                            return true;
                        }
                    }
                }
                token if Strangers::is_one(token) => {
                    let read = self.strangers.read(token, self.sockets.epoll().as_fd());
                    if let Some((preamble, stream)) = read {
                        self.admit(preamble, stream);
                    }
                }
                token => self.serve(token, event.flags),
            }
            // What several connections bring for the same one goes there at once.
            if self.sockets.queued_bytes() >= DEFERRED_BYTES {
                self.write();
            }
        }
        self.write();
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
            Input::Figures => self.tell_figures(),
            Input::Answer(answer) => self.answered(answer),
            Input::Stop => return false,
        }
        true
    }

    /// Tells the figures of the lines, and has the router tell its own.
    fn tell_figures(&mut self) {
        let now = Instant::now();
        let mut all = Vec::new();
        for line in &mut self.lines {
            let conn = line.post.state.token().and_then(|token| self.sockets.get(token));
            let round_trip = conn.and_then(|(conn, _)| round_trip(conn));
            let [received, last_second, most_in_a_second] = line.meter.figures(now);
            let domain = line.id;
            all.push(LineFigures { domain, round_trip, received, last_second, most_in_a_second });
        }
        self.out.event(RouterEvent::Lines(all));
        self.out.router.command(RouterCommand::Stats);
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
        for line in self.lines.iter_mut().filter(|line| !line.over) {
            let mut outlet = Outlet { sockets: &mut self.sockets, links: &line.links };
            line.courier.set_primaries(&self.directory.primaries, &mut outlet);
            for link in line.courier.links() {
                let state = line.links.want(Need::Stream(link), now);
                let router = match link {
                    Link::Give { router, .. } => router,
                    Link::Fetch(rank) => {
                        line.trunk_of(rank).map(|n| line.links.want(Need::Trunk(n), now));
                        continue;
                    }
                };
                let moved = before.routers.get(router.index()).is_some_and(|was| {
                    self.directory.routers.get(router.index()).is_some_and(|is| is != was)
                });
                replaced.extend(state.token().filter(|_| moved));
            }
        }
        for token in replaced {
            self.lost(token, "another router has taken its place");
        }
        (0..self.lines.len()).for_each(|at| self.call_again(at));
        self.tick();
    }

    /// Ranks have gone from one domain to another: what was under way for a domain whose ranks, or
    /// this one's, are others now begins anew. Or there is another domain.
    fn divide(&mut self, domains: Domains) {
        let before = std::mem::replace(&mut self.domains, domains);
        let same_here = before.own().ranks == self.domains.own().ranks;
        let own: Vec<_> = self.domains.own().ranks().collect();
        for at in 0..self.lines.len() {
            let Some(domain) = self.domains.all.get(self.lines[at].id.index()).cloned() else {
                continue;
            };
            if self.domains.key(self.lines[at].id).is_none() {
                self.end_line(at);
            }
            if self.lines[at].over || same_here && domain.ranks == self.lines[at].domain.ranks {
                continue;
            }
            self.end_connections(at, |_| true);
            let line = &mut self.lines[at];
            line.links = Links::default();
            line.courier = Courier::new(own.clone(), domain.ranks().collect(), self.ranks);
            line.domain = Arc::new(domain);
        }
        for (id, _) in self.domains.others() {
            if !self.lines.iter().any(|line| line.id == id) {
                self.lines.extend(Line::to(&self.domains, id, self.ranks));
            }
        }
        // Connections that others have made here have the rights that were theirs.
        self.out.router.command(RouterCommand::Domains(self.domains.clone()));
        // The first directory may be still to come.
        if self.directory != Directory::default() {
            self.follow(self.directory.clone());
        }
    }

    /// The domain has ended: nothing is asked of it or taken from it any more.
    fn end_line(&mut self, at: usize) {
        if std::mem::replace(&mut self.lines[at].over, true) {
            return;
        }
        self.end_connections(at, |_| true);
        let of_line = |peer| matches!(peer, Peer::Caller(line) if line == at);
        let callers = self.sockets.of(of_line);
        let post = self.lines[at].post.state.token();
        for token in callers.into_iter().chain(post) {
            self.lost(token, "its domain has ended");
        }
        let line = &mut self.lines[at];
        line.links = Links::default();
        line.courier = Courier::new(Vec::new(), Vec::new(), self.ranks);
        // What is being made for it is not taken when it stands.
        line.post.state = State::lost();
    }

    /// Messages are fetched from now on, or are not: then other gateways keep them.
    fn fetch(&mut self, on: bool) {
        if on {
            self.fetching = Fetching::On;
            (0..self.lines.len()).for_each(|at| self.call_again(at));
            self.out.event(RouterEvent::Fetches(true));
        } else {
            self.fetching = Fetching::Ending;
            let is_trunk = |need| matches!(need, Need::Trunk(_));
            (0..self.lines.len()).for_each(|at| self.end_connections(at, is_trunk));
        }
        self.tick();
    }

    /// Ends connections of a courier.
    fn end_connections(&mut self, at: usize, which: impl Fn(Need) -> bool) {
        let is_own = |need| !matches!(need, Need::Stream(Link::Fetch(_)));
        let tokens = self.lines[at].links.tokens(|need| is_own(need) && which(need));
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

    /// Looks at once at all connections that are to be made.
    fn call_again(&mut self, at: usize) {
        let now = Instant::now();
        self.lines[at].links.look_at(now);
        self.call(at, now);
    }

    // Connections of other domains.

    /// A preamble has come: who can prove to be that one is found out by its key.
    fn admit(&mut self, Preamble { kind, from }: Preamble, stream: Stream) {
        let is_it = |line: &Line| line.id == from && !line.over;
        let Some(at) = self.lines.iter().position(is_it) else { return };
        let line = &self.lines[at];
        match kind {
            Kind::Trunk => {
                let (key, domain) = (line.key.clone(), Arc::clone(&line.domain));
                self.out.router.accept(Accepted { socket: stream, key, domain });
            }
            // Of two domains the one with the lower number calls.
            Kind::Letters if from < self.domains.own => {
                let many = self.callers.len() >= MAX_CALLERS;
                if let Some(first) = self.callers.first().copied().filter(|_| many) {
                    self.lost(first, "there are too many");
                }
                if let Ok(token) = self.sockets.add(Conn::new(stream), Peer::Caller(at)) {
                    self.callers.insert(token);
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
        self.callers.remove(&token);
        let line = &mut self.lines[at];
        let now = Instant::now();
        line.post = Post::new(State::Up(token), now);
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
            let Some((conn, peer)) = self.sockets.get(token) else { return };
            let before = conn.received;
            match conn.read() {
                Ok(true) if conn.received == before => return,
                Ok(true) => {
                    let came = conn.received - before;
                    if let Some(line) = peer.line_of_read().and_then(|at| self.lines.get_mut(at)) {
                        line.meter.add(came, Instant::now());
                    }
                }
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
            Peer::Trunk(at, _) => self.trunks(at).take_records(token),
        }
    }

    /// Gives a courier the frames of a router that were read. False: the connection is over.
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
                    Ok(Taken::Later) => break Err("an answer that waits".to_owned()),
                    Err(reason) => break Err(reason),
                },
                Ok(None) => break Ok(()),
                Err(reason) => break Err(reason.to_owned()),
            }
        };
        if let Some((conn, _)) = self.sockets.get(token) {
            conn.put_back(input, used);
        }
        if let Err(reason) = &end {
            tracing::warn!(?link, reason, "a connection of the courier is refused");
        }
        end.is_ok()
    }

    /// Handles what comes on the trunks of a line.
    fn trunks(&mut self, at: usize) -> Trunks<'_> {
        let Loop { lines, sockets, sizes, .. } = self;
        Trunks { line: &mut lines[at], sockets, sizes }
    }

    /// Offers the frames that had no room again, as long as some of them find it.
    fn offer_stalled(&mut self) {
        let mut goes_on = true;
        while std::mem::take(&mut goes_on) {
            self.write();
            for at in 0..self.lines.len() {
                match self.trunks(at).offer_stalled() {
                    Ok(some) => goes_on |= some,
                    Err((token, why)) => self.lost(token, &why),
                }
            }
        }
    }

    /// A connection is over.
    fn lost(&mut self, token: Token, why: &str) {
        let Some(peer) = self.sockets.remove(token) else { return };
        tracing::debug!(?peer, why, "a connection is lost");
        match peer {
            Peer::Caller(_) => drop(self.callers.remove(&token)),
            Peer::Letters(at) => {
                let line = &mut self.lines[at];
                if line.post.state.token() == Some(token) {
                    line.post.state = State::lost();
                    tracing::info!(domain = %line.domain.name, why, "the line for letters is lost");
                    self.out.event(RouterEvent::Line { domain: line.id, up: false });
                }
            }
            Peer::Trunk(at, number) => self.trunks(at).lost(number, why),
            Peer::Courier(at, link) => {
                let Line { courier, links, .. } = &mut self.lines[at];
                links.set(Need::Stream(link), State::lost());
                let mut outlet = Outlet { sockets: &mut self.sockets, links };
                courier.lost(link, &mut outlet);
            }
        }
    }

    // What is due.

    fn tick(&mut self) {
        let now = Instant::now();
        self.strangers.end_late(now);
        let is_late = |conn: &Conn| now - conn.since > PATIENCE;
        let first = self.callers.first().copied();
        // The oldest one has the lowest number.
        let late = first.filter(|t| self.sockets.get(*t).is_some_and(|(conn, _)| is_late(conn)));
        if let Some(token) = late {
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
        if self.lines[at].over {
            return;
        }
        let fetches = self.fetching == Fetching::On;
        let Loop { lines, directory, secret, domains, home, away, .. } = self;
        let line = &mut lines[at];
        let Line { links, calling, fetching, domain, key, .. } = line;
        let mut streams = Vec::new();
        let claim_of = |source| Claim::Rank {
            instance: RankInstance { rank: source, incarnation: Incarnation(1) },
            stream: StreamKind::Send,
        };
        links.call(now, |need| {
            match need {
                Need::Stream(link @ Link::Give { source, router }) => {
                    // Another directory may name it.
                    let Some(addr) = directory.routers.get(router.index()) else { return false };
                    let id = Peer::Courier(at, link);
                    let target = Target::Home(addr.clone());
                    let secret = secret.clone();
                    // The callers end only after this loop.
                    let _ = home.send(Call { id, target, secret, claim: claim_of(source) });
                }
                Need::Stream(Link::Fetch(rank)) => {
                    streams.push(rank);
                    return false;
                }
                // One finds out whether the other gateway can be reached at all; its answer brings
                // the others.
                Need::Trunk(_) if !fetches || (*fetching == 0 && *calling > 0) => return false,
                Need::Trunk(number) => {
                    *calling += 1;
                    let id = Peer::Trunk(at, number);
                    let preamble = Preamble { kind: Kind::Trunk, from: domains.own };
                    let target = Target::Line { gateway: domain.gateway.clone(), preamble };
                    let secret = key.clone();
                    let _ = away.send(Call { id, target, secret, claim: Claim::Trunk });
                }
            }
            true
        });
        let due = line.post.state.due(now).filter(|_| self.domains.own < line.id);
        if let Some(pause) = due {
            line.post.state = State::Calling { pause };
            let preamble = Preamble { kind: Kind::Letters, from: self.domains.own };
            let target = Target::Line { gateway: line.domain.gateway.clone(), preamble };
            let claim = Claim::Letters { from: self.domains.own };
            let secret = line.key.clone();
            let _ = self.away.send(Call { id: Peer::Letters(at), target, secret, claim });
        }
        self.trunks(at).begin_streams(&streams);
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
            Peer::Trunk(at, number) => self.trunk_answered(at, number, conn),
        }
    }

    fn courier_answered(
        &mut self,
        (at, link): (usize, Link),
        target: &Target,
        conn: Result<Conn, String>,
    ) {
        let Line { courier, links, .. } = &mut self.lines[at];
        let need = Need::Stream(link);
        let Some(State::Calling { pause }) = links.get(need) else { return };
        if let (Link::Give { router, .. }, Target::Home(addr)) = (link, target) {
            if self.directory.routers.get(router.index()) != Some(addr) {
                return links.set(need, State::wanted(Instant::now()));
            }
        }
        let token = conn.and_then(|conn| {
            self.sockets.add(conn, Peer::Courier(at, link)).map_err(|e| e.to_string())
        });
        match token {
            Ok(token) => {
                links.set(need, State::Up(token));
                courier.connected(link, &mut Outlet { sockets: &mut self.sockets, links });
                self.again.push(token);
            }
            Err(reason) => {
                tracing::debug!(?link, reason, "no connection");
                links.set(need, State::failed(pause));
            }
        }
    }

    fn trunk_answered(&mut self, at: usize, number: usize, conn: Result<Conn, String>) {
        let line = &mut self.lines[at];
        line.calling -= 1;
        let need = Need::Trunk(number);
        let Some(State::Calling { pause }) = line.links.get(need) else { return };
        if self.fetching != Fetching::On {
            return line.links.set(need, State::wanted(Instant::now()));
        }
        let token = conn.and_then(|conn| {
            self.sockets.add(conn, Peer::Trunk(at, number)).map_err(|e| e.to_string())
        });
        match token {
            Ok(token) => {
                self.trunks(at).stands(number, token);
                self.again.push(token);
                self.call_again(at);
            }
            Err(reason) => {
                tracing::debug!(domain = %line.domain.name, reason, "no trunk");
                line.links.set(need, State::failed(pause));
            }
        }
    }
}
