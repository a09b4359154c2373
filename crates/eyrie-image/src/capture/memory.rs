//! The address space: which mappings exist, what they map, which pages hold content.
//! The first look is taken in the process (refusals, copies of shared memory), the thorough one in
//! the image-writing child, where time does not matter to the process.

use super::contents::{object_of, Contents, Copied, Copier, FileContent};
use super::output::Output;
use super::scratch::{List, Scratch};
use crate::fingerprint::build_id;
use crate::format::{
    advice, map_flag, object_kind, Fingerprint, Identity, Mapping, Object, NO_OBJECT, PAGES_GUARD,
    PAGES_OF_OBJECT, PATH_LEN_MAX, UNKNOWN, USER_END, WINDOW_END, WINDOW_START,
};
use crate::maps::{self, Line};
use crate::names::DELETED;
use crate::refusal::{Refusal, Text};
use crate::stream::MAX_PAYLOAD;
use crate::sys::{self, nr, PAGE};

/// Most mappings; the kernel's own default limit is 65530.
const MAPPINGS_MAX: usize = 1 << 17;

/// A stretch of addresses.
pub type Range = (u64, u64);

/// Advice that keeps memory from a child; it is lifted for the moment of the clone.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lifted {
    pub range: Range,
    /// A bit of [`advice`].
    pub advice: u32,
}

/// A shared mapping whose content must be copied.
#[derive(Clone, Copy)]
pub struct SharedMapping {
    pub start: u64,
    pub end: u64,
    pub prot: u32,
    pub offset: u64,
    pub dev: u64,
    pub ino: u64,
    /// Ends in a NUL; empty where no path leads to the file.
    pub path: &'static [u8],
}

/// An object with its path.
#[derive(Clone, Copy)]
pub struct ObjectEntry {
    pub record: Object,
    pub path: &'static [u8],
}

/// A mapping with where its content is.
#[derive(Clone, Copy)]
pub struct Region {
    pub record: Mapping,
    /// Content lies here instead (a copy), and is this long.
    pub data: usize,
    pub len: usize,
}

impl Region {
    /// What lies of it between two addresses within it.
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

/// What the first look found.
pub struct FirstLook {
    /// All mapped stretches, joined where they touch.
    pub mapped: List<Range>,
    /// Private anonymous mappings that hold pages of their own, for [`FirstLook::wiped_here`].
    held: List<Range>,
    pub shared: List<SharedMapping>,
    /// There is code that cannot be read: the kernel has a memory protection key for that.
    pub hidden_code: bool,
}

fn refused(step: &'static str) -> impl Fn(i32) -> Refusal {
    move |errno| Refusal::Kernel { step, errno }
}

fn open_proc(path: &[u8]) -> Result<i32, Refusal> {
    sys::open(path, sys::O_RDONLY | sys::O_CLOEXEC, 0).map_err(refused("reading the mappings"))
}

/// Calls `each` with every line of a file like /proc/self/maps.
fn for_each_line(
    path: &[u8],
    buf: &mut [u8],
    mut each: impl FnMut(&[u8]) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let fd = open_proc(path)?;
    let mut result = Ok(());
    let read = maps::for_each_line(fd, buf, |line| {
        result = each(line);
        result.is_ok()
    });
    sys::close(fd);
    result?;
    read.map_err(refused("reading the mappings"))
}

fn within(range: Range, cuts: &[Range]) -> bool {
    cuts.iter().any(|cut| cut.0 <= range.0 && range.1 <= cut.1)
}

fn add_range(list: &mut List<Range>, start: u64, end: u64) -> Result<(), Refusal> {
    if let Some(last) = list.as_mut_slice().last_mut() {
        if last.1 == start {
            last.1 = end;
            return Ok(());
        }
    }
    list.push((start, end))
}

impl FirstLook {
    /// Looks at the mappings of this process and refuses what cannot be restored.
    /// `cuts` is what the image leaves out.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn take(scratch: &mut Scratch, cuts: &[Range]) -> Result<FirstLook, Refusal> {
        // SAFETY: handed on to the caller.
        let (mut look, buf, mut scan) = unsafe {
            let look = FirstLook {
                mapped: scratch.list(MAPPINGS_MAX)?,
                held: scratch.list(MAPPINGS_MAX)?,
                shared: scratch.list(4096)?,
                hidden_code: false,
            };
            (look, scratch.take::<u8>(65536)?, Scan::new(scratch)?)
        };
        let looked = for_each_line(b"/proc/self/maps\0", buf, |line| {
            let Some(line) = maps::parse(line) else { return Ok(()) };
            add_range(&mut look.mapped, line.start, line.end)?;
            if within((line.start, line.end), cuts) {
                return Ok(());
            }
            check(&line)?;
            look.hidden_code |= line.prot() == sys::PROT_EXEC && line.name != b"[vsyscall]";
            if !line.shared() && line.ino == 0 && scan.any(line.start, line.end).unwrap_or(false) {
                look.held.push((line.start, line.end))?;
            }
            let deleted = line.name.ends_with(DELETED);
            if line.shared() && (line.prot() & sys::PROT_WRITE != 0 || deleted) {
                // SAFETY: handed on to the caller.
                let path = unsafe { path_of(scratch, &line)? };
                look.shared.push(SharedMapping {
                    start: line.start,
                    end: line.end,
                    prot: line.prot(),
                    offset: line.offset,
                    dev: line.dev,
                    ino: line.ino,
                    path,
                })?;
            }
            Ok(())
        });
        scan.close();
        looked.map(|()| look)
    }

