//! Objects and descriptors. They are opened before anything is decided. They must be changed (cut,
//! replaced, put in their places) only after the trailer has been read.

use crate::carried;
use crate::fail::{self, malformed, Errno, ERROR_FD};
use crate::files::{self, build_id_of, error as file_error, Finder, Missing, Name, NOT_NEEDED};
use crate::gone;
use crate::image::{DescriptorEntry, Image, Input};
use crate::link::Link;
use crate::within;
use core::sync::atomic::Ordering;
use eyrie_image_format::*;
use eyrie_image_kernel::sys::{self, nr};

/// Everything opened, by working numbers above all numbers of the image.
pub struct Table {
    /// First working number.
    base: i32,
    slots: [i32; SLOTS_MAX],
    finder: Finder,
    /// The working directory; -1 when it was removed.
    cwd: i32,
    /// Per object, -1 where nothing is open.
    objects: &'static mut [i32],
    /// Per descriptor of the image.
    descriptors: &'static mut [i32],
}

/// Room for the tables above, in our program's own memory.
struct Room<const N: usize>(core::cell::UnsafeCell<[i32; N]>);
// SAFETY: the restorer has one thread, so no access runs beside another.
unsafe impl<const N: usize> Sync for Room<N> {}
static OBJECT_ROOM: Room<32768> = Room(core::cell::UnsafeCell::new([0; 32768]));
static DESCRIPTOR_ROOM: Room<65536> = Room(core::cell::UnsafeCell::new([0; 65536]));

impl Table {
    /// Opens all the image needs. `input` and `slots` move out of the way first.
    pub fn open(image: &Image, input: &mut Input, slots: &[i32; SLOTS_MAX]) -> Table {
        // SAFETY: called once, so these are the only references.
        let (objects, descriptors) =
            unsafe { (&mut *OBJECT_ROOM.0.get(), &mut *DESCRIPTOR_ROOM.0.get()) };
        let mut table = Table {
            base: image.highest_descriptor().max(9) + 1,
            slots: [-1; SLOTS_MAX],
            finder: Finder::new(image, &[-1; SLOTS_MAX]),
            cwd: -1,
            objects: &mut objects[..image.objects.len()],
            descriptors: &mut descriptors[..image.descriptors.len()],
        };
        table.make_room(input, slots);
        table.finder = Finder::new(image, &table.slots);
        for i in 0..image.objects.len() {
            table.objects[i] = table.open_object(image, i);
        }
        table.descriptors.fill(-1);
        for i in 0..image.descriptors.len() {
            // One end of a socket pair comes with the other.
            if table.descriptors[i] == -1 {
                table.descriptors[i] = table.open_descriptor(image, i);
            }
        }
        if image.context.cwd_gone == 0 {
            let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_CLOEXEC;
            table.cwd = table
                .raise(Ok(table.directory(image.cwd, &image.context.cwd, flags)))
                .unwrap_or_else(|e| fail::kernel("making a descriptor", e));
        }
        table
    }

