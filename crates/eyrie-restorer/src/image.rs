//! The stream: reads records in order, keeps the description of the process and checks it.
//! Everything read is untrusted until the trailer has been seen.

use crate::fail::{self, malformed};
use crate::watched::watched_paths;
use eyrie_image_format::named::{Named, Unknown, Verdict, PROCESSOR, VDSO};
use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD, RECORD_HEADER_LEN};
use eyrie_image_format::*;
use eyrie_image_kernel::sys::{self, nr, IoVec, PAGE};

/// Where the description is kept, behind our program in our stretch of addresses.
const ARENA_START: usize = WINDOW_START as usize + (1 << 37);
const ARENA_LEN: usize = 256 << 20;
pub const MAPPINGS_MAX: usize = 1 << 17;
const OBJECTS_MAX: usize = 32768;
const DESCRIPTORS_MAX: usize = 65536;

/// An object with its path, which ends in a NUL.
#[derive(Clone, Copy)]
pub struct ObjectEntry {
    pub record: Object,
    pub path: &'static [u8],
}

/// A descriptor with its path, which ends in a NUL, or its content.
#[derive(Clone, Copy)]
pub struct DescriptorEntry {
    pub record: Descriptor,
    pub path: &'static [u8],
    pub content: &'static [u8],
    locks: &'static [u8],
}

impl DescriptorEntry {
    pub fn locks(&self) -> impl Iterator<Item = Lock> {
        let all = self.locks.chunks_exact(core::mem::size_of::<Lock>());
        all.filter_map(|bytes| Some(take::<Lock>(bytes)?.0))
    }
}

/// The description of a process.
pub struct Image {
    pub header: Header,
    /// The image that this one builds on; 0: none, it is whole.
    pub base: u64,
    pub context: &'static Context,
    /// Ends in a NUL.
    pub cwd: &'static [u8],
    /// Pending signals in their order, each a `siginfo_t`.
    pub pending: &'static [[u8; SIGINFO_LEN]],
    pub mappings: &'static mut [Mapping],
    pub objects: &'static [ObjectEntry],
    pub descriptors: &'static [DescriptorEntry],
    /// The vDSO of the kernel on which it was taken; empty: the image does not have it.
    pub vdso: &'static [u8],
    /// What it demands of the processor; `None`: all that its node had.
    pub demand: Option<Demand>,
}

impl Image {
    /// The mapping that holds all of `len` bytes at `address`.
    pub fn mapping_at(&self, address: u64, len: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        let m = self.mappings.get(after.checked_sub(1)?)?;
        (address.checked_add(len)? <= m.end).then_some(m)
    }

    /// Calls `each` with the parts of a run of pages that lie in one mapping each; a store may have
    /// joined those of mappings that touch. And whether it is the last one.
    pub fn for_each_part(
        &self,
        start: u64,
        len: u64,
        mut each: impl FnMut(&Mapping, (u64, u64), bool),
    ) {
        let Some(end) = start.checked_add(len).filter(|end| *end > start) else {
            malformed("a run of pages has no length")
        };
        let mut at = start;
        while at < end {
            let Some(m) = self.mapping_at(at, 1) else {
                malformed("a page lies outside its mappings")
            };
            if m.flags & map_flag::HAS_PAGES == 0 && !self.is_left_to_file(m) {
                malformed("a page lies in a mapping that has none");
            }
            let to = m.end.min(end);
            each(m, (at, to), to == end);
            at = to;
        }
    }

    /// Whether a mapping is made of its file on this node, so that its pages are read and dropped.
    pub fn is_left_to_file(&self, m: &Mapping) -> bool {
        let object = self.objects.get(m.object as usize);
        object.is_some_and(|object| object.record.kind == object_kind::CARRIED)
    }

    pub fn highest_descriptor(&self) -> i32 {
        self.descriptors.iter().map(|d| d.record.fd).max().unwrap_or(0)
    }
}

/// The stream while it is read.
pub struct Input {
    fd: i32,
    hash: MetaHash,
    bytes: u64,
    records: u64,
    /// The header of the next record, read together with a payload.
    next: [u8; RECORD_HEADER_LEN],
    next_len: usize,
}

