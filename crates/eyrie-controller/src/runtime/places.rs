//! Where the routers and the store listen, as they say it themselves: agents are started when all
//! is known. Nothing here guesses an address.

use super::options::JobOptions;
use eyrie_interface::RolesAt;
use eyrie_wire::directory::{Directory, MessagePath};
use eyrie_wire::role_address::Addr;
use eyrie_wire::RouterId;
use std::time::{Duration, Instant};

/// How long a role may take to say where it listens.
const PATIENCE: Duration = Duration::from_secs(25);

/// The places that are known so far.
pub struct Places {
    /// The primary router of each rank.
    primaries: Vec<RouterId>,
    routers: Vec<Option<Addr>>,
    store: Option<Addr>,
    path: MessagePath,
    since: Instant,
}

impl Places {
    /// None is known; the primary routers of ranks go round. Those that run on nodes are the
    /// machine's.
    pub fn new(options: &JobOptions) -> Places {
        let (ranks, routers) = match options.roles {
            RolesAt::Nodes => (0, 0),
            RolesAt::Here => (options.ranks, options.routers),
        };
        Places { path: options.path, ..Places::of(ranks, routers) }
    }

    fn of(ranks: u32, routers: u32) -> Places {
        let primaries = (0..ranks).map(|rank| RouterId(rank % routers)).collect();
        Places {
            primaries,
            routers: vec![None; routers as usize],
            store: None,
            path: MessagePath::Router,
            since: Instant::now(),
        }
    }

    /// For each rank whether this router is its primary one.
    pub fn is_primary_of(&self, router: RouterId) -> Vec<bool> {
        self.primaries.iter().map(|primary| *primary == router).collect()
    }

    /// A router listens; its word counts once.
    pub fn router(&mut self, id: RouterId, addr: Addr) {
        if let Some(place) = self.routers.get_mut(id.index()) {
            place.get_or_insert(addr);
        }
    }

    /// The store listens.
    pub fn store(&mut self, addr: Addr) {
        self.store.get_or_insert(addr);
    }

    /// Who is where, and the store's address, when all is known.
    pub fn all(&self) -> Option<(Directory, Addr)> {
        let routers = self.routers.iter().cloned().collect::<Option<_>>()?;
        let primaries = self.primaries.clone();
        Some((
            Directory { epoch: 1, primaries, routers, path: self.path, ..Directory::default() },
            self.store.clone()?,
        ))
    }

    /// Who has had long enough to say where it listens, and has not.
    pub fn late(&self) -> Option<String> {
        if self.since.elapsed() < PATIENCE {
            return None;
        }
        let who = match self.routers.iter().position(Option::is_none) {
            Some(id) => format!("router {id}"),
            None if self.store.is_none() => "the store".into(),
            None => return None,
        };
        Some(format!("{who} has not said within {PATIENCE:?} where it listens"))
    }
}

/// Where the roles of the job are.
#[derive(Default)]
pub struct RoleAddresses {
    /// Until all roles beside the controller have said it.
    awaited: Option<Places>,
    directory: Directory,
}

impl RoleAddresses {
    /// These are awaited: the roles beside the controller. Those on nodes are the machine's.
    pub fn new(awaited: Option<Places>) -> RoleAddresses {
        RoleAddresses { awaited, ..RoleAddresses::default() }
    }

    /// A router beside the controller listens.
    pub fn router_listens(&mut self, id: RouterId, addr: Addr) {
        if let Some(places) = &mut self.awaited {
            places.router(id, addr);
        }
    }

    /// The store beside the controller listens.
    pub fn store_listens(&mut self, addr: Addr) {
        if let Some(places) = &mut self.awaited {
            places.store(addr);
        }
    }

    /// Whether all are known now that were awaited; once.
    pub fn are_complete(&mut self) -> bool {
        let Some((directory, _)) = self.awaited.as_ref().and_then(Places::all) else {
            return false;
        };
        (self.awaited, self.directory) = (None, directory);
        true
    }

    /// Whether some are awaited still.
    pub fn are_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// Which role has had long enough to say where it listens; no role is awaited any more then.
    pub fn late(&mut self) -> Option<String> {
        let late = self.awaited.as_ref().and_then(Places::late)?;
        self.awaited = None;
        Some(late)
    }

    /// Where the routers are.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    pub fn set_directory(&mut self, directory: Directory) {
        self.directory = directory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_known_when_each_has_said_it_and_the_first_word_counts() {
        let addr = |text: &str| Addr::Unix(text.into());
        let mut places = Places::of(3, 2);
        assert_eq!(places.is_primary_of(RouterId(0)), [true, false, true]);
        places.router(RouterId(1), addr("b"));
        places.router(RouterId(1), addr("other"));
        places.router(RouterId(7), addr("stranger"));
        places.store(addr("s"));
        assert!(places.all().is_none());
        places.router(RouterId(0), addr("a"));
        let (directory, store) = places.all().unwrap();
        assert_eq!((directory.primaries, store), ([0, 1, 0].map(RouterId).to_vec(), addr("s")));
        assert_eq!(directory.routers, [addr("a"), addr("b")]);
        assert!(places.late().is_none());
        places.since -= PATIENCE;
        assert!(places.late().is_none());
        places.routers[1] = None;
        assert!(places.late().unwrap().starts_with("router 1 "));
    }
}
