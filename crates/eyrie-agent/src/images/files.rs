//! The files that the images of a rank need. The agent holds each of them (O_PATH: no lock, no
//! offset), so that a restore finds it whatever has become of its name. It also checks whether the
//! names still lead there. It never changes a file.

use eyrie_proc::{Mapping, Maps};
use eyrie_wire::{ImageId, Rank};
use rustix::fs::{fstat, open, stat, statfs, FileType, Mode, OFlags, Stat};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many images of a rank the controller keeps.
const KEPT: usize = 2;
/// Most files that the agent holds for one image.
const HELD_MAX: usize = 4096;
/// Most files of a rank that are checked between images. Open files come first.
const WATCHED_MAX: usize = 256;
/// How soon an image is asked for again because of the same file.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How often names are checked between images.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What the kernel adds to the path of a file that has lost its name.
const DELETED: &str = " (deleted)";

/// The device and inode of a file. They stay its own while the agent holds it.
type Number = (u64, u64);

/// The files that are held already, by their own numbers and by those under which /proc/PID/maps
/// lists them.
type Known = BTreeMap<Number, (Number, Arc<OwnedFd>)>;

fn number(st: &Stat) -> Number {
    (st.st_dev, st.st_ino)
}

/// One file.
#[derive(Clone, Debug)]
struct Held {
    /// Its name when the image was taken.
    path: PathBuf,
    number: Number,
    /// The number under which /proc/PID/maps lists it, if it was found there.
    listed: Option<Number>,
    fd: Arc<OwnedFd>,
}

impl Held {
    fn is_at(&self, path: &Path) -> bool {
        leads_to(path, self.number)
    }

    /// Its present name, if it has one.
    fn name(&self) -> Option<PathBuf> {
        let name = eyrie_proc::path_of(&self.fd)?;
        self.is_at(&name).then_some(name)
    }

    /// Whether another node can find it: by its name, or by another name in the same directory.
    fn can_be_found(&self) -> bool {
        self.is_at(&self.path) || self.name().is_some_and(|n| n.parent() == self.path.parent())
    }
}

/// The files that one image needs.
#[derive(Debug, Default)]
struct Files {
    held: Vec<Held>,
    /// Whether the controller counts the image.
    counts: bool,
}

impl Files {
    /// The files that a process which stands still has open or mapped. Files in `known` are held
    /// already. Some are in the image itself: files without a name, mapped files in /dev/shm, and
    /// mapped files that have lost their names (to an upgrade of a library, say). One that is
    /// `self_contained` has all that are mapped privately.
    fn of(pid: u32, known: &Known, self_contained: bool) -> Files {
        let mut files = Files::default();
        let mut seen = BTreeSet::new();
        let proc = eyrie_proc::living(pid);
        let mapped = mapped(&proc, |m| !self_contained || !is_private(m));
        let fds = std::fs::read_dir(proc.join("fd")).into_iter().flatten().flatten();
        let links = fds.map(|entry| entry.path()).chain([proc.join("cwd")]);
        for link in links {
            let Ok(path) = std::fs::read_link(&link) else { continue };
            let shared = mapped.iter().any(|(p, _)| *p == path && p.starts_with("/dev/shm"));
            let on_disk = path.is_absolute() && !is_made_up(&link);
            let Some(st) = stat(&link).ok().filter(|_| on_disk && !shared) else { continue };
            let kind = FileType::from_raw_mode(st.st_mode);
            let kept = matches!(kind, FileType::RegularFile | FileType::Directory);
            if kept && st.st_nlink > 0 && !seen.contains(&number(&st)) {
                let path = without_mark(path);
                let number = number(&st);
                let fd = known.get(&number).map(|(_, fd)| Arc::clone(fd));
                let fd = fd.or_else(|| hold(&link, number));
                let held = fd.map(|fd| Held { path, number, listed: None, fd });
                files.add(held, &mut seen);
            }
        }
        for (path, listed) in mapped {
            if path.starts_with("/dev/shm") || seen.contains(&listed) {
                continue;
            }
            let known = known.get(&listed).filter(|(number, _)| leads_to(&path, *number)).cloned();
            let known = known.or_else(|| hold_mapped(&path, listed));
            let held = known
                .filter(|(number, _)| !seen.contains(number))
                .map(|(number, fd)| Held { path, number, listed: Some(listed), fd });
            files.add(held, &mut seen);
        }
        files
    }

    fn add(&mut self, held: Option<Held>, seen: &mut BTreeSet<Number>) {
        if let Some(held) = held.filter(|_| self.held.len() < HELD_MAX) {
            seen.insert(held.number);
            self.held.push(held);
        }
    }

