//! Which content of mapped files the last images have, so that an image that builds on one of them
//! need not bring it again. Only the process that has written an image knows that, so it notes it
//! in memory that it shares with the process, one list for each image. A list must never be read
//! before its image was written to its end.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::refusal::Refusal;
use eyrie_image_format::{Identity, Object, WINDOW_START};
use eyrie_image_kernel::sys::{self, nr};

/// Most parts that a list can have. Content beyond them is brought by the next image as well.
const PARTS_MAX: usize = 1 << 14;

/// Pages of a mapping that an image has as they are in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub start: u64,
    pub end: u64,
    /// Where `start` lies in the file, bytes.
    pub offset: u64,
    pub version: Version,
}

impl Part {
    /// The rest of it from this address on.
    fn from(self, start: u64) -> Part {
        Part { start, offset: self.offset + (start - self.start), ..self }
    }

    /// Whether both map the same bytes to the same addresses, where both have these.
    fn maps_as(&self, other: &Part) -> bool {
        let place = |part: &Part| part.offset.wrapping_sub(part.start);
        self.version == other.version && place(self) == place(other)
    }
}

/// A file and the state of its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    pub identity: Identity,
    /// Bytes.
    pub size: u64,
    /// Time of its last change, seconds and nanoseconds.
    pub mtime: (i64, i64),
}

impl Version {
    pub fn of(object: &Object) -> Version {
        let mtime = (object.mtime_s, object.mtime_ns);
        Version { identity: object.identity, size: object.size, mtime }
    }
}

/// Calls `each` with the parts of `part`, in order, and whether `known` has them. `known` must
/// ascend.
pub fn split<E>(
    part: Part,
    known: &[Part],
    mut each: impl FnMut(Part, bool) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = part;
    let first = known.partition_point(|k| k.end <= part.start);
    let within = known[first..].iter().take_while(|k| k.start < part.end);
    for k in within.filter(|k| k.maps_as(&part)) {
        let start = k.start.max(rest.start);
        let end = k.end.min(part.end);
        if rest.start < start {
            each(Part { end: start, ..rest }, false)?;
        }
        each(Part { end, ..rest.from(start) }, true)?;
        rest = rest.from(end);
    }
    if rest.start < rest.end {
        each(rest, false)?;
    }
    Ok(())
}

/// What one image has, in memory that its writer shares with the process.
#[repr(C)]
struct List {
    /// The number of parts plus one, once all are noted; 0 before that.
    whole: AtomicUsize,
    parts: UnsafeCell<[Part; PARTS_MAX]>,
}

/// The list of an image that is being written.
#[derive(Clone, Copy)]
pub struct Notes {
    /// Address of the list; 0: nothing is noted.
    at: usize,
    count: usize,
}

impl Notes {
    /// Nothing is noted.
    pub const NONE: Notes = Notes { at: 0, count: 0 };

    fn list(&self) -> Option<&'static List> {
        // SAFETY: `Lists::begin` has mapped a list there, filled with zeros. It unmaps it when the
        // next but one image is begun, when nothing in this process uses it any more.
        (self.at != 0).then(|| unsafe { &*(self.at as *const List) })
    }

    /// Notes what the image has. What does not fit is not noted, so the next image brings it.
    pub fn push(&mut self, part: Part) {
        let Some(list) = self.list().filter(|_| self.count < PARTS_MAX) else { return };
        // SAFETY: each image has a list of its own, which only its one writer writes, through this
        // value. Nothing reads it until `end` has stored `whole`.
        unsafe { (&mut *list.parts.get())[self.count] = part };
        self.count += 1;
    }

    /// All is noted. Must come before the image's last byte.
    pub fn end(&self) {
        if let Some(list) = self.list() {
            list.whole.store(self.count + 1, Ordering::Release);
        }
    }
}

/// The lists of the last image and of the one before it. They lie where the restorer works, at
/// fixed places: elsewhere they would displace the program's mappings, which must be where they are
/// in a restored process, too.
pub struct Lists {
    /// Of each the number of the image; 0: none.
    images: [AtomicU64; 2],
    /// Which of them are mapped, a bit each.
    mapped: AtomicUsize,
}

const LEN: usize = size_of::<List>().next_multiple_of(sys::PAGE);
const PLACES: [usize; 2] = [WINDOW_START as usize, WINDOW_START as usize + LEN];

impl Lists {
    pub const fn new() -> Lists {
        Lists { images: [AtomicU64::new(0), AtomicU64::new(0)], mapped: AtomicUsize::new(0) }
    }

