//! How roles connect: connecting and accepting with timeouts, the handshake by which both sides
//! prove that they know the job's secret, sealing between hosts, and the framing of control
//! messages. A message does not depend on the kind of connection, and nothing that a peer
//! sends is trusted before its proof.

pub mod frame;
pub mod handshake;
pub mod interface;
mod noise;
pub mod role;
mod round_trip;
pub mod seal;
pub mod server;
pub mod session;
mod stream;

pub use round_trip::round_trip;
pub use stream::{Listener, Stream};

/// Has the libraries that handshakes and records use choose their code now, by what the processor
/// shows. They keep to it for the life of the process.
pub fn choose_code() {
    let secret = eyrie_wire::auth::Secret([0; eyrie_wire::auth::SECRET_LEN]);
    let mut message = [0; noise::KEY_LEN + noise::TAG_LEN];
    let _ = noise::connecting(&secret, b"").write_message(b"", &mut message);
    let keys = [seal::Cipher::Aes128Gcm, seal::Cipher::ChaCha20Poly1305];
    keys.iter().for_each(|cipher| cipher.try_out());
    std::hint::black_box(seal::Cipher::offered());
}
