//! The address by which libfabric knows a rank: a magic number and the rank's number. It never says
//! where a rank is, so it is the same in each incarnation of the rank.

use crate::Rank;

/// Length of an address in bytes.
pub const ADDRESS_LEN: usize = 16;
const MARK: [u8; 12] = *b"eyrie rank\0\0";

/// The address of a rank.
pub fn address(rank: Rank) -> [u8; ADDRESS_LEN] {
    let mut out = [0; ADDRESS_LEN];
    out[..12].copy_from_slice(&MARK);
    out[12..].copy_from_slice(&rank.0.to_le_bytes());
    out
}

/// The rank with this address.
pub fn rank_of(address: &[u8; ADDRESS_LEN]) -> Option<Rank> {
    let (mark, rank) = address.split_last_chunk()?;
    (mark == MARK).then(|| Rank(u32::from_le_bytes(*rank)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_rank_and_nothing_else_is_one() {
        assert_eq!(rank_of(&address(Rank(77))), Some(Rank(77)));
        assert_eq!(rank_of(&[0; ADDRESS_LEN]), None);
    }
}
