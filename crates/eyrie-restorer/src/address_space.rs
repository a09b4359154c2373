//! The memory of the process: maps everything at its old address and reads pages straight into
//! place. Must not change a file before the trailer was read.

use crate::descriptors::Table;
use crate::fail::{self, malformed};
use crate::image::{Arena, Image, Input, List};
use crate::mapping::{advise, advise_early, mmap, not_mapped, optional, own_flags, working_prot};
use crate::place::Here;
use crate::prepared::Prepared;
use eyrie_image_format::stream::{Kind, MAX_PAYLOAD};
use eyrie_image_format::*;
use eyrie_image_kernel::holes::data_runs;
use eyrie_image_kernel::sys::{self, nr};

/// Where content for shared files waits until the whole image has been read.
const STAGING_START: u64 = WINDOW_START + (1 << 38);

/// The unit in which content of the staging is tracked. No record is longer.
const STRETCH: u64 = MAX_PAYLOAD as u64;
const STRETCHES: usize = ((WINDOW_END - STAGING_START) / STRETCH) as usize;

/// At most so many runs of guard pages: a run of one page takes a mapping in the kernel.
const GUARDS_MAX: usize = 1 << 17;

/// The address space under construction.
pub struct Memory {
    staging_end: u64,
    /// A bit for each stretch of the staging that has got content.
    staged: &'static mut [u64; STRETCHES / 64],
    /// Guard pages: where, and how many bytes.
    guards: List<(u64, u64)>,
    /// A mapping whose memory policy this node does not allow, and why.
    lost_policy: Option<(u64, i32)>,
    /// Room for pages that are dropped.
    room: &'static mut [u8],
}

struct Room(core::cell::UnsafeCell<[u64; STRETCHES / 64]>);
// SAFETY: the restorer has one thread, so no access runs beside another.
unsafe impl Sync for Room {}
static STAGED: Room = Room(core::cell::UnsafeCell::new([0; STRETCHES / 64]));

impl Memory {
    /// Maps everything except the kernel's own mappings, and unmaps what the image does not have.
    pub fn build(
        image: &Image,
        table: &Table,
        node: &Here,
        prepared: &mut Prepared,
        arena: &mut Arena,
    ) -> Memory {
        prepared.lay(image, node);
        // SAFETY: called once, so this is the only reference.
        let staged = unsafe { &mut *STAGED.0.get() };
        let guards = List::new(arena, GUARDS_MAX);
        let room = arena.take(MAX_PAYLOAD);
        let staging_end = STAGING_START;
        let mut memory = Memory { staging_end, staged, guards, lost_policy: None, room };
        for m in image.mappings.iter().filter(|m| m.flags & map_flag::SPECIAL == 0) {
            if !m.is_own() {
                map(image, table, m);
            }
            // Before the pages come.
            if let Err(errno) = set_policy(m) {
                memory.lost_policy = Some((m.start, errno));
            }
            if is_staged(image, m) {
                let len = m.end - m.start;
                let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
                let prot = sys::PROT_READ | sys::PROT_WRITE;
                mmap(memory.staging_end, len, prot, flags, -1, 0)
                    .unwrap_or_else(|e| fail::kernel("mapping memory", e));
                memory.staging_end += len;
                if memory.staging_end > WINDOW_END {
                    malformed("its shared mappings are too long");
                }
            }
        }
        memory
    }

    /// Reads all Pages records and the trailer.
    pub fn read_pages(
        &mut self,
        image: &Image,
        table: &Table,
        prepared: &mut Prepared,
        input: &mut Input,
    ) {
        loop {
            let record = input.header();
            match record.kind {
                Kind::Pages if record.flags & PAGES_OF_OBJECT != 0 => {
                    self.read_file_piece(image, table, input, record.a, record.b, record.len)
                }
                Kind::Pages if record.flags & PAGES_GUARD != 0 => {
                    let aligned = (record.a | record.b) % sys::PAGE as u64 == 0;
                    if !aligned || record.b == 0 || image.mapping_at(record.a, record.b).is_none() {
                        malformed("guard pages outside its mappings");
                    }
                    self.guards.push((record.a, record.b));
                }
                Kind::Pages if record.flags == PAGES_SAME => prepared.same(&record),
                Kind::Pages => {
                    prepared.brought(record.a, record.len);
                    self.read_run(image, input, record.a, record.len)
                }
                Kind::Trailer => {
                    input.finish(record);
                    prepared.end();
                    return;
                }
                _ => malformed("a record is in a place where it is not allowed"),
            }
        }
    }

    fn read_run(&mut self, image: &Image, input: &mut Input, start: u64, len: u64) {
        image.for_each_part(start, len, |m, (at, end), is_last| {
            let part = end - at;
            let to = if image.is_left_to_file(m) {
                self.room.as_mut_ptr() as u64
            } else {
                self.destination(image, m) + (at - m.start)
            };
            if is_staged(image, m) {
                self.mark(to);
                self.mark(to + part - 1);
            }
            // SAFETY: within a mapping we made, or its staging; the room is as long as a record.
            unsafe { input.pages(to as usize, part as usize, is_last) };
        });
    }