    /// Why the image cannot be restored on another node, if that is so.
    fn lost(&self) -> Option<String> {
        let lost = self.held.iter().find(|h| !h.can_be_found())?;
        let path = lost.path.display();
        // One that is only mapped.
        let remedy = lost.listed.map_or("", |_| "; images with --self-contained do not need it");
        Some(match lost.name() {
            Some(name) => format!("{path}, which it needs, is {} by now{remedy}", name.display()),
            None => format!("{path}, which it needs, was replaced or removed{remedy}"),
        })
    }

    /// The first file whose name leads elsewhere by now.
    fn moved(&self) -> Option<&Path> {
        let mut watched = self.held.iter().take(WATCHED_MAX);
        watched.find(|h| !h.is_at(&h.path)).map(|h| h.path.as_path())
    }
}

/// Whether the file is the kernel's own, as in /proc: each node has one at that path.
fn is_made_up(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| eyrie_image::is_made_up(fs.f_type as u64))
}

fn leads_to(path: &Path, wanted: Number) -> bool {
    stat(path).is_ok_and(|st| number(&st) == wanted)
}

/// Holds the file that a path leads to, if it is this one.
fn hold(path: &Path, wanted: Number) -> Option<Arc<OwnedFd>> {
    let fd = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    fstat(&fd).is_ok_and(|st| number(&st) == wanted).then(|| Arc::new(fd))
}

/// Holds the file that a path leads to, if /proc/PID/maps lists it under the number `listed`. On
/// btrfs and overlayfs that is not the number of the file itself.
fn hold_mapped(path: &Path, listed: Number) -> Option<(Number, Arc<OwnedFd>)> {
    let st = stat(path).ok()?;
    let number = number(&st);
    let is_file = FileType::from_raw_mode(st.st_mode) == FileType::RegularFile;
    if number != listed && is_file {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).ok()?;
        eyrie_image::number_in_maps(fd.as_raw_fd()).ok().filter(|found| *found == listed)?;
    }
    Some((number, hold(path, number)?))
}

fn without_mark(path: PathBuf) -> PathBuf {
    match path.as_os_str().as_bytes().strip_suffix(DELETED.as_bytes()) {
        Some(bytes) => PathBuf::from(OsString::from_vec(bytes.to_vec())),
        None => path,
    }
}

fn is_private(mapping: &Mapping) -> bool {
    mapping.permissions.ends_with('p')
}

/// Bytes of the files that a process has mapped privately: as much of an image that has their
/// content is of files.
pub fn carried_bytes(pid: u32) -> u64 {
    let maps = Maps::read(eyrie_proc::living(pid));
    maps.files().filter(is_private).map(|mapping| mapping.len).sum()
}

/// The files that a process has mapped so, by their present names.
fn mapped(proc: &Path, so: impl Fn(&Mapping) -> bool) -> BTreeMap<PathBuf, Number> {
    let of = |Mapping { device: (major, minor), inode, path, .. }: Mapping<'_>| {
        (path.to_path_buf(), (rustix::fs::makedev(major, minor), inode))
    };
    Maps::read(proc).files().filter(so).map(of).collect()
}

/// The files of all images of the ranks of this node.
#[derive(Debug, Default)]
pub struct Holds {
    ranks: BTreeMap<Rank, BTreeMap<ImageId, Files>>,
    /// Images that were to be replaced by a newer one, and when that was asked for.
    asked: BTreeMap<(Rank, ImageId), Instant>,
}

impl Holds {
    /// Holds the files that an image needs. The process stands still, or has just been restored
    /// from the image.
    pub fn take(&mut self, rank: Rank, image: ImageId, pid: u32, self_contained: bool) {
        let images = self.ranks.entry(rank).or_default();
        let held = images.values().flat_map(|files| &files.held);
        let names = |h: &Held| [Some(h.number), h.listed].into_iter().flatten();
        let known: Known =
            held.flat_map(|h| names(h).map(|name| (name, (h.number, Arc::clone(&h.fd))))).collect();
        let counts = images.get(&image).is_some_and(|files| files.counts);
        images.insert(image, Files { counts, ..Files::of(pid, &known, self_contained) });
    }

    /// Whether the image, which is stored, can be restored on any node.
    ///
    /// # Errors
    /// With the first file that cannot be found, and why.
    pub fn check(&self, rank: Rank, image: ImageId) -> Result<(), String> {
        let files = self.ranks.get(&rank).and_then(|images| images.get(&image));
        files.and_then(Files::lost).map_or(Ok(()), Err)
    }