    /// Moves the descriptors that we were given above the image's numbers and closes all below.
    fn make_room(&mut self, input: &mut Input, slots: &[i32; SLOTS_MAX]) {
        const RLIMIT_NOFILE: usize = 7;
        let mut limit = [0u64; 2];
        // New shared files get the mode they had; the image's own mask is set at the end.
        // SAFETY: the call takes a number only, so the kernel touches no memory of ours.
        let _ = unsafe { sys::call3(nr::UMASK, 0, 0, 0) };
        // SAFETY: the kernel reads or writes one struct rlimit64, which is two words and ours.
        unsafe {
            let asked = limit.as_mut_ptr() as usize;
            let _ = sys::call6(nr::PRLIMIT64, 0, RLIMIT_NOFILE, 0, asked, 0, 0);
            let wanted = [limit[1]; 2];
            let _ = sys::call6(nr::PRLIMIT64, 0, RLIMIT_NOFILE, wanted.as_ptr() as usize, 0, 0, 0);
        }
        let up =
            |fd: i32| sys::fcntl(fd, sys::F_DUPFD_CLOEXEC, self.base as usize).map(|fd| fd as i32);
        let no_room = |errno| -> ! { fail::kernel("finding room for descriptors", errno) };
        input.moved_to(up(input.fd()).unwrap_or_else(|e| no_room(e)));
        if let Ok(fd) = up(2) {
            ERROR_FD.store(fd, Ordering::Relaxed);
        }
        for (i, &fd) in slots.iter().enumerate().filter(|(_, fd)| **fd >= 0) {
            self.slots[i] = match up(fd) {
                Ok(fd) => fd,
                Err(sys::EBADF) => fail::now(
                    exit::USAGE,
                    format_args!("descriptor {fd}, given as slot {i}, is not open"),
                ),
                Err(errno) => no_room(errno),
            };
        }
        // SAFETY: the call takes numbers only, and the descriptors that it closes are not used
        // after this.
        let _ = unsafe { sys::call3(nr::CLOSE_RANGE, 0, self.base as usize - 1, 0) };
    }

    /// Moves a freshly opened descriptor above the image's numbers.
    fn raise(&self, opened: Result<i32, i32>) -> Result<i32, i32> {
        let fd = opened?;
        if fd >= self.base {
            return Ok(fd);
        }
        let raised = sys::fcntl(fd, sys::F_DUPFD_CLOEXEC, self.base as usize);
        sys::close(fd);
        raised.map(|fd| fd as i32)
    }

    fn open_object(&self, image: &Image, index: usize) -> i32 {
        let object = &image.objects[index];
        let r = &object.record;
        let path = object.path;
        let found = match r.kind {
            object_kind::FILE | object_kind::READ_FILE => self.find_mapped(path, r),
            object_kind::SHARED_FILE => {
                self.finder.open(path, &r.identity, sys::O_RDWR | sys::O_CLOEXEC)
            }
            object_kind::CARRIED if image.mappings.iter().all(|m| m.object != index as u32) => {
                return -1;
            }
            object_kind::CARRIED => {
                carried::open(path, r, self.finder.same_boot).ok_or(Missing::Replaced)
            }
            object_kind::SHM_FILE => return self.new_shared_file(path, r),
            object_kind::UNLINKED => return self.new_unlinked_file(path, r),
            _ => return self.new_memory(r),
        };
        let is_needed = r.kind == object_kind::FILE;
        let missing = if is_needed { files::missing_mapped } else { files::missing };
        self.raise(found.map_err(|why| missing(path, why)))
            .unwrap_or_else(|e| file_error(path, format_args!("{}", Errno(e))))
    }

    /// A file mapped for its content: that very file, or one that is proven to be the same.
    fn find_mapped(&self, path: &[u8], r: &Object) -> Result<i32, Missing> {
        let flags = sys::O_RDONLY | sys::O_CLOEXEC;
        if let Ok(fd) = sys::open(path, flags, 0) {
            let same = self.finder.is(fd, &r.identity) || !self.finder.same_boot;
            if same || (r.build_id != 0 && build_id_of(fd) == r.build_id) {
                self.check_same(path, fd, r);
                return Ok(fd);
            }
            sys::close(fd);
        }
        let found = self.finder.open(path, &r.identity, flags);
        if let Ok(fd) = found {
            self.check_same(path, fd, r);
        }
        found
    }

