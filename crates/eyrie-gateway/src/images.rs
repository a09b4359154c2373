//! Images that go from domain to domain. A store of this domain fetches an image of another
//! domain's rank from its own gateway, as from any store. That one asks the other gateway, which
//! asks the stores of its domain. What goes to and fro is passed on in blocks and not looked at:
//! the store that receives an image verifies it. Each image is served by threads of its own, so
//! none of this waits for messages, nor they for it. It must never give an image to a domain but
//! the one to which the ranks go, nor ask a store for anything but an image of its domain's own
//! ranks.

use crate::blocks::{Reader, Writer, BLOCK};
use crate::dial;
use crate::preamble::{Kind, Preamble};
use eyrie_transport::handshake::{self, HandshakeError};
use eyrie_transport::server::Service;
use eyrie_transport::{role, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::{Claim, StoreAt};
use eyrie_wire::domains::Domains;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{DomainId, Rank};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long each step of a handshake may take, and a store until it begins to answer.
const STEP: Duration = Duration::from_secs(10);
/// Most images that are under way to other domains at a time; others are refused, and asked for
/// again by their stores.
const MAX_GIVEN: usize = 64;
/// Most connections that say to be for an image and have not proven it: the oldest one goes first.
const MAX_CALLERS: usize = 64;
/// What a store's answer begins with where it has no such image, and the length of that.
const NONE: [u8; 4] = [0; 4];

/// Images in both directions.
pub struct Images {
    secret: Secret,
    domains: Mutex<Domains>,
    /// The stores of this domain, and the domain that may have their images.
    stores: Mutex<(Vec<StoreAt>, Option<DomainId>)>,
    given: Mutex<usize>,
    /// Connections that have not proven themselves, by their numbers, and the next number.
    callers: Mutex<(BTreeMap<u64, Stream>, u64)>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|e| e.into_inner())
}

impl Images {
    /// For these domains; `secret` is that of the own one.
    pub fn new(secret: Secret, domains: Domains) -> Images {
        let domains = Mutex::new(domains);
        let callers = Mutex::default();
        Images { secret, domains, stores: Mutex::default(), given: Mutex::new(0), callers }
    }

    /// Ranks have gone from one domain to another.
    pub fn set_domains(&self, domains: Domains) {
        *locked(&self.domains) = domains;
    }

    /// The stores of this domain are these from now on, and only domain `to` may have their images.
    pub fn set_stores(&self, stores: Vec<StoreAt>, to: Option<DomainId>) {
        *locked(&self.stores) = (stores, to);
    }

    /// Serves a connection of another domain's gateway, whose preamble has come.
    pub fn give(self: &Arc<Images>, from: DomainId, stream: Stream) {
        let Some(key) = locked(&self.domains).key(from).map(|key| key.secret()) else { return };
        let Ok(number) = self.call(&stream) else { return };
        let images = Arc::clone(self);
        let serve = move || {
            let proven = images.prove(from, &key, stream);
            locked(&images.callers).0.remove(&number);
            let given = proven.and_then(|(claim, line)| images.give_one(&claim, line));
            if let Err(e) = given {
                tracing::info!(domain = %from, "no image went there: {e}");
            }
        };
        if std::thread::Builder::new().name("gateway-image".into()).spawn(serve).is_err() {
            locked(&self.callers).0.remove(&number);
        }
    }

    /// Notes a connection that has to prove itself, and ends the oldest such one if there are too
    /// many.
    fn call(&self, stream: &Stream) -> io::Result<u64> {
        let mut callers = locked(&self.callers);
        let (open, next) = &mut *callers;
        if open.len() >= MAX_CALLERS {
            if let Some((_, oldest)) = open.pop_first() {
                // It may be closed already.
                let _ = oldest.shutdown(Shutdown::Both);
            }
        }
        *next += 1;
        open.insert(*next, stream.try_clone()?);
        Ok(*next)
    }

    /// What a domain asks for that has proven to be it.
    fn prove(&self, from: DomainId, key: &Secret, mut line: Stream) -> io::Result<(Claim, Stream)> {
        line.set_nonblocking(false)?;
        line.set_timeout(Some(STEP))?;
        let claim = handshake::accept(&mut line, key, |claim| self.may_give(from, claim));
        Ok((claim.map_err(|e| io::Error::other(e.to_string()))?, line))
    }

    /// Gives an image, unless too many are under way.
    fn give_one(&self, claim: &Claim, line: Stream) -> io::Result<()> {
        {
            let mut given = locked(&self.given);
            if *given >= MAX_GIVEN {
                return Err(io::Error::other("too many are under way"));
            }
            *given += 1;
        }
        let ended = self.give_image(claim, line);
        *locked(&self.given) -= 1;
        ended
    }

    fn give_image(&self, claim: &Claim, mut line: Stream) -> io::Result<()> {
        dial::prepare_image(&line)?;
        let (store, begun) = self.store_with(claim)?;
        Writer::new().write(&begun, &mut line)?;
        relay(store, line)
    }

