//! The first exchange on every connection: version, claim, mutual proof by the job's secret, and
//! between hosts an agreement on keys ([`crate::seal`]). The exchange is that of the Noise protocol
//! framework ([`crate::noise`]). The two sides are state machines without I/O, with functions
//! around them for streams that block. The accepting side trusts nothing of a peer, and sends
//! nothing to it, before the peer's first message has shown that it knows the secret. A peer that
//! repeats the first message of another one gets the answer to it and no further.
//!
//! - connecting: `EYRI`, version u16, length u16, then `length` bytes: public key 32, and encrypted
//!   security u8, ciphers u8, claim
//! - accepting: length u16, then `length` bytes: public key 32, and encrypted `1`, cipher u8; or
//!   `0`, reason
//! - connecting: a tag of 16 bytes over all of this
//! - from here on everything is sealed, unless security is off
//! - accepting: `1`, or `0`, length u16, reason

use crate::noise::{KEY_LEN, TAG_LEN};
use crate::seal::{Cipher, Keys};
use crate::{noise, Stream};
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::role_address::Security;
use eyrie_wire::VERSION;
use snow::{HandshakeState, TransportState};
use std::io;
use std::io::{Read, Write};
use std::time::Duration;

const MAGIC: &[u8; 4] = b"EYRI";
/// How long connecting, and each step of a handshake, may take on either side.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The first version whose handshake is Noise's.
const FIRST_NOISE: u16 = 19;
/// Magic, version, length. A new version may change only what comes later.
const HEAD_LEN: usize = 8;
/// Security and ciphers, before the claim.
const TERMS_LEN: usize = 2;
/// Longest encoded claim in bytes.
pub const MAX_CLAIM: usize = 64;
const MIN_FIRST: usize = KEY_LEN + TERMS_LEN + TAG_LEN;
const MAX_FIRST: usize = MIN_FIRST + MAX_CLAIM;
/// Most bytes that the accepting side asks for at a time.
pub const MAX_WANTED: usize = MAX_FIRST;
const MAX_REASON: usize = 256;
const MAX_ANSWER: usize = KEY_LEN + 1 + MAX_REASON + TAG_LEN;
const _: () = assert!(MAX_WANTED >= HEAD_LEN && MAX_WANTED >= TAG_LEN);

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
    #[error("the peer closed the connection without an answer; it may have another secret")]
    Silent,
    #[error("the peer does not protect the connection as this side requires")]
    Terms,
    #[error("{0}")]
    Refused(String),
}

/// The accepting side. It asks for exact numbers of bytes, so that it never reads beyond the
/// handshake.
pub struct Accepting {
    security: Security,
    stage: Stage,
}

enum Stage {
    Head,
    First { head: [u8; HEAD_LEN], len: usize },
    Proof(Box<Answered>),
    Over,
}

/// What the connecting side has said and not proven yet: its first message may be a repeated one.
struct Answered {
    claim: Claim,
    noise: TransportState,
    keys: Option<Keys>,
}

/// The result of a step.
pub enum Step {
    /// The next step needs more bytes.
    More,
    /// The peer has proven this claim. It waits for a [`verdict`], which is sealed with the keys,
    /// as is all that follows.
    Proven(Claim, Option<Keys>),
}

/// The reason, cut to its greatest length.
fn cut(reason: &str) -> &str {
    let mut take = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(take) {
        take -= 1;
    }
    &reason[..take]
}

/// The last bytes of the accepting side: the peer is admitted, or refused for a reason.
pub fn verdict(admitted: Result<(), &str>) -> Vec<u8> {
    let Err(reason) = admitted else { return vec![1] };
    let reason = cut(reason);
    let mut bytes = vec![0];
    bytes.extend((reason.len() as u16).to_le_bytes());
    bytes.extend(reason.as_bytes());
    bytes
}

/// The keys of the connection, when both sides have the messages of each other; `None` where
/// nothing is sealed. The keys of the records are not those of the handshake's last message.
fn keys(noise: &mut HandshakeState, security: Security, cipher: Cipher) -> Option<Keys> {
    if security == Security::Off {
        return None;
    }
    let (connecting, accepting) = noise.dangerously_get_raw_split();
    let [connecting, accepting] =
        [connecting, accepting].map(|key| *blake3::keyed_hash(&key, b"eyrie records").as_bytes());
    Some(Keys { cipher, readable: security == Security::Authenticated, connecting, accepting })
}