    /// Refuses a mapped file that has changed: size, and time of change or build id, must be the
    /// same. One that the process may have changed by write(2) need not, but must not be shorter.
    fn check_same(&self, path: &[u8], fd: i32, r: &Object) {
        let st = sys::fstat(fd).unwrap_or_else(|e| file_error(path, format_args!("{}", Errno(e))));
        let may_differ = r.kind == object_kind::READ_FILE && self.finder.is(fd, &r.identity);
        if may_differ && st.size as u64 >= r.size {
            return;
        }
        if st.size as u64 != r.size {
            let now = st.size;
            let then = r.size;
            file_error(
                path,
                format_args!(
                    "a mapped file has changed: {now} bytes, {then} in the image; {NOT_NEEDED}"
                ),
            );
        }
        if st.mtime == [r.mtime_s, r.mtime_ns] {
            return;
        }
        if r.build_id == 0 || build_id_of(fd) != r.build_id {
            file_error(
                path,
                format_args!("a mapped file has changed since the image was taken; {NOT_NEEDED}"),
            );
        }
    }

    /// A file in the same directory that has no name yet.
    fn new_shared_file(&self, path: &'static [u8], r: &Object) -> i32 {
        let made = files::nameless_in(eyrie_image_kernel::names::directory(path), r.mode);
        let fd = self.raise(made).unwrap_or_else(|e| {
            file_error(path, format_args!("cannot make it anew: {}", Errno(e)))
        });
        self.resize(path, fd, r.size);
        fd
    }

    /// A file without a name in its old directory, or in memory where there can be none.
    fn new_unlinked_file(&self, directory: &'static [u8], r: &Object) -> i32 {
        match self.raise(files::nameless_in(&directory[..directory.len() - 1], r.mode)) {
            Ok(fd) => {
                self.resize(directory, fd, r.size);
                fd
            }
            Err(_) => self.new_memory(r),
        }
    }

    fn new_memory(&self, r: &Object) -> i32 {
        const MFD_CLOEXEC: usize = 1;
        const MFD_ALLOW_SEALING: usize = 2;
        let flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
        let name = b"eyrie\0";
        // SAFETY: the name ends in a NUL.
        let made = unsafe { sys::call3(nr::MEMFD_CREATE, name.as_ptr() as usize, flags, 0) };
        let fd = self
            .raise(made.map(|fd| fd as i32))
            .unwrap_or_else(|e| fail::kernel("making a memory file", e));
        self.resize(b"memory file", fd, r.size);
        fd
    }

    fn resize(&self, path: &[u8], fd: i32, size: u64) {
        // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
        if let Err(e) = unsafe { sys::call3(nr::FTRUNCATE, fd as usize, size as usize, 0) } {
            file_error(path, format_args!("cannot be set to {size} bytes: {}", Errno(e)));
        }
    }

    fn open_descriptor(&mut self, image: &Image, index: usize) -> i32 {
        let entry = &image.descriptors[index];
        let r = &entry.record;
        let fail_at = |e| -> ! { fail::kernel("making a descriptor", e) };
        let flags = reopen_flags(r.open_flags);
        match r.kind {
            fd_kind::SLOT => match self.slots[r.arg as usize] {
                -1 => self
                    .raise(sys::open(b"/dev/null\0", sys::O_RDWR | sys::O_CLOEXEC, 0))
                    .unwrap_or_else(|e| fail_at(e)),
                fd => fd,
            },
            fd_kind::DROPPED => {
                self.raise(dead_socket(r.open_flags)).unwrap_or_else(|e| fail_at(e))
            }
            fd_kind::EVENT => {
                const EFD_NONBLOCK: u32 = sys::O_NONBLOCK;
                let event_flags = r.arg & 1 | r.open_flags & EFD_NONBLOCK;
                // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
                let made = unsafe { sys::call3(nr::EVENTFD2, 0, event_flags as usize, 0) };
                let fd = self.raise(made.map(|fd| fd as i32)).unwrap_or_else(|e| fail_at(e));
                if r.offset > 0 {
                    let _ = sys::write(fd, &r.offset.to_le_bytes());
                }
                fd
            }
            fd_kind::PIPE => self.open_pipe(image, index),
            fd_kind::SOCKET => self.open_socket(image, index),
            fd_kind::EPOLL | fd_kind::TIMER | fd_kind::SIGNALS | fd_kind::INOTIFY => {
                self.raise(within::waiter(entry)).unwrap_or_else(|e| fail_at(e))
            }
            fd_kind::PATH => {
                let found = match r.file_type {
                    sys::S_IFREG => self.finder.open(entry.path, &r.identity, flags),
                    sys::S_IFDIR => Ok(self.directory(entry.path, &r.identity, flags)),
                    _ => sys::open(entry.path, flags, 0).map_err(Missing::Errno),
                };
                let fd = self
                    .raise(found.map_err(|why| files::missing(entry.path, why)))
                    .unwrap_or_else(|e| fail_at(e));
                self.check_descriptor(entry.path, fd, r, image.header.names_stay != 0);
                fd
            }
            fd_kind::KERNEL => self
                .raise(files::open_of_kernel(entry.path, r.file_type, flags))
                .unwrap_or_else(|e| files::missing(entry.path, Missing::Errno(e))),
            fd_kind::OBJECT => self
                .raise(Link::new(self.objects[r.arg as usize]).open(flags))
                .unwrap_or_else(|e| fail_at(e)),
            _ => -1, // DUP: put in place after the one it shares; GONE_DIRECTORY: made by `commit`
        }
    }

