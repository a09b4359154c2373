//! Image streams for the tests and the benchmark: the memory of an invented process, with one seed
//! for each page. So any image can be made again from a few numbers and compared byte for byte.
#![allow(dead_code)]

use eyrie_image_format::named::Named;
use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};
use eyrie_image_format::{bytes_of, Mapping, NO_OBJECT, PAGES_SAME};

/// `short`, or `full` with EYRIE_TEST_MORE (`make test-more`).
pub fn short_or_full(short: usize, full: usize) -> usize {
    match std::env::var_os("EYRIE_TEST_MORE") {
        Some(_) => full,
        None => short,
    }
}

pub const PAGE: usize = 4096;
pub const PAGES_PER_WINDOW: usize = MAX_PAYLOAD / PAGE;

/// A process: the seed of each page's contents, 0 for a page of zeros.
#[derive(Clone)]
pub struct Process {
    pub rank: u32,
    pub pages: Vec<u64>,
}

impl Process {
    /// `pages` pages with contents that no other rank has.
    pub fn new(rank: u32, pages: usize) -> Process {
        let first = (u64::from(rank) + 1) << 32;
        Process { rank, pages: (0..pages as u64).map(|n| first + n).collect() }
    }

    /// Gives new contents to every page from `first` on, `every` apart.
    pub fn touch(&mut self, generation: u64, first: usize, every: usize) {
        for page in self.pages.iter_mut().skip(first).step_by(every) {
            *page = (*page & 0xffff_ffff_ffff) | generation << 48;
        }
    }

    /// The stream that a capture of this process writes.
    pub fn stream(&self, image: u64) -> Vec<u8> {
        self.stream_described_as(image, self)
    }

    /// The same, but it describes the memory of another process.
    pub fn stream_described_as(&self, image: u64, described: &Process) -> Vec<u8> {
        let mut stream = ImageStream::default();
        let mut start = [0; 100];
        start[..8].copy_from_slice(&image.to_le_bytes());
        stream.push(Kind::Header, 0, &start);
        for mapping in 0..20 {
            stream.push(Kind::Mapping, mapping, b"a mapping of the address space");
        }
        stream.push(Kind::Mapping, 0, bytes_of(&described.memory()));
        stream.push(Kind::File, 0, b"/an/open/file");
        stream.push(Kind::Context, 0, &[7; 2000]);
        let device = Named { name: "device", content: &[image as u8], is_optional: true };
        let payload = [device.name.as_bytes(), device.content].concat();
        stream.push(Kind::Named, device.header().unwrap().a, &payload);
        let mut payload = vec![0; MAX_PAYLOAD];
        for (window, seeds) in self.pages.chunks(PAGES_PER_WINDOW).enumerate() {
            for (page, seed) in payload.chunks_exact_mut(PAGE).zip(seeds) {
                fill(page, *seed);
            }
            let address = (1 << 40) + (window * MAX_PAYLOAD) as u64;
            stream.push(Kind::Pages, address, &payload[..seeds.len() * PAGE]);
        }
        stream.finish()
    }
}

impl Process {
    /// The mapping that holds all pages.
    fn memory(&self) -> Mapping {
        let start = 1 << 40;
        let end = start + (self.pages.len() * PAGE) as u64;
        let object = NO_OBJECT;
        let offset = 0;
        let prot = 3;
        let flags = 0;
        let advice = 0;
        let memory_policy = 0;
        let reserved = 0;
        let memory_nodes = 0;
        Mapping {
            start,
            end,
            offset,
            prot,
            flags,
            advice,
            object,
            memory_policy,
            reserved,
            memory_nodes,
        }
    }

    /// The stream of an incremental capture that builds on image `base` of `older`.
    pub fn changes(&self, image: u64, older: &Process, base: u64) -> Vec<u8> {
        let full = self.stream(image);
        let mut changes = ImageStream::default();
        let mut at = 0;
        while at < full.len() {
            let header: &[u8; RECORD_HEADER_LEN] =
                full[at..at + RECORD_HEADER_LEN].try_into().unwrap();
            let header = RecordHeader::decode(header).unwrap();
            let payload = &full[at + RECORD_HEADER_LEN..][..header.len as usize];
            at += RECORD_HEADER_LEN + payload.len();
            match header.kind {
                Kind::Pages => self.push_changes(&header, payload, older, &mut changes),
                Kind::Trailer => return changes.finish(),
                kind => changes.push(kind, header.a, payload),
            }
            if header.kind == Kind::Header {
                changes.push(Kind::Base, base, &[]);
            }
        }
        unreachable!("a stream has a trailer")
    }

    fn push_changes(
        &self,
        full: &RecordHeader,
        pages: &[u8],
        older: &Process,
        to: &mut ImageStream,
    ) {
        let first = (full.a - (1 << 40)) as usize / PAGE;
        let is_same = |n: &usize| older.pages.get(first + n) == self.pages.get(first + n);
        let count = pages.len() / PAGE;
        let same = (0..count).filter(is_same).fold(0, |all, n| all | 1 << n);
        if same != 0 {
            to.push_same(full.a, same);
        }
        let mut at = 0;
        while let Some(start) = (at..count).find(|n| !is_same(n)) {
            let end = (start..count).find(|n| is_same(n)).unwrap_or(count);
            to.push(Kind::Pages, full.a + (start * PAGE) as u64, &pages[start * PAGE..end * PAGE]);
            at = end;
        }
    }
}

/// A stream that is being written.
#[derive(Default)]
pub struct ImageStream {
    pub bytes: Vec<u8>,
    pub records: u64,
}

impl ImageStream {
    pub fn push(&mut self, kind: Kind, a: u64, payload: &[u8]) {
        let len = payload.len() as u64;
        let header = RecordHeader { kind, flags: 0, a, b: 0, len };
        self.bytes.extend_from_slice(&header.encode());
        self.bytes.extend_from_slice(payload);
        self.records += 1;
    }

    /// Declares pages of the window at this address unchanged.
    pub fn push_same(&mut self, a: u64, pages: u64) {
        let flags = PAGES_SAME;
        let header = RecordHeader { kind: Kind::Pages, flags, a, b: pages, len: 0 };
        self.bytes.extend_from_slice(&header.encode());
        self.records += 1;
    }

    pub fn finish(mut self) -> Vec<u8> {
        let a = self.bytes.len() as u64;
        let b = self.records;
        let trailer = RecordHeader { kind: Kind::Trailer, flags: 0, a, b, len: 0 };
        self.bytes.extend_from_slice(&trailer.encode());
        self.bytes
    }
}

/// Fills a page with contents that do not repeat, from a seed; with zeros from seed 0.
pub fn fill(page: &mut [u8], seed: u64) {
    if seed == 0 {
        return page.fill(0);
    }
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}