    /// Whether another domain may have this.
    ///
    /// # Errors
    /// Why not.
    fn may_give(&self, from: DomainId, claim: &Claim) -> Result<(), String> {
        if locked(&self.stores).1 != Some(from) {
            return Err("images only for the domain to which the ranks go".into());
        }
        match claim {
            Claim::ImageCopy { rank, .. } if locked(&self.domains).own().has(*rank) => Ok(()),
            _ => Err("images of this domain's own ranks only".into()),
        }
    }

    /// A connection to a store that has the image, and what it has said already.
    fn store_with(&self, claim: &Claim) -> io::Result<(Stream, [u8; NONE.len()])> {
        let stores = locked(&self.stores).0.clone();
        let mut last = io::Error::new(io::ErrorKind::NotFound, "this domain has no store");
        for store in stores {
            let Some(addr) = &store.addr else { continue };
            match ask(addr, &self.secret, claim) {
                Ok((_, begun)) if begun == NONE => {
                    let text = format!("store {} does not have it", store.store);
                    last = io::Error::new(io::ErrorKind::NotFound, text);
                }
                Ok(found) => return Ok(found),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// A connection to the gateway of the rank's domain, for this claim.
    fn line_for(&self, rank: Rank, claim: &Claim) -> io::Result<Stream> {
        let (gateway, key, own) = {
            let domains = locked(&self.domains);
            let found = domains.of(rank).filter(|id| *id != domains.own);
            let found = found.and_then(|id| Some((&domains.all[id.index()], domains.key(id)?)));
            let (domain, key) =
                found.ok_or_else(|| io::Error::other("no rank of another domain"))?;
            (domain.gateway.clone(), key.secret(), domains.own)
        };
        let mut line = dial::connect_line(&gateway)?;
        line.write_all(&Preamble { kind: Kind::Image, from: own }.encode())?;
        let proven = handshake::connect(&mut line, &key, claim);
        proven.map_err(|e| io::Error::other(e.to_string()))?;
        dial::prepare_image(&line)?;
        Ok(line)
    }
}

/// Asks a store; what it says first.
fn ask(addr: &Addr, secret: &Secret, claim: &Claim) -> io::Result<(Stream, [u8; NONE.len()])> {
    let mut store =
        role::connect(addr, secret, claim).map_err(|e| io::Error::other(e.to_string()))?;
    store.set_timeout(Some(STEP))?;
    let mut begun = NONE;
    store.read_exact(&mut begun)?;
    Ok((store, begun))
}

/// Passes on what comes from either side, until both have ended. A side that says nothing is waited
/// for: the kernel finds out whether its host is there, and its store gives up by itself.
fn relay(store: Stream, line: Stream) -> io::Result<()> {
    store.set_timeout(None)?;
    line.set_timeout(None)?;
    let (mut from, mut to) = (line.try_clone()?, store.try_clone()?);
    let back = std::thread::Builder::new().name("gateway-image-back".into());
    let back = back.spawn(move || {
        let mut reader = Reader::default();
        pass(&mut from, &mut to, |from, to| {
            let bytes = reader.read(from)?;
            to.write_all(bytes)?;
            Ok(!bytes.is_empty())
        });
    })?;
    let (mut from, mut to) = (store, line);
    let mut writer = Writer::new();
    let mut block = vec![0; BLOCK];
    pass(&mut from, &mut to, |from, to| {
        let n = from.read(&mut block)?;
        if n > 0 {
            writer.write(&block[..n], to)?;
        }
        Ok(n > 0)
    });
    drop(back.join());
    Ok(())
}

/// Passes on what comes from one side step by step, and its end; an error ends both.
fn pass(
    from: &mut Stream,
    to: &mut Stream,
    mut step: impl FnMut(&mut Stream, &mut Stream) -> io::Result<bool>,
) {
    let ended = loop {
        match step(from, to) {
            Ok(true) => {}
            Ok(false) => break to.shutdown(Shutdown::Write),
            Err(e) => break Err(e),
        }
    };
    if ended.is_err() {
        // They may be closed already.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// What serves the stores of this domain.
pub struct ForStores(pub Arc<Images>);

impl Service for ForStores {
    fn secret(&self) -> &Secret {
        &self.0.secret
    }

    fn admit(&self, claim: &Claim) -> Result<(), String> {
        match claim {
            Claim::ImageCopy { rank, .. } if !locked(&self.0.domains).own().has(*rank) => Ok(()),
            _ => Err("images of other domains' ranks only".into()),
        }
    }

    fn serve(&self, claim: Claim, store: Stream) {
        let Claim::ImageCopy { rank, image } = claim else { return };
        // The store learns from the end of the connection.
        match self.0.line_for(rank, &claim).and_then(|line| relay(store, line)) {
            Ok(()) => tracing::debug!(%rank, %image, "an image has come from another domain"),
            Err(e) => tracing::info!(%rank, %image, "no image has come: {e}"),
        }
    }

    fn refused(&self, claim: Option<Claim>, error: HandshakeError) {
        tracing::info!(?claim, "a connection for images was refused: {error}");
    }
}
