//! What roles say to the controller: the codec of the messages of each kind. Decides nothing.

use eyrie_router::RouterEvent;
use eyrie_store::role::StoreEvent;
use eyrie_transport::frame;
use eyrie_wire::control::RoleKind;
use serde::{Deserialize, Serialize};

/// A message of a role, by its kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RoleEvent {
    Router(RouterEvent),
    Store(StoreEvent),
}

impl RoleEvent {
    /// Reads a message of a role of this kind.
    ///
    /// # Errors
    /// `InvalidData` when it is none.
    pub fn decode(kind: RoleKind, payload: &[u8]) -> std::io::Result<RoleEvent> {
        Ok(match kind {
            RoleKind::Router => RoleEvent::Router(frame::decode(payload)?),
            RoleKind::Store => RoleEvent::Store(frame::decode(payload)?),
        })
    }
}
