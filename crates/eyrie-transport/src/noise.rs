//! What the handshake takes from the Noise protocol framework (noiseprotocol.org), as the crate
//! `snow` implements it: pattern NN, with the job's secret as the pre-shared key of the first
//! message. Random numbers come from the kernel itself, never from the C library: that of a rank
//! which is executed again returns the same ones again.

use eyrie_wire::auth::{random, Secret};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use x25519_dalek::{x25519, X25519_BASEPOINT_BYTES};

/// Pattern and functions. Each is in a version of the protocol, so it is not negotiated.
const NAME: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
pub const KEY_LEN: usize = 32;
/// What a message is longer than its payload: by an authentication tag.
pub const TAG_LEN: usize = 16;

/// The connecting side of a handshake. `prologue`: what was said before in clear; the two sides
/// must have the same.
pub fn connecting(secret: &Secret, prologue: &[u8]) -> HandshakeState {
    let built = builder(secret, prologue).and_then(Builder::build_initiator);
    built.expect("a pattern that snow knows")
}

/// The accepting side of a handshake, as [`connecting`].
pub fn accepting(secret: &Secret, prologue: &[u8]) -> HandshakeState {
    let built = builder(secret, prologue).and_then(Builder::build_responder);
    built.expect("a pattern that snow knows")
}

fn builder<'a>(secret: &'a Secret, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::with_resolver(NAME.parse()?, Box::new(Functions)).psk(0, &secret.0)?.prologue(prologue)
}

/// The functions of [`NAME`].
struct Functions;

impl CryptoResolver for Functions {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Kernel))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(Pair::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

struct Kernel;

impl Random for Kernel {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        for part in dest.chunks_mut(KEY_LEN) {
            part.copy_from_slice(&random::<KEY_LEN>()[..part.len()]);
        }
        Ok(())
    }
}

/// A pair of keys of X25519, used once.
#[derive(Default)]
struct Pair {
    private: [u8; KEY_LEN],
    public: [u8; KEY_LEN],
}

impl Dh for Pair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_LEN
    }

    fn priv_len(&self) -> usize {
        KEY_LEN
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        self.public = x25519(self.private, X25519_BASEPOINT_BYTES);
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), snow::Error> {
        let mut private = [0; KEY_LEN];
        rng.try_fill_bytes(&mut private)?;
        self.set(&private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let theirs = *theirs.first_chunk().ok_or(snow::Error::Dh)?;
        let shared = x25519(self.private, theirs);
        // Some public keys give the same result with every private key.
        if shared == [0; KEY_LEN] {
            return Err(snow::Error::Dh);
        }
        out[..KEY_LEN].copy_from_slice(&shared);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::auth::SECRET_LEN;

    /// As [`Functions`], with a public key of zeros.
    struct Weak;

    impl CryptoResolver for Weak {
        fn resolve_rng(&self) -> Option<Box<dyn Random>> {
            Functions.resolve_rng()
        }

        fn resolve_dh(&self, _: &DHChoice) -> Option<Box<dyn Dh>> {
            Some(Box::new(WeakPair(Pair::default())))
        }

        fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
            Functions.resolve_hash(choice)
        }

        fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
            Functions.resolve_cipher(choice)
        }
    }

    struct WeakPair(Pair);

    impl Dh for WeakPair {
        fn name(&self) -> &'static str {
            self.0.name()
        }

        fn pub_len(&self) -> usize {
            KEY_LEN
        }

        fn priv_len(&self) -> usize {
            KEY_LEN
        }

        fn set(&mut self, private: &[u8]) {
            self.0.set(private);
            self.0.public = [0; KEY_LEN];
        }

        fn generate(&mut self, _: &mut dyn Random) -> Result<(), snow::Error> {
            self.set(&[1; KEY_LEN]);
            Ok(())
        }

        fn pubkey(&self) -> &[u8] {
            self.0.pubkey()
        }

        fn privkey(&self) -> &[u8] {
            self.0.privkey()
        }

        fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
            self.0.dh(theirs, out)
        }
    }

    #[test]
    fn a_public_key_that_gives_every_peer_the_same_result_is_refused() {
        let secret = Secret([9; SECRET_LEN]);
        let weak = Builder::with_resolver(NAME.parse().unwrap(), Box::new(Weak));
        let weak = weak.psk(0, &secret.0).and_then(|b| b.prologue(b"said before"));
        for (peer, is_weak) in [
            (weak.and_then(Builder::build_initiator).unwrap(), true),
            (connecting(&secret, b"said before"), false),
        ] {
            let mut peer = peer;
            let mut bytes = [0; 256];
            let len = peer.write_message(b"claim", &mut bytes).unwrap();
            let mut ours = accepting(&secret, b"said before");
            let mut payload = [0; 256];
            assert_eq!(ours.read_message(&bytes[..len], &mut payload).unwrap(), 5);
            assert_eq!(ours.write_message(b"answer", &mut bytes).is_err(), is_weak);
        }
    }

    #[test]
    fn keys_are_new_for_each_handshake() {
        let secret = Secret([9; SECRET_LEN]);
        let mut keys: Vec<[u8; KEY_LEN]> = Vec::new();
        for _ in 0..100 {
            let mut bytes = [0; 64];
            connecting(&secret, b"").write_message(b"", &mut bytes).unwrap();
            keys.push(*bytes.first_chunk().unwrap());
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 100);
    }
}