    /// Makes the list of an image, in place of an older one than that of the image before.
    pub fn begin(&self, image: u64) -> Result<Notes, Refusal> {
        let failed = |errno| Refusal::Kernel { step: "noting what the image has of files", errno };
        let number = |n: usize| self.images[n].load(Ordering::Relaxed);
        let n = usize::from(number(0) > number(1));
        let mapped = self.mapped.load(Ordering::Relaxed);
        if mapped & 1 << n != 0 {
            // SAFETY: `begin` has mapped it two images ago. The writer of that image has it in its
            // own address space, and nothing here refers to it.
            let _ = unsafe { sys::munmap(PLACES[n], LEN) };
        }
        self.images[n].store(0, Ordering::Relaxed);
        self.mapped.store(mapped & !(1 << n), Ordering::Relaxed);
        let at = map(PLACES[n]).map_err(failed)?;
        self.images[n].store(image, Ordering::Relaxed);
        self.mapped.store(mapped | 1 << n, Ordering::Relaxed);
        Ok(Notes { at, count: 0 })
    }

    /// What an image has, ascending; empty if that is not known.
    pub fn of(&self, image: u64) -> &'static [Part] {
        let has = |n: &usize| image != 0 && self.images[*n].load(Ordering::Relaxed) == image;
        let at = (0..PLACES.len()).find(has).map_or(0, |n| PLACES[n]);
        let Some(list) = (Notes { at, count: 0 }).list() else { return &[] };
        let count = list.whole.load(Ordering::Acquire).saturating_sub(1).min(PARTS_MAX);
        // SAFETY: the parts were written before `whole` was stored, and are never written again.
        unsafe { &(&*list.parts.get())[..count] }
    }

    /// The memory of the lists, which no image has.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let mapped = self.mapped.load(Ordering::Relaxed);
        let at = (0..PLACES.len()).filter(move |n| mapped & 1 << n != 0).map(|n| PLACES[n] as u64);
        at.map(|at| (at, at + LEN as u64))
    }

    /// In a restored process there are none.
    pub fn forget(&self) {
        self.images.iter().for_each(|image| image.store(0, Ordering::Relaxed));
        self.mapped.store(0, Ordering::Relaxed);
    }
}

/// Maps an empty list at this address.
fn map(place: usize) -> sys::SysResult {
    let flags = sys::MAP_SHARED | sys::MAP_ANONYMOUS | sys::MAP_FIXED_NOREPLACE;
    let prot = (sys::PROT_READ | sys::PROT_WRITE) as usize;
    // SAFETY: with this flag the kernel replaces no mapping.
    let at = unsafe { sys::call6(nr::MMAP, place, LEN, prot, flags as usize, usize::MAX, 0)? };
    if at != place {
        // SAFETY: a kernel that does not know the flag has made this mapping just now.
        let _ = unsafe { sys::munmap(at, LEN) };
        return Err(sys::EINVAL);
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = sys::PAGE as u64;

    fn part(start: u64, end: u64, offset: u64, size: u64) -> Part {
        let version = Version { identity: Identity::default(), size, mtime: (1, 2) };
        Part { start: start * PAGE, end: end * PAGE, offset: offset * PAGE, version }
    }

    fn found(wanted: Part, known: &[Part]) -> Vec<(u64, u64, u64, bool)> {
        let mut all = Vec::new();
        let _ = split(wanted, known, |p, is_known| {
            all.push((p.start / PAGE, p.end / PAGE, p.offset / PAGE, is_known));
            Ok::<(), ()>(())
        });
        all
    }

    #[test]
    fn only_the_same_bytes_at_the_same_place_are_known() {
        let known = [part(10, 12, 0, 7), part(14, 20, 4, 7), part(30, 40, 0, 7)];
        let wanted = part(11, 18, 1, 7);
        assert_eq!(
            found(wanted, &known),
            [(11, 12, 1, true), (12, 14, 2, false), (14, 18, 4, true)]
        );
        assert_eq!(found(part(11, 18, 2, 7), &known), [(11, 18, 2, false)], "another offset");
        assert_eq!(found(part(11, 18, 1, 8), &known), [(11, 18, 1, false)], "another size");
        assert_eq!(found(part(0, 5, 1, 7), &known), [(0, 5, 1, false)], "nothing is there");
        assert_eq!(found(wanted, &[]), [(11, 18, 1, false)]);
    }

    #[test]
    fn a_list_is_read_when_its_image_was_written_and_two_are_kept() {
        let lists = Lists::new();
        let one = part(1, 2, 0, 7);
        for image in 1..=3 {
            let mut notes = lists.begin(image).unwrap();
            notes.push(one);
            assert_eq!(lists.of(image), [], "it is not whole yet");
            notes.end();
            assert_eq!(lists.of(image), [one]);
        }
        assert_eq!((lists.of(0), lists.of(1), lists.of(2)), (&[][..], &[][..], &[one][..]));
        assert_eq!(lists.ranges().count(), 2);
        let mut notes = lists.begin(4).unwrap();
        (0..PARTS_MAX + 1).for_each(|_| notes.push(one));
        notes.end();
        assert_eq!(lists.of(4).len(), PARTS_MAX);
        for (start, _) in lists.ranges() {
            // SAFETY: nothing uses the lists any more.
            unsafe { sys::munmap(start as usize, LEN).unwrap() };
        }
        lists.forget();
        assert_eq!(lists.ranges().count(), 0);
    }
}
