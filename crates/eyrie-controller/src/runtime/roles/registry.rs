//! The list of the kinds of role that the runtime knows. Decides nothing.

use super::kind::Kind;
use super::routers::RouterKind;
use super::stores::StoreKind;
use eyrie_wire::control::RoleKind;

/// The kind that answers for these roles.
pub fn of(kind: RoleKind) -> &'static dyn Kind {
    match kind {
        RoleKind::Router => &RouterKind,
        RoleKind::Store => &StoreKind,
    }
}