impl Input {
    pub fn new(fd: i32) -> Input {
        const PIPE_LEN: usize = 1 << 20;
        if sys::fcntl(fd, sys::F_GETFD, 0).is_err() {
            fail::now(exit::USAGE, format_args!("descriptor {fd} for the image is not open"));
        }
        if sys::fcntl(fd, sys::F_GETPIPE_SZ, 0).is_ok_and(|len| len < PIPE_LEN) {
            let _ = sys::fcntl(fd, sys::F_SETPIPE_SZ, PIPE_LEN);
        }
        let hash = MetaHash::new();
        Input { fd, hash, bytes: 0, records: 0, next: [0; RECORD_HEADER_LEN], next_len: 0 }
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The stream has another number now.
    pub fn moved_to(&mut self, fd: i32) {
        self.fd = fd;
    }

    fn truncated(&self) -> ! {
        fail::now(
            exit::TRUNCATED,
            format_args!("the image ends after {} bytes, before its trailer", self.bytes),
        )
    }

    fn readv(&mut self, pieces: &[IoVec]) -> usize {
        loop {
            // SAFETY: the callers give ranges that may be overwritten; the kernel checks them.
            let got = unsafe {
                sys::call3(nr::READV, self.fd as usize, pieces.as_ptr() as usize, pieces.len())
            };
            match got {
                Ok(0) => self.truncated(),
                Ok(n) => {
                    self.bytes += n as u64;
                    return n;
                }
                Err(sys::EINTR) => {}
                Err(sys::EAGAIN) => {
                    const POLLIN: u64 = 1;
                    let mut poll = self.fd as u32 as u64 | POLLIN << 32;
                    // SAFETY: the kernel reads and writes one struct pollfd, which is one word and
                    // ours.
                    let _ = unsafe { sys::call3(nr::POLL, &raw mut poll as usize, 1, usize::MAX) };
                }
                // All of the ranges are mapped, so EFAULT means that /dev/shm has no page left.
                Err(sys::EFAULT) => fail::now(
                    exit::KERNEL,
                    format_args!(
                        "there is no room for what the rank has in /dev/shm: make it larger (mount \
                         -o remount,size=1G /dev/shm)"
                    ),
                ),
                Err(errno) => fail::kernel("reading the image", errno),
            }
        }
    }

    /// The number of the image that comes, when another follows it.
    pub fn next_is_prepared(&mut self) -> Option<u64> {
        let record = peek(self);
        if record.kind != Kind::Prepared {
            return None;
        }
        if record.a == 0 || record.len != 0 {
            malformed("it does not say which image it is");
        }
        (self.next_len, self.bytes) = (0, 0);
        Some(record.a)
    }

    /// The next record's header.
    pub fn header(&mut self) -> RecordHeader {
        while self.next_len < RECORD_HEADER_LEN {
            let base = self.next.as_mut_ptr() as usize + self.next_len;
            self.next_len += self.readv(&[IoVec { base, len: RECORD_HEADER_LEN - self.next_len }]);
        }
        self.next_len = 0;
        let before = (self.bytes - RECORD_HEADER_LEN as u64, self.records);
        let Some(header) = RecordHeader::decode(&self.next) else {
            malformed("a record has an unknown kind or an impossible length")
        };
        if header.kind == Kind::Trailer && (header.a, header.b) != before {
            malformed("the trailer counts other bytes or records than were read")
        }
        if header.kind.is_description() {
            let encoded = self.next;
            self.hash.update(&encoded);
        }
        self.records += 1;
        header
    }

    /// A payload that is part of the description.
    fn payload(&mut self, out: &mut [u8]) {
        let mut at = 0;
        while at < out.len() {
            let base = out.as_mut_ptr() as usize + at;
            at += self.readv(&[IoVec { base, len: out.len() - at }]);
        }
        self.hash.update(out);
    }

    /// A payload of page content, straight to where it belongs, together with the next header,
    /// which always follows.
    ///
    /// # Safety
    /// The range must be ours to overwrite.
    pub unsafe fn content(&mut self, address: usize, len: usize) {
        let mut at = 0;
        while at < len {
            let next = self.next.as_mut_ptr() as usize;
            let got = self.readv(&[
                IoVec { base: address + at, len: len - at },
                IoVec { base: next, len: RECORD_HEADER_LEN },
            ]);
            at += got;
        }
        self.next_len = at - len;
    }

    /// A part of the content of a record: the last part, or one before it.
    ///
    /// # Safety
    /// As [`Input::content`].
    pub unsafe fn pages(&mut self, address: usize, len: usize, is_last: bool) {
        // SAFETY: the caller promises that the range may be overwritten.
        unsafe {
            if is_last {
                self.content(address, len)
            } else {
                self.part(address, len)
            }
        }
    }

    /// A payload of page content that is not the last of its record.
    ///
    /// # Safety
    /// As [`Input::content`].
    unsafe fn part(&mut self, address: usize, len: usize) {
        let mut at = 0;
        while at < len {
            at += self.readv(&[IoVec { base: address + at, len: len - at }]);
        }
    }

    /// Checks the trailer, whose header was read last. What follows it is another image.
    pub fn finish(&mut self, header: RecordHeader) {
        let expected = self.hash.value();
        let mut word = [0u8; 8];
        if header.len != 8 {
            malformed("the trailer has another length");
        }
        self.payload(&mut word);
        if u64::from_le_bytes(word) != expected {
            malformed("the checksum over its description differs");
        }
        (self.bytes, self.records, self.hash) = (0, 0, MetaHash::new());
    }
}

/// Memory for the description, handed out from the front.
pub struct Arena {
    used: usize,
}

impl Arena {
    pub fn new() -> Arena {
        let flags =
            sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
        let prot = sys::PROT_READ | sys::PROT_WRITE;
        // SAFETY: our stretch of addresses, where nothing lies yet.
        let mapped = unsafe {
            sys::call6(
                nr::MMAP,
                ARENA_START,
                ARENA_LEN,
                prot as usize,
                flags as usize,
                usize::MAX,
                0,
            )
        };
        match mapped {
            Ok(ARENA_START) => Arena { used: 0 },
            Ok(_) => fail::kernel("mapping memory at a fixed address", sys::EINVAL),
            Err(errno) => fail::kernel("mapping memory", errno),
        }
    }

