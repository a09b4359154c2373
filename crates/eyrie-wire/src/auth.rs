//! Authentication with the job's secret. A process that knows it proves so by a keyed hash over the
//! messages of both sides, and both sides of a connection can derive keys from it. The secret
//! itself is never sent over a connection, nor put into a command line.

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

/// The purpose of a proof. A proof for one purpose is invalid for another, so that no message can
/// be reflected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The first message of the connecting side.
    Hello,
    /// The answer of the accepting side.
    Accepting,
    /// The last message of the connecting side.
    Connecting,
    /// A refusal by the accepting side.
    Refusal,
    /// Keys of the connection.
    Keys,
    /// The identifier of this run of a job.
    Run,
}

/// Length of a secret in a file: the secret, and the beginning of its hash.
pub const KEPT_LEN: usize = SECRET_LEN + 8;

impl Secret {
    /// The secret in the form in which it is kept in a file, so that damage is found before it
    /// makes peers refuse a connection. The hash does not reveal a secret that was drawn at random.
    pub fn kept(&self) -> [u8; KEPT_LEN] {
        let hash = blake3::hash(&self.0);
        let mut kept = [0; KEPT_LEN];
        kept[..SECRET_LEN].copy_from_slice(&self.0);
        kept[SECRET_LEN..].copy_from_slice(&hash.as_bytes()[..KEPT_LEN - SECRET_LEN]);
        kept
    }

    /// The secret of [`Secret::kept`]; `None` for other bytes.
    pub fn of_kept(kept: &[u8]) -> Option<Secret> {
        let secret = Secret(*kept.first_chunk()?);
        (secret.kept() == *kept).then_some(secret)
    }

    fn hasher(&self, purpose: Purpose, said: &[&[u8]]) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(match purpose {
            Purpose::Hello => b"eyrie hello     ",
            Purpose::Accepting => b"eyrie accepting ",
            Purpose::Connecting => b"eyrie connecting",
            Purpose::Refusal => b"eyrie refusal   ",
            Purpose::Keys => b"eyrie keys      ",
            Purpose::Run => b"eyrie run       ",
        });
        for part in said {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher
    }

    /// The proof that its maker knows the secret and has these messages.
    pub fn proof(&self, purpose: Purpose, said: &[&[u8]]) -> [u8; PROOF_LEN] {
        *self.hasher(purpose, said).finalize().as_bytes()
    }

    /// Whether `proof` is the right one, compared in constant time.
    pub fn verify(&self, purpose: Purpose, said: &[&[u8]], proof: &[u8; PROOF_LEN]) -> bool {
        let expected = self.proof(purpose, said);
        blake3::Hash::from_bytes(expected) == blake3::Hash::from_bytes(*proof)
    }

    /// Identifies this run of a job. It reveals nothing of the secret.
    pub fn run(&self) -> String {
        self.proof(Purpose::Run, &[])[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Two keys derived from the shared key and the messages: one for what the connecting side
    /// sends, and one for what the accepting side sends.
    pub fn keys(&self, said: &[&[u8]]) -> [[u8; 32]; 2] {
        let mut keys = [0; 64];
        self.hasher(Purpose::Keys, said).finalize_xof().fill(&mut keys);
        let half = |i: usize| keys[i * 32..][..32].try_into().expect("half of them");
        [half(0), half(1)]
    }
}

/// `N` random bytes from the kernel itself. The C library of a rank that is executed again returns
/// the same bytes again, but a nonce must never be used twice.
pub fn random<const N: usize>() -> [u8; N] {
    let mut out = [0u8; N];
    let mut done = 0;
    while done < N {
        let rest = &mut out[done..];
        // SAFETY: `rest` is the part of `out` that is not filled yet, and the kernel writes at most
        // its length.
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
    fn a_damaged_file_has_no_secret() {
        let kept = Secret([7; SECRET_LEN]).kept();
        assert_eq!(Secret::of_kept(&kept), Some(Secret([7; SECRET_LEN])));
        for changed in 0..KEPT_LEN {
            let mut damaged = kept;
            damaged[changed] ^= 1 << (changed % 8);
            assert_eq!(Secret::of_kept(&damaged), None);
            assert_eq!(Secret::of_kept(&kept[..changed]), None);
        }
    }

    #[test]
    fn a_proof_holds_for_its_secret_its_purpose_and_what_was_said_only() {
        let secret = Secret([7; SECRET_LEN]);
        let proof = secret.proof(Purpose::Connecting, &[b"ab", b"c"]);
        assert!(secret.verify(Purpose::Connecting, &[b"ab", b"c"], &proof));
        assert!(!secret.verify(Purpose::Accepting, &[b"ab", b"c"], &proof));
        assert!(!secret.verify(Purpose::Connecting, &[b"a", b"bc"], &proof));
        assert!(!Secret([8; SECRET_LEN]).verify(Purpose::Connecting, &[b"ab", b"c"], &proof));
        let [connecting, accepting] = secret.keys(&[b"x"]);
        assert!(connecting != accepting && secret.keys(&[b"y"])[0] != connecting);
    }
}
