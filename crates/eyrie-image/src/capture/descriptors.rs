//! The file table: what each open descriptor is and how a restore brings it back.
//! Taken in the process itself, not in the image-writing child: both would share file offsets.
//! Only looks; nothing is changed when a descriptor is refused.

use super::proc::{for_each_number, read_link, PathBuf};
use super::scratch::{List, Scratch};
use crate::format::{fd_kind, is_begun, object_kind, Descriptor, Object, PATH_LEN_MAX};
use crate::maps;
use crate::refusal::{Refusal, Text};
use crate::sys;
use crate::FdRole;

/// Most bytes of deleted files an image may carry.
pub const DELETED_LIMIT: u64 = 64 << 20;

/// A descriptor with its path.
#[derive(Clone, Copy)]
pub struct Entry {
    pub record: Descriptor,
    pub path: &'static [u8],
    pub dev: u64,
    pub ino: u64,
}

/// A file without a path, whose content goes into the image.
#[derive(Clone, Copy)]
pub struct Orphan {
    pub object: Object,
    /// Copy of the content, zero bytes if it is mapped shared and saved through the mapping.
    pub content: &'static [u8],
}

/// The file table of the process.
pub struct Table {
    pub entries: List<Entry>,
    pub orphans: List<Orphan>,
    orphan_bytes: u64,
}

struct Streams([Option<sys::Stat>; 3]);

impl Streams {
    /// Standard input, output and error, where they are pipes, sockets or terminals.
    fn look() -> Streams {
        Streams([0, 1, 2].map(|fd| {
            let st = sys::fstat(fd).ok()?;
            let kind = st.mode & sys::S_IFMT;
            let terminal =
                kind == sys::S_IFCHR && matches!(st.rdev >> 8 & 0xfff, 4 | 5 | 136..=143);
            (kind == sys::S_IFIFO || kind == sys::S_IFSOCK || terminal).then_some(st)
        }))
    }

    /// The stream that `fd` is another name of; a writable one is rather an output.
    fn same(&self, fd: i32, st: &sys::Stat, open_flags: u32) -> Option<u32> {
        let is = |slot: usize| {
            self.0[slot].is_some_and(|s| (s.dev, s.ino, s.rdev) == (st.dev, st.ino, st.rdev))
        };
        if (0..3).contains(&fd) && is(fd as usize) {
            return Some(fd as u32);
        }
        let order =
            if open_flags & sys::O_ACCMODE == sys::O_RDONLY { [0, 1, 2] } else { [1, 2, 0] };
        order.into_iter().find(|slot| is(*slot)).map(|slot| slot as u32)
    }
}

impl Table {
    /// Describes every descriptor but `out_fd`.
    ///
    /// # Safety
    /// The table must not outlive the scratch.
    pub unsafe fn take(
        scratch: &mut Scratch,
        out_fd: i32,
        roles: &[(i32, FdRole)],
    ) -> Result<Table, Refusal> {
        // SAFETY: handed on to the caller.
        let (mut table, dirents, text) = unsafe {
            let table = Table {
                entries: scratch.list(65536)?,
                orphans: scratch.list(1024)?,
                orphan_bytes: 0,
            };
            (table, scratch.take::<u8>(32768)?, scratch.take::<u8>(PATH_LEN_MAX + 1)?)
        };
        let streams = Streams::look();
        let listed = for_each_number(b"/proc/self/fd\0", dirents, |fd, dir| {
            let fd = fd as i32;
            if fd == dir || fd == out_fd {
                return Ok(());
            }
            // SAFETY: handed on to the caller.
            let entry = unsafe { table.describe(scratch, fd, roles, &streams, text)? };
            table.entries.push(entry)
        });
        match listed {
            Ok(()) => Ok(table),
            Err(refusal) => {
                // SAFETY: nothing was handed out yet.
                unsafe { table.release() };
                Err(refusal)
            }
        }
    }