    /// Stretches that were mapped in the process and are not in this one, its child
    /// (MADV_DONTFORK), put into `missing`. `here` is room for what this one has.
    pub fn missing_here(
        &self,
        buf: &mut [u8],
        here: &mut List<Range>,
        missing: &mut List<Range>,
    ) -> Result<(), Refusal> {
        for_each_line(b"/proc/self/maps\0", buf, |line| match maps::parse(line) {
            Some(line) => add_range(here, line.start, line.end),
            None => Ok(()),
        })?;
        subtract(self.mapped.as_slice(), here.as_slice(), |start, end| missing.push((start, end)))
    }

    /// Stretches that are wiped in this process, a child (MADV_WIPEONFORK), put into `wiped`.
    /// Gives whether it had to look: only where memory that held pages is empty here is
    /// /proc/self/smaps read, which costs more than the clone. This process is no image then: the
    /// question has changed what the memory tells a core dump.
    pub fn wiped_here(
        &self,
        buf: &mut [u8],
        scan: &mut Scan,
        wiped: &mut List<Range>,
    ) -> Result<bool, Refusal> {
        let mut look = false;
        for &range in self.held.as_slice() {
            let held = scan.any(range.0, range.1).map_err(refused("finding the pages in use"))?;
            // Memory that the kernel may drop at any time (MAP_DROPPABLE) alone does not take this.
            look |= !held && advise(range, sys::MADV_DODUMP).is_ok();
        }
        if !look {
            return Ok(false);
        }
        let mut range = (0, 0);
        for_each_line(b"/proc/self/smaps\0", buf, |text| {
            if let Some(line) = maps::parse(text) {
                range = (line.start, line.end);
            } else if let Some(flags) = text.strip_prefix(b"VmFlags:") {
                let mut details = Details::default();
                read_flags(flags, &mut details);
                let droppable = details.flags & map_flag::DROPPABLE != 0;
                if details.advice & advice::WIPE_ON_FORK != 0 && !droppable {
                    wiped.push(range)?;
                }
            }
            Ok(())
        })?;
        Ok(true)
    }
}

/// The path of a mapped file with its NUL, empty when it has none.
///
/// # Safety
/// Must not outlive the scratch.
unsafe fn path_of(scratch: &mut Scratch, line: &Line) -> Result<&'static [u8], Refusal> {
    if line.name.first() != Some(&b'/') || line.name.ends_with(DELETED) {
        return Ok(&[]);
    }
    // SAFETY: handed on to the caller.
    let path = unsafe { scratch.take::<u8>(line.name.len() + 1)? };
    path[..line.name.len()].copy_from_slice(line.name);
    Ok(path)
}

/// Calls `each` with every part of `wanted` that `here` lacks; both ascend.
fn subtract(
    wanted: &[Range],
    here: &[Range],
    mut each: impl FnMut(u64, u64) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut first = 0;
    for &(start, end) in wanted {
        let mut from = start;
        while here.get(first).is_some_and(|h| h.1 <= start) {
            first += 1;
        }
        for h in here[first..].iter().take_while(|h| h.0 < end) {
            if h.0 > from {
                each(from, h.0)?;
            }
            from = from.max(h.1);
        }
        if from < end {
            each(from, end)?;
        }
    }
    Ok(())
}

