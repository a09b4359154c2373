//! The checksum over the description of a process.

/// Running hash over headers and payloads of the records that describe the process. The trailer has
/// it. It is not cryptographic: it finds mix-ups, and the store's checksums find corruption.
#[derive(Clone, Copy)]
pub struct MetaHash(u64);

impl MetaHash {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> MetaHash {
        MetaHash(0xcbf2_9ce4_8422_2325)
    }

    pub fn update(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
    }

    pub fn value(self) -> u64 {
        self.0
    }
}
