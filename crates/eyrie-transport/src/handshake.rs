//! The first exchange on every connection: version, claim, mutual proof ([`eyrie_wire::auth`]). The
//! two sides are state machines without I/O, with functions around them for streams that block.
//! Nothing of a peer is believed, and nothing but a refusal is told to it, before it has proven
//! itself.
//!
//! connecting: `EYRI`, version u16, nonce 16, length u16, claim
//! accepting: `1`, nonce 16, proof 32, or `0`, length u16, reason
//! connecting: proof 32
//! accepting: `1`, or `0`, length u16, reason

use eyrie_wire::auth::{random, Secret, Side, NONCE_LEN, PROOF_LEN};
use eyrie_wire::control::Claim;
use eyrie_wire::VERSION;
use std::io::{self, Read, Write};

const MAGIC: &[u8; 4] = b"EYRI";
/// Magic, version, nonce, length.
const HELLO_LEN: usize = 4 + 2 + NONCE_LEN + 2;
/// Longest encoded claim in bytes.
pub const MAX_CLAIM: usize = 64;
/// Most that the accepting side asks for at a time, in bytes.
pub const MAX_WANTED: usize = MAX_CLAIM;
const MAX_REASON: usize = 256;
const _: () = assert!(MAX_WANTED >= HELLO_LEN && MAX_WANTED >= PROOF_LEN);

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

/// The accepting side. It asks for exact numbers of bytes, so that it never reads beyond the
/// handshake.
pub struct Accepting {
    stage: Stage,
}

enum Stage {
    Hello,
    Claim { nonce: [u8; NONCE_LEN], len: usize },
    Proof { theirs: [u8; NONCE_LEN], ours: [u8; NONCE_LEN], claim: Vec<u8> },
    Proven,
}

/// What came of a step.
#[derive(PartialEq, Eq, Debug)]
pub enum Step {
    /// More bytes are wanted.
    More,
    /// The peer has proven to be this. It waits for a [`verdict`].
    Proven(Claim),
}

/// The last bytes of the accepting side: the peer is let in, or refused for a reason.
pub fn verdict(admitted: Result<(), &str>) -> Vec<u8> {
    let Err(reason) = admitted else { return vec![1] };
    let mut take = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(take) {
        take -= 1;
    }
    let mut bytes = vec![0];
    bytes.extend((take as u16).to_le_bytes());
    bytes.extend(&reason.as_bytes()[..take]);
    bytes
}

impl Default for Accepting {
    fn default() -> Self {
        Accepting { stage: Stage::Hello }
    }
}

impl Accepting {
    /// How many bytes the next step needs, at most [`MAX_WANTED`].
    pub fn wanted(&self) -> usize {
        match &self.stage {
            Stage::Hello => HELLO_LEN,
            Stage::Claim { len, .. } => *len,
            Stage::Proof { .. } => PROOF_LEN,
            Stage::Proven => 0,
        }
    }

    /// The next step with exactly as many bytes as were wanted; what is to be sent goes behind
    /// `out`, also when the peer is refused.
    ///
    /// # Errors
    /// Why the peer is refused.
    pub fn step(
        &mut self,
        bytes: &[u8],
        secret: &Secret,
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        match std::mem::replace(&mut self.stage, Stage::Proven) {
            Stage::Hello => {
                self.stage = hello(bytes, out)?;
                Ok(Step::More)
            }
            Stage::Claim { nonce, .. } => {
                let ours = random();
                out.push(1);
                out.extend(ours);
                out.extend(secret.proof(Side::Accepting, &nonce, &ours, bytes));
                self.stage = Stage::Proof { theirs: nonce, ours, claim: bytes.to_vec() };
                Ok(Step::More)
            }
            Stage::Proof { theirs, ours, claim } => {
                let proof = bytes.try_into().map_err(|_| HandshakeError::Foreign)?;
                if !secret.verify(Side::Connecting, &theirs, &ours, &claim, proof) {
                    out.extend(verdict(Err("wrong secret")));
                    return Err(HandshakeError::Secret);
                }
                postcard::from_bytes(&claim).map(Step::Proven).map_err(|_| {
                    out.extend(verdict(Err("unknown claim")));
                    HandshakeError::Foreign
                })
            }
            Stage::Proven => Err(HandshakeError::Foreign),
        }
    }
}

fn hello(bytes: &[u8], out: &mut Vec<u8>) -> Result<Stage, HandshakeError> {
    let bytes: &[u8; HELLO_LEN] = bytes.try_into().map_err(|_| HandshakeError::Foreign)?;
    if &bytes[..4] != MAGIC {
        return Err(HandshakeError::Foreign);
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        let reason = format!("version {VERSION} is spoken here, not {version}");
        out.extend(verdict(Err(&reason)));
        return Err(HandshakeError::Version(version));
    }
    let nonce = bytes[6..6 + NONCE_LEN].try_into().expect("that many bytes");
    let len = u16::from_le_bytes([bytes[HELLO_LEN - 2], bytes[HELLO_LEN - 1]]) as usize;
    if len == 0 || len > MAX_CLAIM {
        return Err(HandshakeError::Foreign);
    }
    Ok(Stage::Claim { nonce, len })
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
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

/// The connecting side, on a stream that blocks with a timeout.
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
    let mut hello = Vec::with_capacity(HELLO_LEN + claim.len());
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

/// The accepting side, on a stream that blocks with a timeout: returns what the peer has proven to
/// be. `admit` may still refuse it with a reason.
///
/// # Errors
/// When the stream fails, or the peer is refused (it was told why).
pub fn accept(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    admit: impl FnOnce(&Claim) -> Result<(), String>,
) -> Result<Claim, HandshakeError> {
    let mut accepting = Accepting::default();
    let mut bytes = [0; MAX_WANTED];
    let claim = loop {
        let bytes = &mut bytes[..accepting.wanted()];
        stream.read_exact(bytes)?;
        let mut out = Vec::new();
        let step = accepting.step(bytes, secret, &mut out);
        stream.write_all(&out)?;
        if let Step::Proven(claim) = step? {
            break claim;
        }
    };
    let admitted = admit(&claim);
    stream.write_all(&verdict(admitted.as_ref().map(drop).map_err(String::as_str)))?;
    admitted.map_err(HandshakeError::Refused)?;
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::auth::SECRET_LEN;
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