    /// Notes that the stretch of the staging around an address has got content.
    fn mark(&mut self, address: u64) {
        let stretch = ((address - STAGING_START) / STRETCH) as usize;
        self.staged[stretch / 64] |= 1 << (stretch % 64);
    }

    /// Where the content of a mapping goes while the stream is read.
    fn destination(&self, image: &Image, mapping: &Mapping) -> u64 {
        if !is_staged(image, mapping) {
            return mapping.start;
        }
        let before = image.mappings.iter().take_while(|m| m.start < mapping.start);
        let staged = before.filter(|m| is_staged(image, m)).map(|m| m.end - m.start);
        STAGING_START + staged.sum::<u64>()
    }

    fn read_file_piece(
        &mut self,
        image: &Image,
        table: &Table,
        input: &mut Input,
        offset: u64,
        object: u64,
        len: u64,
    ) {
        let known = image.objects.get(object as usize);
        let fits = known.is_some_and(|o| {
            !object_kind::stays_on_disk(o.record.kind)
                && offset.checked_add(len).is_some_and(|end| end <= o.record.size)
        });
        if !fits || len == 0 {
            malformed("file content for a file that is not listed");
        }
        // The piece is mapped in the window, filled, and let go.
        let page = offset & !(sys::PAGE as u64 - 1);
        let span = offset + len - page;
        let flags = sys::MAP_SHARED;
        let fd = table.object(object as u32);
        mmap(self.staging_end, span, sys::PROT_READ | sys::PROT_WRITE, flags, fd, page)
            .unwrap_or_else(|e| fail::kernel("mapping a deleted file", e));
        // SAFETY: mapped just now, with at least that many bytes of file behind it.
        unsafe {
            input.content((self.staging_end + offset - page) as usize, len as usize);
            let _ = sys::munmap(self.staging_end as usize, span as usize);
        }
    }

    /// Maps new files in /dev/shm once more, which have their names now.
    pub fn map_named(&self, image: &Image, table: &Table) {
        let shm = image.mappings.iter().filter(|m| is_shm(image, m));
        shm.for_each(|m| map(image, table, m));
    }

    /// Final contents of shared files, protections, advice; the kernel's mappings to their places.
    pub fn commit(&self, image: &Image, table: &Table, node: &Here) {
        for m in image.mappings.iter().filter(|m| m.flags & map_flag::SPECIAL == 0) {
            if is_staged(image, m) {
                self.copy_staged(image, table, m);
            }
            let len = (m.end - m.start) as usize;
            if working_prot(m) != m.prot {
                // SAFETY: a mapping of ours, filled by now.
                let done =
                    unsafe { sys::call3(nr::MPROTECT, m.start as usize, len, m.prot as usize) };
                if let Err(errno) = done {
                    fail::kernel("protecting memory", errno);
                }
            }
        }
        if let Some((start, errno)) = self.lost_policy {
            let errno = fail::Errno(errno);
            fail::note(format_args!(
                "this node does not allow the memory policies of some mappings, as that at \
                 {start:#x}: {errno}"
            ));
        }
        for (start, len) in self.guards.as_slice() {
            // SAFETY: pages without content, in mappings of ours that are not locked yet.
            let made =
                unsafe { sys::madvise(*start as usize, *len as usize, sys::MADV_GUARD_INSTALL) };
            if let Err(errno) = made {
                fail::kernel("making guard pages", errno);
            }
        }
        for m in image.mappings.iter().filter(|m| m.flags & map_flag::SPECIAL == 0) {
            advise_late(m);
            if m.flags & map_flag::SEALED != 0 {
                let len = (m.end - m.start) as usize;
                // SAFETY: the call takes numbers only; the content of the mapping does not change
                // any more.
                if let Err(errno) = unsafe { sys::call3(nr::MSEAL, m.start as usize, len, 0) } {
                    fail::kernel("sealing memory", errno);
                }
            }
        }
        node.put_back(image);
    }

