//! The framing of an image stream: a sequence of records, each a fixed header and a bounded
//! payload. The capture writes it, the store cuts it into chunks between records, the restorer
//! reads it. It must never allocate: the capture runs inside a signal handler.

/// Length of a record header in bytes.
pub const RECORD_HEADER_LEN: usize = 32;

/// Longest payload of a record in bytes. Page records are cut at multiples of this in the address
/// space, so that unchanged memory gives the same record in the next image.
pub const MAX_PAYLOAD: usize = 256 * 1024;

/// What a record holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// First record: magic, version, fingerprint, rank, incarnation, clock, rsn.
    Header = 1,
    /// One mapping of the address space.
    Mapping = 2,
    /// One entry of the file table.
    File = 3,
    /// Registers and other per-process kernel state.
    Context = 4,
    /// Page contents: `a` is the address of the first byte.
    Pages = 5,
    /// Last record: `a` is the number of bytes before it, `b` the number of records before it.
    Trailer = 6,
    /// Second record of an incremental image: `a` is the number of the image that it builds on.
    Base = 7,
    /// Precedes the first record of an image that another one follows in the same stream: `a` is
    /// its number. The reader puts the memory in place and waits for the next image.
    Prepared = 8,
    /// Something that has a name, see [`crate::named`].
    Named = 9,
}

impl Kind {
    /// The kind with this number in the stream, if there is one.
    pub fn from_u32(n: u32) -> Option<Kind> {
        Some(match n {
            1 => Kind::Header,
            2 => Kind::Mapping,
            3 => Kind::File,
            4 => Kind::Context,
            5 => Kind::Pages,
            6 => Kind::Trailer,
            7 => Kind::Base,
            8 => Kind::Prepared,
            9 => Kind::Named,
            _ => return None,
        })
    }

    /// Whether it describes the process, so that the trailer's checksum covers it. Pages and counts
    /// change when an incremental image is joined with its base.
    pub fn is_description(self) -> bool {
        !matches!(self, Kind::Pages | Kind::Trailer | Kind::Base | Kind::Prepared)
    }
}

/// `flags` of a Pages record that holds file content: `a` is the offset, `b` the object.
pub const PAGES_OF_OBJECT: u32 = 1;
/// `flags` of a Pages record without content: `b` bytes from `a` on are guard pages.
pub const PAGES_GUARD: u32 = 2;
/// `flags` of a Pages record without content, in an incremental image. `a` is a multiple of the
/// longest payload. Those of the pages from `a` on whose bits are set in `b` (lowest first) are
/// unchanged since the image that this one builds on.
pub const PAGES_SAME: u32 = 4;

/// A record header: little-endian `kind u32, flags u32, a u64, b u64, len u64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    pub kind: Kind,
    pub flags: u32,
    pub a: u64,
    pub b: u64,
    /// Payload length in bytes, at most [`MAX_PAYLOAD`].
    pub len: u64,
}

impl RecordHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        out[0..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[4..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..16].copy_from_slice(&self.a.to_le_bytes());
        out[16..24].copy_from_slice(&self.b.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Decodes a header; `None` when the kind is unknown or the length is beyond the bound.
    pub fn decode(bytes: &[u8; RECORD_HEADER_LEN]) -> Option<RecordHeader> {
        let u32_at = |i: usize| u32::from_le_bytes(bytes[i..i + 4].try_into().unwrap());
        let u64_at = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap());
        let header = RecordHeader {
            kind: Kind::from_u32(u32_at(0))?,
            flags: u32_at(4),
            a: u64_at(8),
            b: u64_at(16),
            len: u64_at(24),
        };
        (header.len <= MAX_PAYLOAD as u64).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire_and_bad_ones_are_refused() {
        let h = RecordHeader { kind: Kind::Pages, flags: 3, a: 1 << 40, b: 7, len: 4096 };
        assert_eq!(RecordHeader::decode(&h.encode()), Some(h));
        let mut bad = h.encode();
        bad[0] = 99;
        assert_eq!(RecordHeader::decode(&bad), None);
        let long = RecordHeader { len: MAX_PAYLOAD as u64 + 1, ..h };
        assert_eq!(RecordHeader::decode(&long.encode()), None);
    }
}