    /// Makes a pipe with what is in it when its first end comes; the other end comes with it.
    fn open_pipe(&mut self, image: &Image, index: usize) -> i32 {
        let fail_at = |e| -> ! { fail::kernel("making a pipe", e) };
        let r = &image.descriptors[index].record;
        let same =
            |d: &DescriptorEntry| d.record.kind == fd_kind::PIPE && d.record.identity == r.identity;
        if let Some(first) = image.descriptors[..index].iter().position(same) {
            let opened = within::another_end(self.descriptors[first], r);
            return self.raise(opened).unwrap_or_else(|e| fail_at(e));
        }
        let ends = image.descriptors.iter().filter(|d| same(d));
        let content = ends.map(|d| d.content).find(|content| !content.is_empty());
        let [here, there] =
            within::pipe(r, content.unwrap_or_default()).unwrap_or_else(|e| fail_at(e));
        let is_other = |d: &DescriptorEntry| same(d) && within::is_other_end(&d.record, r);
        match image.descriptors.iter().position(is_other) {
            Some(other) => {
                let there = within::as_it_was(there, &image.descriptors[other].record);
                self.descriptors[other] = self.raise(there).unwrap_or_else(|e| fail_at(e));
            }
            None => sys::close(there),
        }
        self.raise(within::as_it_was(here, r)).unwrap_or_else(|e| fail_at(e))
    }

    /// Makes a socket pair with what waits in it when its first end comes.
    fn open_socket(&mut self, image: &Image, index: usize) -> i32 {
        let fail_at = |e| -> ! { fail::kernel("making a socket pair", e) };
        let entry = &image.descriptors[index];
        let is_other = |d: &DescriptorEntry| {
            d.record.kind == fd_kind::SOCKET && d.record.identity.ino == entry.record.offset
        };
        let other = image.descriptors.iter().position(is_other);
        let Some(other) = other.filter(|other| *other > index) else {
            malformed("a socket pair has one end only")
        };
        let [here, there] =
            within::socket_pair(entry, &image.descriptors[other]).unwrap_or_else(|e| fail_at(e));
        self.descriptors[other] = self.raise(Ok(there)).unwrap_or_else(|e| fail_at(e));
        self.raise(Ok(here)).unwrap_or_else(|e| fail_at(e))
    }

    /// Opens a directory: that very one, or on another node the one of the same path.
    fn directory(&self, path: &[u8], wanted: &Identity, flags: u32) -> i32 {
        let found = match self.finder.open(path, wanted, flags) {
            Err(_) if !self.finder.same_boot => sys::open(path, flags, 0).map_err(Missing::Errno),
            found => found,
        };
        found.unwrap_or_else(|why| files::missing(path, why))
    }