/// The next Noise message, with this payload.
///
/// # Errors
/// When the peer's public key gives the same result with every private key.
fn message(noise: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let mut message = vec![0; KEY_LEN + payload.len() + TAG_LEN];
    noise.write_message(payload, &mut message).map_err(|_| HandshakeError::Foreign)?;
    Ok(message)
}

impl Accepting {
    /// The accepting side of a connection that must be protected like this.
    pub fn new(security: Security) -> Accepting {
        Accepting { security, stage: Stage::Head }
    }

    /// How many bytes the next step needs, at most [`MAX_WANTED`].
    pub fn wanted(&self) -> usize {
        match &self.stage {
            Stage::Head => HEAD_LEN,
            Stage::First { len, .. } => *len,
            Stage::Proof(_) => TAG_LEN,
            Stage::Over => 0,
        }
    }

    /// Takes the next step, with exactly as many bytes as were wanted. Appends to `out` what must
    /// be sent, also when the peer is refused.
    ///
    /// # Errors
    /// Why the peer is refused. A peer that has not shown that it knows the secret is not told.
    pub fn step(
        &mut self,
        bytes: &[u8],
        secret: &Secret,
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Head => {
                let head: [u8; HEAD_LEN] = bytes.try_into().map_err(|_| HandshakeError::Foreign)?;
                let len = usize::from(u16::from_le_bytes([head[6], head[7]]));
                let version = u16::from_le_bytes([head[4], head[5]]);
                if &head[..4] == MAGIC && version < FIRST_NOISE {
                    // It would not understand an answer, and what follows proves nothing here.
                    return Err(HandshakeError::Version(version));
                }
                if &head[..4] != MAGIC || !(MIN_FIRST..=MAX_FIRST).contains(&len) {
                    return Err(HandshakeError::Foreign);
                }
                self.stage = Stage::First { head, len };
                Ok(Step::More)
            }
            Stage::First { head, .. } => {
                let mut noise = noise::accepting(secret, &head);
                let mut payload = [0; MAX_FIRST];
                let len = noise.read_message(bytes, &mut payload);
                let len = len.map_err(|_| HandshakeError::Secret)?;
                let checked = self.check(&head, &payload[..len]);
                let answer = match &checked {
                    Ok((_, cipher)) => vec![1, *cipher as u8],
                    Err(e) => [&[0], cut(&e.to_string()).as_bytes()].concat(),
                };
                let message = message(&mut noise, &answer)?;
                out.extend((message.len() as u16).to_le_bytes());
                out.extend(message);
                let (claim, cipher) = checked?;
                let keys = keys(&mut noise, self.security, cipher);
                let noise = noise.into_transport_mode().expect("both messages were exchanged");
                self.stage = Stage::Proof(Box::new(Answered { claim, noise, keys }));
                Ok(Step::More)
            }
            Stage::Proof(answered) => {
                let Answered { claim, mut noise, keys } = *answered;
                let proven = noise.read_message(bytes, &mut []);
                proven.map_err(|_| HandshakeError::Secret)?;
                Ok(Step::Proven(claim, keys))
            }
            Stage::Over => Err(HandshakeError::Foreign),
        }
    }

    /// What a peer that knows the secret claims to be, and the cipher for the connection.
    fn check(&self, head: &[u8], payload: &[u8]) -> Result<(Claim, Cipher), HandshakeError> {
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version != VERSION {
            return Err(HandshakeError::Version(version));
        }
        let (terms, claim) = payload.split_at_checked(TERMS_LEN).ok_or(HandshakeError::Foreign)?;
        let cipher = Cipher::choose(terms[1]).ok_or(HandshakeError::Terms)?;
        if terms[0] != self.security as u8 {
            return Err(HandshakeError::Terms);
        }
        let claim = postcard::from_bytes(claim).map_err(|_| HandshakeError::Foreign)?;
        Ok((claim, cipher))
    }
}

