//! Numbers of one byte below 128, and of up to ten: seven bits a byte, the lowest first.

/// Bytes of a number.
pub(crate) const fn len(n: u64) -> usize {
    (64 - (n | 1).leading_zeros()).div_ceil(7) as usize
}

/// Writes a number to the start of `to`; returns its bytes.
pub(crate) fn write(mut n: u64, to: &mut [u8]) -> usize {
    let mut at = 0;
    while n >= 0x80 {
        to[at] = n as u8 | 0x80;
        n >>= 7;
        at += 1;
    }
    to[at] = n as u8;
    at + 1
}

/// Takes a number from the start of `from`. `None`: there is none.
pub(crate) fn take(from: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for (at, byte) in from.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if at == 9 && bits > 1 {
            return None;
        }
        n |= bits << (7 * at);
        if byte & 0x80 == 0 {
            *from = &from[at + 1..];
            return Some(n);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_and_nonsense_is_refused() {
        for n in [0, 1, 127, 128, 16_383, 16_384, 1 << 32, u64::MAX] {
            let mut bytes = [0; 10];
            let written = write(n, &mut bytes);
            assert_eq!(written, len(n));
            let mut rest = &bytes[..written];
            assert_eq!((take(&mut rest), rest.len()), (Some(n), 0));
            assert_eq!(take(&mut &bytes[..written - 1]), None);
        }
        assert_eq!(take(&mut &[0xff; 12][..]), None);
    }
}
