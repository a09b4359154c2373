//! Messages of peers, and messages to them, in short, for tests.

use super::io::{Command, Event, FromPeer, Source, ToPeer};
use eyrie_router::RouterEvent;
use eyrie_store::role::{StoreCommand, StoreEvent, Stored};
use eyrie_wire::control::{
    FromAgent, ImageAt, NodeUsage, RankReport, Role, RoleKind, StartRank, ToAgent,
};
use eyrie_wire::data::Determinant;
use eyrie_wire::role_address::Addr;
use eyrie_wire::{ImageId, NodeId, Rank, RankInstance, RouterId, StoreId};

pub fn agent(node: NodeId, message: FromAgent) -> Event {
    Event::From(FromPeer::Agent(node, message))
}

pub fn router(id: RouterId, message: RouterEvent) -> Event {
    Event::From(FromPeer::Router(Role::first(RoleKind::Router, id.0), message))
}

pub fn store(id: StoreId, message: StoreEvent) -> Event {
    Event::From(FromPeer::Store(Role::first(RoleKind::Store, id.0), message))
}

pub fn joined(node: NodeId) -> Event {
    agent(node, FromAgent::Joined(Ok(None)))
}

/// No report depends on the node that it comes from.
pub fn rank(instance: RankInstance, report: RankReport) -> Event {
    agent(NodeId(0), FromAgent::Rank(instance, report))
}

pub fn reached(from: NodeId, to: NodeId, reached: bool) -> Event {
    agent(from, FromAgent::Reached { node: to, reached })
}

pub fn heartbeat(node: NodeId, n: u64) -> Event {
    agent(node, FromAgent::Heartbeat { n })
}

pub fn prepared(
    node: NodeId,
    instance: RankInstance,
    image: ImageId,
    result: Result<u64, String>,
) -> Event {
    agent(node, FromAgent::Prepared { instance, image, result })
}

pub fn notice(node: NodeId, cause: String, leaves: bool) -> Event {
    agent(node, FromAgent::Notice { cause, leaves })
}

pub fn measured(node: NodeId, n: u64, used: NodeUsage) -> Event {
    agent(node, FromAgent::Measured { n, used })
}

pub fn begun(instance: RankInstance, image: ImageId) -> Event {
    store(StoreId(0), StoreEvent::Begun { instance, image })
}

pub fn stored(id: StoreId, instance: RankInstance, stored: Stored) -> Event {
    store(id, StoreEvent::Stored { instance, stored, live_bytes: 0 })
}

pub fn failed(id: StoreId, instance: RankInstance, image: ImageId, reason: String) -> Event {
    store(id, StoreEvent::Failed { instance, image, reason })
}

pub fn store_up(id: StoreId) -> Event {
    store(id, StoreEvent::Listening(Addr::Unix(format!("/store-{id}").into())))
}

pub fn store_full(id: StoreId, reason: String) -> Event {
    store(id, StoreEvent::Full { reason })
}

pub fn fenced(id: RouterId, instance: RankInstance, rsn: u64) -> Event {
    let determinants = vec![Determinant { clock: rsn, rsn }];
    router(id, RouterEvent::Fenced { instance, determinants, observed: Vec::new() })
}

pub fn connected(instance: RankInstance) -> Event {
    router(RouterId(0), RouterEvent::Connected(instance))
}

pub fn disconnected(instance: RankInstance) -> Event {
    router(RouterId(0), RouterEvent::Disconnected(instance))
}

pub fn replayed(instance: RankInstance, messages: u64) -> Event {
    router(RouterId(0), RouterEvent::Replayed { instance, messages })
}

pub fn refused(instance: Option<RankInstance>, reason: String) -> Event {
    router(RouterId(0), RouterEvent::Refused { instance, reason })
}

pub fn unprotected(rank: Rank, reason: String) -> Event {
    router(RouterId(0), RouterEvent::Unprotected { rank, reason })
}

pub fn log_grown(rank: Rank, bytes: u64) -> Event {
    router(RouterId(0), RouterEvent::LogGrown { rank, bytes })
}

pub fn log_scarce(rank: Rank) -> Event {
    router(RouterId(0), RouterEvent::LogScarce { rank })
}

pub fn exposed(rank: Rank) -> Event {
    router(RouterId(0), RouterEvent::Exposed { rank })
}

pub fn saved(id: RouterId, saved: Result<u64, String>) -> Event {
    router(id, RouterEvent::Saved(saved))
}

pub fn listens(role: Role, addr: Addr) -> Event {
    Event::From(match role.kind {
        RoleKind::Router => FromPeer::Router(role, RouterEvent::Listening(addr)),
        RoleKind::Store => FromPeer::Store(role, StoreEvent::Listening(addr)),
    })
}

pub fn adopted(role: Role, instance: RankInstance) -> Event {
    Event::From(FromPeer::Router(role, RouterEvent::Adopted { instance, rsn: 0 }))
}

pub fn heard(role: Role, instance: RankInstance) -> Event {
    Event::From(FromPeer::Router(role, RouterEvent::Heard { instance }))
}

pub fn to_agent(command: &Command) -> Option<(NodeId, &ToAgent)> {
    match command {
        Command::Send(ToPeer::Agent(node, message)) => Some((*node, message)),
        _ => None,
    }
}

pub fn source(image: &ImageAt) -> Source {
    Source { image: image.image, store: image.store.store }
}

/// The rank that is started, where, and from which image.
pub fn start(command: &Command) -> Option<(NodeId, RankInstance, Option<Source>)> {
    let (node, ToAgent::Start(start)) = to_agent(command)? else { return None };
    let StartRank { instance, image, .. } = &**start;
    Some((node, *instance, image.as_ref().map(source)))
}

/// The rank that is captured, and the image.
pub fn capture(command: &Command) -> Option<(RankInstance, Source)> {
    let (_, ToAgent::Capture { instance, image, .. }) = to_agent(command)? else { return None };
    Some((*instance, source(image)))
}

/// The store that copies an image, that it copies from, the rank, and the image.
pub fn copy(command: &Command) -> Option<(StoreId, StoreId, RankInstance, ImageId)> {
    match command {
        Command::Send(ToPeer::Store(store, StoreCommand::Copy { instance, image, from })) => {
            Some((*store, from.store, *instance, *image))
        }
        _ => None,
    }
}

pub fn discard(store: StoreId, rank: Rank, image: ImageId) -> Command {
    Command::Send(ToPeer::Store(store, StoreCommand::Discard { rank, image }))
}

/// Whether a store is told only that it was heard.
pub fn confirms(command: &Command) -> bool {
    matches!(command, Command::Send(ToPeer::Store(_, StoreCommand::Heard { .. })))
}