    /// Gives the mapped range of a file its content: where the file has some now, and where the
    /// image has some. Holes of both stay holes.
    fn copy_staged(&self, image: &Image, table: &Table, m: &Mapping) {
        let size = image.objects[m.object as usize].record.size;
        // Pages behind the end of the file cannot be written.
        let len =
            (m.end - m.start).min(size.saturating_sub(m.offset).next_multiple_of(sys::PAGE as u64));
        let from = self.destination(image, m);
        let copy = |at: u64, len: u64| {
            // SAFETY: both are mapped for that length, and the file is at least that long.
            unsafe {
                let from = (from + at) as *const u8;
                let to = (m.start + at) as *mut u8;
                core::ptr::copy_nonoverlapping(from, to, len as usize)
            };
        };
        let page = sys::PAGE as u64;
        let start = m.offset;
        let end = m.offset + len;
        let _ = data_runs(table.object(m.object), start, end, |from, to| {
            let from = (from - start) / page * page;
            let to = to - start;
            copy(from, to.next_multiple_of(page).min(len) - from);
            Ok(())
        });
        let mut at = 0;
        while at < len {
            let stretch = (from + at - STAGING_START) / STRETCH;
            let next = ((stretch + 1) * STRETCH - (from - STAGING_START)).min(len);
            if self.staged[stretch as usize / 64] & 1 << (stretch % 64) != 0 {
                for at in (at..next).step_by(sys::PAGE) {
                    // SAFETY: one page of the staging, which is mapped and readable.
                    let words =
                        unsafe { core::slice::from_raw_parts((from + at) as *const u64, 512) };
                    if words.iter().any(|word| *word != 0) {
                        copy(at, page);
                    }
                }
            }
            at = next;
        }
    }
}

/// Content of a writable shared file on a disk must not reach it before the trailer.
fn is_staged(image: &Image, m: &Mapping) -> bool {
    m.object != NO_OBJECT
        && m.flags & map_flag::WHOLE != 0
        && m.flags & map_flag::SHARED != 0
        && image.objects[m.object as usize].record.kind == object_kind::SHARED_FILE
}

fn is_shm(image: &Image, m: &Mapping) -> bool {
    m.object != NO_OBJECT
        && m.flags & map_flag::SHARED != 0
        && image.objects[m.object as usize].record.kind == object_kind::SHM_FILE
}

fn map(image: &Image, table: &Table, m: &Mapping) {
    let len = m.end - m.start;
    let prot = working_prot(m);
    let mapped = if m.object != NO_OBJECT {
        let kind = if m.flags & map_flag::SHARED != 0 { sys::MAP_SHARED } else { sys::MAP_PRIVATE };
        let no_reserve = optional(m, map_flag::NO_RESERVE, sys::MAP_NORESERVE);
        mmap(m.start, len, prot, kind | no_reserve, table.object(m.object), m.offset)
    } else if m.flags & map_flag::DROPPABLE != 0 {
        mmap(m.start, len, prot, sys::MAP_DROPPABLE | sys::MAP_ANONYMOUS, -1, 0)
    } else {
        // The huge page pool of this node may be empty. Then ordinary pages are used.
        let size = m.flags >> map_flag::HUGETLB_SHIFT;
        let huge = own_flags(m) | sys::MAP_HUGETLB | size << 26;
        mmap(m.start, len, prot, huge, -1, 0)
            .or_else(|_| mmap(m.start, len, prot, own_flags(m), -1, 0))
    };
    if let Err(errno) = mapped {
        if m.object != NO_OBJECT {
            let path = fail::Bytes(image.objects[m.object as usize].path);
            let start = m.start;
            let e = fail::Errno(errno);
            fail::now(exit::KERNEL, format_args!("mapping {path} at {start:#x} failed: {e}"));
        }
        not_mapped((m.start, m.end), errno);
    }
    advise_early(m);
}

/// The nodes on which the pages of a mapping shall be.
fn set_policy(m: &Mapping) -> Result<(), i32> {
    if m.memory_policy == UNKNOWN {
        return Ok(());
    }
    let start = m.start as usize;
    let len = (m.end - m.start) as usize;
    let nodes = &raw const m.memory_nodes as usize;
    // SAFETY: the kernel reads one word, which is ours.
    unsafe { sys::call6(nr::MBIND, start, len, m.memory_policy as usize, nodes, 65, 0).map(|_| ()) }
}

fn advise_late(m: &Mapping) {
    for (bit, what) in [
        (advice::DONT_FORK, sys::MADV_DONTFORK),
        (advice::WIPE_ON_FORK, sys::MADV_WIPEONFORK),
        (advice::DONT_DUMP, sys::MADV_DONTDUMP),
        (advice::MERGEABLE, sys::MADV_MERGEABLE),
        (advice::SEQUENTIAL, sys::MADV_SEQUENTIAL),
        (advice::RANDOM, sys::MADV_RANDOM),
    ] {
        advise(m, bit, what);
    }
    if m.advice & advice::LOCKED != 0 {
        // SAFETY: the call takes numbers only, and locking changes no content.
        let locked =
            unsafe { sys::call3(nr::MLOCK, m.start as usize, (m.end - m.start) as usize, 0) };
        if let Err(e) = locked {
            let start = m.start;
            let e = fail::Errno(e);
            fail::note(format_args!(
                "the memory at {start:#x} is not locked: {e}; raise `ulimit -l` on this node"
            ));
        }
    }
}
