//! Datagrams between a conductor and its followers. They have a fixed size, a version, and a keyed
//! checksum; any other datagram is dropped.

/// The secret that conductor and followers share. By default there is none, and then any process
/// that can reach them can send ticks.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Default for Key {
    fn default() -> Key {
        Key::from_secret(b"")
    }
}

impl Key {
    pub fn from_secret(secret: &[u8]) -> Key {
        Key(blake3::derive_key("eyrie monitor tick 1", secret))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A follower asks for the time: `sent` is its own time.
    Ask = 1,
    /// The conductor answers: `sent` as asked, `received` and `answered` by its clock.
    Answer = 2,
    /// The conductor says to sample now. `answered` is the moment by its clock.
    Tick = 3,
}

/// Times are in nanoseconds, of the sender's clock unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub kind: Kind,
    /// In an [`Kind::Ask`]: whether ticks are wanted.
    pub wants_ticks: bool,
    pub number: u64,
    pub sent: u64,
    pub received: u64,
    pub answered: u64,
    /// The agreed start, by the conductor's clock.
    pub start: u64,
    pub interval: u64,
    /// The difference from the conductor's clock to nanoseconds since 1970.
    pub wall_offset: u64,
}

const MAGIC: &[u8; 4] = b"EYM1";
const BODY: usize = 4 + 2 + 7 * 8;
pub const SIZE: usize = BODY + 16;

impl Datagram {
    pub fn encode(&self, key: &Key) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = self.kind as u8;
        bytes[5] = self.wants_ticks.into();
        let numbers = [
            self.number,
            self.sent,
            self.received,
            self.answered,
            self.start,
            self.interval,
            self.wall_offset,
        ];
        for (place, number) in bytes[6..BODY].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let sum = checksum(&bytes[..BODY], key);
        bytes[BODY..].copy_from_slice(&sum);
        bytes
    }

    /// `None` when it is damaged, of another version, or made with another secret.
    pub fn decode(bytes: &[u8], key: &Key) -> Option<Datagram> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        if &bytes[..4] != MAGIC || bytes[BODY..] != checksum(&bytes[..BODY], key) {
            return None;
        }
        let kind =
            [Kind::Ask, Kind::Answer, Kind::Tick].into_iter().find(|k| *k as u8 == bytes[4])?;
        let mut numbers = bytes[6..BODY]
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
        let mut next = || numbers.next().expect("seven numbers");
        Some(Datagram {
            kind,
            wants_ticks: bytes[5] == 1,
            number: next(),
            sent: next(),
            received: next(),
            answered: next(),
            start: next(),
            interval: next(),
            wall_offset: next(),
        })
    }
}

fn checksum(body: &[u8], key: &Key) -> [u8; 16] {
    let whole = blake3::keyed_hash(&key.0, body);
    whole.as_bytes()[..16].try_into().expect("16 of 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_datagram_arrives_unless_it_is_damaged(
            n in any::<[u64; 7]>(), flip in 0..SIZE * 8, wants_ticks: bool,
        ) {
            let key = Key::from_secret(b"secret");
            let datagram = Datagram {
                kind: Kind::Answer, wants_ticks, number: n[0], sent: n[1], received: n[2],
                answered: n[3], start: n[4], interval: n[5], wall_offset: n[6],
            };
            let mut bytes = datagram.encode(&key);
            prop_assert_eq!(Datagram::decode(&bytes, &key), Some(datagram));
            prop_assert_eq!(Datagram::decode(&bytes, &Key::default()), None);
            bytes[flip / 8] ^= 1 << (flip % 8);
            prop_assert_eq!(Datagram::decode(&bytes, &key), None);
            prop_assert_eq!(Datagram::decode(&bytes[1..], &key), None);
        }
    }
}
