//! The file table: what each open descriptor is and how a restore brings it back. Read in the
//! process itself, not in the image-writing child, because the two share file offsets. Only
//! looks; nothing is changed when a descriptor is refused.

use super::kernel_files;
use super::locks;
use super::object::object_of;
use super::proc::{for_each_number, read_link, PathBuf};
use super::scratch::{List, Scratch};
use super::within::{self, Info, No, UNIX};
use crate::holder::Claim;
use crate::refusal::{Refusal, Text};
use crate::request::Request;
use eyrie_image_format::{
    bytes_of, bytes_of_all, fd_kind, is_begun, lock_kind, object_kind, Descriptor, Identity, Lock,
    Object, Watch, HELD_FROM, PATH_LEN_MAX,
};
use eyrie_image_kernel::names::{self, DELETED};
use eyrie_image_kernel::sys;

/// Most bytes that unmapped deleted files may hold together.
pub const DELETED_LIMIT: u64 = 64 << 20;

/// Most locks of all files together.
const LOCKS_MAX: usize = 4096;

/// Most descriptors that an epoll instance may watch.
const WATCHES_MAX: usize = 4096;

/// Most entries of a directory that are searched for a file that has another name now.
const ENTRIES_MAX: usize = 1 << 16;

/// A descriptor with its path or its content.
#[derive(Clone, Copy)]
pub struct Entry {
    pub record: Descriptor,
    pub path: &'static [u8],
    /// Index of its first lock in [`Table::locks`].
    first_lock: usize,
}

impl Entry {
    /// Makes it a socket whose other end is closed.
    fn become_dead(&mut self) {
        (self.record.kind, self.record.path_len, self.path) = (fd_kind::DROPPED, 0, &[]);
    }
}

/// A file without a path, whose content goes into the image.
#[derive(Clone, Copy)]
pub struct Nameless {
    /// A descriptor of the file.
    pub fd: i32,
    pub object: Object,
    /// The directory that it was in; empty for memory.
    pub directory: &'static [u8],
}

/// The file table of the process.
pub struct Table {
    pub entries: List<Entry>,
    pub nameless: List<Nameless>,
    locks: List<Lock>,
    /// There is a POSIX lock, which is lost when any descriptor of its file is closed.
    pub posix_locks: bool,
    drop_sockets: bool,
    watched: Option<within::WatchedPaths>,
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

    /// The standard stream that `fd` also refers to. A writable one counts as an output.
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
    /// Describes every descriptor except those of the capture itself.
    ///
    /// # Safety
    /// The table must not outlive the scratch.
    pub unsafe fn take(
        scratch: &mut Scratch,
        own: [i32; 2],
        request: &Request,
    ) -> Result<Table, Refusal> {
        // SAFETY: the caller does not use the result after the scratch is released.
        let (mut table, dirents, text, info) = unsafe {
            let table = Table {
                entries: scratch.list(65536)?,
                nameless: scratch.list(1024)?,
                locks: scratch.list(LOCKS_MAX)?,
                posix_locks: false,
                drop_sockets: request.drop_sockets,
                watched: request.watched,
            };
            (
                table,
                scratch.take::<u8>(32768)?,
                scratch.take::<u8>(PATH_LEN_MAX + 1)?,
                scratch.take::<u8>(65536)?,
            )
        };
        let streams = Streams::look();
        for_each_number(b"/proc/thread-self/fd\0", dirents, |fd, dir| {
            let fd = fd as i32;
            if fd == dir || own.contains(&fd) {
                return Ok(());
            }
            // SAFETY: the caller guarantees that the table is not used after the scratch is
            // released.
            let mut entry = unsafe { table.describe(scratch, fd, request, &streams, text, info)? };
            if matches!(entry.record.kind, fd_kind::PATH | fd_kind::OBJECT) {
                table.note_locks(&mut entry, info)?;
            }
            table.entries.push(entry)
        })?;
        table.check_ends(text)?;
        Ok(table)
    }

