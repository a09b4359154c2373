//! Checks of what lies in a region: CRC-32C, by the processor's instruction where it has one. What
//! is read is nonsense when its check says so; a check must never be left out for speed.
//!
//! CRC-32C over the 64 bytes of an entry finds every change of up to five bits, and every change
//! within 32 neighbouring bits. Of other changes one in 2^32 is not found; of a
//! [sealed](seal) word, whose check has 16 bits, one in 65,536, and none within 16 neighbouring
//! bits. 64 bytes cost 5 ns on either side.

/// Bits of a sealed word that hold its value.
pub const VALUE_BITS: u32 = 48;
/// Largest value of a sealed word.
pub const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;

/// Where a check begins.
pub(crate) const START: u32 = !0;

/// The check of these words, going on from `check`.
#[inline]
pub(crate) fn words(check: u32, words: &[u64]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, by the line above.
        return unsafe { fast::words(check, words) };
    }
    words.iter().fold(check, |check, word| slow(check, &word.to_le_bytes()))
}

/// The check of these bytes, going on from `check`.
pub(crate) fn bytes(check: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction, by the line above.
        return unsafe { fast::bytes(check, bytes) };
    }
    slow(check, bytes)
}

/// A word that holds a value and 16 bits of its check, so that both are stored in one step. `salt`
/// is where the word lies and what it is: the same word elsewhere is nonsense.
#[inline]
pub(crate) fn seal(value: u64, salt: u64) -> u64 {
    debug_assert!(value <= VALUE_MAX, "a value of more than 48 bits");
    value | u64::from(words(START, &[value, salt])) << VALUE_BITS
}

/// The value of a sealed word; `None`: it is nonsense.
#[inline]
pub(crate) fn unseal(word: u64, salt: u64) -> Option<u64> {
    let value = word & VALUE_MAX;
    (seal(value, salt) == word).then_some(value)
}

// The instruction is safe to call in a function that has its feature since Rust 1.87 only.
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)]
mod fast {
    use std::arch::x86_64::{_mm_crc32_u64, _mm_crc32_u8};

    /// # Safety
    /// The processor has SSE 4.2.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    pub unsafe fn words(check: u32, words: &[u64]) -> u32 {
        let mut check = u64::from(check);
        for word in words {
            // SAFETY: the caller promises the instruction.
            check = unsafe { _mm_crc32_u64(check, *word) };
        }
        check as u32
    }

    /// # Safety
    /// The processor has SSE 4.2.
    #[target_feature(enable = "sse4.2")]
    pub unsafe fn bytes(check: u32, bytes: &[u8]) -> u32 {
        let chunks = bytes.chunks_exact(8);
        let rest = chunks.remainder();
        let mut whole = u64::from(check);
        for chunk in chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            // SAFETY: the caller promises the instruction.
            whole = unsafe { _mm_crc32_u64(whole, u64::from_le_bytes(word)) };
        }
        let mut check = whole as u32;
        for byte in rest {
            // SAFETY: the caller promises the instruction.
            check = unsafe { _mm_crc32_u8(check, *byte) };
        }
        check
    }
}

/// The same where the processor has no instruction for it.
fn slow(check: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(check, |check, byte| {
        TABLE[((check ^ u32::from(*byte)) & 0xff) as usize] ^ (check >> 8)
    })
}

static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut check = n as u32;
        let mut bit = 0;
        while bit < 8 {
            check = (check >> 1) ^ if check & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[n] = check;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crc_32c_with_and_without_the_instruction() {
        assert_eq!(!slow(START, b"123456789"), 0xe306_9283, "the known value of CRC-32C");
        let text: Vec<u8> = (0..137u32).map(|n| (n * 37) as u8).collect();
        for n in 0..text.len() {
            assert_eq!(bytes(START, &text[..n]), slow(START, &text[..n]));
        }
        assert_eq!(words(7, &[1, 2, u64::MAX]), {
            let parts = [1u64, 2, u64::MAX].map(u64::to_le_bytes);
            slow(7, parts.as_flattened())
        });
    }

    #[test]
    fn a_sealed_word_says_when_a_bit_is_wrong_or_it_lies_elsewhere() {
        for value in [0, 1, 4096, VALUE_MAX] {
            let word = seal(value, 5);
            assert_eq!(unseal(word, 5), Some(value));
            assert_eq!(unseal(word, 6), None);
            for bit in 0..64 {
                assert_eq!(unseal(word ^ 1 << bit, 5), None);
            }
        }
    }

    /// All changes of one and two bits of the words that an entry is checked over.
    #[test]
    fn every_two_wrong_bits_of_an_entry_are_found() {
        let line = [3, 9, 0, u64::MAX, 77, 0x1234_5678_9abc_def0, 0, 1];
        let sound = words(START, &line);
        let flip = |line: &mut [u64; 8], bit: usize| line[bit / 64] ^= 1 << (bit % 64);
        for a in 0..512 {
            for b in a..512 {
                let mut line = line;
                flip(&mut line, a);
                if a != b {
                    flip(&mut line, b);
                }
                assert_ne!(words(START, &line), sound, "bits {a} and {b}");
            }
        }
    }
}