    /// The image counts. Images before its predecessor are not needed any more.
    pub fn counts(&mut self, rank: Rank, image: ImageId) {
        let Some(images) = self.ranks.get_mut(&rank) else { return };
        if let Some(files) = images.get_mut(&image) {
            files.counts = true;
        }
        let counted: Vec<ImageId> =
            images.iter().filter(|(_, f)| f.counts).map(|(image, _)| *image).collect();
        for old in counted.iter().rev().skip(KEPT) {
            images.remove(old);
        }
        self.asked.retain(|(r, i), _| *r != rank || counted.last() == Some(i));
    }

    /// The image does not count, and never will.
    pub fn drop_image(&mut self, rank: Rank, image: ImageId) {
        if let Some(images) = self.ranks.get_mut(&rank) {
            images.remove(&image);
        }
    }

    /// The files that a restore from the image must be given, because their names lead elsewhere by
    /// now.
    pub fn displaced(&self, rank: Rank, image: ImageId) -> Vec<Arc<OwnedFd>> {
        let files = self.ranks.get(&rank).and_then(|images| images.get(&image));
        let held = files.into_iter().flat_map(|files| &files.held);
        held.filter(|h| !h.is_at(&h.path)).map(|h| Arc::clone(&h.fd)).collect()
    }

    /// The first name in a rank's newest image that leads to another file by now. Each image yields
    /// one only every `ASK_AGAIN`.
    pub fn moved(&mut self, rank: Rank, now: Instant) -> Option<PathBuf> {
        let images = self.ranks.get(&rank)?;
        let (image, files) = images.iter().rev().find(|(_, files)| files.counts)?;
        let moved = files.moved()?.to_path_buf();
        let key = (rank, *image);
        if self.asked.get(&key).is_some_and(|at| now < *at + ASK_AGAIN) {
            return None;
        }
        self.asked.insert(key, now);
        Some(moved)
    }

    /// Whether there is no file to check.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// The rank has ended by itself.
    pub fn drop_rank(&mut self, rank: Rank) {
        self.ranks.remove(&rank);
        self.asked.retain(|(r, _), _| *r != rank);
    }
}

