//! The first exchange on every connection: version, claim, mutual proof ([`eyrie_wire::auth`]), and
//! between hosts an agreement on keys ([`crate::seal`]). The two sides are state machines without
//! I/O, with functions around them for streams that block. The accepting side trusts nothing of a
//! peer, and sends nothing to it, before the peer's first message has shown that it knows the
//! secret. A peer that repeats the first message of another one gets the answer to it and no
//! further.
//!
//! - connecting: `EYRI`, version u16, length u16, nonce 16, proof 32, then `length` bytes: security
//!   u8, ciphers u8, public key 32, claim
//! - accepting: `1`, nonce 16, cipher u8, public key 32, proof 32
//! - or: `0`, length u16, reason, proof 32
//! - connecting: proof 32
//! - from here on everything is sealed, unless security is off
//! - accepting: `1`, or `0`, length u16, reason

use crate::seal::{Cipher, Keys, Security};
use crate::Stream;
use eyrie_wire::auth::{random, Purpose, Secret, NONCE_LEN, PROOF_LEN};
use eyrie_wire::control::Claim;
use eyrie_wire::VERSION;
use std::io::{self, Read, Write};
use std::time::Duration;
use x25519_dalek::{x25519, X25519_BASEPOINT_BYTES};

const MAGIC: &[u8; 4] = b"EYRI";
/// How long connecting, and each step of a handshake, may take on either side.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Magic, version, length; nonce and proof follow. A new version may change only what comes later.
const HEAD_LEN: usize = 8;
const HELLO_LEN: usize = HEAD_LEN + NONCE_LEN + PROOF_LEN;
const KEY_LEN: usize = 32;
/// Security, ciphers, public key.
const TERMS_LEN: usize = 2 + KEY_LEN;
/// Longest encoded claim in bytes.
pub const MAX_CLAIM: usize = 64;
const MAX_BODY: usize = TERMS_LEN + MAX_CLAIM;
/// Most bytes that the accepting side asks for at a time.
pub const MAX_WANTED: usize = MAX_BODY;
/// Nonce, cipher, public key.
const ANSWER_LEN: usize = NONCE_LEN + 1 + KEY_LEN;
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
    #[error("the peer closed the connection without an answer; it may have another secret")]
    Silent,
    #[error("the peer does not protect the connection as this side requires")]
    Terms,
    #[error("{0}")]
    Refused(String),
}

/// A pair of keys for the agreement, used once.
struct Pair {
    private: [u8; KEY_LEN],
    public: [u8; KEY_LEN],
}

impl Pair {
    /// Makes a new pair, or an empty one where nothing is sealed.
    fn new(security: Security) -> Pair {
        if security == Security::Off {
            return Pair { private: [0; KEY_LEN], public: [0; KEY_LEN] };
        }
        let private = random();
        Pair { private, public: x25519(private, X25519_BASEPOINT_BYTES) }
    }

    /// The keys of the connection, from the messages of both sides; `None` where nothing is sealed.
    fn agree(
        &self,
        theirs: [u8; KEY_LEN],
        secret: &Secret,
        terms: (Security, Cipher),
        said: [&[u8]; 3],
    ) -> Result<Option<Keys>, HandshakeError> {
        let (security, cipher) = terms;
        if security == Security::Off {
            return Ok(None);
        }
        let shared = x25519(self.private, theirs);
        // Some public keys give the same result with every private key.
        if shared == [0; KEY_LEN] {
            return Err(HandshakeError::Foreign);
        }
        let [connecting, accepting] = secret.keys(&[&shared, said[0], said[1], said[2]]);
        let readable = security == Security::Authenticated;
        Ok(Some(Keys { cipher, readable, connecting, accepting }))
    }
}

/// The accepting side. It asks for exact numbers of bytes, so that it never reads beyond the
/// handshake.
pub struct Accepting {
    security: Security,
    stage: Stage,
}

enum Stage {
    Hello,
    Body { hello: [u8; HELLO_LEN], len: usize },
    Proof(Box<Answered>),
    Proven,
}

/// The connecting side's messages, and the answer to them.
struct Answered {
    hello: [u8; HELLO_LEN],
    body: Vec<u8>,
    answer: [u8; ANSWER_LEN],
    claim: Claim,
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

/// The last bytes of the accepting side: the peer is admitted, or refused for a reason.
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

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], HandshakeError> {
    bytes.try_into().map_err(|_| HandshakeError::Foreign)
}

