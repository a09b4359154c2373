//! The roles of a job from the controller's side: threads of this process, or processes on nodes.
//! The machine decides where they are; here they are started, told and heard.

pub mod figures;
pub mod kind;
pub mod node_traffic;
pub mod peers;
pub mod question;
pub mod registry;
pub mod router_here;
pub mod routers;
pub mod stores;
pub mod traffic;
