//! What agents and roles of a simulated job say, and how long a message is.

use eyrie_controller::machine::{Event, FromPeer};
use eyrie_router::RouterEvent;
use eyrie_store::role::StoreEvent;
use eyrie_transport::frame;
use eyrie_wire::control::{FromAgent, Role, RoleKind};
use eyrie_wire::{NodeId, StoreId};
use serde::Serialize;

pub fn from_agent(node: NodeId, message: FromAgent) -> Event {
    Event::From(FromPeer::Agent(node, message))
}

pub fn from_router(id: u32, message: RouterEvent) -> Event {
    Event::From(FromPeer::Router(Role::first(RoleKind::Router, id), message))
}

pub fn from_store(id: StoreId, message: StoreEvent) -> Event {
    Event::From(FromPeer::Store(Role::first(RoleKind::Store, id.0), message))
}

/// Bytes of a message.
pub fn bytes_in(message: &impl Serialize) -> u64 {
    let mut bytes = Vec::new();
    frame::write(&mut bytes, message).expect("it is bounded");
    bytes.len() as u64
}