    /// `changed`: the process may have emptied the file after the image, and does not repeat that.
    fn check_descriptor(&self, path: &[u8], fd: i32, r: &Descriptor, changed: bool) {
        let st = sys::fstat(fd).unwrap_or_else(|e| file_error(path, format_args!("{}", Errno(e))));
        if st.mode & sys::S_IFMT != r.file_type {
            file_error(path, format_args!("is a file of another kind than in the image"));
        }
        if !changed && owns_tail(r) && (st.size as u64) < r.size {
            let now = st.size;
            let then = r.size;
            file_error(
                path,
                format_args!("has lost content: {now} bytes, {then} when the image was taken"),
            );
        }
    }

    /// The descriptor of an object.
    pub fn object(&self, index: u32) -> i32 {
        self.objects[index as usize]
    }

    /// Gives files their names and removed directories their places, and sets the working
    /// directory. Nothing here removes content.
    pub fn settle_names(&mut self, image: &Image) {
        self.change_directory(image);
        self.name_shared_files(image);
        self.give_back_names(image);
        for (i, entry) in image.descriptors.iter().enumerate() {
            let r = &entry.record;
            if r.kind == fd_kind::GONE_DIRECTORY {
                let path = &entry.path[..entry.path.len() - 1];
                self.descriptors[i] = self
                    .raise(Ok(gone::open(path, reopen_flags(r.open_flags))))
                    .unwrap_or_else(|e| fail::kernel("making a descriptor", e));
            }
        }
        for (i, object) in image.objects.iter().enumerate() {
            let r = &object.record;
            let fd = self.objects[i];
            let is_mapped = image.header.names_stay & MAPS_FILES == 0;
            if r.kind == object_kind::SHARED_FILE && is_mapped {
                let now = sys::fstat(fd).map_or(0, |st| st.size as u64);
                if now < r.size {
                    self.resize(object.path, fd, r.size);
                }
            }
            if r.kind == object_kind::MEMORY && r.seals != 0 {
                if let Err(e) = sys::fcntl(fd, sys::F_ADD_SEALS, r.seals as usize) {
                    fail::kernel("sealing a memory file", e);
                }
            }
        }
    }

    /// Cuts the files that the process was appending to, and sets offsets.
    pub fn cut_and_seek(&self, image: &Image) {
        for entry in image.descriptors {
            let fd = entry.record.fd;
            let r = &entry.record;
            if !matches!(r.kind, fd_kind::PATH | fd_kind::OBJECT | fd_kind::KERNEL) {
                continue;
            }
            // Where names stay, what was written since stays, too, until it is known whether the
            // rank writes it again.
            let cuts = image.header.names_stay == 0;
            if cuts && r.kind == fd_kind::PATH && (owns_tail(r) || r.alone == 1) {
                let now = sys::fstat(fd).map_or(0, |st| st.size as u64);
                if now > r.size && (owns_tail(r) || comes_to_be_alone(fd)) {
                    self.resize(entry.path, fd, r.size);
                }
            }
            // Also to offset 0: the search for content may have moved this descriptor. Files that
            // the kernel generates are at their start, and some cannot seek.
            let seeks = r.file_type == sys::S_IFREG && r.kind != fd_kind::KERNEL || r.offset > 0;
            if seeks && r.open_flags & sys::O_PATH == 0 {
                if let Err(e) = sys::lseek(fd, r.offset as i64, 0) {
                    file_error(entry.path, format_args!("cannot seek in it: {}", Errno(e)));
                }
            }
        }
    }

    /// Sets the working directory. The `..` of a directory that was removed leads where it did.
    fn change_directory(&self, image: &Image) {
        let path = &image.cwd[..image.cwd.len() - 1];
        let fd = match self.cwd {
            -1 => gone::open(path, sys::O_PATH | sys::O_CLOEXEC),
            fd => fd,
        };
        // SAFETY: the call takes a descriptor only, so the kernel touches no memory of ours.
        if let Err(e) = unsafe { sys::call3(nr::FCHDIR, fd as usize, 0, 0) } {
            file_error(path, format_args!("the working directory: {}", Errno(e)));
        }
        sys::close(fd);
    }

