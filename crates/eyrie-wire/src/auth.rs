//! Mutual authentication with the job's secret: each side proves that it knows the secret by a keyed
//! hash over both nonces. The secret itself never goes over a connection, nor into a command line.

use crate::VERSION;

/// Length of the job's secret in bytes.
pub const SECRET_LEN: usize = 32;
/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 16;
/// Length of a proof in bytes.
pub const PROOF_LEN: usize = 32;

/// The secret made for one job.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_LEN]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Which side of a connection proves itself. The sides differ, so that a proof cannot be reflected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Connecting,
    Accepting,
}

impl Secret {
    /// The proof of `side` for one connection. `claim` is what the connecting side says it is (role,
    /// rank, incarnation): it is covered, so that a proof cannot be used for another identity.
    pub fn proof(
        &self,
        side: Side,
        connecting_nonce: &[u8; NONCE_LEN],
        accepting_nonce: &[u8; NONCE_LEN],
        claim: &[u8],
    ) -> [u8; PROOF_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(match side {
            Side::Connecting => b"eyrie connecting",
            Side::Accepting => b"eyrie accepting ",
        });
        hasher.update(&VERSION.to_le_bytes());
        hasher.update(connecting_nonce);
        hasher.update(accepting_nonce);
        hasher.update(claim);
        *hasher.finalize().as_bytes()
    }

    /// Whether `proof` is the one of `side`, compared in constant time.
    pub fn verify(
        &self,
        side: Side,
        connecting_nonce: &[u8; NONCE_LEN],
        accepting_nonce: &[u8; NONCE_LEN],
        claim: &[u8],
        proof: &[u8; PROOF_LEN],
    ) -> bool {
        let expected = self.proof(side, connecting_nonce, accepting_nonce, claim);
        blake3::Hash::from_bytes(expected) == blake3::Hash::from_bytes(*proof)
    }
}

/// `N` random bytes from the kernel itself: a rank's C library gives a rank that is executed again
/// the same ones again, and a nonce must never come twice.
pub fn random<const N: usize>() -> [u8; N] {
    let mut out = [0u8; N];
    let mut done = 0;
    while done < N {
        let rest = &mut out[done..];
        // SAFETY: the pointer and the length name the rest of `out`.
        let n = unsafe { libc::syscall(libc::SYS_getrandom, rest.as_mut_ptr(), rest.len(), 0) };
        if n > 0 {
            done += n as usize;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_secret_side_nonces_and_claim_only() {
        let secret = Secret([7; SECRET_LEN]);
        let (a, b) = ([1; NONCE_LEN], [2; NONCE_LEN]);
        let proof = secret.proof(Side::Connecting, &a, &b, b"rank 3");
        assert!(secret.verify(Side::Connecting, &a, &b, b"rank 3", &proof));
        assert!(!secret.verify(Side::Accepting, &a, &b, b"rank 3", &proof));
        assert!(!secret.verify(Side::Connecting, &b, &a, b"rank 3", &proof));
        assert!(!secret.verify(Side::Connecting, &a, &b, b"rank 4", &proof));
        assert!(!Secret([8; SECRET_LEN]).verify(Side::Connecting, &a, &b, b"rank 3", &proof));
    }
}