/// Refuses mappings that no restore could make again.
fn check(line: &Line) -> Result<(), Refusal> {
    let refuse =
        |what| Err(Refusal::Mapping { start: line.start, what, name: Text::new(line.name) });
    if line.name == b"[vsyscall]" {
        return Ok(());
    }
    if line.end > USER_END {
        return refuse("beyond the addresses of four-level page tables");
    }
    if line.start < WINDOW_END && line.end > WINDOW_START {
        return refuse("where the restorer has to work");
    }
    let name = line.name;
    if name.starts_with(b"[uprobes]") {
        return refuse("a probe of a tracer");
    }
    if name.starts_with(b"anon_inode:") || name.starts_with(b"/anon_inode:") {
        return refuse("a mapping of a kernel object");
    }
    if name.starts_with(b"/[aio]") {
        return refuse("an asynchronous I/O context (io_setup)");
    }
    if name.starts_with(b"/secretmem") {
        return refuse("secret memory (memfd_secret)");
    }
    if name.starts_with(b"/sys/") || name.starts_with(b"/proc/") {
        return refuse("a mapping of a kernel object");
    }
    if name.starts_with(b"/SYSV") {
        return refuse("a System V shared memory segment");
    }
    let device = name.starts_with(b"/dev/")
        && ![&b"/dev/shm/"[..], b"/dev/zero", b"/dev/hugepages/"]
            .iter()
            .any(|p| name.starts_with(p));
    if device {
        return refuse("a mapping of a device");
    }
    Ok(())
}

/// The whole description of the address space.
pub struct AddressSpace {
    pub regions: List<Region>,
    pub objects: List<ObjectEntry>,
    /// What the image leaves out; grows by the copies made on the way.
    cuts: List<Range>,
    /// Copies of private mappings whose files are gone.
    copies: List<Copied>,
    /// Advice that this process does not see, because it was lifted.
    lifted: List<Lifted>,
    /// How many of the objects, from the first on, are files whose whole content is copied.
    whole: usize,
    /// The memory policy of the process, and its nodes.
    policy: (u32, u64),
    text: &'static mut [u8],
}

/// What smaps says about a mapping below its first line.
#[derive(Clone, Copy, Default)]
struct Details {
    flags: u32,
    advice: u32,
}

