//! The domains of a job: sites with a network, a controller and a secret of their own, which reach
//! each other's gateway only. What the controllers of two domains tell each other is here, too.

use crate::auth::{Secret, SECRET_LEN};
use crate::control::StandardStream;
use crate::entries::Entry;
use crate::{DomainId, ImageId, Incarnation, Rank, RankInstance, StoreId};
use serde::{Deserialize, Serialize};

/// The key of two domains, made for one job. By it their gateways prove themselves to each other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineKey([u8; SECRET_LEN]);

impl LineKey {
    /// A key that no other two domains have.
    pub fn new() -> LineKey {
        LineKey(crate::auth::random())
    }

    /// The key as the handshake takes it.
    pub fn secret(&self) -> Secret {
        Secret(self.0)
    }
}

impl Default for LineKey {
    fn default() -> LineKey {
        LineKey::new()
    }
}

impl std::fmt::Debug for LineKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LineKey(..)")
    }
}

/// A domain, as all others know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Domain {
    pub name: String,
    /// Its ranks: runs of consecutive ones, the first and the last of each, in order.
    pub ranks: Vec<(Rank, Rank)>,
    /// `HOST:PORT` by which other domains reach its gateway.
    pub gateway: String,
}

impl Domain {
    /// Whether the rank is in it.
    pub fn has(&self, rank: Rank) -> bool {
        self.ranks.iter().any(|(first, last)| (*first..=*last).contains(&rank))
    }

    /// Its ranks, in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + '_ {
        self.ranks.iter().flat_map(|(first, last)| (first.0..=last.0).map(Rank))
    }
}

/// All domains of a job, as one of them knows them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Domains {
    /// The one that knows this.
    pub own: DomainId,
    /// All of them, by their numbers, also those that have ended or were to join and did not: a
    /// number is given once.
    pub all: Vec<Domain>,
    /// The keys that it has in common with each of them; none with itself, and with those that are
    /// no part of the job.
    pub keys: Vec<Option<LineKey>>,
    /// The one that shows the output of all ranks: that of `eyrie run`, and its successor once that
    /// one has left the job.
    pub shows: DomainId,
}

impl Domains {
    /// The domain that knows this.
    pub fn own(&self) -> &Domain {
        &self.all[self.own.index()]
    }

    /// The domain that shows what the ranks of this one print, when this one does not.
    pub fn shown_by(&self) -> Option<DomainId> {
        (self.shows != self.own).then_some(self.shows)
    }

    /// The others, by their numbers.
    pub fn others(&self) -> impl Iterator<Item = (DomainId, &Domain)> {
        let numbered = (0..).map(DomainId).zip(&self.all);
        numbered.filter(|(id, _)| *id != self.own)
    }

    /// Those of the others that have ranks.
    pub fn others_with_ranks(&self) -> impl Iterator<Item = DomainId> + '_ {
        self.others().filter(|(_, domain)| !domain.ranks.is_empty()).map(|(id, _)| id)
    }

    /// The domain of a rank.
    pub fn of(&self, rank: Rank) -> Option<DomainId> {
        self.all.iter().position(|domain| domain.has(rank)).map(|at| DomainId(at as u32))
    }

    /// All ranks of one domain are those of another one from now on.
    pub fn give(&mut self, from: DomainId, to: DomainId) {
        let mut ranks: Vec<Rank> =
            self.all[from.index()].ranks().chain(self.all[to.index()].ranks()).collect();
        ranks.sort_unstable();
        let mut runs = Vec::<(Rank, Rank)>::new();
        for rank in ranks {
            match runs.last_mut() {
                Some((_, last)) if last.next() == rank => *last = rank,
                _ => runs.push((rank, rank)),
            }
        }
        self.all[from.index()].ranks.clear();
        self.all[to.index()].ranks = runs;
    }

    /// A domain gets the next number. Without a key there is never a line to it.
    pub fn add(&mut self, domain: Domain, key: Option<LineKey>) -> DomainId {
        let id = DomainId(self.all.len() as u32);
        self.all.push(domain);
        self.keys.push(key);
        id
    }

    /// The last one that got this name; earlier ones have ended.
    pub fn named(&self, name: &str) -> Option<DomainId> {
        let at = self.all.iter().rposition(|domain| domain.name == name)?;
        Some(DomainId(at as u32))
    }

    /// Those that are a part of the job, this one among them.
    pub fn present(&self) -> impl Iterator<Item = (DomainId, &Domain)> {
        let numbered = (0..).map(DomainId).zip(&self.all);
        numbered.filter(|(id, _)| *id == self.own || self.key(*id).is_some())
    }

    /// A domain has ended: there is no line to it any more.
    pub fn end(&mut self, domain: DomainId) {
        if let Some(key) = self.keys.get_mut(domain.index()) {
            *key = None;
        }
    }

    /// The key in common with another domain; `None`: it has ended.
    pub fn key(&self, domain: DomainId) -> Option<&LineKey> {
        self.keys.get(domain.index())?.as_ref()
    }
}

