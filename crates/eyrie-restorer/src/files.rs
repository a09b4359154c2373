//! Finds the file that the process had open or mapped, wherever its name is by now. Gives it its
//! old name back where the process was writing it. Must never use another file that got the name.

use crate::fail::{self, Bytes, Errno};
use crate::image::Image;
use crate::link::Link;
use eyrie_image_format::*;
use eyrie_image_kernel::fingerprint;
use eyrie_image_kernel::holes::data_runs;
use eyrie_image_kernel::names::{self, Path};
use eyrie_image_kernel::sys::{self, nr};

/// Most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 1 << 20;

/// Why a file is not found.
#[derive(Clone, Copy)]
pub enum Missing {
    /// Opening its path failed.
    Errno(i32),
    /// Its path leads to another file.
    Replaced,
}

/// Ends the restore because a file is missing.
pub fn missing(path: &[u8], why: Missing) -> ! {
    match why {
        Missing::Errno(errno) => error(path, format_args!("{}", Errno(errno))),
        Missing::Replaced => error(
            path,
            format_args!(
                "leads to another file than when the image was taken, and the old one is not found"
            ),
        ),
    }
}

/// What to do when a file that is mapped is not as it was.
pub const NOT_NEEDED: &str = "images of jobs with --self-contained do not need it";

/// Ends the restore because a mapped file is missing.
pub fn missing_mapped(path: &[u8], why: Missing) -> ! {
    match why {
        Missing::Errno(errno) => error(path, format_args!("{}; {NOT_NEEDED}", Errno(errno))),
        Missing::Replaced => error(
            path,
            format_args!(
                "leads to another file than when the image was taken, and the old one is not \
                 found; {NOT_NEEDED}"
            ),
        ),
    }
}

/// Ends the restore because something is wrong with a file.
pub fn error(path: &[u8], what: core::fmt::Arguments) -> ! {
    fail::now(exit::FILE, format_args!("{}: {what}", Bytes(path)))
}

/// The ELF build id of an open file.
pub fn build_id_of(fd: i32) -> u64 {
    let mut front = [0u8; 4096];
    let len = sys::pread(fd, &mut front, 0).unwrap_or(0);
    fingerprint::build_id(&front[..len])
}

/// Opens a file that the kernel generates. `path` ends with a NUL.
///
/// One kernel has settings (/proc/sys) that another lacks: Yama's, for one, which MPICH leaves
/// open. Then the nearest directory that is there stands for the file. To read it fails (EISDIR),
/// so the process is given no wrong content, and later images can open it anywhere.
pub fn open_of_kernel(path: &[u8], file_type: u32, flags: u32) -> Result<i32, i32> {
    let opened = sys::open(path, flags, 0);
    let is_setting = file_type == sys::S_IFREG && path.starts_with(b"/proc/sys/");
    if opened != Err(sys::ENOENT) || !is_setting {
        return opened;
    }
    let mut front = path;
    loop {
        front = names::directory(front);
        let above = Path::join(&[front]).filter(|_| !front.is_empty()).ok_or(sys::ENOENT)?;
        let opened = sys::open(above.as_c(), flags | sys::O_DIRECTORY, 0);
        if opened != Err(sys::ENOENT) {
            return opened;
        }
    }
}

/// What this node knows of the image's files.
pub struct Finder {
    held: [i32; SLOTS_MAX - HELD_FROM],
    /// The node has not been started anew since the image was taken.
    pub same_boot: bool,
}

impl Finder {
    pub fn new(image: &Image, slots: &[i32; SLOTS_MAX]) -> Finder {
        let mut held = [-1; SLOTS_MAX - HELD_FROM];
        held.copy_from_slice(&slots[HELD_FROM..]);
        Finder { held, same_boot: image.header.boot_id == fingerprint::boot_id() }
    }

    /// Opens the file `wanted` that had this path (with its NUL).
    pub fn open(&self, path: &[u8], wanted: &Identity, flags: u32) -> Result<i32, Missing> {
        let missing = match self.open_path(path, wanted, flags) {
            Ok(fd) => return Ok(fd),
            Err(missing) => missing,
        };
        let held = self.held.iter().copied().filter(|fd| *fd >= 0);
        let mut held = held.filter(|fd| self.is(*fd, wanted));
        if let Some(fd) = held.next() {
            return Link::new(fd).open(flags).map_err(Missing::Errno);
        }
        match names::find(&path[..path.len() - 1], wanted, self.same_boot, ENTRIES_MAX) {
            Some(found) => self.open_path(found.as_c(), wanted, flags),
            None => Err(missing),
        }
    }

    fn open_path(&self, path: &[u8], wanted: &Identity, flags: u32) -> Result<i32, Missing> {
        // Checked before it is opened: another file may be a pipe whose other end is not open.
        let st = sys::stat(path).map_err(Missing::Errno)?;
        if st.ino != wanted.ino {
            return Err(Missing::Replaced);
        }
        let fd = sys::open(path, flags, 0).map_err(Missing::Errno)?;
        if self.is(fd, wanted) {
            return Ok(fd);
        }
        sys::close(fd);
        Err(Missing::Replaced)
    }

    pub fn is(&self, fd: i32, wanted: &Identity) -> bool {
        sys::identity(fd).is_ok_and(|here| here.is(wanted, self.same_boot))
    }
}