fn read_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the rest of a refusal: its length and its reason.
fn read_reason(stream: &mut impl Read) -> io::Result<String> {
    let len = u16::from_le_bytes(read_array(stream)?) as usize;
    let mut reason = vec![0; len.min(MAX_REASON)];
    stream.read_exact(&mut reason)?;
    Ok(String::from_utf8_lossy(&reason).into_owned())
}

/// The first message of the connecting side, of this version.
fn first(
    secret: &Secret,
    claim: &Claim,
    security: Security,
    version: u16,
) -> (HandshakeState, Vec<u8>) {
    let payload = vec![security as u8, Cipher::offered()];
    let payload = postcard::to_extend(claim, payload).expect("a claim is plain data");
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(((KEY_LEN + payload.len() + TAG_LEN) as u16).to_le_bytes());
    let mut noise = noise::connecting(secret, &bytes);
    bytes.extend(message(&mut noise, &payload).expect("the first message needs no key of a peer"));
    (noise, bytes)
}

/// The connecting side up to its last message.
fn prove(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    claim: &Claim,
    security: Security,
) -> Result<Option<Keys>, HandshakeError> {
    let (mut noise, first) = first(secret, claim, security, VERSION);
    stream.write_all(&first)?;
    let len = usize::from(u16::from_le_bytes(read_array(stream).map_err(no_answer)?));
    if len > MAX_ANSWER {
        return Err(HandshakeError::Foreign);
    }
    let mut answer = [0; MAX_ANSWER];
    let mut payload = [0; MAX_ANSWER];
    stream.read_exact(&mut answer[..len])?;
    let len = noise.read_message(&answer[..len], &mut payload);
    let len = len.map_err(|_| HandshakeError::Secret)?;
    let cipher = match &payload[..len] {
        [1, cipher] => Cipher::from_u8(*cipher).ok_or(HandshakeError::Terms)?,
        [0, reason @ ..] => {
            return Err(HandshakeError::Refused(String::from_utf8_lossy(reason).into_owned()));
        }
        _ => return Err(HandshakeError::Foreign),
    };
    let keys = keys(&mut noise, security, cipher);
    let mut noise = noise.into_transport_mode().expect("both messages were exchanged");
    let mut proof = [0; TAG_LEN];
    noise.write_message(&[], &mut proof).expect("a tag has room for a tag");
    stream.write_all(&proof)?;
    Ok(keys)
}

/// The error of a read that expected an answer.
fn no_answer(e: io::Error) -> HandshakeError {
    match e.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => HandshakeError::Silent,
        _ => e.into(),
    }
}

/// The connecting side, on a stream that blocks with a timeout. Afterwards the stream seals its
/// content, as its kind requires.
///
/// # Errors
/// When the stream fails, the peer refuses, or it does not know the secret.
pub fn connect(stream: &mut Stream, secret: &Secret, claim: &Claim) -> Result<(), HandshakeError> {
    if let Some(keys) = prove(stream, secret, claim, stream.security())? {
        stream.seal(crate::seal::Sealed::connecting(&keys));
    }
    match read_array::<1>(stream)?[0] {
        1 => Ok(()),
        0 => Err(HandshakeError::Refused(read_reason(stream)?)),
        _ => Err(HandshakeError::Foreign),
    }
}

/// The accepting side up to the proof of the connecting one.
fn accept_proof(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    security: Security,
) -> Result<(Claim, Option<Keys>), HandshakeError> {
    let mut accepting = Accepting::new(security);
    let mut bytes = [0; MAX_WANTED];
    loop {
        let bytes = &mut bytes[..accepting.wanted()];
        stream.read_exact(bytes)?;
        let mut out = Vec::new();
        let step = accepting.step(bytes, secret, &mut out);
        stream.write_all(&out)?;
        if let Step::Proven(claim, keys) = step? {
            return Ok((claim, keys));
        }
    }
}