impl AddressSpace {
    /// An empty description; `cuts` is what the image leaves out, `lifted` advice that it is to
    /// have besides what this process sees, `contents` what was copied while it stood still.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn new(
        scratch: &mut Scratch,
        cuts: &[Range],
        lifted: &[Lifted],
        contents: &Contents,
        policy: (u32, u64),
    ) -> Result<AddressSpace, Refusal> {
        // SAFETY: handed on to the caller.
        let mut space = unsafe {
            AddressSpace {
                regions: scratch.list(MAPPINGS_MAX)?,
                objects: scratch.list(32768)?,
                cuts: scratch.list(cuts.len() + MAPPINGS_MAX)?,
                copies: scratch.list(32768)?,
                lifted: scratch.list(lifted.len())?,
                whole: 0,
                policy,
                text: scratch.take(PATH_LEN_MAX + 1)?,
            }
        };
        cuts.iter().try_for_each(|cut| space.cuts.push(*cut))?;
        lifted.iter().try_for_each(|l| space.lifted.push(*l))?;
        for file in contents.files.as_slice() {
            space.objects.push(ObjectEntry { record: file.object, path: file.path })?;
        }
        space.whole = space.objects.as_slice().len();
        Ok(space)
    }

    /// Reads all mappings of this process with their flags. `fp` gets the lengths of the kernel's
    /// own mappings and the ids of vDSO and C library.
    ///
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn take(
        &mut self,
        scratch: &mut Scratch,
        (look, contents): (&FirstLook, &Contents),
        fp: &mut Fingerprint,
    ) -> Result<(), Refusal> {
        // SAFETY: handed on to the caller.
        let (buf, name_room, mut copier) = unsafe {
            let name_room = scratch.take::<u8>(PATH_LEN_MAX + 16)?;
            (scratch.take::<u8>(65536)?, name_room, Copier::new(scratch)?)
        };
        let shared = look.shared.as_slice().iter().zip(contents.shared.as_slice());
        let mut open: Option<(Line<'static>, usize)> = None;
        let mut details = Details::default();
        let name_at = name_room.as_mut_ptr();
        for_each_line(b"/proc/self/smaps\0", buf, |text| {
            if let Some(line) = maps::parse(text) {
                let len = line.name.len().min(PATH_LEN_MAX + 16);
                // SAFETY: the room is that long and nothing else refers to it now.
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
                    // SAFETY: written above, and read only before the next line overwrites it.
                    let name = unsafe { core::slice::from_raw_parts(name_at, len) };
                    let line = Line { name, ..line };
                    let mut copies = shared.clone();
                    let copy = copies.find(|(m, c)| m.start == line.start && c.at != 0);
                    let copy = copy.map(|(_, copied)| *copied);
                    // SAFETY: handed on to the caller.
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
        if line.name == b"[vsyscall]" || within(range, self.cuts.as_slice()) {
            return Ok(());
        }
        let mut record = Mapping {
            start: line.start,
            end: line.end,
            offset: line.offset,
            prot: line.prot(),
            flags: details.flags | (line.shared() as u32 * map_flag::SHARED),
            advice: details.advice,
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
                // SAFETY: the vDSO is readable and `len` bytes long.
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
                // SAFETY: handed on to the caller.
                unsafe { self.attach(scratch, copier, copy, line, &mut region)? };
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

    /// Where the pages of a mapping are to lie, unless it is where those of the process are.
    fn note_policy(&self, m: &mut Mapping) {
        const OF_ADDRESS: usize = 2;
        let (mut mode, mut nodes) = (0u32, 0u64);
        let (at, to) = (&raw mut mode as usize, &raw mut nodes as usize);
        // SAFETY: the kernel writes a number and a word.
        let asked =
            unsafe { sys::call6(nr::GET_MEMPOLICY, at, to, 65, m.start as usize, OF_ADDRESS, 0) };
        if asked.is_ok() && (mode, nodes) != self.policy {
            (m.memory_policy, m.memory_nodes) = (mode, nodes);
        }
    }

    /// Adds the parts of a region outside the cuts.
    fn add_uncut(&mut self, region: Region) -> Result<(), Refusal> {
        let (mut at, end) = (region.record.start, region.record.end);
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

    /// Adds a region, parted where lifted advice begins and ends: a mapping that lost its advice
    /// may have become one with its neighbours.
    fn add_advised(&mut self, region: Region) -> Result<(), Refusal> {
        let (mut at, end) = (region.record.start, region.record.end);
        while at < end {
            let borders = self.lifted.as_slice().iter().flat_map(|l| [l.range.0, l.range.1]);
            let stop = borders.filter(|b| *b > at && *b < end).min().unwrap_or(end);
            let mut part = region.part(at, stop);
            for l in self.lifted.as_slice().iter().filter(|l| l.range.0 <= at && at < l.range.1) {
                part.record.advice |= l.advice;
            }
            self.regions.push(part)?;
            at = stop;
        }
        Ok(())
    }

    /// Finds or makes the object a file mapping refers to, and its copy if there is one.
    ///
    /// # Safety
    /// As [`AddressSpace::take`].
    unsafe fn attach(
        &mut self,
        scratch: &mut Scratch,
        copier: &mut Copier,
        copy: Option<Copied>,
        line: &Line,
        region: &mut Region,
    ) -> Result<(), Refusal> {
        if region.record.flags & map_flag::HUGETLB != 0 && !line.shared() {
            return Ok(()); // anonymous memory of the huge page pool has an inode, too
        }
        if let Some(copy) = copy {
            (region.data, region.len) = (copy.at, copy.len);
            region.record.flags |= map_flag::WHOLE;
        }
        let writable = line.prot() & sys::PROT_WRITE != 0;
        let known = self.objects.as_slice().iter().map(|o| o.record.identity);
        let known = known.into_iter().position(|o| (o.dev, o.ino) == (line.dev, line.ino));
        let index = match known {
            Some(index) => index,
            None => match self.identify(line) {
                Some(record) => {
                    let index = self.objects.as_slice().len();
                    let path = match record.kind {
                        object_kind::MEMORY => &[][..],
                        // SAFETY: handed on to the caller.
                        _ => unsafe { scratch.keep(line.name)? },
                    };
                    self.objects.push(ObjectEntry { record, path })?;
                    index
                }
                None => {
                    let copied = whole_copy(copier, line, region)?;
                    self.copies.push(copied)?;
                    return self.cuts.push(copied.range());
                }
            },
        };
        let object = &mut self.objects.as_mut_slice()[index].record;
        if object.kind == object_kind::MEMORY && index >= self.whole {
            object.size = object.size.max(line.offset + (line.end - line.start));
        } else if line.shared() && writable && object.kind == object_kind::FILE {
            let memory = line.name.starts_with(b"/dev/shm/");
            object.kind = if memory { object_kind::SHM_FILE } else { object_kind::SHARED_FILE };
        }
        region.record.object = index as u32;
        Ok(())
    }

    /// The file behind a mapping; `None` for a private mapping of a file that is gone or replaced.
    fn identify(&mut self, line: &Line) -> Option<Object> {
        let path = self.text.get_mut(..line.name.len() + 1)?;
        path[..line.name.len()].copy_from_slice(line.name);
        path[line.name.len()] = 0;
        let opened = sys::open(path, sys::O_RDONLY | sys::O_CLOEXEC, 0).ok();
        let st = opened.and_then(|fd| sys::fstat(fd).ok());
        let same = st.filter(|st| (st.dev, st.ino) == (line.dev, line.ino));
        let mut object = None;
        if let (Some(fd), Some(st)) = (opened, same) {
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

    /// Unmaps the copies made on the way.
    ///
    /// # Safety
    /// The regions may not be used afterwards.
    pub unsafe fn release(&mut self) {
        for copied in self.copies.as_mut_slice() {
            // SAFETY: handed on to the caller.
            unsafe { copied.release() };
        }
    }

    /// Marks the regions for which pages will follow.
    pub fn mark_content(&mut self, scan: &mut Scan) -> Result<(), i32> {
        for region in self.regions.as_mut_slice() {
            let has = if region.data != 0 {
                region.len > 0
            } else {
                holds_own_pages(&region.record)
                    && scan.any(region.record.start, region.record.end)?
            };
            region.record.flags |= has as u32 * map_flag::HAS_PAGES;
        }
        Ok(())
    }
}

/// Keeps the id of the C library for the header.
fn note_libc(line: &Line, object: u32, objects: &[ObjectEntry], fp: &mut Fingerprint) {
    let name = line.name.rsplit(|c| *c == b'/').next().unwrap_or(&[]);
    if [&b"libc.so"[..], b"libc-2", b"ld-musl"].iter().any(|p| name.starts_with(p)) {
        if let Some(object) = objects.get(object as usize) {
            fp.libc_id = object.record.build_id;
        }
    }
}

/// A private mapping whose file is gone becomes anonymous memory with all its content.
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

/// Two-letter flags of smaps (Documentation/filesystems/proc.rst).
fn read_flags(text: &[u8], details: &mut Details) {
    let mut hugetlb = false;
    for flag in text.split(|c| *c == b' ').filter(|f| f.len() == 2) {
        match flag {
            b"gd" => details.flags |= map_flag::GROWS_DOWN,
            b"nr" => details.flags |= map_flag::NO_RESERVE,
            b"dp" => details.flags |= map_flag::DROPPABLE,
            b"ht" => hugetlb = true,
            b"hg" => details.advice |= advice::HUGE_PAGE,
            b"nh" => details.advice |= advice::NO_HUGE_PAGE,
            b"dc" => details.advice |= advice::DONT_FORK,
            b"wf" => details.advice |= advice::WIPE_ON_FORK,
            b"dd" => details.advice |= advice::DONT_DUMP,
            b"mg" => details.advice |= advice::MERGEABLE,
            b"sr" => details.advice |= advice::SEQUENTIAL,
            b"rr" => details.advice |= advice::RANDOM,
            b"lo" => details.advice |= advice::LOCKED,
            b"sl" => details.flags |= map_flag::SEALED,
            _ => {}
        }
    }
    if hugetlb {
        details.flags |= map_flag::HUGETLB;
    } else {
        details.flags &= !(0xff << map_flag::HUGETLB_SHIFT);
    }
}

/// `struct page_region` of the PAGEMAP_SCAN ioctl.
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

/// Finds the pages of private mappings that hold content of their own.
pub struct Scan {
    pagemap: i32,
    found: &'static mut [Found],
    entries: &'static mut [u64],
    /// Categories to leave out; 0 when the ioctl does not exist (kernels before 6.7).
    without: u64,
}

const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;
const IS_GUARD: u64 = 1 << 8;

impl Scan {
    /// # Safety
    /// Must not outlive the scratch.
    pub unsafe fn new(scratch: &mut Scratch) -> Result<Scan, Refusal> {
        let pagemap = open_proc(b"/proc/self/pagemap\0")?;
        // SAFETY: handed on to the caller.
        let (found, entries) = unsafe { (scratch.take(1024)?, scratch.take(1024)?) };
        let mut scan = Scan { pagemap, found, entries, without: 0 };
        let (start, end) = scratch.range();
        for without in [IS_FILE | IS_ZERO_PAGE | IS_GUARD, IS_FILE | IS_ZERO_PAGE] {
            scan.without = without;
            if scan.ask_ioctl(start, end, 1).is_ok() {
                return Ok(scan);
            }
        }
        scan.without = 0;
        Ok(scan)
    }

    pub fn close(&self) {
        sys::close(self.pagemap);
    }

    /// Whether there is such a page between two addresses.
    fn any(&mut self, start: u64, end: u64) -> Result<bool, i32> {
        if self.without != 0 {
            return Ok(self.ask_ioctl(start, end, 1)?.0 > 0);
        }
        let mut any = false;
        self.runs(start, end, |_, _| {
            any = true;
            Ok(false)
        })?;
        Ok(any)
    }

    /// Calls `each` with every run of such pages between two addresses until it says false.
    pub fn runs(
        &mut self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, u64) -> Result<bool, i32>,
    ) -> Result<(), i32> {
        let mut at = start;
        while at < end {
            let (count, next) = if self.without != 0 {
                self.ask_ioctl(at, end, 0)?
            } else {
                self.ask_file(at, end)?
            };
            for found in &self.found[..count] {
                if !each(found.start, found.end)? {
                    return Ok(());
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Calls `each` with every run of guard pages between two addresses.
    fn guards(
        &mut self,
        start: u64,
        end: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let mut at = start;
        while self.without & IS_GUARD != 0 && at < end {
            let (count, next) = self.scan(at, end, 0, [0, IS_GUARD, 0, IS_GUARD])?;
            for found in &self.found[..count] {
                each(found.start, found.end)?;
            }
            at = next;
        }
        Ok(())
    }

    /// By the ioctl: number of runs found and where it stopped.
    fn ask_ioctl(&mut self, start: u64, end: u64, max_pages: u64) -> Result<(usize, u64), i32> {
        let wanted = [self.without, self.without, IS_PRESENT | IS_SWAPPED, IS_FILE];
        self.scan(start, end, max_pages, wanted)
    }

    fn scan(
        &mut self,
        start: u64,
        end: u64,
        max_pages: u64,
        [inverted, mask, any_of, shown]: [u64; 4],
    ) -> Result<(usize, u64), i32> {
        const PAGEMAP_SCAN: usize = 0xc060_6610;
        // struct pm_scan_arg: size, flags, start, end, walk_end, vec, vec_len, max_pages,
        // category_inverted, category_mask, category_anyof_mask, return_mask.
        let mut arg = [
            96,
            0,
            start,
            end,
            0,
            self.found.as_mut_ptr() as u64,
            self.found.len() as u64,
            max_pages,
            inverted,
            mask,
            any_of,
            shown,
        ];
        // SAFETY: the structure and the vector are ours.
        let count = unsafe {
            sys::call3(nr::IOCTL, self.pagemap as usize, PAGEMAP_SCAN, arg.as_mut_ptr() as usize)?
        };
        Ok((count.min(self.found.len()), arg[4].max(start + PAGE as u64)))
    }

    /// By reading /proc/self/pagemap: one word a page.
    fn ask_file(&mut self, start: u64, end: u64) -> Result<(usize, u64), i32> {
        const FILE_OR_SHARED: u64 = 1 << 61;
        const SWAPPED: u64 = 1 << 62;
        const PRESENT: u64 = 1 << 63;
        let pages = ((end - start) / PAGE as u64).min(self.entries.len() as u64) as usize;
        let at = self.entries.as_mut_ptr().cast::<u8>();
        // SAFETY: as many bytes as the entries have, and any bytes are entries.
        let bytes = unsafe { core::slice::from_raw_parts_mut(at, pages * 8) };
        let got = sys::pread(self.pagemap, bytes, start / PAGE as u64 * 8)? / 8;
        if got == 0 {
            return Err(sys::EFAULT);
        }
        let mut count = 0;
        for (i, &word) in self.entries[..got].iter().enumerate() {
            if word & (PRESENT | SWAPPED) == 0 || word & FILE_OR_SHARED != 0 {
                continue;
            }
            let page = start + (i * PAGE) as u64;
            match self.found[..count].last_mut() {
                Some(last) if last.end == page => last.end += PAGE as u64,
                _ => {
                    let end = page + PAGE as u64;
                    self.found[count] = Found { start: page, end, categories: 0 };
                    count += 1;
                }
            }
        }
        Ok((count, start + (got * PAGE) as u64))
    }
}

/// Writes the pages of all regions.
///
/// # Safety
/// The regions must be those of this process, now.
pub unsafe fn write_pages(
    regions: &[Region],
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    for region in regions.iter().filter(|r| r.record.flags & map_flag::HAS_PAGES != 0) {
        let m = &region.record;
        if region.data != 0 {
            // SAFETY: handed on to the caller.
            unsafe { write_copy(region.data, region.len, (0, m.start, 0), scan, out)? };
            continue;
        }
        // A page of zeros says nothing where the restore starts from zeros.
        let fresh = m.object == NO_OBJECT;
        let readable = m.prot & sys::PROT_READ != 0;
        if !readable {
            protect(m.start, m.end - m.start, m.prot | sys::PROT_READ)?;
        }
        let written = scan.runs(m.start, m.end, |start, end| {
            // SAFETY: the run is mapped, private, and readable now.
            unsafe { write_run((0, start, 0), end - start, start as usize, fresh, out)? };
            Ok(true)
        });
        if !readable {
            // What is queued must be out before it cannot be read any more.
            let flushed = out.flush();
            protect(m.start, m.end - m.start, m.prot)?;
            flushed?;
        }
        written?;
    }
    Ok(())
}

/// Writes the files of which the whole content was copied.
///
/// # Safety
/// The copies must be there.
pub unsafe fn write_files(
    files: &[FileContent],
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    for (index, file) in files.iter().enumerate().filter(|(_, f)| f.copied.len > 0) {
        let first = (PAGES_OF_OBJECT, 0, index as u64);
        // SAFETY: handed on to the caller.
        unsafe { write_copy(file.copied.at, file.copied.len, first, scan, out)? };
    }
    Ok(())
}

/// Writes where guard pages are.
///
/// # Safety
/// The regions must be those of this process, now.
pub unsafe fn write_guards(
    regions: &[Region],
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    let own = regions.iter().filter(|r| r.record.flags & map_flag::SPECIAL == 0);
    own.map(|r| &r.record).try_for_each(|m| {
        scan.guards(m.start, m.end, |start, end| {
            // SAFETY: nothing is read.
            unsafe { out.pages(PAGES_GUARD, start, end - start, 0, 0) }
        })
    })
}

/// Writes what a copy of `len` bytes at `data` holds; `first` is what its first record would have
/// as flags and as both numbers.
///
/// # Safety
/// The copy must be there.
unsafe fn write_copy(
    data: usize,
    len: usize,
    (flags, base, object): (u32, u64, u64),
    scan: &mut Scan,
    out: &mut Output,
) -> Result<(), i32> {
    let end = (data + len) as u64;
    scan.runs(data as u64, end.next_multiple_of(PAGE as u64), |from, to| {
        let place = (flags, base + (from - data as u64), object);
        // SAFETY: within the copy.
        unsafe { write_run(place, to.min(end) - from, from as usize, true, out)? };
        Ok(true)
    })
}

/// Changes the protection of memory of this process.
pub fn protect(start: u64, len: u64, prot: u32) -> Result<(), i32> {
    // SAFETY: only ever adds the right to read, or takes it back.
    unsafe { sys::call3(nr::MPROTECT, start as usize, len as usize, prot as usize).map(|_| ()) }
}

/// Writes one run of `len` bytes as records with these flags and numbers, the first of which counts
/// on; cut at aligned addresses and at zero pages.
///
/// # Safety
/// The content at `data` must be readable.
unsafe fn write_run(
    (flags, start, object): (u32, u64, u64),
    len: u64,
    data: usize,
    skip_zeros: bool,
    out: &mut Output,
) -> Result<(), i32> {
    let end = start + len;
    let mut at = start;
    while at < end {
        let border = (at / MAX_PAYLOAD as u64 + 1) * MAX_PAYLOAD as u64;
        let stop = border.min(end);
        let mut from = at;
        while from < stop {
            let page_end = |a: u64| ((a / PAGE as u64 + 1) * PAGE as u64).min(stop);
            let zero = |a: u64| {
                // The last page of a file ends anywhere; behind it is nothing but zeros.
                let len = ((page_end(a) - a) as usize).next_multiple_of(8);
                // SAFETY: within the run, or its last page.
                skip_zeros && unsafe { is_zero(data + (a - start) as usize, len) }
            };
            if zero(from) {
                from = page_end(from);
                continue;
            }
            let mut to = page_end(from);
            while to < stop && !zero(to) {
                to = page_end(to);
            }
            let source = data + (from - start) as usize;
            // SAFETY: within the run.
            unsafe { out.pages(flags, from, object, source, (to - from) as usize)? };
            from = to;
        }
        at = stop;
    }
    Ok(())
}

/// # Safety
/// `len` bytes at `at`, a multiple of 8, must be readable.
pub unsafe fn is_zero(at: usize, len: usize) -> bool {
    // SAFETY: handed on to the caller; pages are aligned.
    let words = unsafe { core::slice::from_raw_parts(at as *const u64, len / 8) };
    words.chunks(32).all(|chunk| chunk.iter().fold(0, |a, b| a | b) == 0)
}

/// Takes advice off, so that a child gets the memory.
pub fn lift(lifted: &[Lifted]) -> Result<(), Refusal> {
    for l in lifted {
        let (what, undone) = match l.advice {
            advice::DONT_FORK => {
                ("memory that a device uses and no child may inherit", sys::MADV_DOFORK)
            }
            _ => ("memory that no child may inherit", sys::MADV_KEEPONFORK),
        };
        let refuse = Refusal::Mapping { start: l.range.0, what, name: Text::new(b"") };
        advise(l.range, undone).map_err(|_| refuse)?;
    }
    Ok(())
}

/// Gives the advice again that [`lift`] took off.
pub fn give_back(lifted: &[Lifted]) {
    for l in lifted {
        let what = match l.advice {
            advice::DONT_FORK => sys::MADV_DONTFORK,
            _ => sys::MADV_WIPEONFORK,
        };
        let _ = advise(l.range, what);
    }
}

fn advise((start, end): Range, what: usize) -> sys::SysResult {
    // SAFETY: only advice that changes what a fork or a core dump does.
    unsafe { sys::madvise(start as usize, (end - start) as usize, what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_lacks_is_found_between_and_around_what_it_has() {
        let lacking = |wanted: &[Range], here: &[Range]| {
            let mut all = Vec::new();
            subtract(wanted, here, |start, end| {
                all.push((start, end));
                Ok(())
            })
            .unwrap();
            all
        };
        assert_eq!(lacking(&[(10, 20), (30, 40)], &[(10, 20), (30, 40)]), []);
        assert_eq!(lacking(&[(10, 50)], &[(5, 12), (20, 30), (45, 60)]), [(12, 20), (30, 45)]);
        assert_eq!(lacking(&[(10, 20), (30, 40)], &[(15, 35)]), [(10, 15), (35, 40)]);
        assert_eq!(lacking(&[(10, 20), (30, 40)], &[]), [(10, 20), (30, 40)]);
        assert_eq!(lacking(&[(10, 20)], &[(0, 5), (50, 60)]), [(10, 20)]);
    }

    /// Kernels before 6.7 have no PAGEMAP_SCAN; both ways must find the same pages.
    #[test]
    fn both_ways_of_finding_pages_agree() {
        const PAGES: usize = 3000;
        let at = sys::map_anonymous(PAGES * PAGE, sys::MAP_PRIVATE).unwrap();
        // SAFETY: our mapping.
        unsafe { sys::madvise(at, PAGES * PAGE, sys::MADV_NOHUGEPAGE) }.unwrap();
        let mut expected: Vec<u64> = Vec::new();
        for page in (0..PAGES).filter(|p| p % 7 < 3 || (1000..2500).contains(p)) {
            // SAFETY: within the mapping.
            unsafe { ((at + page * PAGE) as *mut u64).write(page as u64 + 1) };
            expected.push((at + page * PAGE) as u64);
        }
        let mut scratch = Scratch::new().unwrap();
        // SAFETY: used before the scratch goes.
        let mut scan = unsafe { Scan::new(&mut scratch) }.unwrap();
        let found = |scan: &mut Scan| {
            let mut pages: Vec<u64> = Vec::new();
            scan.runs(at as u64, (at + PAGES * PAGE) as u64, |start, end| {
                pages.extend((start..end).step_by(PAGE));
                Ok(true)
            })
            .unwrap();
            pages
        };
        assert_eq!(found(&mut scan), expected);
        scan.without = 0;
        assert_eq!(found(&mut scan), expected);
        scan.close();
        // SAFETY: neither is used any more.
        unsafe {
            scratch.release();
            sys::munmap(at, PAGES * PAGE).unwrap();
        }
    }
}
