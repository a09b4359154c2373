//! The manifest of an image: its chunks in order, and where they are. A pure codec without I/O.
//! Decoding accepts any bytes: it must never panic, and never allocate more than the input's own
//! length.

use crate::chunk::MAX_CHUNK;
use crate::window::{groups, length, used, Pages};
use eyrie_wire::formats::{IMAGE, MANIFEST};
use eyrie_wire::{Incarnation, Rank};

pub use eyrie_wire::ImageId;

/// Longest `ImageInfo::meta` in bytes.
pub const MAX_META: usize = 64 * 1024;
/// Most chunks of one image: 1 TiB of whole records.
pub const MAX_CHUNKS: usize = 1 << 22;

const VERSION: u32 = 3;
/// The last version that began with the magic number of image streams.
const LAST_OLD: u32 = 2;
/// magic 8, version 4, rank 4, image 8, incarnation 8, clock 8, rsn 8, bytes 8, records 8, meta 4,
/// chunks 4
const FIXED: usize = 72;
/// hash 32, pack 8, offset 8, raw length 4, stored length 4, window 8, held 8, used 8
const ENTRY: usize = 80;
const CHECKSUM: usize = 32;

/// Longest manifest in bytes.
pub const MAX_MANIFEST: usize = FIXED + MAX_META + MAX_CHUNKS * ENTRY + CHECKSUM;

/// What the agent says about an image. The store keeps it and returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImageInfo {
    pub incarnation: Incarnation,
    /// The provider's clock (counted progress calls) at the capture.
    pub clock: u64,
    /// Receive sequence number of the last message that the image contains.
    pub rsn: u64,
    /// Opaque, at most [`MAX_META`] bytes.
    pub meta: Vec<u8>,
}

/// What identifies a chunk: the BLAKE3 hash of its stored form, and its length in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChunkKey {
    pub hash: [u8; 32],
    /// Length in the stream in bytes; longer than the stored form when zero pages are omitted.
    pub raw_len: u32,
}

/// Where a chunk is: the number of the pack file and the first byte in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub pack: u64,
    pub offset: u64,
}

/// One chunk of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkRef {
    pub key: ChunkKey,
    pub place: Place,
    /// Length in the pack, in bytes.
    pub stored_len: u32,
}

impl ChunkRef {
    pub(crate) fn end(&self) -> u64 {
        self.place.offset + u64::from(self.stored_len)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    pub rank: Rank,
    pub image: ImageId,
    pub info: ImageInfo,
    /// Length of the stream in bytes, trailer included.
    pub bytes: u64,
    /// Records of the stream, trailer included.
    pub records: u64,
    pub chunks: Vec<ChunkRef>,
    /// Which pages come from each of the chunks.
    pub pages: Vec<Pages>,
}

/// Why bytes are not a manifest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("its length does not fit its contents")]
    Length,
    #[error("{0}")]
    Other(String),
    #[error("it is of another version of Eyrie: version {0}, this program reads {VERSION}")]
    Version(u32),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("chunk {0} is outside the bounds")]
    Chunk(usize),
}

