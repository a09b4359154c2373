//! What a gateway has with one other domain: the courier, its connections and the connection for
//! letters. Decides nothing.

use crate::courier::{Courier, Link, Output};
use crate::figures::Meter;
use crate::letters;
use crate::links::{Links, Need, State};
use crate::sockets::Sockets;
use crate::stalled::Stalled;
use eyrie_router::trunk::{put_frame, TRUNKS};
use eyrie_wire::auth::Secret;
use eyrie_wire::data::{put_plain, Header};
use eyrie_wire::domains::{Domain, Domains};
use eyrie_wire::{DomainId, Rank};
use std::sync::Arc;
use std::time::Instant;

/// What a connection is for, proven or to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A connection to a router, of the courier from the domain with this place among the others.
    Courier(usize, Link),
    /// The trunk with this number from that domain.
    Trunk(usize, usize),
    /// Letters of the domain with this place.
    Letters(usize),
    /// One that says to be for letters of the domain with this place, and has not proven it.
    Caller(usize),
}

impl Peer {
    /// The place of the domain from which something comes over such a connection, once it is
    /// proven.
    pub fn line_of_read(self) -> Option<usize> {
        match self {
            Peer::Trunk(at, _) | Peer::Letters(at) => Some(at),
            Peer::Courier(..) | Peer::Caller(_) => None,
        }
    }
}

/// The connection for letters.
pub struct Post {
    pub state: State,
    pub reader: letters::Reader,
    pub heard: Instant,
    pub said: Instant,
}

impl Post {
    /// One in this state, over which nothing has come or gone yet.
    pub fn new(state: State, now: Instant) -> Post {
        Post { state, reader: letters::Reader::default(), heard: now, said: now }
    }
}

/// All that there is with one other domain.
pub struct Line {
    pub id: DomainId,
    pub domain: Arc<Domain>,
    pub key: Secret,
    pub courier: Courier,
    pub links: Links,
    pub stalled: Stalled,
    /// Trunks that stand, and that are being made.
    pub fetching: usize,
    pub calling: usize,
    pub post: Post,
    /// The domain has ended: there is no line to it any more. Others keep their places.
    pub over: bool,
    pub meter: Meter,
}

impl Line {
    /// The line to another domain, which is to be made; none to one that has ended. `ranks`: how
    /// many the job has.
    pub fn to(domains: &Domains, id: DomainId, ranks: usize) -> Option<Line> {
        let now = Instant::now();
        let domain = domains.all.get(id.index())?;
        let own = domains.own().ranks().collect();
        Some(Line {
            id,
            domain: Arc::new(domain.clone()),
            key: domains.key(id)?.secret(),
            courier: Courier::new(own, domain.ranks().collect(), ranks),
            links: Links::default(),
            stalled: Stalled::default(),
            fetching: 0,
            calling: 0,
            post: Post::new(State::wanted(now), now),
            over: false,
            meter: Meter::new(now),
        })
    }

    /// How many trunks there are.
    fn trunks(&self) -> usize {
        self.courier.own().len().min(TRUNKS)
    }

    /// The trunk of a rank of this domain.
    pub fn trunk_of(&self, rank: Rank) -> Option<usize> {
        self.courier.place_of(rank).map(|place| place % self.trunks())
    }

    /// The ranks of a trunk.
    pub fn ranks_of(&self, number: usize) -> Vec<Rank> {
        self.courier.own().iter().copied().skip(number).step_by(self.trunks().max(1)).collect()
    }
}

/// Where a courier's frames go.
pub struct Outlet<'a> {
    pub sockets: &'a mut Sockets<Peer>,
    pub links: &'a Links,
}

impl Output for Outlet<'_> {
    fn frame(&mut self, link: Link, header: &Header, payload: &[u8]) {
        let Some(token) = self.links.token(Need::Stream(link)) else { return };
        self.sockets.queue(token, |conn| {
            let put = |out: &mut Vec<u8>| put_plain(out, header, payload);
            match link {
                Link::Fetch(rank) => put_frame(&mut conn.out, rank, put),
                Link::Give { .. } => put(&mut conn.out),
            }
        });
    }

    fn has_room(&self, link: Link) -> bool {
        let token = self.links.token(Need::Stream(link));
        token.is_some_and(|token| self.sockets.has_room(token))
    }
}
