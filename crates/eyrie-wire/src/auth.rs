//! The job's secret, by which its processes prove themselves to each other (`eyrie-transport` has
//! the handshake). The secret itself is never sent over a connection, nor put into a command line.

/// Length of the job's secret in bytes.
pub const SECRET_LEN: usize = 32;
/// The secret made for one job.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_LEN]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
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

    /// Identifies this run of a job. It reveals nothing of the secret.
    pub fn run(&self) -> String {
        let hash = blake3::keyed_hash(&self.0, b"eyrie run");
        hash.as_bytes()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
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
}