/// What has become of a file's name.
pub enum Name {
    /// The name leads to the file.
    Kept,
    /// The name leads to the same file again.
    Settled,
    /// The file cannot have the name, for this error.
    Refused(i32),
    /// The file had lost all names. A copy of it has the old one now.
    Copied,
    /// The name leads to another file, which a process has open.
    Occupied,
}

/// Gives the file that is open as `fd` the name `path` (with its NUL) again. Most likely the lost
/// execution renamed or replaced it, and the process will do so once more. Another file that has
/// the name is removed, unless a process has it open. `len` is how much of the content counts if
/// the file must be copied, `None` for all.
pub fn give_back_name(path: &[u8], fd: i32, len: Option<u64>) -> Name {
    let leads_here = |path: &[u8]| {
        let there = sys::stat(path).ok();
        sys::fstat(fd).ok().zip(there).is_some_and(|(a, b)| (a.dev, a.ino) == (b.dev, b.ino))
    };
    if leads_here(path) {
        return Name::Kept;
    }
    if in_use(path) {
        return Name::Occupied;
    }
    let mut room = [0u8; PATH_LEN_MAX];
    let now = Link::new(fd).target(&mut room).unwrap_or(b"");
    let named = Path::join(&[now]).filter(|now| leads_here(now.as_c()));
    let done = match &named {
        Some(now) => rename(now.as_c(), path),
        None => copy_of(fd, path, len).and_then(|copy| give_name(copy, path)),
    };
    let (path, now) = (Bytes(path), Bytes(now));
    match (done, named) {
        (Ok(()), Some(_)) => {
            fail::note(format_args!("{path} has its name again, after it was renamed to {now}"));
            Name::Settled
        }
        (Ok(()), None) => {
            fail::note(format_args!("{path} was gone, and has its name and content again"));
            Name::Copied
        }
        (Err(errno), _) => Name::Refused(errno),
    }
}

/// Says that the file that is open as `fd` does not get its name again.
pub fn leave_name(path: &[u8], fd: i32, why: core::fmt::Arguments) {
    let mut room = [0u8; PATH_LEN_MAX];
    let now = Link::new(fd).target(&mut room).unwrap_or(b"");
    let (path, now) = (Bytes(path), Bytes(now));
    fail::note(format_args!("{path} {why}: the rank goes on with {now}, which is the same file"));
}

/// Whether a process has the file open that a path leads to; false where the kernel does not tell.
fn in_use(path: &[u8]) -> bool {
    let flags = sys::O_RDONLY | sys::O_NONBLOCK | sys::O_NOCTTY | sys::O_CLOEXEC;
    let Ok(fd) = sys::open(path, flags, 0) else { return false };
    let in_use = sys::alone(fd) == Some(false);
    sys::close(fd);
    in_use
}

fn rename(from: &[u8], to: &[u8]) -> Result<(), i32> {
    let here = sys::AT_FDCWD as usize;
    let from = from.as_ptr();
    let to = to.as_ptr();
    // SAFETY: both paths end in a NUL.
    unsafe { sys::call6(nr::RENAMEAT2, here, from as usize, here, to as usize, 0, 0).map(|_| ()) }
}

/// A new file in the directory of `path` that has no name yet.
pub fn nameless_in(directory: &[u8], mode: u32) -> Result<i32, i32> {
    let directory = Path::join(&[directory, b"/"]).ok_or(sys::EINVAL)?;
    let flags = sys::O_TMPFILE | sys::O_RDWR | sys::O_CLOEXEC;
    sys::open(directory.as_c(), flags, mode & 0o777)
}

/// A copy of an open file, without a name, in the directory of `path`.
fn copy_of(fd: i32, path: &[u8], len: Option<u64>) -> Result<i32, i32> {
    let st = sys::fstat(fd)?;
    let size = len.unwrap_or(u64::MAX).min(st.size as u64);
    let source = Link::new(fd).open(sys::O_RDONLY | sys::O_CLOEXEC)?;
    let copy = nameless_in(names::directory(path), st.mode)?;
    // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
    unsafe { sys::call3(nr::FTRUNCATE, copy as usize, size as usize, 0)? };
    let mut room = [0u8; 65536];
    let copied = data_runs(source, 0, size, |from, to| {
        let mut at = from;
        while at < to {
            let step = (to - at).min(room.len() as u64) as usize;
            let got = sys::pread(source, &mut room[..step], at)?;
            if got == 0 {
                return Err(sys::EIO);
            }
            sys::pwrite_all(copy, &room[..got], at)?;
            at += got as u64;
        }
        Ok(())
    });
    sys::close(source);
    copied.map(|()| copy)
}

/// Names a file that has none, in place of whatever had the name.
pub fn give_name(fd: i32, path: &[u8]) -> Result<(), i32> {
    let link = Link::new(fd);
    // SAFETY: both paths end in a NUL.
    unsafe {
        let _ = sys::call3(nr::UNLINK, path.as_ptr() as usize, 0, 0);
        sys::call6(
            nr::LINKAT,
            sys::AT_FDCWD as usize,
            link.as_c().as_ptr() as usize,
            sys::AT_FDCWD as usize,
            path.as_ptr() as usize,
            sys::AT_SYMLINK_FOLLOW,
            0,
        )
        .map(|_| ())
    }
}