impl Manifest {
    /// The manifest as it is on disk. It ends with the BLAKE3 hash of all before.
    pub fn encode(&self) -> Vec<u8> {
        let len = FIXED + self.info.meta.len() + self.chunks.len() * ENTRY + CHECKSUM;
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&MANIFEST.magic);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.rank.0.to_le_bytes());
        let info = &self.info;
        for n in [
            self.image.0,
            u64::from(info.incarnation.0),
            info.clock,
            info.rsn,
            self.bytes,
            self.records,
        ] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(info.meta.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.chunks.len() as u32).to_le_bytes());
        out.extend_from_slice(&info.meta);
        for (chunk, pages) in self.chunks.iter().zip(&self.pages) {
            out.extend_from_slice(&chunk.key.hash);
            out.extend_from_slice(&chunk.place.pack.to_le_bytes());
            out.extend_from_slice(&chunk.place.offset.to_le_bytes());
            out.extend_from_slice(&chunk.key.raw_len.to_le_bytes());
            out.extend_from_slice(&chunk.stored_len.to_le_bytes());
            for n in [pages.window, pages.held, pages.used] {
                out.extend_from_slice(&n.to_le_bytes());
            }
        }
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }

    /// Reads a manifest; checks length, version, checksum and the bounds of every entry.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if let Some(version) = other_version(bytes) {
            return Err(ManifestError::Version(version));
        }
        if MANIFEST.strip(bytes).is_none() {
            let what = MANIFEST.mistaken(bytes);
            return Err(ManifestError::Other(what.unwrap_or_else(|| "it is no manifest".into())));
        }
        if bytes.len() < FIXED + CHECKSUM || bytes.len() > MAX_MANIFEST {
            return Err(ManifestError::Length);
        }
        let meta_len = u32_at(bytes, 64) as usize;
        let count = u32_at(bytes, 68) as usize;
        if meta_len > MAX_META
            || count > MAX_CHUNKS
            || bytes.len() != FIXED + meta_len + count * ENTRY + CHECKSUM
        {
            return Err(ManifestError::Length);
        }
        let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        if blake3::hash(body).as_bytes() != checksum {
            return Err(ManifestError::Checksum);
        }
        let (meta, entries) = body[FIXED..].split_at(meta_len);
        let chunks = entries.chunks_exact(ENTRY).enumerate().map(|(i, e)| decode_entry(i, e));
        let (chunks, pages): (Vec<_>, Vec<_>) =
            chunks.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let length = u64_at(bytes, 48);
        if stream_len(&chunks, &pages)? != length {
            return Err(ManifestError::Length);
        }
        let incarnation = u64_at(bytes, 24).try_into().map(Incarnation);
        Ok(Manifest {
            rank: Rank(u32_at(bytes, 12)),
            image: ImageId(u64_at(bytes, 16)),
            info: ImageInfo {
                incarnation: incarnation.map_err(|_| ManifestError::Length)?,
                clock: u64_at(bytes, 32),
                rsn: u64_at(bytes, 40),
                meta: meta.to_vec(),
            },
            bytes: length,
            records: u64_at(bytes, 56),
            chunks,
            pages,
        })
    }
}

/// The version of a manifest that this program does not read.
fn other_version(bytes: &[u8]) -> Option<u32> {
    let version = u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let is_old = IMAGE.strip(bytes).is_some() && (1..=LAST_OLD).contains(&version);
    let is_other = MANIFEST.strip(bytes).is_some() && version != VERSION;
    (is_old || is_other).then_some(version)
}

/// Length of the stream that these chunks make.
fn stream_len(chunks: &[ChunkRef], pages: &[Pages]) -> Result<u64, ManifestError> {
    let mut sum = 0;
    let mut next = 0;
    for group in groups(pages) {
        let first = pages[group.start];
        if !first.is_none() && first.window < next || used(&pages[group.clone()]).is_none() {
            return Err(ManifestError::Chunk(group.start));
        }
        next = if first.is_none() { next } else { first.window };
        let lens = chunks[group.clone()].iter().map(|chunk| chunk.key.raw_len);
        sum += length(&pages[group], lens).0;
    }
    Ok(sum)
}

