//! How roles connect: connecting and accepting with timeouts, the handshake by which both sides
//! prove that they know the job's secret, sealing between hosts, and the framing of control
//! messages. A message does not depend on the kind of connection, and nothing that a peer
//! sends is trusted before its proof.

pub mod frame;
pub mod handshake;
pub mod interface;
mod noise;
pub mod role;
pub mod seal;
pub mod server;
pub mod session;
mod stream;

pub use stream::{Listener, Stream};