    /// Bytes handed out so far.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Takes back what was handed out since. No reference to it may be left.
    pub fn give_back_to(&mut self, used: usize) {
        let from = used.next_multiple_of(PAGE);
        if from < self.used {
            // SAFETY: the memory of the arena, to which no reference is left. It is zeroed here.
            let _ =
                unsafe { sys::madvise(ARENA_START + from, self.used - from, sys::MADV_DONTNEED) };
        }
        self.used = from;
    }

    pub fn take<T: Copy>(&mut self, count: usize) -> &'static mut [T] {
        let at = self.used.next_multiple_of(64);
        let len = core::mem::size_of::<T>() * count;
        if len > ARENA_LEN || at > ARENA_LEN - len {
            malformed("its description is too long");
        }
        self.used = at + len;
        // SAFETY: within the arena, aligned, handed out once, zero-filled.
        unsafe { core::slice::from_raw_parts_mut((ARENA_START + at) as *mut T, count) }
    }

    fn keep(&mut self, bytes: &[u8]) -> &'static [u8] {
        let copy = self.take::<u8>(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// A copy with a NUL behind it. The bytes must not have a NUL themselves.
    fn path(&mut self, bytes: &[u8]) -> &'static [u8] {
        if bytes.contains(&0) {
            malformed("a path holds a zero byte");
        }
        let copy = self.take::<u8>(bytes.len() + 1);
        copy[..bytes.len()].copy_from_slice(bytes);
        copy
    }
}

/// A list that grows in the arena.
pub struct List<T: 'static> {
    items: &'static mut [T],
    len: usize,
}

impl<T: Copy> List<T> {
    pub fn new(arena: &mut Arena, capacity: usize) -> List<T> {
        List { items: arena.take(capacity), len: 0 }
    }

    pub fn push(&mut self, item: T) {
        match self.items.get_mut(self.len) {
            Some(room) => *room = item,
            None => malformed("its description is too long"),
        }
        self.len += 1;
    }

    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }

    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.items[..self.len].last_mut()
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn done(self) -> &'static mut [T] {
        &mut self.items[..self.len]
    }
}