fn decode_entry(index: usize, e: &[u8]) -> Result<(ChunkRef, Pages), ManifestError> {
    let mut hash = [0; 32];
    hash.copy_from_slice(&e[..32]);
    let chunk = ChunkRef {
        key: ChunkKey { hash, raw_len: u32_at(e, 48) },
        place: Place { pack: u64_at(e, 32), offset: u64_at(e, 40) },
        stored_len: u32_at(e, 52),
    };
    let raw = chunk.key.raw_len;
    let stored = chunk.stored_len;
    let bounded = stored > 0 && stored <= raw && raw as usize <= MAX_CHUNK;
    let fits = chunk.place.offset <= i64::MAX as u64 - MAX_CHUNK as u64;
    let pages = Pages { window: u64_at(e, 56), held: u64_at(e, 64), used: u64_at(e, 72) };
    if bounded && fits && pages.is_sound(raw) {
        Ok((chunk, pages))
    } else {
        Err(ManifestError::Chunk(index))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_wire::formats;
    use proptest::prelude::*;

    fn chunk() -> impl Strategy<Value = ChunkRef> {
        let lengths = (1..=MAX_CHUNK as u32).prop_flat_map(|raw| (Just(raw), 1..=raw));
        (any::<[u8; 32]>(), any::<u64>(), 0..u64::MAX >> 2, lengths).prop_map(
            |(hash, pack, offset, (raw_len, stored_len))| ChunkRef {
                key: ChunkKey { hash, raw_len },
                place: Place { pack, offset },
                stored_len,
            },
        )
    }

    prop_compose! {
        fn manifest()(
            rank: u32, image: u64, incarnation: u32, clock: u64, rsn: u64, records: u64,
            meta in prop::collection::vec(any::<u8>(), 0..50),
            chunks in prop::collection::vec(chunk(), 0..6),
        ) -> Manifest {
            let bytes = chunks.iter().map(|c| u64::from(c.key.raw_len)).sum();
            let info = ImageInfo { incarnation: Incarnation(incarnation), clock, rsn, meta };
            let pages = vec![Pages::NONE; chunks.len()];
            Manifest { rank: Rank(rank), image: ImageId(image), info, bytes, records, chunks, pages }
        }
    }

    /// Writes a correct checksum under changed contents, as a malicious writer would.
    fn seal(bytes: &mut [u8]) {
        let end = bytes.len() - CHECKSUM;
        let hash = blake3::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(hash.as_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40_000))]

        #[test]
        fn a_manifest_survives_the_disk_and_no_flip_or_cut_of_it_does(
            manifest in manifest(), at: prop::sample::Index, bit in 0..8,
        ) {
            let mut bytes = manifest.encode();
            prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
            let at = at.index(bytes.len());
            prop_assert!(Manifest::decode(&bytes[..at]).is_err());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(Manifest::decode(&bytes).is_err());
        }

        #[test]
        fn random_bytes_are_refused(
            head in 0..3, mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            if head > 0 && bytes.len() > 12 {
                bytes[..8].copy_from_slice(&MANIFEST.magic);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            }
            prop_assert!(Manifest::decode(&bytes).is_err());
        }

        #[test]
        fn a_sealed_manifest_with_any_contents_is_within_the_bounds_or_refused(
            manifest in manifest(), at: prop::sample::Index, with: [u8; 4],
        ) {
            let mut bytes = manifest.encode();
            let at = at.index(bytes.len() - CHECKSUM - 4);
            bytes[at..at + 4].copy_from_slice(&with);
            seal(&mut bytes);
            if let Ok(read) = Manifest::decode(&bytes) {
                prop_assert!(read.chunks.iter().all(|c| c.stored_len <= c.key.raw_len));
                prop_assert!(read.chunks.iter().all(|c| c.key.raw_len as usize <= MAX_CHUNK));
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        // Its number is written where no other crate is known.
        assert_eq!(eyrie_image_format::MAGIC, formats::IMAGE.magic);
        for other in formats::ALL.into_iter().filter(|other| **other != MANIFEST) {
            let refused = Manifest::decode(&other.magic.repeat(20)).unwrap_err().to_string();
            assert!(refused.contains(&format!("it is {}", other.name)), "{refused}");
        }
        let refused = Manifest::decode(&[7; 200]).unwrap_err().to_string();
        assert_eq!(refused, "it is no manifest");
    }

    #[test]
    fn a_manifest_of_an_older_version_is_refused_with_both_versions() {
        let mut bytes = IMAGE.magic.to_vec();
        bytes.extend_from_slice(&LAST_OLD.to_le_bytes());
        bytes.resize(200, 0);
        seal(&mut bytes);
        let refused = Manifest::decode(&bytes).unwrap_err();
        assert_eq!(refused, ManifestError::Version(2));
        let said = "it is of another version of Eyrie: version 2, this program reads 3";
        assert_eq!(refused.to_string(), said);
    }

    #[test]
    fn declared_lengths_are_checked_before_anything_is_allocated() {
        let mut bytes = Manifest {
            rank: Rank(0),
            image: ImageId(0),
            info: ImageInfo::default(),
            bytes: 0,
            records: 0,
            chunks: Vec::new(),
            pages: Vec::new(),
        }
        .encode();
        for at in [64, 68] {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            seal(&mut bytes);
            assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Length));
        }
        bytes[8] = VERSION as u8 + 1;
        seal(&mut bytes);
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Version(VERSION + 1)));
    }
}