    /// Gives files that the process was writing their old names again.
    fn give_back_names(&mut self, image: &Image) {
        if image.header.names_stay != 0 {
            return;
        }
        for (i, object) in image.objects.iter().enumerate() {
            if object.record.kind == object_kind::SHARED_FILE {
                // A copy would not be the mapped file. So a mapped file without a name stays
                // without one.
                let st = sys::fstat(self.objects[i]);
                if st.is_ok_and(|st| st.nlink > 0) {
                    let _ = files::give_back_name(object.path, self.objects[i], None);
                }
            }
        }
        // The file that has a name now may belong to the same process, and frees the name when it
        // gets its own one back: a log that was rotated twice.
        let mut turns = 0..image.descriptors.len();
        while turns.next().is_some() && self.give_back_names_of_descriptors(image, false) {}
        self.give_back_names_of_descriptors(image, true);
    }

    /// Returns whether a name was given back. `last`: reports names that cannot be given back.
    fn give_back_names_of_descriptors(&mut self, image: &Image, last: bool) -> bool {
        let mut given = false;
        for (i, entry) in image.descriptors.iter().enumerate() {
            let r = &entry.record;
            let mapped = image.objects.iter().any(|o| {
                o.record.kind == object_kind::SHARED_FILE && o.record.identity == r.identity
            });
            if r.kind != fd_kind::PATH || !owns_name(r) || mapped {
                continue;
            }
            let len = owns_tail(r).then_some(r.size);
            match files::give_back_name(entry.path, self.descriptors[i], len) {
                Name::Kept => {}
                Name::Settled => given = true,
                Name::Occupied if last => files::leave_name(
                    entry.path,
                    self.descriptors[i],
                    format_args!("leads to another file by now, which other processes have open"),
                ),
                Name::Refused(e) if last => files::leave_name(
                    entry.path,
                    self.descriptors[i],
                    format_args!("cannot get its name again ({})", Errno(e)),
                ),
                Name::Occupied | Name::Refused(_) => {}
                Name::Copied => {
                    given = true;
                    self.open_copy(image, &r.identity, entry.path);
                }
            }
        }
        given
    }

    /// Opens the copy of a file by its name, for all descriptors that the file had.
    fn open_copy(&mut self, image: &Image, identity: &Identity, path: &[u8]) {
        for (i, entry) in image.descriptors.iter().enumerate() {
            let r = &entry.record;
            if r.kind == fd_kind::PATH && r.identity == *identity {
                sys::close(self.descriptors[i]);
                self.descriptors[i] = self
                    .raise(sys::open(path, reopen_flags(r.open_flags), 0))
                    .unwrap_or_else(|e| file_error(path, format_args!("{}", Errno(e))));
            }
        }
    }