impl Accepting {
    /// The accepting side of a connection that must be protected like this.
    pub fn new(security: Security) -> Accepting {
        Accepting { security, stage: Stage::Hello }
    }

    /// How many bytes the next step needs, at most [`MAX_WANTED`].
    pub fn wanted(&self) -> usize {
        match &self.stage {
            Stage::Hello => HELLO_LEN,
            Stage::Body { len, .. } => *len,
            Stage::Proof(_) => PROOF_LEN,
            Stage::Proven => 0,
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
        match std::mem::replace(&mut self.stage, Stage::Proven) {
            Stage::Hello => {
                let hello: [u8; HELLO_LEN] = array(bytes)?;
                let len = usize::from(u16::from_le_bytes([hello[6], hello[7]]));
                if &hello[..4] != MAGIC || !(TERMS_LEN..=MAX_BODY).contains(&len) {
                    return Err(HandshakeError::Foreign);
                }
                self.stage = Stage::Body { hello, len };
                Ok(Step::More)
            }
            Stage::Body { hello, .. } => {
                let (said, proof) = hello.split_at(HEAD_LEN + NONCE_LEN);
                if !secret.verify(Purpose::Hello, &[said, bytes], &array(proof)?) {
                    return Err(HandshakeError::Secret);
                }
                let answered = self.answer(hello, bytes, secret).inspect_err(|e| {
                    let refusal = verdict(Err(&e.to_string()));
                    out.extend(&refusal);
                    out.extend(secret.proof(Purpose::Refusal, &[&hello, &refusal]));
                })?;
                let Answered { body, answer, .. } = &*answered;
                out.push(1);
                out.extend(answer);
                out.extend(secret.proof(Purpose::Accepting, &[&hello, body, answer]));
                self.stage = Stage::Proof(answered);
                Ok(Step::More)
            }
            Stage::Proof(answered) => {
                let Answered { hello, body, answer, claim, keys } = *answered;
                let said: [&[u8]; 3] = [&hello, &body, &answer];
                if !secret.verify(Purpose::Connecting, &said, &array(bytes)?) {
                    return Err(HandshakeError::Secret);
                }
                Ok(Step::Proven(claim, keys))
            }
            Stage::Proven => Err(HandshakeError::Foreign),
        }
    }

    /// The answer to a first message from a peer that knows the secret.
    fn answer(
        &self,
        hello: [u8; HELLO_LEN],
        body: &[u8],
        secret: &Secret,
    ) -> Result<Box<Answered>, HandshakeError> {
        let version = u16::from_le_bytes([hello[4], hello[5]]);
        if version != VERSION {
            return Err(HandshakeError::Version(version));
        }
        let (terms, claim) = body.split_at_checked(TERMS_LEN).ok_or(HandshakeError::Foreign)?;
        let cipher = Cipher::choose(terms[1]).ok_or(HandshakeError::Terms)?;
        if terms[0] != self.security as u8 {
            return Err(HandshakeError::Terms);
        }
        let claim = postcard::from_bytes(claim).map_err(|_| HandshakeError::Foreign)?;
        let ours = Pair::new(self.security);
        let mut answer = [0; ANSWER_LEN];
        answer[..NONCE_LEN].copy_from_slice(&random::<NONCE_LEN>());
        answer[NONCE_LEN] = cipher as u8;
        answer[NONCE_LEN + 1..].copy_from_slice(&ours.public);
        let said: [&[u8]; 3] = [&hello, body, &answer];
        let keys = ours.agree(array(&terms[2..])?, secret, (self.security, cipher), said)?;
        Ok(Box::new(Answered { hello, body: body.to_vec(), answer, claim, keys }))
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

/// The first message of the connecting side: the part before the body, and the body.
fn hello(secret: &Secret, claim: &Claim, terms: (Security, &Pair)) -> ([u8; HELLO_LEN], Vec<u8>) {
    let (security, pair) = terms;
    let mut body = vec![security as u8, Cipher::offered()];
    body.extend(pair.public);
    let body = postcard::to_extend(claim, body).expect("a claim is plain data");
    let mut hello = [0; HELLO_LEN];
    hello[..4].copy_from_slice(MAGIC);
    hello[4..6].copy_from_slice(&VERSION.to_le_bytes());
    hello[6..8].copy_from_slice(&(body.len() as u16).to_le_bytes());
    hello[HEAD_LEN..][..NONCE_LEN].copy_from_slice(&random::<NONCE_LEN>());
    let (said, proof) = hello.split_at_mut(HEAD_LEN + NONCE_LEN);
    proof.copy_from_slice(&secret.proof(Purpose::Hello, &[said, &body]));
    (hello, body)
}

/// The connecting side up to its last message.
fn prove(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    claim: &Claim,
    security: Security,
) -> Result<Option<Keys>, HandshakeError> {
    let ours = Pair::new(security);
    let (hello, body) = hello(secret, claim, (security, &ours));
    stream.write_all(&[&hello[..], &body].concat())?;
    match read_array::<1>(stream).map_err(no_answer)?[0] {
        1 => {}
        0 => {
            let reason = read_reason(stream)?;
            let proof = read_array(stream)?;
            let known = secret.verify(Purpose::Refusal, &[&hello, &verdict(Err(&reason))], &proof);
            return Err(if known {
                HandshakeError::Refused(reason)
            } else {
                HandshakeError::Secret
            });
        }
        _ => return Err(HandshakeError::Foreign),
    }
    let answer: [u8; ANSWER_LEN] = read_array(stream)?;
    let said: [&[u8]; 3] = [&hello, &body, &answer];
    if !secret.verify(Purpose::Accepting, &said, &read_array(stream)?) {
        return Err(HandshakeError::Secret);
    }
    let cipher = Cipher::from_u8(answer[NONCE_LEN]).ok_or(HandshakeError::Terms)?;
    let theirs = array(&answer[NONCE_LEN + 1..])?;
    let keys = ours.agree(theirs, secret, (security, cipher), said)?;
    stream.write_all(&secret.proof(Purpose::Connecting, &said))?;
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
    use crate::{Bind, Interface, Listener, Ports};
    use eyrie_wire::auth::SECRET_LEN;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const SECRET: Secret = Secret([9; SECRET_LEN]);
    const CLAIM: Claim = Claim::Agent { node: 3, pid: 77 };
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
            crate::Addr::Tcp { at, .. } => crate::Addr::Tcp { at, security: ours },
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
        let (hello, body) = hello(&SECRET, &CLAIM, (security, &Pair::new(security)));
        [&hello[..], &body].concat()
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
            let mut seen = first_message(security);
            let mut accepting = Accepting::new(security);
            let mut out = Vec::new();
            let (first, body) = seen.split_at(HELLO_LEN);
            assert!(accepting.step(first, &SECRET, &mut out).is_ok());
            assert!(accepting.step(body, &SECRET, &mut out).is_ok());
            let answer = &out[1..1 + ANSWER_LEN];
            let proof = SECRET.proof(Purpose::Connecting, &[first, body, answer]);
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
        let (mut hello, body) = hello(&SECRET, &CLAIM, (Security::Off, &Pair::new(Security::Off)));
        let refused = |hello: &[u8], security| {
            let (said, admitted) = answers_to(&[hello, &body[..]].concat(), &SECRET, security);
            assert!(said[0] == 0 && !admitted);
            String::from_utf8_lossy(&said[3..said.len() - PROOF_LEN]).into_owned()
        };
        assert!(refused(&hello, Security::Encrypted).contains("protect"));
        hello[4] ^= 0x55;
        let (said, proof) = hello.split_at_mut(HEAD_LEN + NONCE_LEN);
        proof.copy_from_slice(&SECRET.proof(Purpose::Hello, &[said, &body]));
        assert!(refused(&hello, Security::Off).contains("version"));
    }

    #[test]
    fn a_public_key_that_gives_every_peer_the_same_result_is_refused() {
        let weak = Pair { private: [1; KEY_LEN], public: [0; KEY_LEN] };
        let (hello, body) = hello(&SECRET, &CLAIM, (Security::Encrypted, &weak));
        let (said, _) = answers_to(&[&hello[..], &body].concat(), &SECRET, Security::Encrypted);
        assert_eq!(said[0], 0);
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