fn fixed<T: Plain>(payload: &[u8]) -> (T, &[u8]) {
    take(payload).unwrap_or_else(|| malformed("a record is too short"))
}

/// Reads all records before the first page.
pub fn read_description(input: &mut Input, arena: &mut Arena) -> Image {
    let room: &'static mut [u8] = arena.take(MAX_PAYLOAD);
    let mut mappings = List::<Mapping>::new(arena, MAPPINGS_MAX);
    let mut objects = List::<ObjectEntry>::new(arena, OBJECTS_MAX);
    let mut descriptors = List::<DescriptorEntry>::new(arena, DESCRIPTORS_MAX);

    let mut vdso: &'static [u8] = &[];
    let mut demand = None;
    let header = read_header(input, room);
    let (base, context) = read_base(input);
    let Process { context, cwd, pending } = read_context(input, &context, room, arena);
    loop {
        let record = peek(input);
        if matches!(record.kind, Kind::Pages | Kind::Trailer) {
            break;
        }
        let record = input.header();
        let payload = &mut room[..record.len as usize];
        input.payload(payload);
        match (record.kind, record.flags) {
            (Kind::File, FILE_OBJECT) => objects.push(object_in(payload, arena)),
            (Kind::File, FILE_DESCRIPTOR) => descriptors.push(descriptor_in(payload, arena)),
            (Kind::Mapping, _) => {
                let (mapping, rest) = fixed::<Mapping>(payload);
                if !rest.is_empty() {
                    malformed("a mapping record has another length");
                }
                mappings.push(mapping);
            }
            (Kind::Named, _) => match known(&record, payload) {
                Some(Named { name: VDSO, content, .. }) => vdso = arena.keep(content),
                Some(Named { name: PROCESSOR, content, .. }) => {
                    let (demanded, rest) = fixed::<Demand>(content);
                    if !rest.is_empty() {
                        malformed("what it demands of the processor has another length");
                    }
                    demand = Some(demanded);
                }
                _ => {}
            },
            _ => malformed("a record is in a place where it is not allowed"),
        }
    }
    if header.names_stay & MAPS_FILES != 0 {
        to_own_memory(mappings.as_mut_slice(), objects.as_slice(), arena);
    }
    let image = Image {
        header,
        base,
        context,
        cwd,
        pending,
        mappings: mappings.done(),
        objects: objects.done(),
        descriptors: descriptors.done(),
        vdso,
        demand,
    };
    validate(&image);
    image
}

/// Reads the first record, and refuses what is no image of this format.
fn read_header(input: &mut Input, room: &mut [u8]) -> Header {
    let first = input.header();
    if first.kind != Kind::Header {
        malformed("it does not begin with a header");
    }
    let payload = &mut room[..first.len as usize];
    input.payload(payload);
    match Header::check(payload) {
        Ok(()) => {}
        Err(Unreadable::NoImage) => malformed("its first bytes are not those of an image"),
        Err(why) => fail::now(exit::MALFORMED, format_args!("{why}")),
    }
    let (header, meta) = fixed::<Header>(payload);
    if meta.len() != header.meta_len as usize || meta.len() > META_MAX {
        malformed("its header has another length");
    }
    header
}

/// Reads on which image this one builds (0: none), and the header of the context behind it.
fn read_base(input: &mut Input) -> (u64, RecordHeader) {
    let mut record = input.header();
    let mut base = 0;
    if record.kind == Kind::Base {
        base = record.a;
        if base == 0 || record.len != 0 {
            malformed("it does not say on which image it builds");
        }
        record = input.header();
    }
    if record.kind != Kind::Context {
        malformed("the context does not follow the header");
    }
    (base, record)
}

/// What the Context record has.
struct Process {
    context: &'static Context,
    cwd: &'static [u8],
    pending: &'static [[u8; SIGINFO_LEN]],
}