    /// Gives new shared files their names and opens them again by these: a later image of the
    /// process finds a file by the name it was opened with.
    fn name_shared_files(&mut self, image: &Image) {
        let shared = |index: usize| image.objects[index].record.kind == object_kind::SHM_FILE;
        let open = |table: &Table, path: &'static [u8], flags: u32| {
            table
                .raise(sys::open(path, flags | sys::O_CLOEXEC, 0))
                .unwrap_or_else(|e| file_error(path, format_args!("{}", Errno(e))))
        };
        for i in (0..image.objects.len()).filter(|i| shared(*i)) {
            let path = image.objects[i].path;
            files::give_name(self.objects[i], path).unwrap_or_else(|e| {
                file_error(path, format_args!("cannot make it anew: {}", Errno(e)))
            });
            self.objects[i] = open(self, path, sys::O_RDWR);
        }
        for (i, entry) in image.descriptors.iter().enumerate() {
            let index = entry.record.arg as usize;
            if entry.record.kind == fd_kind::OBJECT && shared(index) {
                let flags = reopen_flags(entry.record.open_flags);
                self.descriptors[i] = open(self, image.objects[index].path, flags);
            }
        }
    }

    /// Puts every descriptor at its number. A file with locks must have no other descriptor open:
    /// its object is that descriptor from here on.
    pub fn put_in_place(&mut self, image: &Image) {
        for (i, entry) in image.descriptors.iter().enumerate() {
            let r = &entry.record;
            let from = if r.kind == fd_kind::DUP { r.arg as i32 } else { self.descriptors[i] };
            let cloexec = if r.fd_flags & 1 != 0 { sys::O_CLOEXEC } else { 0 };
            // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
            let put =
                unsafe { sys::call3(nr::DUP3, from as usize, r.fd as usize, cloexec as usize) };
            if let Err(errno) = put {
                fail::kernel("putting a descriptor in its place", errno);
            }
            if r.kind == fd_kind::SLOT && r.arg >= 3 {
                let wanted = r.open_flags & sys::O_NONBLOCK;
                let _ = sys::fcntl(r.fd, sys::F_SETFL, wanted as usize);
            }
        }
        for (i, entry) in image.descriptors.iter().enumerate() {
            // Several may have come from one slot.
            if entry.record.kind != fd_kind::SLOT && self.descriptors[i] >= self.base {
                sys::close(self.descriptors[i]);
            }
        }
        for entry in image.descriptors.iter().filter(|e| e.record.locks > 0) {
            for (i, object) in image.objects.iter().enumerate() {
                if object.record.identity == entry.record.identity && self.objects[i] >= self.base {
                    sys::close(self.objects[i]);
                    self.objects[i] = entry.record.fd;
                }
            }
        }
    }

    /// Closes all working descriptors; no message can be printed afterwards.
    pub fn close_working(&self) {
        // SAFETY: the call takes numbers only, and the descriptors that it closes are not used
        // after this.
        let _ = unsafe { sys::call3(nr::CLOSE_RANGE, self.base as usize, u32::MAX as usize, 0) };
    }
}

/// Whether no other process has the file open, or will soon have it open: the rank's last
/// incarnation, or its child that was writing an image, may be about to end.
fn comes_to_be_alone(fd: i32) -> bool {
    const PATIENCE_MS: usize = 250;
    (0..PATIENCE_MS).any(|_| {
        let alone = sys::is_alone(fd);
        if !alone {
            // SAFETY: poll(2) without descriptors touches no memory; it waits for a millisecond.
            let _ = unsafe { sys::call3(nr::POLL, 0, 0, 1) };
        }
        alone
    })
}

/// How to open a file again that has these flags. What F_GETFL reports never holds O_CREAT, O_EXCL
/// or O_TRUNC in a sound image, but it holds that a file was made without a name (O_TMPFILE).
fn reopen_flags(open_flags: u32) -> u32 {
    const MAKES_OR_CUTS: u32 = 0o100 | 0o200 | 0o1000;
    let made_nameless =
        if open_flags & sys::O_TMPFILE == sys::O_TMPFILE { sys::O_TMPFILE } else { 0 };
    open_flags & !MAKES_OR_CUTS & !made_nameless | sys::O_CLOEXEC
}

/// A socket whose other end is gone.
fn dead_socket(open_flags: u32) -> Result<i32, i32> {
    const AF_UNIX: usize = 1;
    const SOCK_STREAM: usize = 1;
    let mut pair = [-1i32; 2];
    let kind = SOCK_STREAM | (open_flags & sys::O_NONBLOCK) as usize | sys::O_CLOEXEC as usize;
    // SAFETY: the kernel writes two descriptors, for which the array has room.
    unsafe {
        sys::call6(nr::SOCKETPAIR, AF_UNIX, kind, 0, pair.as_mut_ptr() as usize, 0, 0)?;
    }
    sys::close(pair[1]);
    Ok(pair[0])
}