/// What the controller of a domain tells another one. Each is told everything once, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DomainSays {
    /// What its ranks have put into the PMI key value space.
    Put(Vec<Entry>),
    /// All of its ranks have arrived at this PMI barrier, and what they had put before was told.
    Arrived { barrier: u32 },
    /// The programs of all its ranks have ended, with this code together.
    Finished { code: i32 },
    /// The job must end everywhere, because it had to in this domain.
    Ended { code: i32, cause: String, domain: DomainId },
    /// All of its ranks are to go to that domain, which answers whether they can
    /// ([`DomainSays::MayCome`]); the others take that domain's word for it from now on. `None`:
    /// they stay.
    Gives { to: Option<DomainId> },
    /// The ranks of the domain that has asked can come; or why not.
    MayCome(Result<(), String>),
    /// These stores have an image of a rank that is to come.
    ImageThere { instance: RankInstance, image: Stored, stores: Vec<StoreId> },
    /// That image has been fetched; or why not.
    ImageHere { rank: Rank, image: ImageId, result: Result<(), String> },
    /// Its ranks have ended there, and are to go on from the last images that were fetched. It has
    /// none from now on. `entries`: what they have put into the PMI key value space and not all
    /// other domains know. `known`: all of them know that they have arrived at this PMI barrier.
    Moved { ranks: Vec<MovedRank>, entries: Vec<Entry>, known: u32 },
    /// All ranks of that domain are this one's from now on. `arrived`: all of them have arrived at
    /// this PMI barrier, and what they had put before was told.
    Took { from: DomainId, arrived: u32 },
    /// The ranks that were taken run.
    Run,
    /// It has no ranks, and all that it has said was confirmed: it ends, and is told nothing any
    /// more.
    Gone,
    /// It knows that all have confirmed [`DomainSays::Gone`]: no line to it is needed any more.
    Left,
    /// What its ranks have printed, to the domain that shows it ([`Domains::shows`]): the next
    /// bytes of all that they print, since letters come once and in order.
    Output { stream: StandardStream, bytes: Vec<u8> },
    /// So many bytes of that, of both streams together, were written: there is room for more.
    Shown { bytes: u64 },
    /// A line of Eyrie's own, to the domain that shows it.
    Line { is_error: bool, text: String },
    /// All ranks are to get this signal.
    Signal { signal: u8 },
    /// The domain that shows what is printed is to end, and asks that one whether it can show it
    /// from then on ([`DomainSays::CanSucceed`]): that one stays until it hears more. `false`: it
    /// does not end. `number`: how often it has asked.
    AskSuccessor { number: u64, wanted: bool },
    /// It can, in the file of this path; or why not.
    CanSucceed { number: u64, result: Result<String, String> },
    /// That domain shows from now on what is printed, and not the one that says so.
    Successor { is: DomainId },
    /// All that its ranks had printed before it heard of the successor was told, and its lines.
    OutputEnds,
    /// The domain that shows the job lets another one join it, under this number, which is the next
    /// one; it has this key in common with the domain that is told. That answers
    /// ([`DomainSays::MayJoin`]), and holds back moves of domains until it hears how that has ended
    /// ([`DomainSays::Joined`], [`DomainSays::StaysOut`]).
    Joins { id: DomainId, name: String, gateway: String, key: LineKey },
    /// The domain with that number may join; or why not.
    MayJoin { id: DomainId, result: Result<(), String> },
    /// To the domain that shows the job: this one, which is to join, has a line to each other one,
    /// and room for ranks.
    Ready,
    /// The domain with that number is a part of the job from now on.
    Joined { id: DomainId },
    /// It is not to be one. It ends.
    StaysOut { id: DomainId, why: String },
}

