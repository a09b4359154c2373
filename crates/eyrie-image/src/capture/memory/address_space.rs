//! The whole description of the address space. The image-writing child reads it, so that the
//! process does not wait for it.

use super::super::object::object_of;
use super::super::scratch::{List, Scratch};
use super::advice::Lifted;
use super::contents::{Contents, Copied, Copier};
use super::first_look::{FirstLook, MAPPINGS_MAX};
use super::ranges::{within, Range};
use super::scan::Scan;
use super::smaps::{for_each_line, read_flags, refused, Details};
use super::spared::SPARED_MAX;
use crate::mapped::{is_listed_as, Number};
use crate::refusal::{Refusal, Text};
use eyrie_image_format::{
    advice, map_flag, object_kind, Fingerprint, Identity, Mapping, Object, NO_OBJECT, PATH_LEN_MAX,
    UNKNOWN,
};
use eyrie_image_kernel::fingerprint::build_id;
use eyrie_image_kernel::maps::{self, Line};
use eyrie_image_kernel::sys::{self, nr};

/// An object with its path.
#[derive(Clone, Copy)]
pub struct ObjectEntry {
    pub record: Object,
    pub path: &'static [u8],
    /// The number by which the kernel lists its mappings.
    listed: Number,
    /// The process can change it, or sees the changes that others make.
    is_data: bool,
}

/// A mapping, and where its content is.
#[derive(Clone, Copy)]
pub struct Region {
    pub record: Mapping,
    /// Address and length of a copy that has the content; 0: the mapping itself has it.
    pub data: usize,
    pub len: usize,
}

impl Region {
    /// The part of it between two addresses within it.
    fn part(&self, start: u64, end: u64) -> Region {
        let mut part = *self;
        let skipped = start - self.record.start;
        (part.record.start, part.record.end) = (start, end);
        if part.record.object != NO_OBJECT {
            part.record.offset += skipped;
        }
        if part.data != 0 {
            part.data += skipped as usize;
            part.len = part.len.saturating_sub(skipped as usize).min((end - start) as usize);
        }
        part
    }
}

/// The whole description of the address space.
pub struct AddressSpace {
    pub regions: List<Region>,
    pub objects: List<ObjectEntry>,
    /// Ranges that the image leaves out, including the copies made here.
    cuts: List<Range>,
    /// Copies of private mappings whose files are gone.
    copies: List<Copied>,
    /// Advice that this process does not see because it was lifted.
    lifted: List<Lifted>,
    /// Memory that this process was spared, by advice that is not the program's.
    spared: List<Range>,
    /// How many of the objects, from the first on, are files whose whole content is copied.
    whole: usize,
    /// See [`crate::Request::names_stay`].
    names_stay: bool,
    /// The memory policy of the process, and its nodes.
    policy: (u32, u64),
    text: &'static mut [u8],
}