    /// Refuses a pipe or a socket pair whose other end is in another process.
    fn check_ends(&mut self, text: &mut [u8]) -> Result<(), Refusal> {
        for i in 0..self.entries.as_slice().len() {
            let entry = self.entries.as_slice()[i];
            let all = self.entries.as_slice().iter().map(|other| other.record);
            if !within::is_within(&entry.record, all) {
                if self.drop_sockets && entry.record.kind == fd_kind::SOCKET {
                    self.entries.as_mut_slice()[i].become_dead();
                    continue;
                }
                let fd = entry.record.fd;
                let what = if entry.record.kind == fd_kind::PIPE { OUTER_PIPE } else { UNIX };
                let link = PathBuf::new(b"/proc/thread-self/fd/", fd as u64, b"");
                let name = Text::new(read_link(link.as_c(), text).unwrap_or(b""));
                return Err(Refusal::Descriptor { fd, what, name });
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Table::take`].
    unsafe fn describe(
        &mut self,
        scratch: &mut Scratch,
        fd: i32,
        request: &Request,
        streams: &Streams,
        text: &mut [u8],
        info: &mut [u8],
    ) -> Result<Entry, Refusal> {
        let (record, st) = record_of(fd)?;
        let mut entry = Entry { record, path: &[], first_lock: 0 };
        let claim = match request.holders.iter().find_map(|holder| holder.claim(fd)) {
            None => streams.same(fd, &st, record.open_flags).map(Claim::Slot),
            claim => claim,
        };
        // A regular file has O_ASYNC because of a lease, which is refused by its own name.
        let signals = record.open_flags & sys::O_ASYNC != 0 && record.file_type != sys::S_IFREG;
        match claim {
            Some(Claim::Dropped) => {
                entry.record.kind = fd_kind::DROPPED;
                return Ok(entry);
            }
            _ if signals => {
                let link = PathBuf::new(b"/proc/thread-self/fd/", fd as u64, b"");
                let name = Text::new(read_link(link.as_c(), text).unwrap_or(b""));
                let what = "a descriptor that sends signals (O_ASYNC)";
                return Err(Refusal::Descriptor { fd, what, name });
            }
            Some(Claim::Slot(slot)) if slot as usize >= HELD_FROM => {
                return Err(Refusal::Request("a slot number is 16 or more"));
            }
            Some(Claim::Slot(slot)) => {
                (entry.record.kind, entry.record.arg) = (fd_kind::SLOT, slot);
                return Ok(entry);
            }
            None => {}
        }
        let link = PathBuf::new(b"/proc/thread-self/fd/", fd as u64, b"");
        let len = read_link(link.as_c(), &mut text[..PATH_LEN_MAX]).map_err(looking)?.len();
        text[len] = 0;
        let path = &text[..len];
        let refuse = |what| Err(Refusal::Descriptor { fd, what, name: Text::new(path) });
        match record.file_type {
            sys::S_IFREG | sys::S_IFDIR | sys::S_IFCHR => {}
            sys::S_IFBLK => return refuse("a block device"),
            sys::S_IFIFO if path.starts_with(b"/") => return refuse("a named pipe"),
            sys::S_IFSOCK if socket_kind(fd) != UNIX => return self.outer_socket(entry, path),
            _ => {
                // SAFETY: the caller does not use the result after the scratch is released.
                return match unsafe { self.within(scratch, entry, path, info) } {
                    Ok(entry) => entry,
                    Err(No::What(UNIX)) => self.outer_socket(entry, path),
                    Err(No::What(what)) => refuse(what),
                    Err(No::Kernel(step, errno)) => Err(Refusal::Kernel { step, errno }),
                };
            }
        }
        let file_system = sys::file_system_of(fd);
        if kernel_files::is_made_up(file_system) && record.file_type != sys::S_IFCHR {
            let again = kernel_files::path_again(file_system, path, record.open_flags);
            return match again {
                // SAFETY: the caller does not use the result after the scratch is released.
                Ok(again) => unsafe { self.of_the_kernel(scratch, entry, again.as_bytes()) },
                Err(what) => refuse(what),
            };
        }
        if path.starts_with(b"/secretmem") {
            return refuse("secret memory (memfd_secret)");
        }
        // Files of a process or of a namespace have no absolute path.
        if !path.starts_with(b"/") {
            return refuse("a descriptor of a kind that cannot be restored");
        }
        if record.file_type == sys::S_IFCHR {
            // null, zero, full, random, urandom.
            let harmless = st.rdev >> 8 & 0xfff == 1 && matches!(st.rdev & 0xff, 3 | 5 | 7 | 8 | 9);
            if !harmless {
                return refuse("a device");
            }
        }
        // SAFETY: the caller does not use the result after the scratch is released.
        unsafe { self.named_file(scratch, entry, &st, file_system, &text[..len + 1]) }
    }

    /// Describes a file of a file system, whose path is read with its NUL. The path may lead to
    /// another file by now.
    ///
    /// # Safety
    /// As [`Table::take`].
    unsafe fn named_file(
        &mut self,
        scratch: &mut Scratch,
        mut entry: Entry,
        st: &sys::Stat,
        file_system: u64,
        path_as_c: &[u8],
    ) -> Result<Entry, Refusal> {
        let fd = entry.record.fd;
        let path = &path_as_c[..path_as_c.len() - 1];
        let refuse = |what| Err(Refusal::Descriptor { fd, what, name: Text::new(path) });
        entry.record.offset = sys::lseek(fd, 0, 1).unwrap_or(0) as u64;
        entry.record.identity.born_ns = sys::born_ns(fd);
        let record = entry.record;
        if let Some(earlier) = self.same_open_file(&entry) {
            entry.record.kind = fd_kind::DUP;
            entry.record.arg = earlier as u32;
            return Ok(entry);
        }
        let still_there = sys::stat(path_as_c).is_ok_and(|p| (p.dev, p.ino) == (st.dev, st.ino));
        let renamed;
        let path = if still_there {
            path
        } else if record.file_type == sys::S_IFDIR && path.ends_with(DELETED) {
            entry.record.kind = fd_kind::GONE_DIRECTORY;
            names::without_mark(path)
        } else if file_system == MQUEUE_MAGIC {
            return refuse("a POSIX message queue");
        } else if record.file_type == sys::S_IFREG && st.nlink == 0 {
            // SAFETY: the caller does not use the result after the scratch is released.
            entry.record.arg = unsafe { self.nameless(scratch, fd, st, path)? };
            entry.record.kind = fd_kind::OBJECT;
            return Ok(entry);
        } else {
            match names::find(names::without_mark(path), &record.identity, true, ENTRIES_MAX) {
                Some(found) => {
                    renamed = found;
                    renamed.as_bytes()
                }
                None => return refuse("a file whose path no longer leads to it"),
            }
        };
        // SAFETY: the caller does not use the result after the scratch is released.
        entry.path = unsafe { scratch.keep(path)? };
        entry.record.path_len = path.len() as u32;
        if entry.record.kind == 0 {
            entry.record.kind = fd_kind::PATH;
            entry.record.alone = u32::from(is_begun(&record) && sys::is_alone(fd));
        }
        Ok(entry)
    }

    /// Describes a file that the kernel generates, by the path that it has in a restored process.
    ///
    /// # Safety
    /// As [`Table::take`].
    unsafe fn of_the_kernel(
        &mut self,
        scratch: &mut Scratch,
        mut entry: Entry,
        path: &[u8],
    ) -> Result<Entry, Refusal> {
        let record = &mut entry.record;
        record.offset = sys::lseek(record.fd, 0, 1).unwrap_or(0) as u64;
        record.size = 0; // its size has no meaning
        if let Some(earlier) = self.same_open_file(&entry) {
            entry.record.kind = fd_kind::DUP;
            entry.record.arg = earlier as u32;
            return Ok(entry);
        }
        // SAFETY: the caller does not use the result after the scratch is released.
        entry.path = unsafe { scratch.keep(path)? };
        entry.record.path_len = path.len() as u32;
        entry.record.kind = fd_kind::KERNEL;
        Ok(entry)
    }

    /// Describes a socket that is connected to another process.
    fn outer_socket(&self, mut entry: Entry, path: &[u8]) -> Result<Entry, Refusal> {
        let fd = entry.record.fd;
        if self.drop_sockets {
            entry.become_dead();
            return Ok(entry);
        }
        Err(Refusal::Descriptor { fd, what: socket_kind(fd), name: Text::new(path) })
    }

    /// Describes a descriptor that is not a file.
    ///
    /// # Safety
    /// As [`Table::take`].
    unsafe fn within(
        &mut self,
        scratch: &mut Scratch,
        mut entry: Entry,
        path: &[u8],
        info: &mut [u8],
    ) -> Result<Result<Entry, Refusal>, No> {
        if let Some(earlier) = self.same_open_file(&entry) {
            entry.record.kind = fd_kind::DUP;
            entry.record.arg = earlier as u32;
            return Ok(Ok(entry));
        }
        let record = &mut entry.record;
        // SAFETY: the caller does not use the result after the scratch is released.
        let content = unsafe {
            match (record.file_type, path) {
                (sys::S_IFIFO, _) => within::pipe(record, scratch)?,
                (sys::S_IFSOCK, _) => within::socket(record, scratch)?,
                (_, b"anon_inode:[eventfd]") => {
                    within::event_counter(record, &Info::read(record.fd, info)?);
                    Ok(&[][..])
                }
                (_, b"anon_inode:[signalfd]") => {
                    within::signals(record, &Info::read(record.fd, info)?)?;
                    Ok(&[][..])
                }
                (_, b"anon_inode:[timerfd]") => {
                    let state = within::timer(record, &Info::read(record.fd, info)?)?;
                    scratch.keep(bytes_of(&state))
                }
                (_, b"anon_inode:[eventpoll]") => {
                    let mut all = match scratch.list::<Watch>(WATCHES_MAX) {
                        Ok(list) => list,
                        Err(refusal) => return Ok(Err(refusal)),
                    };
                    let info = Info::read(record.fd, info)?;
                    let watched = within::watches(record, &info, |watch| all.push(watch))?;
                    watched.and_then(|()| scratch.keep(bytes_of_all(all.as_slice())))
                }
                (_, b"anon_inode:inotify") => {
                    let info = Info::read(record.fd, info)?;
                    within::notices(record, &info, self.watched, scratch)?
                }
                _ => return Err(No::What("a descriptor of a kind that cannot be restored")),
            }
        };
        Ok(content.map(|content| {
            entry.path = content;
            entry.record.path_len = content.len() as u32;
            entry
        }))
    }

    /// Notes the locks of a descriptor. `info` is a buffer for the kernel's answer.
    fn note_locks(&mut self, entry: &mut Entry, info: &mut [u8]) -> Result<(), Refusal> {
        let fd = entry.record.fd;
        entry.first_lock = self.locks.as_slice().len();
        locks::for_each(fd, info, |lock| {
            let lock =
                lock.map_err(|what| Refusal::Descriptor { fd, what, name: Text::new(entry.path) })?;
            self.posix_locks |= lock.kind == lock_kind::POSIX;
            entry.record.locks += 1;
            self.locks.push(lock)
        })
    }

    /// The locks of a descriptor.
    pub fn locks_of(&self, entry: &Entry) -> &[Lock] {
        &self.locks.as_slice()[entry.first_lock..][..entry.record.locks as usize]
    }

    /// The earlier descriptor that shares this one's open file, and so its offset.
    fn same_open_file(&self, entry: &Entry) -> Option<i32> {
        let r = &entry.record;
        let me = sys::gettid() as usize;
        let has_offset = matches!(r.file_type, sys::S_IFREG | sys::S_IFDIR | sys::S_IFCHR);
        let no_two = matches!(r.file_type, sys::S_IFIFO | sys::S_IFSOCK);
        let candidates = self.entries.as_slice().iter().filter(|e| {
            !matches!(e.record.kind, fd_kind::SLOT | fd_kind::DROPPED | fd_kind::DUP)
                && (e.record.identity, e.record.open_flags) == (r.identity, r.open_flags)
                && (e.record.offset == r.offset || !has_offset)
        });
        for e in candidates {
            const KCMP_FILE: usize = 0;
            // SAFETY: the arguments are numbers; the kernel accesses no memory.
            let same = unsafe {
                sys::call6(sys::nr::KCMP, me, me, KCMP_FILE, e.record.fd as usize, r.fd as usize, 0)
            };
            match same {
                Ok(0) => return Some(e.record.fd),
                Ok(_) => {}
                // A kernel without kcmp. They are the same file with the same flags, and either
                // their offset is not 0 or it is of a kind that is hardly ever opened twice.
                Err(_) if r.offset > 0 || no_two => return Some(e.record.fd),
                Err(_) => {}
            }
        }
        None
    }

    /// Notes a file that has lost its name and had this path. Returns its index.
    ///
    /// # Safety
    /// As [`Table::take`].
    unsafe fn nameless(
        &mut self,
        scratch: &mut Scratch,
        fd: i32,
        st: &sys::Stat,
        path: &[u8],
    ) -> Result<u32, Refusal> {
        let known = self.nameless.as_slice().iter().map(|n| n.object.identity);
        let same = |id: &Identity| (id.dev, id.ino) == (st.dev, st.ino);
        if let Some(i) = known.into_iter().position(|id| same(&id)) {
            return Ok(i as u32);
        }
        let index = self.nameless.as_slice().len() as u32;
        let (kind, directory): (u32, &[u8]) = if path.starts_with(b"/memfd:") {
            (object_kind::MEMORY, &[])
        } else {
            (object_kind::UNLINKED, names::directory(path))
        };
        // SAFETY: the caller guarantees that the table is not used after the scratch is released. A
        // name in the root directory has no directory in front of it.
        let directory = unsafe {
            match (kind, directory) {
                (object_kind::UNLINKED, b"") => scratch.keep(b"/")?,
                _ => scratch.keep(directory)?,
            }
        };
        let mut object = object_of(kind, (fd, st), directory.len());
        if kind == object_kind::MEMORY {
            object.seals = sys::fcntl(fd, sys::F_GET_SEALS, 0).unwrap_or(0) as u32;
        }
        self.nameless.push(Nameless { fd, object, directory })?;
        Ok(index)
    }
}

/// Magic number of the file system of POSIX message queues (statfs(2)).
const MQUEUE_MAGIC: u64 = 0x1980_0202;

const OUTER_PIPE: &str = "a pipe to another process";

fn looking(errno: i32) -> Refusal {
    Refusal::Kernel { step: "looking at a descriptor", errno }
}

/// What every descriptor has: its numbers and its flags. Its kind is not known yet.
fn record_of(fd: i32) -> Result<(Descriptor, sys::Stat), Refusal> {
    let st = sys::fstat(fd).map_err(looking)?;
    let record = Descriptor {
        fd,
        kind: 0,
        arg: 0,
        open_flags: sys::fcntl(fd, sys::F_GETFL, 0).map_err(looking)? as u32,
        fd_flags: sys::fcntl(fd, sys::F_GETFD, 0).map_err(looking)? as u32,
        file_type: st.mode & sys::S_IFMT,
        offset: 0,
        size: st.size as u64,
        identity: Identity { dev: st.dev, ino: st.ino, born_ns: 0 },
        path_len: 0,
        alone: 0,
        locks: 0,
        reserved: 0,
    };
    Ok((record, st))
}

/// The kind of a socket, in words.
fn socket_kind(fd: i32) -> &'static str {
    let option = |name: usize| -> u32 {
        let mut value = 0u32;
        let mut len = 4u32;
        // SAFETY: the kernel writes two words, local variables that outlive the call. SOL_SOCKET is
        // 1.
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
        (1, _) => UNIX,
        (2 | 10, 1) => "a TCP socket",
        (2 | 10, 2) => "a UDP socket",
        (16, _) => "a netlink socket",
        _ => "a socket",
    }
}
