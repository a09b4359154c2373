//! Sealing: the content of a connection between hosts becomes records that an attacker cannot read,
//! or change, repeat or cut off unnoticed. A record is its length (4 bytes, little-endian), at most
//! 64 KiB of content, and a tag of 16 bytes. Each direction of each connection has a key of its own
//! and numbers its records from 0. An empty record ends it. Nothing of a record is used before it
//! is verified, and no buffer grows by a length that a peer names.
//!
//! The two halves work for streams that block and for those that do not: the caller passes the
//! functions that send and receive raw bytes.

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_128_GCM, CHACHA20_POLY1305};
use std::io::{self, ErrorKind};
use std::ops::Range;

/// How records are sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    Aes128Gcm = 1,
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// The ciphers that are fast on this processor, as bits.
    pub fn offered() -> u8 {
        let aes = std::arch::is_x86_feature_detected!("aes");
        Cipher::ChaCha20Poly1305 as u8 | if aes { Cipher::Aes128Gcm as u8 } else { 0 }
    }

    /// The cipher to use, of those that both sides offer.
    pub fn choose(offered: u8) -> Option<Cipher> {
        let both = offered & Cipher::offered();
        [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305].into_iter().find(|c| both & *c as u8 != 0)
    }

    /// Seals nothing, once.
    pub(crate) fn try_out(self) {
        let secret = [0; 32];
        let keys = Keys { cipher: self, readable: false, connecting: secret, accepting: secret };
        Key::new(&keys, secret).seal(&[], &mut Vec::new());
        std::hint::black_box(blake3::keyed_hash(&secret, &[]));
    }

    /// The cipher with this number.
    pub fn from_u8(n: u8) -> Option<Cipher> {
        [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305].into_iter().find(|c| *c as u8 == n)
    }
}

/// Longest content of a record in bytes.
pub const MAX_RECORD: usize = 64 * 1024;
const HEAD_LEN: usize = 4;
const TAG_LEN: usize = 16;
/// Records after which a direction changes to a new key, so that no key exceeds the limit of
/// AES-GCM.
const RECORDS_PER_KEY: u64 = 1 << 20;

/// What both sides of a connection have agreed on: the cipher, and one key for what the connecting
/// side sends and one for what the accepting side sends.
pub struct Keys {
    pub cipher: Cipher,
    /// The content is authenticated but not encrypted.
    pub readable: bool,
    pub connecting: [u8; 32],
    pub accepting: [u8; 32],
}

/// The key of one direction.
struct Key {
    cipher: Cipher,
    readable: bool,
    secret: [u8; 32],
    key: LessSafeKey,
    /// Records so far.
    count: u64,
}

impl Key {
    fn new(keys: &Keys, secret: [u8; 32]) -> Key {
        let Keys { cipher, readable, .. } = *keys;
        Key { cipher, readable, key: Key::of(cipher, &secret), secret, count: 0 }
    }

    fn of(cipher: Cipher, secret: &[u8; 32]) -> LessSafeKey {
        let key = match cipher {
            Cipher::Aes128Gcm => UnboundKey::new(&AES_128_GCM, &secret[..16]),
            Cipher::ChaCha20Poly1305 => UnboundKey::new(&CHACHA20_POLY1305, secret),
        };
        LessSafeKey::new(key.expect("a key of the cipher's length"))
    }