fn read_context(
    input: &mut Input,
    record: &RecordHeader,
    room: &mut [u8],
    arena: &mut Arena,
) -> Process {
    let payload = &mut room[..record.len as usize];
    input.payload(payload);
    let (context, rest) = fixed::<Context>(payload);
    let cwd_len = context.cwd_len as usize;
    if context.pending as usize > PENDING_MAX
        || cwd_len > PATH_LEN_MAX
        || rest.len() != cwd_len + context.pending as usize * SIGINFO_LEN
    {
        malformed("its context has another length");
    }
    let (signals, cwd) = rest.split_at(rest.len() - cwd_len);
    if context.auxv_words as usize > AUXV_WORDS {
        malformed("its auxiliary vector is too long");
    }
    let cwd = arena.path(cwd);
    let pending = arena.take::<[u8; SIGINFO_LEN]>(context.pending as usize);
    pending.as_flattened_mut().copy_from_slice(signals);
    let kept = &mut arena.take::<Context>(1)[0];
    *kept = context;
    Process { context: kept, cwd, pending }
}

fn object_in(payload: &[u8], arena: &mut Arena) -> ObjectEntry {
    let (record, path) = fixed::<Object>(payload);
    if path.len() != record.path_len as usize || path.len() > PATH_LEN_MAX {
        malformed("a file record has another length");
    }
    ObjectEntry { record, path: arena.path(path) }
}

fn descriptor_in(payload: &[u8], arena: &mut Arena) -> DescriptorEntry {
    let (record, rest) = fixed::<Descriptor>(payload);
    let path_len = record.path_len as usize;
    let locks = record.locks as usize;
    let has_content = fd_kind::has_content(record.kind);
    if path_len > PATH_LEN_MAX && !has_content
        || locks > MAX_PAYLOAD
        || rest.len() != path_len + locks * core::mem::size_of::<Lock>()
    {
        malformed("a descriptor record has another length");
    }
    let (locks, path) = rest.split_at(rest.len() - path_len);
    let (path, content) = if has_content { (&[][..], path) } else { (path, &[][..]) };
    let locks = arena.keep(locks);
    let content = arena.keep(content);
    let path = arena.path(path);
    DescriptorEntry { record, path, content, locks }
}

/// What the image has by this name. Says what this version does not know, and goes on only if it is
/// optional.
fn known<'a>(record: &RecordHeader, payload: &'a [u8]) -> Option<Named<'a>> {
    let Some(named) = Named::read(record, payload) else {
        malformed("the name of a record is malformed")
    };
    match named.verdict() {
        Verdict::Known => Some(named),
        Verdict::Skip => {
            fail::note(format_args!("{}", Unknown(named)));
            None
        }
        Verdict::Refuse => fail::now(exit::MALFORMED, format_args!("{}", Unknown(named))),
    }
}

/// Files that the process maps again by itself are private memory until then. They must not get the
/// content of the image: other ranks may have read what was stored there since. A file of which the
/// image has no content stays mapped: the process does not map it again.
fn to_own_memory(mappings: &mut [Mapping], objects: &[ObjectEntry], arena: &mut Arena) {
    let is_written = arena.take::<bool>(objects.len());
    let shared = |m: &Mapping| {
        let object = objects.get(m.object as usize).map(|object| object.record.kind);
        let shared = m.flags & (map_flag::SHARED | map_flag::HUGETLB) == map_flag::SHARED;
        object == Some(object_kind::SHARED_FILE) && shared
    };
    let has_content = |m: &Mapping| m.flags & map_flag::WHOLE != 0 || m.prot & sys::PROT_WRITE != 0;
    for m in mappings.iter().filter(|m| shared(m) && has_content(m)) {
        is_written[m.object as usize] = true;
    }
    for m in mappings.iter_mut().filter(|m| shared(m) && is_written[m.object as usize]) {
        (m.object, m.offset) = (NO_OBJECT, 0);
        m.flags &= !map_flag::SHARED;
    }
}

/// Looks at the next header without taking it.
fn peek(input: &mut Input) -> RecordHeader {
    while input.next_len < RECORD_HEADER_LEN {
        let base = input.next.as_mut_ptr() as usize + input.next_len;
        let len = RECORD_HEADER_LEN - input.next_len;
        input.next_len += input.readv(&[IoVec { base, len }]);
    }
    RecordHeader::decode(&input.next)
        .unwrap_or_else(|| malformed("a record has an unknown kind or an impossible length"))
}

/// Refuses a description that no process can have.
fn validate(image: &Image) {
    validate_mappings(image);
    validate_objects(image);
    validate_descriptors(image);
    validate_registers(image);
}

