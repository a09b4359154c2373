//! The first exchange on a connection to the controller: version, claim, mutual proof ([`crate::auth`]).
//! Nothing of a peer is believed, and nothing but a refusal is told to it, before it has proven itself.
//!
//! connecting: `EYRC`, version u16, nonce 16, length u16, claim
//! accepting: `1`, nonce 16, proof 32, or `0`, length u16, reason
//! connecting: proof 32
//! accepting: `1`, or `0`, length u16, reason

use crate::auth::{random, Secret, Side, NONCE_LEN, PROOF_LEN};
use crate::control::Claim;
use crate::VERSION;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 4] = b"EYRC";
/// Longest encoded claim in bytes.
pub const MAX_CLAIM: usize = 64;
const MAX_REASON: usize = 256;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer does not speak Eyrie's protocol")]
    Foreign,
    #[error("the peer speaks version {0}, this is version {VERSION}")]
    Version(u16),
    #[error("the peer does not know the job's secret")]
    Secret,
    #[error("{0}")]
    Refused(String),
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn refuse(stream: &mut impl Write, reason: &str) -> io::Result<()> {
    let mut take = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(take) {
        take -= 1;
    }
    let mut bytes = vec![0];
    bytes.extend((take as u16).to_le_bytes());
    bytes.extend(&reason.as_bytes()[..take]);
    stream.write_all(&bytes)
}

/// Reads the byte that says whether the accepting side goes on.
fn read_verdict(stream: &mut impl Read) -> Result<(), HandshakeError> {
    match read_array::<1>(stream)?[0] {
        1 => Ok(()),
        0 => {
            let len = u16::from_le_bytes(read_array(stream)?) as usize;
            let mut reason = vec![0; len.min(MAX_REASON)];
            stream.read_exact(&mut reason)?;
            Err(HandshakeError::Refused(String::from_utf8_lossy(&reason).into_owned()))
        }
        _ => Err(HandshakeError::Foreign),
    }
}

/// The connecting side. The stream should have a timeout.
///
/// # Errors
/// When the stream fails, the peer refuses, or it does not know the secret.
pub fn connect(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    claim: &Claim,
) -> Result<(), HandshakeError> {
    let claim = postcard::to_stdvec(claim).expect("a claim is plain data");
    let ours: [u8; NONCE_LEN] = random();
    let mut hello = Vec::with_capacity(24 + claim.len());
    hello.extend(MAGIC);
    hello.extend(VERSION.to_le_bytes());
    hello.extend(ours);
    hello.extend((claim.len() as u16).to_le_bytes());
    hello.extend(&claim);
    stream.write_all(&hello)?;
    read_verdict(stream)?;
    let theirs: [u8; NONCE_LEN] = read_array(stream)?;
    let proof: [u8; PROOF_LEN] = read_array(stream)?;
    if !secret.verify(Side::Accepting, &ours, &theirs, &claim, &proof) {
        return Err(HandshakeError::Secret);
    }
    stream.write_all(&secret.proof(Side::Connecting, &ours, &theirs, &claim))?;
    read_verdict(stream)
}

/// The accepting side: returns what the peer has proven to be. `admit` may still refuse it with a reason.
/// The stream should have a timeout.
///
/// # Errors
/// When the stream fails, or the peer is refused (it was told why).
pub fn accept(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    admit: impl FnOnce(&Claim) -> Result<(), String>,
) -> Result<Claim, HandshakeError> {
    if &read_array::<4>(stream)? != MAGIC {
        return Err(HandshakeError::Foreign);
    }
    let version = u16::from_le_bytes(read_array(stream)?);
    if version != VERSION {
        refuse(stream, &format!("the controller speaks version {VERSION}, not {version}"))?;
        return Err(HandshakeError::Version(version));
    }
    let theirs: [u8; NONCE_LEN] = read_array(stream)?;
    let len = u16::from_le_bytes(read_array(stream)?) as usize;
    if len > MAX_CLAIM {
        return Err(HandshakeError::Foreign);
    }
    let mut claim = vec![0; len];
    stream.read_exact(&mut claim)?;
    let ours: [u8; NONCE_LEN] = random();
    let mut challenge = vec![1];
    challenge.extend(ours);
    challenge.extend(secret.proof(Side::Accepting, &theirs, &ours, &claim));
    stream.write_all(&challenge)?;
    let proof: [u8; PROOF_LEN] = read_array(stream)?;
    if !secret.verify(Side::Connecting, &theirs, &ours, &claim, &proof) {
        refuse(stream, "wrong secret")?;
        return Err(HandshakeError::Secret);
    }
    let Ok(claim) = postcard::from_bytes::<Claim>(&claim) else {
        refuse(stream, "unknown claim")?;
        return Err(HandshakeError::Foreign);
    };
    if let Err(reason) = admit(&claim) {
        refuse(stream, &reason)?;
        return Err(HandshakeError::Refused(reason));
    }
    stream.write_all(&[1])?;
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::SECRET_LEN;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn meet(theirs: Secret, admit: Result<(), String>) -> (Result<(), HandshakeError>, bool) {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        for s in [&a, &b] {
            s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        let claim = Claim::Agent { node: 3, pid: 77 };
        let expected = claim.clone();
        let accepting = std::thread::spawn(move || {
            let ours = Secret([9; SECRET_LEN]);
            accept(&mut b, &ours, |_| admit).is_ok_and(|c| c == expected)
        });
        let connected = connect(&mut a, &theirs, &claim);
        drop(a);
        (connected, accepting.join().unwrap())
    }

    #[test]
    fn both_sides_prove_themselves_or_nobody_goes_on() {
        assert!(matches!(meet(Secret([9; SECRET_LEN]), Ok(())), (Ok(()), true)));
        let (connected, accepted) = meet(Secret([8; SECRET_LEN]), Ok(()));
        assert!(matches!(connected, Err(HandshakeError::Secret)) && !accepted);
        let (connected, accepted) = meet(Secret([9; SECRET_LEN]), Err("node 3 was lost".into()));
        assert!(
            matches!(connected, Err(HandshakeError::Refused(r)) if r == "node 3 was lost")
                && !accepted
        );
    }

    struct Canned<'a>(&'a [u8]);
    impl Read for Canned<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }
    impl Write for Canned<'_> {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_accepted_without_the_secret(
            mut bytes in prop::collection::vec(any::<u8>(), 0..256), proper in any::<bool>()
        ) {
            if proper && bytes.len() > 24 {
                bytes[..4].copy_from_slice(MAGIC);
                bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
                bytes[22..24].copy_from_slice(&[8, 0]);
            }
            let secret = Secret([9; SECRET_LEN]);
            prop_assert!(accept(&mut Canned(&bytes), &secret, |_| Ok(())).is_err());
            prop_assert!(connect(&mut Canned(&bytes), &secret, &Claim::User).is_err());
        }
    }
}