impl AddressSpace {
    /// An empty description. `cuts` are the ranges that the image leaves out. `lifted` is advice
    /// that it must have besides what this process sees. `contents` was copied while the process
    /// stood still.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn new(
        scratch: &mut Scratch,
        cuts: &[Range],
        lifted: &[Lifted],
        contents: &Contents,
        names_stay: bool,
        policy: (u32, u64),
    ) -> Result<AddressSpace, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let mut space = unsafe {
            AddressSpace {
                regions: scratch.list(MAPPINGS_MAX)?,
                objects: scratch.list(32768)?,
                cuts: scratch.list(cuts.len() + MAPPINGS_MAX)?,
                copies: scratch.list(32768)?,
                lifted: scratch.list(lifted.len())?,
                spared: scratch.list(SPARED_MAX)?,
                whole: 0,
                names_stay,
                policy,
                text: scratch.take(PATH_LEN_MAX + 1)?,
            }
        };
        cuts.iter().try_for_each(|cut| space.cuts.push(*cut))?;
        lifted.iter().try_for_each(|l| space.lifted.push(*l))?;
        for file in contents.files.as_slice() {
            let record = file.object;
            let path = file.path;
            let listed = file.listed;
            space.objects.push(ObjectEntry { record, path, listed, is_data: true })?;
        }
        space.whole = space.objects.as_slice().len();
        Ok(space)
    }

    /// Names the memory that this process was spared.
    pub fn spare(&mut self, ranges: &[Range]) -> Result<(), Refusal> {
        ranges.iter().try_for_each(|range| self.spared.push(*range))
    }

    /// Reads all mappings of this process with their flags. Sets in `fp` the lengths of the
    /// kernel's own mappings and the ids of the vDSO and the C library.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn take(
        &mut self,
        scratch: &mut Scratch,
        (look, contents): (&FirstLook, &Contents),
        fp: &mut Fingerprint,
    ) -> Result<(), Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let (buf, name_room, mut copier) = unsafe {
            let name_room = scratch.take::<u8>(PATH_LEN_MAX + 16)?;
            (scratch.take::<u8>(65536)?, name_room, Copier::new(scratch)?)
        };
        let shared = look.shared.as_slice().iter().zip(contents.shared.as_slice());
        let mut open: Option<(Line<'static>, usize)> = None;
        let mut details = Details::default();
        let name_at = name_room.as_mut_ptr();
        for_each_line(b"/proc/thread-self/smaps\0", buf, |text| {
            if let Some(line) = maps::parse(text) {
                let len = line.name.len().min(PATH_LEN_MAX + 16);
                // SAFETY: the room has PATH_LEN_MAX + 16 bytes, more than `len`, and nothing else
                // refers to it now.
                unsafe { core::ptr::copy_nonoverlapping(line.name.as_ptr(), name_at, len) };
                open = Some((Line { name: &[], ..line }, len));
                details = Details::default();
            } else if let Some(kib) = text.strip_prefix(b"KernelPageSize:") {
                let kib = kib.trim_ascii_start();
                let size = maps::decimal(kib).map_or(4, |(n, _)| n).max(1) * 1024;
                details.flags |= size.ilog2() << map_flag::HUGETLB_SHIFT;
            } else if let Some(flags) = text.strip_prefix(b"VmFlags:") {
                read_flags(flags, &mut details);
                if let Some((line, len)) = open.take() {
                    // SAFETY: the copy above has written these bytes. `name` is dropped before the
                    // next line overwrites them.
                    let name = unsafe { core::slice::from_raw_parts(name_at, len) };
                    let line = Line { name, ..line };
                    let mut copies = shared.clone();
                    let copy = copies.find(|(m, c)| m.start == line.start && c.at != 0);
                    let copy = copy.map(|(_, copied)| *copied);
                    // SAFETY: the caller does not use the result after the scratch is released.
                    unsafe { self.add(scratch, &mut copier, copy, &line, details, fp)? };
                }
            }
            Ok(())
        })
    }

    /// # Safety
    /// As [`AddressSpace::take`].
    unsafe fn add(
        &mut self,
        scratch: &mut Scratch,
        copier: &mut Copier,
        copy: Option<Copied>,
        line: &Line,
        details: Details,
        fp: &mut Fingerprint,
    ) -> Result<(), Refusal> {
        let range = (line.start, line.end);
        let is_spared = within(range, self.spared.as_slice());
        let advice = details.advice & if is_spared { !advice::WIPE_ON_FORK } else { u32::MAX };
        if line.name == b"[vsyscall]" || within(range, self.cuts.as_slice()) {
            return Ok(());
        }
        let mut record = Mapping {
            start: line.start,
            end: line.end,
            offset: line.offset,
            prot: line.prot(),
            flags: details.flags | (line.shared() as u32 * map_flag::SHARED),
            advice,
            object: NO_OBJECT,
            memory_policy: UNKNOWN,
            reserved: 0,
            memory_nodes: 0,
        };
        let len = line.end - line.start;
        match line.name {
            b"[vvar]" => (record.flags, fp.vvar_len) = (map_flag::VVAR, len),
            b"[vvar_vclock]" => (record.flags, fp.vvar_vclock_len) = (map_flag::VVAR_VCLOCK, len),
            b"[vdso]" => {
                (record.flags, fp.vdso_len) = (map_flag::VDSO, len);
                // SAFETY: the kernel maps the vDSO readable, and the line says that it is `len`
                // bytes long.
                let elf =
                    unsafe { core::slice::from_raw_parts(line.start as *const u8, len as usize) };
                fp.vdso_id = build_id(elf);
            }
            _ => {}
        }
        let mut region = Region { record, data: 0, len: 0 };
        if region.record.flags & map_flag::SPECIAL == 0 {
            self.note_policy(&mut region.record);
            if line.ino != 0 && line.name != b"/dev/zero" {
                // SAFETY: the caller does not use the result after the scratch is released.
                unsafe {
                    self.attach(scratch, copier, copy, line, details.may_write, &mut region)?
                };
                note_libc(line, region.record.object, self.objects.as_slice(), fp);
            } else if line.shared() {
                return Err(Refusal::Mapping {
                    start: line.start,
                    what: "shared memory of an unknown kind",
                    name: Text::new(line.name),
                });
            }
            if region.record.object == NO_OBJECT {
                region.record.offset = 0;
            }
        }
        self.add_uncut(region)
    }

    /// Notes where the pages of a mapping must be, unless the process's own policy applies.
    fn note_policy(&self, m: &mut Mapping) {
        const OF_ADDRESS: usize = 2;
        let mut mode = 0u32;
        let mut nodes = 0u64;
        let at = &raw mut mode as usize;
        let to = &raw mut nodes as usize;
        // SAFETY: the kernel writes a number and a word, local variables that outlive the call.
        let asked =
            unsafe { sys::call6(nr::GET_MEMPOLICY, at, to, 65, m.start as usize, OF_ADDRESS, 0) };
        if asked.is_ok() && (mode, nodes) != self.policy {
            (m.memory_policy, m.memory_nodes) = (mode, nodes);
        }
    }

    /// Adds the parts of a region outside the cuts.
    fn add_uncut(&mut self, region: Region) -> Result<(), Refusal> {
        let mut at = region.record.start;
        let end = region.record.end;
        while at < end {
            let cuts = self.cuts.as_slice().iter();
            let next = cuts.filter(|c| c.1 > at && c.0 < end).min_by_key(|c| c.0).copied();
            let stop = next.map_or(end, |c| c.0.max(at));
            if at < stop {
                self.add_advised(region.part(at, stop))?;
            }
            at = next.map_or(end, |c| c.1);
        }
        Ok(())
    }

    /// Adds a region, split where lifted advice begins and ends. A mapping that lost its advice may
    /// have merged with its neighbours.
    fn add_advised(&mut self, region: Region) -> Result<(), Refusal> {
        let mut at = region.record.start;
        let end = region.record.end;
        while at < end {
            let borders = self.lifted.as_slice().iter().flat_map(|l| [l.range.0, l.range.1]);
            let stop = borders.filter(|b| *b > at && *b < end).min().unwrap_or(end);
            let mut part = region.part(at, stop);
            for l in self.lifted.as_slice().iter().filter(|l| l.range.0 <= at && at < l.range.1) {
                part.record.advice |= l.advice;
            }
            if !self.joins(&part) {
                self.regions.push(part)?;
            }
            at = stop;
        }
        Ok(())
    }

    /// Joins a region with the last one, if only spared memory has parted the two.
    fn joins(&mut self, part: &Region) -> bool {
        let border = part.record.start;
        let Some(last) = self.regions.as_mut_slice().last_mut() else { return false };
        let Mapping { start, end, .. } = last.record;
        let is_parted = self.spared.as_slice().iter().any(|s| s.0 == border || s.1 == border);
        let are_alike = Mapping { start, end, ..part.record } == last.record;
        let joins = is_parted && end == border && are_alike && last.data == 0 && part.data == 0;
        if joins {
            last.record.end = part.record.end;
        }
        joins
    }

    /// Finds or adds the object that a file mapping refers to, and its copy if there is one.
    ///
    /// # Safety
    /// As [`AddressSpace::take`].
    unsafe fn attach(
        &mut self,
        scratch: &mut Scratch,
        copier: &mut Copier,
        copy: Option<Copied>,
        line: &Line,
        may_write: bool,
        region: &mut Region,
    ) -> Result<(), Refusal> {
        if region.record.flags & map_flag::HUGETLB != 0 && !line.shared() {
            return Ok(()); // anonymous memory of the huge page pool also has an inode
        }
        let is_copied = copy.is_some();
        if let Some(copy) = copy {
            (region.data, region.len) = (copy.at, copy.len);
            region.record.flags |= map_flag::WHOLE;
        }
        let writable = line.prot() & sys::PROT_WRITE != 0;
        let listed = (line.dev, line.ino);
        let known = self.objects.as_slice().iter().position(|o| o.listed == listed);
        let index = match known {
            Some(index) => index,
            None => match self.identify(line) {
                Some(record) => {
                    let index = self.objects.as_slice().len();
                    let path = match record.kind {
                        object_kind::MEMORY => &[][..],
                        // SAFETY: the caller does not use the result after the scratch is released.
                        _ => unsafe { scratch.keep(line.name)? },
                    };
                    self.objects.push(ObjectEntry { record, path, listed, is_data: false })?;
                    index
                }
                None => {
                    let copied = whole_copy(copier, line, region)?;
                    self.copies.push(copied)?;
                    return self.cuts.push(copied.range());
                }
            },
        };
        let entry = &mut self.objects.as_mut_slice()[index];
        entry.is_data |= line.shared() && (writable || may_write || is_copied);
        let object = &mut entry.record;
        if object.kind == object_kind::MEMORY && index >= self.whole {
            object.size = object.size.max(line.offset + (line.end - line.start));
        } else if line.shared() && matches!(object.kind, object_kind::FILE | object_kind::READ_FILE)
        {
            if line.name.starts_with(b"/dev/shm/") {
                if writable {
                    object.kind = object_kind::SHM_FILE;
                }
            } else if writable || is_copied {
                object.kind = object_kind::SHARED_FILE;
            } else if may_write && !self.names_stay {
                // The process may change it by write(2), so the file need not be as it was. Where
                // calls on files are recorded, it must: the calls are not made again.
                object.kind = object_kind::READ_FILE;
            }
        }
        region.record.object = index as u32;
        Ok(())
    }

    /// The file of a mapping; `None` for a private mapping of a file that is gone or replaced.
    fn identify(&mut self, line: &Line) -> Option<Object> {
        let path = self.text.get_mut(..line.name.len() + 1)?;
        path[..line.name.len()].copy_from_slice(line.name);
        path[line.name.len()] = 0;
        let opened = sys::open(path, sys::O_RDONLY | sys::O_CLOEXEC, 0).ok();
        let st = opened.and_then(|fd| sys::fstat(fd).ok().map(|st| (fd, st)));
        let same = st.filter(|(fd, st)| is_listed_as(*fd, st, (line.dev, line.ino)));
        let mut object = None;
        if let Some((fd, st)) = same {
            let mut file = object_of(object_kind::FILE, (fd, &st), line.name.len());
            if let Ok(n) = sys::pread(fd, self.text, 0) {
                file.build_id = build_id(&self.text[..n]);
            }
            object = Some(file);
        } else if line.shared() {
            let identity = Identity { dev: line.dev, ino: line.ino, born_ns: 0 };
            object = Some(Object::nameless(identity));
        }
        if let Some(fd) = opened {
            sys::close(fd);
        }
        object
    }

    /// Lets the image have the content of mapped files, but of those that the process has open:
    /// these must be on the node anyway. `is_open` says which they are.
    pub fn carry(&mut self, is_open: impl Fn(&Identity) -> bool) {
        for entry in self.objects.as_mut_slice() {
            let is_file = entry.record.kind == object_kind::FILE;
            if is_file && !entry.is_data && !is_open(&entry.record.identity) {
                entry.record.kind = object_kind::CARRIED;
            }
        }
        let objects = self.objects.as_slice();
        for region in self.regions.as_mut_slice() {
            let m = &mut region.record;
            let object = objects.get(m.object as usize);
            if object.is_some_and(|o| o.record.kind == object_kind::CARRIED) {
                m.flags = m.flags & !map_flag::SHARED | map_flag::CARRIED;
            }
        }
    }

    /// Unmaps the copies made here.
    ///
    /// # Safety
    /// The regions may not be used afterwards.
    pub unsafe fn release(&mut self) {
        for copied in self.copies.as_mut_slice() {
            // SAFETY: the caller no longer uses the regions, which alone refer to the copies.
            unsafe { copied.release() };
        }
    }

    /// Marks the regions that have Pages records.
    pub fn mark_content(&mut self, scan: &mut Scan) -> Result<(), i32> {
        for region in self.regions.as_mut_slice() {
            let mut has = if region.data != 0 {
                region.len > 0
            } else {
                holds_own_pages(&region.record)
                    && scan.any(region.record.start, region.record.end)?
            };
            if region.record.flags & map_flag::CARRIED != 0 {
                region.record.flags |= has as u32 * map_flag::CHANGED;
                has = true;
            }
            region.record.flags |= has as u32 * map_flag::HAS_PAGES;
        }
        Ok(())
    }
}

/// Stores the id of the C library for the header.
fn note_libc(line: &Line, object: u32, objects: &[ObjectEntry], fp: &mut Fingerprint) {
    let name = line.name.rsplit(|c| *c == b'/').next().unwrap_or(&[]);
    if [&b"libc.so"[..], b"libc-2", b"ld-musl"].iter().any(|p| name.starts_with(p)) {
        if let Some(object) = objects.get(object as usize) {
            fp.libc_id = object.record.build_id;
        }
    }
}

/// Copies a private mapping whose file is gone. It becomes anonymous memory with all its content.
fn whole_copy(copier: &mut Copier, line: &Line, region: &mut Region) -> Result<Copied, Refusal> {
    let failed = refused("copying a mapping whose file is gone");
    let len = line.end - line.start;
    let mut copied = Copied::new(len as usize).map_err(&failed)?;
    copier.memory(line.start, len, line.prot(), line.dev, &mut copied).map_err(&failed)?;
    region.record.flags &= !map_flag::SHARED;
    (region.data, region.len) = (copied.at, copied.len);
    Ok(copied)
}

fn holds_own_pages(m: &Mapping) -> bool {
    m.flags & (map_flag::SHARED | map_flag::DROPPABLE | map_flag::SPECIAL) == 0
}
