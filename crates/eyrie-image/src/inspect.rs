//! Reads an image stream without restoring it: record by record, or as a summary. Holds one record
//! at a time, so that every image needs the same memory.

use std::io::{self, Read};
use std::path::PathBuf;

use eyrie_image_format::named::{Named, Verdict};
use eyrie_image_format::stream::{Kind, RecordHeader, RECORD_HEADER_LEN};
use eyrie_image_format::{
    self as format, Descriptor, Fingerprint, Header, Mapping, MetaHash, Object, FILE_DESCRIPTOR,
    FILE_OBJECT, META_MAX,
};

/// Yields the records of a stream and checks the trailer.
pub struct ImageReader<R> {
    input: R,
    payload: Vec<u8>,
    hash: MetaHash,
    bytes: u64,
    records: u64,
    ended: bool,
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl<R: Read> ImageReader<R> {
    pub fn new(input: R) -> ImageReader<R> {
        let hash = MetaHash::new();
        ImageReader { input, payload: Vec::new(), hash, bytes: 0, records: 0, ended: false }
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next record, `None` after the trailer.
    ///
    /// Errors: `UnexpectedEof` when the stream ends before its trailer, `InvalidData` when it is
    /// not an image or its trailer does not match.
    pub fn next_record(&mut self) -> io::Result<Option<(RecordHeader, &[u8])>> {
        if self.ended {
            return Ok(None);
        }
        let mut encoded = [0; RECORD_HEADER_LEN];
        self.input.read_exact(&mut encoded)?;
        let header = RecordHeader::decode(&encoded)
            .ok_or_else(|| invalid("a record has an unknown kind or an impossible length"))?;
        self.payload.resize(header.len as usize, 0);
        self.input.read_exact(&mut self.payload)?;
        if (header.kind == Kind::Header) != (self.records == 0) {
            return Err(invalid("the stream does not begin with its header"));
        }
        if header.kind == Kind::Trailer {
            if (header.a, header.b) != (self.bytes, self.records) {
                return Err(invalid("the trailer counts other bytes or records than were read"));
            }
            if self.payload != self.hash.value().to_le_bytes() {
                return Err(invalid("the checksum over the description differs"));
            }
            self.ended = true;
        } else if header.kind.is_description() {
            self.hash.update(&encoded);
            self.hash.update(&self.payload);
        }
        self.bytes += (RECORD_HEADER_LEN + self.payload.len()) as u64;
        self.records += 1;
        Ok(Some((header, &self.payload)))
    }
}

/// The content of a Header record.
#[derive(Clone, Debug)]
pub struct HeaderInfo {
    pub rank: u32,
    pub incarnation: u32,
    pub clock: u64,
    /// Receive sequence number of the last message that the image contains.
    pub rsn: u64,
    /// Wall-clock time of the capture, nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Process id of the original.
    pub pid: u32,
    pub fingerprint: Fingerprint,
    /// The `meta` that was passed to the capture.
    pub meta: Vec<u8>,
}

/// Reads the payload of a Header record.
pub fn decode_header(payload: &[u8]) -> io::Result<HeaderInfo> {
    Header::check(payload).map_err(|why| invalid(why.to_string()))?;
    let (h, meta) =
        format::take::<Header>(payload).ok_or_else(|| invalid("the header is too short"))?;
    if meta.len() != h.meta_len as usize || meta.len() > META_MAX {
        return Err(invalid("the header has another length"));
    }
    Ok(HeaderInfo {
        rank: h.rank,
        incarnation: h.incarnation,
        clock: h.clock,
        rsn: h.rsn,
        taken_unix_ns: h.taken_unix_ns,
        pid: h.pid,
        fingerprint: h.fingerprint,
        meta: meta.to_vec(),
    })
}

/// A record with a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedInfo {
    pub name: String,
    pub content: Vec<u8>,
    /// What a restorer of this version does with it.
    pub verdict: Verdict,
}

/// What an image holds, without its pages.
#[derive(Clone, Debug)]
pub struct Summary {
    pub header: HeaderInfo,
    pub mappings: Vec<Mapping>,
    /// Objects and the paths of those that have one.
    pub objects: Vec<(Object, PathBuf)>,
    pub descriptors: Vec<(Descriptor, PathBuf)>,
    /// State that the kernel does not know.
    pub named: Vec<NamedInfo>,
    /// Bytes of page and file content.
    pub content_bytes: u64,
    /// Length of the whole stream, bytes.
    pub stream_bytes: u64,
}

impl Summary {
    /// Files in /dev/shm that a restore makes anew and that outlive a killed process.
    pub fn shared_files(&self) -> impl Iterator<Item = &PathBuf> {
        let shm = |o: &&(Object, PathBuf)| o.0.kind == format::object_kind::SHM_FILE;
        self.objects.iter().filter(shm).map(|(_, path)| path)
    }
}

/// Reads a whole stream, checks it, and returns a summary.
pub fn summary(input: impl Read) -> io::Result<Summary> {
    let mut reader = ImageReader::new(input);
    let (_, payload) = reader.next_record()?.ok_or_else(|| invalid("the stream is empty"))?;
    let mut summary = Summary {
        header: decode_header(payload)?,
        mappings: Vec::new(),
        objects: Vec::new(),
        descriptors: Vec::new(),
        named: Vec::new(),
        content_bytes: 0,
        stream_bytes: 0,
    };
    while let Some((record, payload)) = reader.next_record()? {
        match (record.kind, record.flags) {
            (Kind::Mapping, _) => summary.mappings.push(fixed(payload)?.0),
            (Kind::File, FILE_OBJECT) => summary.objects.push(fixed(payload)?),
            (Kind::File, FILE_DESCRIPTOR) => {
                let (d, rest) = format::take::<Descriptor>(payload)
                    .ok_or_else(|| invalid("a record is too short"))?;
                let path = rest.len().checked_sub(d.path_len as usize);
                let path = path.map(|start| &rest[start..]);
                let path = path.ok_or_else(|| invalid("a path has another length"))?;
                let path = if format::fd_kind::has_content(d.kind) { &[] } else { path };
                summary.descriptors.push((d, path_of(path)));
            }
            (Kind::Named, _) => {
                let named = Named::read(&record, payload);
                let named = named.ok_or_else(|| invalid("the name of a record is malformed"))?;
                summary.named.push(NamedInfo {
                    name: named.name.to_owned(),
                    content: named.content.to_owned(),
                    verdict: named.verdict(),
                });
            }
            (Kind::Pages, _) => summary.content_bytes += record.len,
            _ => {}
        }
    }
    summary.stream_bytes = reader.bytes();
    Ok(summary)
}

/// A record's fixed part and the path after it.
fn fixed<T: format::Plain>(payload: &[u8]) -> io::Result<(T, PathBuf)> {
    let (value, path) = format::take(payload).ok_or_else(|| invalid("a record is too short"))?;
    Ok((value, path_of(path)))
}

fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader { kind, flags: 0, a: 0, b: 0, len: payload.len() as u64 };
        [&header.encode()[..], payload].concat()
    }

    proptest! {
        #[test]
        fn no_stream_makes_the_reader_panic(bytes: Vec<u8>, kinds in prop::collection::vec(1u32..10, 0..5)) {
            prop_assert!(summary(&bytes[..]).is_err());
            let kinds = kinds.into_iter().filter_map(Kind::from_u32);
            let records: Vec<u8> = kinds.flat_map(|kind| record(kind, &bytes)).collect();
            prop_assert!(summary(&records[..]).is_err());
        }
    }

    #[test]
    fn a_stream_without_its_trailer_is_an_unexpected_end() {
        let mut reader = ImageReader::new(std::io::Cursor::new(record(Kind::Header, b"x")));
        assert!(reader.next_record().unwrap().is_some());
        let error = reader.next_record().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
