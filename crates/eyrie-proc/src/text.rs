//! Reads a file as text, and numbers in it in place. The parsers allocate nothing and accept any
//! bytes.

use std::path::Path;

/// The text of a file below `dir`; empty when it cannot be read. The names in it may be any bytes.
pub fn read(dir: impl AsRef<Path>, file: &str) -> String {
    let bytes = std::fs::read(dir.as_ref().join(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The decimal number at the front, after blanks, and what follows it.
pub fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let start = text.iter().position(|b| *b != b' ' && *b != b'\t')?;
    let text = &text[start..];
    let end = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    if end == 0 {
        return None;
    }
    let value =
        text[..end].iter().fold(0u64, |n, b| n.wrapping_mul(10).wrapping_add(u64::from(b - b'0')));
    Some((value, &text[end..]))
}

/// The numbers at the front, at most `N`, and how many there are.
pub fn numbers<const N: usize>(mut text: &[u8]) -> ([u64; N], usize) {
    let mut all = [0; N];
    for (count, place) in all.iter_mut().enumerate() {
        match number(text) {
            Some((value, rest)) => (*place, text) = (value, rest),
            None => return (all, count),
        }
    }
    (all, N)
}

/// What follows `key` on the first line that begins with it.
pub fn after<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_and_numbers() {
        let text = b"MemTotal:   123 kB\nMemFree:\t45 kB\n";
        assert_eq!(after(text, b"MemFree:").and_then(number).map(|n| n.0), Some(45));
        assert_eq!(after(text, b"Nothing:"), None);
        assert_eq!(numbers::<3>(b" 1 22  333 4"), ([1, 22, 333], 3));
        assert_eq!(numbers::<3>(b"1 x"), ([1, 0, 0], 1));
    }

    proptest! {
        #[test]
        fn no_input_breaks_the_parsers(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = numbers::<8>(&bytes);
            let _ = after(&bytes, b"x");
        }
    }
}