/// The accepting side, on a stream that blocks with a timeout. Returns the claim that the peer has
/// proven. `admit` may still refuse it with a reason. Afterwards the stream seals its content, as
/// its kind requires.
///
/// # Errors
/// When the stream fails, or the peer is refused (it was told why if it knows the secret).
pub fn accept(
    stream: &mut Stream,
    secret: &Secret,
    admit: impl FnOnce(&Claim) -> Result<(), String>,
) -> Result<Claim, HandshakeError> {
    let (claim, keys) = accept_proof(stream, secret, stream.security())?;
    if let Some(keys) = keys {
        stream.seal(crate::seal::Sealed::accepting(&keys));
    }
    let admitted = admit(&claim);
    stream.write_all(&verdict(admitted.as_ref().map(drop).map_err(String::as_str)))?;
    admitted.map_err(HandshakeError::Refused)?;
    Ok(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listener;
    use eyrie_wire::auth::{random, SECRET_LEN};
    use eyrie_wire::role_address::{Addr, Bind, Interface, Ports};
    use eyrie_wire::NodeId;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const SECRET: Secret = Secret([9; SECRET_LEN]);
    const CLAIM: Claim = Claim::Agent { node: NodeId(3), pid: 77 };
    const ALL: [Security; 3] = [Security::Encrypted, Security::Authenticated, Security::Off];

    fn listener(security: Security) -> Listener {
        let interface = Interface::LOOPBACK;
        let ports = Ports::ANY;
        Listener::bind(&Bind::Tcp { interface, ports, security }).unwrap()
    }

    fn handshake(
        (ours, theirs): (Security, Security),
        secret: Secret,
        admit: Result<(), String>,
    ) -> (Result<Stream, HandshakeError>, bool) {
        let listener = listener(theirs);
        let addr = match listener.addr().unwrap() {
            Addr::Tcp { at, .. } => Addr::Tcp { at, security: ours },
            other => other,
        };
        let accepting = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap();
            stream.set_timeout(Some(Duration::from_secs(5))).unwrap();
            let accepted = accept(&mut stream, &SECRET, |_| admit).is_ok_and(|c| c == CLAIM);
            // What one side seals, the other side can open.
            accepted && {
                let mut word = [0; 4];
                stream.read_exact(&mut word).unwrap();
                stream.write_all(&word).unwrap();
                word == *b"ping"
            }
        });
        let mut stream = Stream::connect(&addr, Duration::from_secs(5)).unwrap();
        let connected = connect(&mut stream, &secret, &CLAIM).map(|()| {
            let mut word = [0; 4];
            stream.write_all(b"ping").unwrap();
            stream.read_exact(&mut word).unwrap();
            assert_eq!(&word, b"ping");
            stream
        });
        (connected, accepting.join().unwrap())
    }

    #[test]
    fn without_proof_of_both_sides_neither_continues() {
        for security in ALL {
            let both = (security, security);
            let (connected, accepted) = handshake(both, SECRET, Ok(()));
            assert!(connected.is_ok() && accepted, "{security:?}");
            let (connected, accepted) = handshake(both, Secret([8; SECRET_LEN]), Ok(()));
            assert!(matches!(connected, Err(HandshakeError::Silent)) && !accepted);
            let (connected, accepted) = handshake(both, SECRET, Err("node 3 was lost".into()));
            assert!(
                matches!(connected, Err(HandshakeError::Refused(r)) if r == "node 3 was lost")
                    && !accepted
            );
        }
        let (connected, accepted) = handshake((Security::Off, Security::Encrypted), SECRET, Ok(()));
        assert!(matches!(connected, Err(HandshakeError::Refused(_))) && !accepted);
    }

    /// A conversation with the accepting side: its answers to these bytes, and whether it accepted
    /// the proof.
    fn answers_to(mut bytes: &[u8], secret: &Secret, security: Security) -> (Vec<u8>, bool) {
        let mut accepting = Accepting::new(security);
        let mut out = Vec::new();
        while let Some((wanted, rest)) = bytes.split_at_checked(accepting.wanted()) {
            match accepting.step(wanted, secret, &mut out) {
                Ok(Step::More) => bytes = rest,
                Ok(Step::Proven(..)) => return (out, true),
                Err(_) => break,
            }
        }
        (out, false)
    }

    fn first_message(security: Security) -> Vec<u8> {
        first(&SECRET, &CLAIM, security, VERSION).1
    }

    /// A million first messages: random bytes, valid messages with changes, truncated ones, and
    /// ones with another secret's proof. None is answered, and none is admitted.
    #[test]
    fn a_peer_without_the_secret_gets_no_answer() {
        let asked = std::env::var("EYRIE_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed: u64 = asked.unwrap_or_else(|| u64::from_le_bytes(random()));
        println!("EYRIE_TEST_SEED={seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let whole = ALL.map(first_message);
        let mut bytes = [0u8; 256];
        for round in 0..1_000_000 {
            let security = ALL[round % 3];
            let mut len = rng.gen_range(0..bytes.len());
            if round % 4 == 0 {
                rng.fill(&mut bytes[..]);
            } else {
                let hello = &whole[round % 3];
                bytes[..hello.len()].copy_from_slice(hello);
                let changed = hello.len();
                for _ in 0..rng.gen_range(1..4) {
                    bytes[rng.gen_range(0..changed)] ^= rng.gen_range(1..=255u8);
                }
                len = len.max(rng.gen_range(0..=changed));
                if bytes[..changed] == hello[..] {
                    continue; // changed back
                }
            }
            let (said, admitted) = answers_to(&bytes[..len], &SECRET, security);
            assert!(said.is_empty() && !admitted, "round {round}: {:?}", &bytes[..len]);
        }
        for security in ALL {
            let (said, admitted) =
                answers_to(&first_message(security), &Secret([8; SECRET_LEN]), security);
            assert!(said.is_empty() && !admitted);
        }
    }

    #[test]
    fn a_repeated_conversation_is_not_admitted() {
        for security in ALL {
            // What an eavesdropper has seen of the connecting side.
            let (mut noise, mut seen) = first(&SECRET, &CLAIM, security, VERSION);
            let mut accepting = Accepting::new(security);
            let mut out = Vec::new();
            let (head, rest) = seen.split_at(HEAD_LEN);
            assert!(accepting.step(head, &SECRET, &mut out).is_ok());
            assert!(accepting.step(rest, &SECRET, &mut out).is_ok());
            noise.read_message(&out[2..], &mut [0; MAX_ANSWER]).unwrap();
            let mut proof = [0; TAG_LEN];
            noise.into_transport_mode().unwrap().write_message(&[], &mut proof).unwrap();
            let step = accepting.step(&proof, &SECRET, &mut Vec::new());
            assert!(matches!(step, Ok(Step::Proven(CLAIM, _))));
            seen.extend(proof);
            for _ in 0..1000 {
                assert!(!answers_to(&seen, &SECRET, security).1);
            }
        }
    }

    #[test]
    fn a_peer_with_the_secret_learns_of_another_version_and_other_terms() {
        let refused = |version, security| {
            let (mut noise, bytes) = first(&SECRET, &CLAIM, Security::Off, version);
            let (said, admitted) = answers_to(&bytes, &SECRET, security);
            assert!(!admitted);
            let mut payload = [0; MAX_ANSWER];
            let len = noise.read_message(&said[2..], &mut payload).unwrap();
            assert_eq!(payload[0], 0);
            String::from_utf8_lossy(&payload[1..len]).into_owned()
        };
        assert!(refused(VERSION, Security::Encrypted).contains("protect"));
        assert!(refused(VERSION + 1, Security::Off).contains("version"));
        // One from before says its version in the same place, and is not answered.
        let (_, mut bytes) = first(&SECRET, &CLAIM, Security::Off, VERSION);
        bytes[4..6].copy_from_slice(&(FIRST_NOISE - 1).to_le_bytes());
        let head = &bytes[..HEAD_LEN];
        let mut out = Vec::new();
        let refused = Accepting::new(Security::Off).step(head, &SECRET, &mut out);
        assert!(matches!(refused, Err(HandshakeError::Version(18))) && out.is_empty());
    }

    /// A stream that returns these bytes and accepts everything.
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

    #[test]
    fn the_connecting_side_accepts_no_answer_without_the_secret() {
        let mut rng = SmallRng::seed_from_u64(1);
        for round in 0..20_000 {
            let mut bytes: Vec<u8> = (0..rng.gen_range(0..200)).map(|_| rng.gen()).collect();
            if let Some(first) = bytes.first_mut().filter(|_| round % 2 == 0) {
                *first %= 2;
            }
            assert!(prove(&mut Canned(&bytes), &SECRET, &CLAIM, Security::Off).is_err());
        }
    }
}
