//! What a connection between domains begins with, in clear: which domain calls and what for, so
//! that the other side knows by which key it is to prove itself. It proves nothing.

use eyrie_wire::formats::{LINE, MAGIC_LEN};
use eyrie_wire::DomainId;

/// Its length in bytes: magic number, kind, domain.
pub const PREAMBLE_LEN: usize = MAGIC_LEN + 4 + 4;

/// What a connection between domains is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Delivery streams of ranks.
    Trunk = 1,
    /// Letters of the controllers.
    Letters = 2,
    /// An image of a rank.
    Image = 3,
}

/// The beginning of a connection between domains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    pub kind: Kind,
    /// The domain that calls.
    pub from: DomainId,
}

impl Preamble {
    pub fn encode(self) -> [u8; PREAMBLE_LEN] {
        let mut bytes = [0; PREAMBLE_LEN];
        bytes[..MAGIC_LEN].copy_from_slice(&LINE.magic);
        bytes[MAGIC_LEN..MAGIC_LEN + 4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[MAGIC_LEN + 4..].copy_from_slice(&self.from.0.to_le_bytes());
        bytes
    }

    /// `None`: it is no connection between domains.
    pub fn decode(bytes: &[u8; PREAMBLE_LEN]) -> Option<Preamble> {
        let (kind, from) = LINE.strip(bytes)?.split_first_chunk::<4>()?;
        let kind = match u32::from_le_bytes(*kind) {
            1 => Kind::Trunk,
            2 => Kind::Letters,
            3 => Kind::Image,
            _ => return None,
        };
        Some(Preamble { kind, from: DomainId(u32::from_le_bytes(*from.first_chunk()?)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_its_kind_and_domain_and_nothing_else_is_one() {
        for kind in [Kind::Trunk, Kind::Letters, Kind::Image] {
            let preamble = Preamble { kind, from: DomainId(7) };
            let bytes = preamble.encode();
            assert_eq!(Preamble::decode(&bytes), Some(preamble));
            for at in 0..MAGIC_LEN + 4 {
                let mut changed = bytes;
                changed[at] ^= 0x40;
                assert_eq!(Preamble::decode(&changed), None);
            }
        }
    }
}
