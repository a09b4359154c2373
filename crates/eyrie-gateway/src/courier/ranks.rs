//! The ranks of the two domains, and how far the messages between them have come. Decides nothing.

use super::output::Link;
use eyrie_wire::{Rank, RouterId};

/// The place of a rank among those of its domain.
#[derive(Clone, Copy)]
enum Place {
    Own(usize),
    Other(usize),
    Neither,
}

/// The ranks of both domains.
pub struct Ranks {
    own: Vec<Rank>,
    others: Vec<Rank>,
    /// For each rank of the job.
    places: Vec<Place>,
    /// The primary router of each own rank; none before there is a directory.
    pub primaries: Vec<RouterId>,
}

impl Ranks {
    /// `count`: the number of ranks of the job.
    pub fn new(own: Vec<Rank>, others: Vec<Rank>, count: usize) -> Ranks {
        let mut places = vec![Place::Neither; count];
        own.iter().enumerate().for_each(|(at, rank)| places[rank.index()] = Place::Own(at));
        others.iter().enumerate().for_each(|(at, rank)| places[rank.index()] = Place::Other(at));
        Ranks { own, others, places, primaries: Vec::new() }
    }

    /// The ranks of this domain, in the order of their places.
    pub fn own(&self) -> &[Rank] {
        &self.own
    }

    /// The ranks of the other domain, in the order of their places.
    pub fn others(&self) -> &[Rank] {
        &self.others
    }

    /// The place of a rank of this domain.
    pub fn place_of_own(&self, rank: Rank) -> Option<usize> {
        match self.places.get(rank.index()) {
            Some(Place::Own(at)) => Some(*at),
            _ => None,
        }
    }

    /// The place of a rank of the other domain.
    pub fn place_of_other(&self, rank: Rank) -> Option<usize> {
        match self.places.get(rank.index()) {
            Some(Place::Other(at)) => Some(*at),
            _ => None,
        }
    }

    /// The place, among all of their kind, of the stream of a rank of the other domain to a router.
    pub fn stream(&self, other: usize, router: RouterId) -> usize {
        router.index() * self.others.len() + other
    }

    /// The connection of the stream with this place.
    pub fn link(&self, stream: usize) -> Link {
        let source = self.others[stream % self.others.len()];
        Link::Give { source, router: RouterId((stream / self.others.len()) as u32) }
    }
}

/// How far the messages of a rank of the other domain to one of this domain have come.
#[derive(Clone, Copy, Default)]
pub struct Pair {
    /// Send sequence number of the last message that was given to the present connection, or is
    /// safe.
    pub given: u64,
    /// That of the last message that the router has acknowledged.
    pub safe: u64,
}

/// The pairs of all ranks of the other domain with all of this one.
pub struct Pairs {
    own: usize,
    all: Vec<Pair>,
}

impl Pairs {
    /// None has come far yet.
    pub fn new(ranks: &Ranks) -> Pairs {
        let own = ranks.own.len();
        Pairs { own, all: vec![Pair::default(); own * ranks.others.len()] }
    }

    pub fn of(&self, other: usize, own: usize) -> Pair {
        self.all[other * self.own + own]
    }

    pub fn of_mut(&mut self, other: usize, own: usize) -> &mut Pair {
        &mut self.all[other * self.own + own]
    }
}