/// Raises the agent's own limit of open files; returns the limit that it had, which the ranks get.
///
/// # Errors
/// When the limit cannot be changed.
pub fn raise_limit() -> std::io::Result<libc::rlimit> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` and `raised` live through the calls, which use nothing else.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut before) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let raised = libc::rlimit { rlim_cur: before.rlim_max, ..before };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the files that this test has open or mapped in `dir`, as if it were a rank. Other
    /// tests of this process have files, too.
    fn taken(holds: &mut Holds, image: ImageId, dir: &tempfile::TempDir) {
        holds.take(Rank(0), image, std::process::id(), false);
        let files = holds.ranks.get_mut(&Rank(0)).unwrap().get_mut(&image).unwrap();
        files.held.retain(|h| h.path.starts_with(dir.path()));
    }

    #[test]
    fn an_image_counts_while_its_files_can_be_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let _log = std::fs::File::create(path("log")).unwrap();
        let mut holds = Holds::default();
        taken(&mut holds, ImageId(1), &dir);
        assert_eq!(holds.check(Rank(0), ImageId(1)), Ok(()));
        holds.counts(Rank(0), ImageId(1));
        assert_eq!(holds.moved(Rank(0), Instant::now()), None);
        // Rotated: the file can be found, but its name leads elsewhere.
        std::fs::rename(path("log"), path("log.1")).unwrap();
        std::fs::write(path("log"), b"new").unwrap();
        assert_eq!(holds.check(Rank(0), ImageId(1)), Ok(()));
        assert_eq!(holds.displaced(Rank(0), ImageId(1)).len(), 1);
        assert_eq!(holds.moved(Rank(0), Instant::now()), Some(path("log")));
        assert_eq!(holds.moved(Rank(0), Instant::now()), None, "asked for just now");
        // In another directory, then nowhere.
        std::fs::create_dir(path("sub")).unwrap();
        std::fs::rename(path("log.1"), path("sub/log")).unwrap();
        let lost = holds.check(Rank(0), ImageId(1)).unwrap_err();
        assert!(lost.contains("/log, which it needs, is ") && lost.contains("/sub/log"), "{lost}");
        std::fs::remove_file(path("sub/log")).unwrap();
        let lost = holds.check(Rank(0), ImageId(1)).unwrap_err();
        assert!(lost.ends_with("/log, which it needs, was replaced or removed"), "{lost}");
    }

    /// Maps a file as the linker maps a library, which is closed afterwards.
    fn mapped_privately(file: &std::fs::File) -> *mut std::ffi::c_void {
        use rustix::mm::{mmap, MapFlags, ProtFlags};
        // SAFETY: the kernel chooses the address, and nothing reads the mapping.
        unsafe {
            mmap(std::ptr::null_mut(), 1, ProtFlags::READ, MapFlags::PRIVATE, file, 0).unwrap()
        }
    }

    #[test]
    fn an_image_that_has_the_content_of_mapped_files_needs_only_those_that_are_open() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["library", "data"] {
            std::fs::write(dir.path().join(name), b"text").unwrap();
        }
        let mapping = mapped_privately(&std::fs::File::open(dir.path().join("library")).unwrap());
        let data = std::fs::File::open(dir.path().join("data")).unwrap();
        let of_open = mapped_privately(&data);
        let names = |self_contained| {
            let mut files = Files::of(std::process::id(), &Known::new(), self_contained);
            files.held.retain(|h| h.path.starts_with(dir.path()));
            let names = files.held.iter().map(|h| h.path.file_name().unwrap().to_owned());
            names.collect::<BTreeSet<_>>()
        };
        assert_eq!(names(false), ["data", "library"].map(OsString::from).into());
        assert_eq!(names(true), ["data"].map(OsString::from).into());
        let bytes = carried_bytes(std::process::id());
        assert!(bytes > 1 << 20, "the program and the C library are mapped: {bytes}");
        // SAFETY: both mappings were made above, and nothing refers to them.
        unsafe {
            rustix::mm::munmap(mapping, 1).unwrap();
            rustix::mm::munmap(of_open, 1).unwrap();
        }
    }

    #[test]
    fn a_mapped_file_that_lost_its_name_is_in_the_image_and_hinders_none() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("library");
        std::fs::write(&library, b"text").unwrap();
        let mapping = mapped_privately(&std::fs::File::open(&library).unwrap());
        let mut holds = Holds::default();
        taken(&mut holds, ImageId(1), &dir);
        holds.counts(Rank(0), ImageId(1));
        let held = |holds: &Holds, image| holds.ranks[&Rank(0)][&image].held.len();
        assert_eq!(held(&holds, ImageId(1)), 1);
        assert_eq!(holds.moved(Rank(0), Instant::now()), None);
        // Replaced by an equal copy: an image that only has its name must be followed by another.
        std::fs::copy(&library, dir.path().join("new")).unwrap();
        std::fs::rename(dir.path().join("new"), &library).unwrap();
        assert_eq!(holds.moved(Rank(0), Instant::now()), Some(library.clone()));
        taken(&mut holds, ImageId(2), &dir);
        assert_eq!(held(&holds, ImageId(2)), 0);
        assert_eq!(holds.check(Rank(0), ImageId(2)), Ok(()));
        // A file that is replaced during an image has neither its name nor its content there.
        std::fs::write(dir.path().join("third"), b"text").unwrap();
        let third = mapped_privately(&std::fs::File::open(dir.path().join("third")).unwrap());
        taken(&mut holds, ImageId(3), &dir);
        std::fs::remove_file(dir.path().join("third")).unwrap();
        let lost = holds.check(Rank(0), ImageId(3)).unwrap_err();
        assert!(lost.contains("was replaced or removed; images with --self-contained"), "{lost}");
        taken(&mut holds, ImageId(4), &dir);
        assert_eq!(holds.check(Rank(0), ImageId(4)), Ok(()));
        for at in [mapping, third] {
            // SAFETY: mapped above with this length, and used by nothing.
            unsafe { rustix::mm::munmap(at, 1).unwrap() };
        }
    }

    #[test]
    fn the_last_two_images_that_count_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(dir.path().join("file")).unwrap();
        let mut holds = Holds::default();
        for image in 1..=5 {
            taken(&mut holds, ImageId(image), &dir);
            if image != 4 {
                holds.counts(Rank(0), ImageId(image));
            }
        }
        assert_eq!(
            holds.ranks[&Rank(0)].keys().copied().collect::<Vec<_>>(),
            [3, 4, 5].map(ImageId)
        );
        holds.drop_image(Rank(0), ImageId(4));
        drop(file);
        std::fs::remove_file(dir.path().join("file")).unwrap();
        assert!(!holds.displaced(Rank(0), ImageId(3)).is_empty());
        holds.drop_rank(Rank(0));
        assert!(holds.is_empty());
    }
}