    /// The nonce of the next record. Afterwards `self.key` is the key that belongs to it.
    fn next(&mut self) -> Nonce {
        if self.count > 0 && self.count % RECORDS_PER_KEY == 0 {
            self.secret = *blake3::keyed_hash(&self.secret, b"eyrie next key").as_bytes();
            self.key = Key::of(self.cipher, &self.secret);
        }
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_le_bytes());
        self.count += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends the record with this content to `out`.
    fn seal(&mut self, content: &[u8], out: &mut Vec<u8>) {
        debug_assert!(content.len() <= MAX_RECORD);
        let nonce = self.next();
        let at = out.len();
        out.extend_from_slice(&(content.len() as u32).to_le_bytes());
        out.extend_from_slice(content);
        let record = &mut out[at..];
        let tag = if self.readable {
            self.key.seal_in_place_separate_tag(nonce, Aad::from(&*record), &mut [])
        } else {
            let (head, content) = record.split_at_mut(HEAD_LEN);
            self.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), content)
        };
        out.extend_from_slice(tag.expect("a record is short").as_ref());
    }

    /// Opens a whole record in place.
    fn open(&mut self, record: &mut [u8]) -> io::Result<()> {
        let nonce = self.next();
        let opened = if self.readable {
            let (content, tag) = record.split_at_mut(record.len() - TAG_LEN);
            self.key.open_in_place(nonce, Aad::from(&*content), tag).map(|_| ())
        } else {
            let (head, content) = record.split_at_mut(HEAD_LEN);
            self.key.open_in_place(nonce, Aad::from(&*head), content).map(|_| ())
        };
        opened.map_err(|_| broken("a record was changed, repeated or left out"))
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// The half that seals.
pub struct Sealing {
    key: Key,
    /// The record that is being sent, how much of it was sent, and how much content it has.
    record: Vec<u8>,
    sent: usize,
    content: usize,
}

impl Sealing {
    fn new(key: Key) -> Sealing {
        Sealing { key, record: Vec::new(), sent: 0, content: 0 }
    }

    /// Sends bytes and returns how many it has accepted. After an error like `WouldBlock` the
    /// caller must pass the same bytes again, with or without more after them: a part of their
    /// record may be sent.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn write(
        &mut self,
        bytes: &[u8],
        send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.record.is_empty() {
            self.content = bytes.len().min(MAX_RECORD);
            self.key.seal(&bytes[..self.content], &mut self.record);
        }
        self.send(send)?;
        Ok(self.content)
    }

    /// Tells the other side that nothing more follows.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn end(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        self.send(&mut send)?;
        self.key.seal(&[], &mut self.record);
        self.send(send)
    }

    /// Sends the rest of the record.
    fn send(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while self.sent < self.record.len() {
            match send(&self.record[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.record.clear();
        self.sent = 0;
        Ok(())
    }
}

/// Bytes that are read at once.
const INPUT_BYTES: usize = 2 * (HEAD_LEN + MAX_RECORD + TAG_LEN);

/// The half that opens.
pub struct Opening {
    key: Key,
    /// Received bytes: first content that is verified and not yet returned, then records that are
    /// not verified.
    input: Vec<u8>,
    content: Range<usize>,
    start: usize,
    end: usize,
    /// The other side has said that nothing more follows.
    over: bool,
    /// A record was not what the other side sent.
    broken: bool,
}

impl Opening {
    fn new(key: Key) -> Opening {
        let input = vec![0; INPUT_BYTES];
        Opening { key, input, content: 0..0, start: 0, end: 0, over: false, broken: false }
    }

    /// Reads as many bytes as `into` holds and have arrived; 0 when the other side has said that
    /// nothing more follows. Does not leave a whole record behind unless `into` is full.
    ///
    /// # Errors
    /// Those of `receive`, when nothing has arrived; `UnexpectedEof` when the connection ends
    /// before the other side has said so; `InvalidData` when a record is not what was sent.
    pub fn read(
        &mut self,
        into: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let n = self.content.len().min(into.len() - done);
            let from = self.content.start;
            into[done..done + n].copy_from_slice(&self.input[from..from + n]);
            self.content.start += n;
            done += n;
            if done == into.len() || self.over {
                return Ok(done);
            }
            if self.open()? {
                continue;
            }
            if done > 0 {
                return Ok(done);
            }
            match receive(&mut self.input[self.end..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => self.end += n,
            }
        }
    }

    /// Whether bytes can be read, or an error is known, without receiving anything.
    pub fn has_more(&self) -> bool {
        !self.content.is_empty() || !matches!(self.record_len(), Ok(None))
    }

    /// The length of the next record, if it has arrived whole.
    fn record_len(&self) -> io::Result<Option<usize>> {
        let rest = &self.input[self.start..self.end];
        let Some(head) = rest.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > MAX_RECORD {
            return Err(broken("a record is too long"));
        }
        let len = HEAD_LEN + len + TAG_LEN;
        Ok((rest.len() >= len).then_some(len))
    }

    /// Opens the next record when all content was returned; false while the record is incomplete.
    fn open(&mut self) -> io::Result<bool> {
        if self.broken {
            return Err(broken("the connection was broken before"));
        }
        let len = self.record_len().inspect_err(|_| self.broken = true)?;
        let Some(len) = len else {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            return Ok(false);
        };
        let record = &mut self.input[self.start..self.start + len];
        self.key.open(record).inspect_err(|_| self.broken = true)?;
        self.content = self.start + HEAD_LEN..self.start + len - TAG_LEN;
        self.over = self.content.is_empty();
        self.start += len;
        Ok(true)
    }
}

/// Both halves of one side of a connection.
pub struct Sealed {
    pub sealing: Sealing,
    pub opening: Opening,
}

impl Sealed {
    /// The side that has connected.
    pub fn connecting(keys: &Keys) -> Sealed {
        Sealed::new(keys, keys.connecting, keys.accepting)
    }

    /// The side that has accepted.
    pub fn accepting(keys: &Keys) -> Sealed {
        Sealed::new(keys, keys.accepting, keys.connecting)
    }

    fn new(keys: &Keys, ours: [u8; 32], theirs: [u8; 32]) -> Sealed {
        Sealed {
            sealing: Sealing::new(Key::new(keys, ours)),
            opening: Opening::new(Key::new(keys, theirs)),
        }
    }
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealed(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::VecDeque;

    fn keys(cipher: Cipher, readable: bool) -> Keys {
        Keys { cipher, readable, connecting: [1; 32], accepting: [2; 32] }
    }

    fn kinds() -> impl Iterator<Item = Keys> {
        let ciphers = [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305];
        ciphers.into_iter().flat_map(|c| [false, true].map(|readable| keys(c, readable)))
    }

    fn seed() -> u64 {
        let asked = std::env::var("EYRIE_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed = asked.unwrap_or_else(|| u64::from_le_bytes(eyrie_wire::auth::random()));
        println!("EYRIE_TEST_SEED={seed}");
        seed
    }

    /// The bytes that sealing `content` sends.
    fn sealed(sealing: &mut Sealing, content: &[u8]) -> Vec<u8> {
        let mut sent = Vec::new();
        let mut rest = content;
        while !rest.is_empty() {
            let n = sealing.write(rest, |b| {
                sent.extend_from_slice(b);
                Ok(b.len())
            });
            rest = &rest[n.unwrap()..];
        }
        sent
    }

    /// The content that an opening half gets from bytes, up to their end or an error.
    fn opened(opening: &mut Opening, mut bytes: &[u8]) -> (Vec<u8>, ErrorKind) {
        let mut content = Vec::new();
        let mut part = vec![0; 1000];
        loop {
            match opening.read(&mut part, |into| io::Read::read(&mut bytes, into)) {
                Ok(0) => return (content, ErrorKind::Other),
                Ok(n) => content.extend_from_slice(&part[..n]),
                Err(e) => return (content, e.kind()),
            }
        }
    }

    #[test]
    fn content_arrives_over_streams_that_move_a_few_bytes_at_a_time() {
        let mut random = SmallRng::seed_from_u64(seed());
        for keys in kinds() {
            let mut ours = Sealed::connecting(&keys).sealing;
            let mut theirs = Sealed::accepting(&keys).opening;
            let content: Vec<u8> = (0..300_000).map(|_| random.gen()).collect();
            let mut given = 0;
            let mut got = Vec::new();
            let mut wire = VecDeque::new();
            while got.len() < content.len() {
                let end = (given + random.gen_range(1..200_000)).min(content.len());
                let mut room = random.gen_range(0..100_000usize);
                let taken = ours.write(&content[given..end], |b| match b.len().min(room) {
                    0 => Err(ErrorKind::WouldBlock.into()),
                    n => {
                        wire.extend(&b[..n]);
                        room -= n;
                        Ok(n)
                    }
                });
                given += taken.unwrap_or(0);
                let mut part = vec![0; random.gen_range(1..100_000)];
                let came = theirs.read(&mut part, |into| match wire.len().min(into.len()) {
                    0 => Err(ErrorKind::WouldBlock.into()),
                    n => {
                        let n = random.gen_range(1..=n);
                        for (to, b) in into.iter_mut().zip(wire.drain(..n)) {
                            *to = b;
                        }
                        Ok(n)
                    }
                });
                let came = came.unwrap_or(0);
                assert!(came == part.len() || !theirs.has_more(), "a record was left behind");
                got.extend_from_slice(&part[..came]);
            }
            assert!(got == content);
        }
    }

    #[test]
    fn records_that_are_changed_repeated_left_out_cut_off_or_too_long_are_refused() {
        let mut random = SmallRng::seed_from_u64(seed());
        for keys in kinds() {
            let mut ours = Sealed::connecting(&keys).sealing;
            let records = [b"first", b"other", b"third"].map(|c| sealed(&mut ours, c));
            let all = records.concat();
            let open = |bytes: &[u8]| opened(&mut Sealed::accepting(&keys).opening, bytes);
            assert_eq!(open(&all), (b"firstotherthird".to_vec(), ErrorKind::UnexpectedEof));
            for bit in 0..all.len() * 8 {
                let mut changed = all.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let (content, why) = open(&changed);
                assert!(b"firstother".starts_with(&content[..]), "bit {bit}");
                assert!(matches!(why, ErrorKind::InvalidData | ErrorKind::UnexpectedEof));
            }
            let [a, b, c] = &records;
            for wrong in [[a, a, b], [a, c, b], [b, a, c]] {
                let (content, why) = open(&wrong.map(Vec::as_slice).concat());
                assert!(content.len() <= 5 && why == ErrorKind::InvalidData);
            }
            // Records that are sent back to their sender.
            let mut reflected = Sealed::connecting(&keys).opening;
            assert_eq!(opened(&mut reflected, &all), (vec![], ErrorKind::InvalidData));
            for cut in 0..all.len() {
                assert_eq!(open(&all[..cut]).1, ErrorKind::UnexpectedEof);
            }
            for _ in 0..1000 {
                let noise: Vec<u8> = (0..random.gen_range(0..300)).map(|_| random.gen()).collect();
                assert_eq!(open(&noise).0, b"");
            }
        }
    }

    #[test]
    fn the_end_is_a_record_too_and_nothing_comes_after_an_error() {
        let keys = keys(Cipher::Aes128Gcm, false);
        let mut ours = Sealed::connecting(&keys).sealing;
        let mut bytes = sealed(&mut ours, b"all");
        ours.end(|b| {
            bytes.extend_from_slice(b);
            Ok(b.len())
        })
        .unwrap();
        let mut theirs = Sealed::accepting(&keys).opening;
        assert_eq!(opened(&mut theirs, &bytes), (b"all".to_vec(), ErrorKind::Other));
        let mut theirs = Sealed::accepting(&keys).opening;
        let mut wrong = bytes.clone();
        wrong[6] ^= 1;
        assert_eq!(opened(&mut theirs, &wrong).1, ErrorKind::InvalidData);
        assert_eq!(opened(&mut theirs, &bytes).1, ErrorKind::InvalidData);
    }

    #[test]
    fn keys_change_on_both_sides_at_the_same_record() {
        let keys = keys(Cipher::Aes128Gcm, true);
        let mut ours = Sealed::connecting(&keys).sealing;
        let mut theirs = Sealed::accepting(&keys).opening;
        let first = ours.key.secret;
        for n in 0..=RECORDS_PER_KEY {
            let record = sealed(&mut ours, &[n as u8]);
            let mut byte = [0];
            theirs.read(&mut byte, |into| io::Read::read(&mut &record[..], into)).unwrap();
            assert_eq!(byte, [n as u8]);
        }
        assert!(ours.key.secret == theirs.key.secret && ours.key.secret != first);
    }

    #[test]
    fn authenticated_content_can_be_read_and_encrypted_content_cannot() {
        let content = b"what an eavesdropper may know";
        for keys in kinds() {
            let bytes = sealed(&mut Sealed::connecting(&keys).sealing, content);
            let seen = bytes.windows(content.len()).any(|w| w == content);
            assert_eq!(seen, keys.readable);
        }
    }
}