/// What a domain that takes a rank must know of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MovedRank {
    pub rank: Rank,
    /// The one that is to speak next.
    pub incarnation: Incarnation,
    /// Of one that has finished.
    pub code: Option<i32>,
    pub spoke_pmi: bool,
    /// The PMI barrier that it has arrived at.
    pub arrived: u32,
    /// The image that it goes on from, and the incarnation that it shows; none if it has finished.
    pub image: Option<(Stored, Incarnation)>,
    pub next_image: ImageId,
    /// Bytes of standard output and standard error that were shown.
    pub output: [u64; 2],
}

/// An image that is whole and stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stored {
    pub image: ImageId,
    pub clock: u64,
    /// Receive sequence number of the last message in it.
    pub rsn: u64,
    /// Bytes that the rank had observed besides messages.
    pub observed: u64,
    /// Bytes of standard input that the rank had read.
    pub stdin: u64,
    /// Size of the stream in bytes.
    pub bytes: u64,
    /// Bytes of mapped files whose content it has.
    pub file_bytes: u64,
}

/// What goes from controller to controller, by their gateways. It may be lost on the way, and is
/// sent again until it is confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Letter {
    /// Its number, from 1; 0: it only confirms.
    pub number: u64,
    /// The last letter that its sender has received in order.
    pub heard: u64,
    pub says: Option<DomainSays>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_in_one_domain() {
        let domain = |name: &str, ranks: &[(u32, u32)]| Domain {
            name: name.into(),
            ranks: ranks.iter().map(|(first, last)| (Rank(*first), Rank(*last))).collect(),
            gateway: format!("{name}:7411"),
        };
        let all = vec![domain("home", &[(0, 1), (4, 4)]), domain("cloud", &[(2, 3)])];
        let keys = vec![None, Some(LineKey::new())];
        let domains = Domains { own: DomainId(0), all, keys, shows: DomainId(1) };
        assert_eq!(domains.shown_by(), Some(DomainId(1)));
        assert_eq!(domains.own().ranks().collect::<Vec<_>>(), [0, 1, 4].map(Rank));
        assert_eq!(domains.of(Rank(3)), Some(DomainId(1)));
        assert_eq!((domains.of(Rank(4)), domains.of(Rank(5))), (Some(DomainId(0)), None));
        assert_eq!(domains.others().map(|(id, _)| id).collect::<Vec<_>>(), [DomainId(1)]);
        assert!(domains.key(DomainId(0)).is_none() && domains.key(DomainId(1)).is_some());
        let mut domains = domains;
        domains.give(DomainId(1), DomainId(0));
        assert_eq!(domains.all[0].ranks, [(Rank(0), Rank(4))]);
        assert!(domains.all[1].ranks.is_empty() && domains.of(Rank(3)) == Some(DomainId(0)));
    }

    #[test]
    fn a_name_is_that_of_the_last_domain_that_got_it() {
        let domain = |name: &str| Domain {
            name: name.into(),
            ranks: vec![],
            gateway: format!("{name}:7411"),
        };
        let all = vec![domain("home"), domain("cloud")];
        let keys = vec![None, Some(LineKey::new())];
        let mut domains = Domains { own: DomainId(0), all, keys, shows: DomainId(0) };
        domains.end(DomainId(1));
        assert_eq!(domains.named("cloud"), Some(DomainId(1)));
        assert_eq!(domains.add(domain("cloud"), Some(LineKey::new())), DomainId(2));
        assert_eq!((domains.named("cloud"), domains.named("lab")), (Some(DomainId(2)), None));
        let present = domains.present().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(present, [DomainId(0), DomainId(2)]);
    }
}