    /// # Safety
    /// As [`Table::take`].
    unsafe fn describe(
        &mut self,
        scratch: &mut Scratch,
        fd: i32,
        roles: &[(i32, FdRole)],
        streams: &Streams,
        text: &mut [u8],
    ) -> Result<Entry, Refusal> {
        let failed = |errno| Refusal::Kernel { step: "looking at a descriptor", errno };
        let st = sys::fstat(fd).map_err(failed)?;
        let mut record = Descriptor {
            fd,
            kind: 0,
            arg: 0,
            open_flags: sys::fcntl(fd, sys::F_GETFL, 0).map_err(failed)? as u32,
            fd_flags: sys::fcntl(fd, sys::F_GETFD, 0).map_err(failed)? as u32,
            file_type: st.mode & sys::S_IFMT,
            offset: 0,
            size: st.size as u64,
            path_len: 0,
            alone: 0,
        };
        let mut entry = Entry { record, path: &[], dev: st.dev, ino: st.ino };
        let role = roles.iter().find(|(role_fd, _)| *role_fd == fd).map(|(_, role)| role);
        let slot = match role {
            Some(FdRole::Slot(slot)) => Some(*slot),
            Some(FdRole::Dropped) => {
                entry.record.kind = fd_kind::DROPPED;
                return Ok(entry);
            }
            None => streams.same(fd, &st, record.open_flags),
        };
        if let Some(slot) = slot {
            entry.record.kind = fd_kind::SLOT;
            entry.record.arg = slot;
            return Ok(entry);
        }
        let link = PathBuf::new(b"/proc/self/fd/", fd as u64, b"");
        let len = read_link(link.as_c(), &mut text[..PATH_LEN_MAX]).map_err(failed)?.len();
        text[len] = 0;
        let path = &text[..len];
        let refuse = |what| Err(Refusal::Descriptor { fd, what, name: Text::new(path) });
        match record.file_type {
            sys::S_IFREG | sys::S_IFDIR | sys::S_IFCHR => {}
            sys::S_IFSOCK => return refuse(socket_kind(fd)),
            sys::S_IFIFO => return refuse("a pipe to another process"),
            sys::S_IFBLK => return refuse("a block device"),
            _ if path == b"anon_inode:[eventfd]" => {
                entry.record = event_counter(record)?;
                return Ok(entry);
            }
            _ if path == b"anon_inode:[eventpoll]" => return refuse("an epoll instance"),
            _ if path == b"anon_inode:[timerfd]" => return refuse("a timer"),
            _ if path == b"anon_inode:[signalfd]" => return refuse("a signal descriptor"),
            _ if path == b"anon_inode:inotify" => return refuse("an inotify instance"),
            _ => return refuse("a descriptor of a kind that cannot be restored"),
        }
        if path.starts_with(b"/proc/") {
            return refuse("a file of /proc");
        }
        if record.file_type == sys::S_IFCHR {
            // null, zero, full, random, urandom.
            let harmless = st.rdev >> 8 & 0xfff == 1 && matches!(st.rdev & 0xff, 3 | 5 | 7 | 8 | 9);
            if !harmless {
                return refuse("a device");
            }
        }
        record.offset = sys::lseek(fd, 0, 1).unwrap_or(0) as u64;
        entry.record = record;
        if let Some(earlier) = self.same_open_file(&entry) {
            entry.record.kind = fd_kind::DUP;
            entry.record.arg = earlier as u32;
            return Ok(entry);
        }
        let still_there =
            sys::stat(&text[..len + 1]).is_ok_and(|p| (p.dev, p.ino) == (st.dev, st.ino));
        if still_there {
            // SAFETY: handed on to the caller.
            entry.path = unsafe { scratch.keep(path)? };
            entry.record.kind = fd_kind::PATH;
            entry.record.path_len = len as u32;
            entry.record.alone = u32::from(is_begun(&record) && sys::is_alone(fd));
            return Ok(entry);
        }
        if st.nlink > 0 || record.file_type != sys::S_IFREG {
            return refuse("a file whose path no longer leads to it");
        }
        // SAFETY: handed on to the caller.
        entry.record.arg = unsafe { self.orphan(fd, &st)? };
        entry.record.kind = fd_kind::OBJECT;
        Ok(entry)
    }

    /// The earlier descriptor that shares this one's open file (and so its offset).
    fn same_open_file(&self, entry: &Entry) -> Option<i32> {
        let r = &entry.record;
        let me = sys::getpid() as usize;
        let candidates = self.entries.as_slice().iter().filter(|e| {
            matches!(e.record.kind, fd_kind::PATH | fd_kind::OBJECT)
                && (e.dev, e.ino, e.record.open_flags) == (entry.dev, entry.ino, r.open_flags)
                && e.record.offset == r.offset
        });
        for e in candidates {
            const KCMP_FILE: usize = 0;
            // SAFETY: integers only.
            let same = unsafe {
                sys::call6(sys::nr::KCMP, me, me, KCMP_FILE, e.record.fd as usize, r.fd as usize, 0)
            };
            match same {
                Ok(0) => return Some(e.record.fd),
                Ok(_) => {}
                // A kernel without kcmp: same file, flags and an offset that is not the start's.
                Err(_) if r.offset > 0 => return Some(e.record.fd),
                Err(_) => {}
            }
        }
        None
    }

