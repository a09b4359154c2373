//! Reads and writes numbers in byte strings, little-endian. All lengths are known at compile time,
//! so that no number costs a call.

/// Reads numbers from the front. The caller has checked the length: missing bytes read as zero.
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *head
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take()
    }
}

/// Appends byte strings, at most `N` bytes in all.
pub struct Writer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    pub fn new() -> Writer<N> {
        Writer { bytes: [0; N], len: 0 }
    }

    pub fn put<const M: usize>(&mut self, bytes: &[u8; M]) {
        self.bytes[self.len..self.len + M].copy_from_slice(bytes);
        self.len += M;
    }

    pub fn written(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