fn validate_mappings(image: &Image) {
    let mut last = 0;
    let mut special = 0;
    for m in image.mappings.iter() {
        let aligned = (m.start | m.end | m.offset) % PAGE as u64 == 0;
        if !aligned || m.start < last.max(PAGE as u64) || m.start >= m.end || m.end > USER_END {
            malformed("its mappings overlap or lie outside the address space");
        }
        if m.start < WINDOW_END && m.end > WINDOW_START {
            malformed("a mapping lies where the restorer works");
        }
        let kinds = m.flags & map_flag::SPECIAL;
        if m.prot > 7 || m.flags & !map_flag::ALL != 0 || kinds & special != 0 {
            malformed("a mapping has unknown or repeated properties");
        }
        if m.object != NO_OBJECT && m.object as usize >= image.objects.len() {
            malformed("a mapping refers to a file that is not listed");
        }
        if m.object == NO_OBJECT && m.flags & map_flag::SHARED != 0 && kinds == 0 {
            malformed("a shared mapping refers to nothing");
        }
        special |= kinds;
        last = m.end;
        if kinds == map_flag::VDSO
            && !image.vdso.is_empty()
            && image.vdso.len() as u64 != m.end - m.start
        {
            malformed("the vDSO of its kernel has another length than its mapping");
        }
    }
}

fn validate_objects(image: &Image) {
    for o in image.objects {
        if !(object_kind::FILE..=object_kind::CARRIED).contains(&o.record.kind) {
            malformed("a file is of an unknown kind");
        }
        if (o.record.kind == object_kind::MEMORY) != (o.path.len() == 1) || o.record.size >> 62 != 0
        {
            malformed("a file has no path or an impossible size");
        }
    }
}

fn validate_descriptors(image: &Image) {
    let mut last = -1;
    for d in image.descriptors {
        let r = &d.record;
        let ok = match r.kind {
            fd_kind::SLOT => (r.arg as usize) < HELD_FROM,
            fd_kind::DROPPED | fd_kind::EVENT | fd_kind::SIGNALS => true,
            fd_kind::PIPE => d.content.len() <= CONTENT_MAX,
            fd_kind::SOCKET => {
                let size = core::mem::size_of::<Socket>();
                (size..=size + CONTENT_MAX).contains(&d.content.len())
            }
            fd_kind::EPOLL => d.content.len() % core::mem::size_of::<Watch>() == 0,
            fd_kind::TIMER => d.content.len() == core::mem::size_of::<TimerState>(),
            fd_kind::INOTIFY => watched_paths(d.content).all(|watched| watched.is_some()),
            fd_kind::PATH | fd_kind::GONE_DIRECTORY | fd_kind::KERNEL => {
                d.path.first() == Some(&b'/')
            }
            fd_kind::OBJECT => image
                .objects
                .get(r.arg as usize)
                .is_some_and(|o| !object_kind::stays_on_disk(o.record.kind)),
            fd_kind::DUP => {
                (r.arg as i32) < r.fd
                    && image
                        .descriptors
                        .iter()
                        .any(|e| e.record.fd == r.arg as i32 && e.record.kind != fd_kind::DUP)
            }
            _ => false,
        };
        let locks = d.locks().all(|l| {
            (lock_kind::FLOCK..=lock_kind::OFD).contains(&l.kind)
                && l.exclusive <= 1
                && l.start.checked_add(l.len).is_some_and(|end| end <= i64::MAX as u64)
                && matches!(r.kind, fd_kind::PATH | fd_kind::OBJECT)
        });
        if !ok || !locks || r.fd <= last || r.fd > 1 << 24 {
            malformed("a descriptor is of an unknown kind or out of order");
        }
        last = r.fd;
    }
}

fn validate_registers(image: &Image) {
    let c = image.context;
    let in_mapping =
        |address, len, prot| image.mapping_at(address, len).is_some_and(|m| m.prot & prot == prot);
    let optional = |address: u64, len| address == 0 || in_mapping(address, len, sys::PROT_WRITE);
    if !in_mapping(c.rip, 16, sys::PROT_EXEC)
        || !in_mapping(c.rsp, 64, sys::PROT_WRITE)
        || !optional(c.rseq_address, c.rseq_len as u64)
    {
        malformed("its registers point outside its memory");
    }
}