    /// Saves a file that has no path; gives its index in `orphans`.
    ///
    /// # Safety
    /// As [`Table::take`].
    unsafe fn orphan(&mut self, fd: i32, st: &sys::Stat) -> Result<u32, Refusal> {
        let known = self.orphans.as_slice().iter();
        if let Some(i) = known.map(|o| &o.object).position(|o| (o.dev, o.ino) == (st.dev, st.ino)) {
            return Ok(i as u32);
        }
        let size = st.size as u64;
        self.orphan_bytes = self.orphan_bytes.saturating_add(size);
        if self.orphan_bytes > DELETED_LIMIT {
            return Err(Refusal::DeletedFile { fd, size, limit: DELETED_LIMIT });
        }
        let index = self.orphans.as_slice().len() as u32;
        let content = if size > 0 { copy_of_file(fd, size as usize)? } else { &[] };
        let object = orphan_object(st);
        self.orphans.push(Orphan { object, content })?;
        Ok(index)
    }

    /// Unmaps the copies of deleted files.
    ///
    /// # Safety
    /// No content may be used afterwards.
    pub unsafe fn release(&mut self) {
        for orphan in self.orphans.as_slice().iter().filter(|o| !o.content.is_empty()) {
            // SAFETY: mapped by `orphan`, used by nobody else.
            let _ = unsafe { sys::munmap(orphan.content.as_ptr() as usize, orphan.content.len()) };
        }
        self.orphans.clear();
    }
}

fn orphan_object(st: &sys::Stat) -> Object {
    Object {
        kind: object_kind::MEMORY,
        mode: st.mode & 0o7777,
        size: st.size as u64,
        mtime_s: st.mtime[0],
        mtime_ns: st.mtime[1],
        dev: st.dev,
        ino: st.ino,
        build_id: 0,
        path_len: 0,
        reserved: 0,
    }
}

/// A mapping with the whole content of an open file, whatever it was opened for.
fn copy_of_file(fd: i32, size: usize) -> Result<&'static [u8], Refusal> {
    let failed = |errno| Refusal::Kernel { step: "copying a deleted file", errno };
    let at = sys::map_anonymous(size, sys::MAP_PRIVATE).map_err(failed)?;
    // SAFETY: a fresh mapping of that length.
    let copy = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, size) };
    let read = read_all_at(fd, copy).or_else(|_| {
        // Opened for writing only: through /proc it may open once more.
        let link = PathBuf::new(b"/proc/self/fd/", fd as u64, b"");
        let again = sys::open(link.as_c(), sys::O_RDONLY | sys::O_CLOEXEC, 0)?;
        let read = read_all_at(again, copy);
        sys::close(again);
        read
    });
    match read {
        Ok(()) => Ok(copy),
        Err(errno) => {
            // SAFETY: mapped above and handed to nobody.
            let _ = unsafe { sys::munmap(at, size) };
            Err(failed(errno))
        }
    }
}

fn read_all_at(fd: i32, out: &mut [u8]) -> Result<(), i32> {
    let mut at = 0;
    while at < out.len() {
        match sys::pread(fd, &mut out[at..], at as u64)? {
            0 => break, // shorter than it said: the rest is zero
            n => at += n,
        }
    }
    Ok(())
}

/// A socket in words.
fn socket_kind(fd: i32) -> &'static str {
    let option = |name: usize| -> u32 {
        let (mut value, mut len) = (0u32, 4u32);
        // SAFETY: both words are ours; SOL_SOCKET is 1.
        let _ = unsafe {
            sys::call6(
                sys::nr::GETSOCKOPT,
                fd as usize,
                1,
                name,
                &raw mut value as usize,
                &raw mut len as usize,
                0,
            )
        };
        value
    };
    const SO_TYPE: usize = 3;
    const SO_DOMAIN: usize = 39;
    match (option(SO_DOMAIN), option(SO_TYPE)) {
        (1, _) => "a Unix socket",
        (2 | 10, 1) => "a TCP socket",
        (2 | 10, 2) => "a UDP socket",
        (16, _) => "a netlink socket",
        _ => "a socket",
    }
}

/// An eventfd with its counter and flags, from /proc/self/fdinfo.
fn event_counter(mut record: Descriptor) -> Result<Descriptor, Refusal> {
    let mut text = [0u8; 512];
    let path = PathBuf::new(b"/proc/self/fdinfo/", record.fd as u64, b"");
    let len = super::proc::read_file(path.as_c(), &mut text)
        .map_err(|errno| Refusal::Kernel { step: "looking at an eventfd", errno })?;
    let field = |name: &[u8]| {
        let line = text[..len].split(|c| *c == b'\n').find_map(|l| l.strip_prefix(name))?;
        let start = line.iter().position(|c| *c != b' ' && *c != b'\t')?;
        Some(&line[start..])
    };
    record.kind = fd_kind::EVENT;
    // The counter is printed in hexadecimal.
    record.offset = field(b"eventfd-count:").and_then(maps::hex).map_or(0, |(n, _)| n);
    // EFD_SEMAPHORE is 1.
    record.arg =
        field(b"eventfd-semaphore:").and_then(maps::decimal).map_or(0, |(n, _)| (n == 1) as u32);
    Ok(record)
}
