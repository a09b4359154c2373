//! The process's own memory (private and anonymous). It is mapped where the image has it, and one
//! image after the other fills it while the process still computes elsewhere. So the last image has
//! to bring little. A page must never count as unchanged unless the image before has left it here.
//! Memory that an image does not mention must be unmapped.

use crate::carried::{self, Order};
use crate::fail::{self, malformed};
use crate::image::{self, Arena, Image, Input, List};
use crate::mapping::{advise_early, map_own, open_own};
use crate::place::Here;
use eyrie_image_format::stream::{Kind, RecordHeader, MAX_PAYLOAD};
use eyrie_image_format::{Mapping, PAGES_GUARD, PAGES_OF_OBJECT, PAGES_SAME};
use eyrie_image_kernel::sys::{self, PAGE};

const WINDOW: u64 = MAX_PAYLOAD as u64;
const PAGE_LEN: u64 = PAGE as u64;
/// Behind the last window of any process.
const WINDOWS_END: u64 = (1 << 47) / WINDOW;

type Range = (u64, u64);

/// The memory that is in place.
pub struct Prepared {
    /// The image whose content it has; 0: none.
    image: u64,
    /// Whether the address space was cleared.
    cleared: bool,
    /// Stretches of memory that are mapped, in ascending order.
    own: List<Range>,
    /// Those of them that were mapped for the image before as well.
    kept: List<Range>,
    /// Stretches that the last image leaves to files of this node.
    left: List<Range>,
    /// Room for the next list.
    next: List<Range>,
    cursor: Cursor,
}

/// How far an image has been read: all lower windows are complete.
#[derive(Clone, Copy, Default)]
struct Cursor {
    window: u64,
    /// Pages of that window that have content.
    pages: u64,
}

impl Prepared {
    pub fn new(arena: &mut Arena) -> Prepared {
        let mut list = || List::new(arena, image::MAPPINGS_MAX);
        let own = list();
        let kept = list();
        let left = list();
        let next = list();
        let cursor = Cursor::default();
        Prepared { image: 0, cleared: false, own, kept, left, next, cursor }
    }

    /// Reads images that others follow, until the last one comes, from which the process goes on.
    pub fn read_all(&mut self, node: &Here, input: &mut Input, arena: &mut Arena) {
        let room: &'static mut [u8] = arena.take(MAX_PAYLOAD);
        let used = arena.used();
        while let Some(number) = input.next_is_prepared() {
            let mut image = image::read_description(input, arena);
            node.check(&image);
            carried::settle(&mut image, Order::Earlier, arena);
            self.lay(&image, node);
            self.read(&image, input, room.as_ptr() as usize);
            self.image = number;
            arena.give_back_to(used);
        }
    }

    /// Maps the memory of an image. The addresses of its other mappings are free then.
    pub fn lay(&mut self, image: &Image, node: &Here) {
        if image.base != 0 && image.base != self.image {
            malformed("it builds on another image than the one that is in place");
        }
        if !core::mem::replace(&mut self.cleared, true) {
            // A policy that this node does not allow is reported at the end.
            let _ = crate::become_it::set_memory_policy(image.context);
            node.clear_out();
        }
        stretches(image, &mut self.next, |m| m.is_own());
        stretches(image, &mut self.left, |m| image.is_left_to_file(m));
        self.kept.clear();
        let kept = &mut self.kept;
        both(self.own.as_slice(), self.next.as_slice(), |range| kept.push(range));
        for (start, end) in self.own.as_slice() {
            rest((*start, *end), self.kept.as_slice(), unmap);
        }
        for m in image.mappings.iter().filter(|m| m.is_own()) {
            let kept = self.kept.as_slice();
            rest((m.start, m.end), kept, |part| map_own(m, part));
            both(kept, &[(m.start, m.end)], |part| open_own(m, part));
            advise_early(m);
        }
        core::mem::swap(&mut self.own, &mut self.next);
        self.cursor = Cursor::default();
    }

    /// Reads the pages of an image that another follows. Memory that is not the process's own comes
    /// as a whole with the last image.
    fn read(&mut self, image: &Image, input: &mut Input, room: usize) {
        loop {
            let record = input.header();
            match (record.kind, record.flags) {
                (Kind::Pages, PAGES_SAME) => self.same(&record),
                (Kind::Pages, PAGES_GUARD) if record.len == 0 => {}
                (Kind::Pages, PAGES_OF_OBJECT) if record.len > 0 => {
                    // SAFETY: a record is no longer than the room.
                    unsafe { input.content(room, record.len as usize) }
                }
                (Kind::Pages, 0) => self.read_run(image, input, &record, room),
                (Kind::Trailer, _) => {
                    input.finish(record);
                    return self.end();
                }
                _ => malformed("a record is in a place where it is not allowed"),
            }
        }
    }

    fn read_run(&mut self, image: &Image, input: &mut Input, record: &RecordHeader, room: usize) {
        self.brought(record.a, record.len);
        image.for_each_part(record.a, record.len, |m, (start, end), is_last| {
            let to = if m.is_own() { start as usize } else { room };
            // SAFETY: the process's own memory is laid; a record is no longer than the room.
            unsafe { input.pages(to, (end - start) as usize, is_last) };
        });
    }

    /// These pages come with the image.
    pub fn brought(&mut self, start: u64, len: u64) {
        let first = start / PAGE_LEN;
        let last = (start + len.max(1) - 1) / PAGE_LEN;
        let window = start / WINDOW;
        if last * PAGE_LEN / WINDOW != window {
            malformed("a run of pages is longer than its window");
        }
        let count = last - first + 1;
        self.mark(window, (u64::MAX >> (64 - count)) << (first % (WINDOW / PAGE_LEN)));
    }

    /// These pages are unchanged.
    pub fn same(&mut self, record: &RecordHeader) {
        if self.image == 0 || record.a % WINDOW != 0 || record.a >> 47 != 0 || record.len != 0 {
            malformed("it has unchanged pages, but no image came before it");
        }
        for_each_run(record.b, |first, end| {
            let range = (record.a + first * PAGE_LEN, record.a + end * PAGE_LEN);
            if !are_there([self.kept.as_slice(), self.left.as_slice()], range) {
                malformed("it has an unchanged page that the image before did not have");
            }
        });
        self.mark(record.a / WINDOW, record.b);
    }

    fn mark(&mut self, window: u64, pages: u64) {
        if window < self.cursor.window {
            malformed("its pages are not in order");
        }
        if window > self.cursor.window {
            self.empty_to(window);
        }
        self.cursor.pages |= pages;
    }

    /// All pages of the image were read.
    pub fn end(&mut self) {
        self.empty_to(WINDOWS_END);
    }

    /// Unmaps memory below a window that the image did not mention.
    fn empty_to(&mut self, window: u64) {
        let Cursor { window: last, pages } = self.cursor;
        self.cursor = Cursor { window, pages: 0 };
        if self.image == 0 {
            return; // it was never there
        }
        let start = last * WINDOW;
        for_each_run(!pages, |first, end| {
            self.empty((start + first * PAGE_LEN, start + end * PAGE_LEN));
        });
        self.empty((start + WINDOW, window * WINDOW));
    }

    fn empty(&self, within: Range) {
        both(self.kept.as_slice(), &[within], |(start, end)| {
            // SAFETY: the range is memory that this program has mapped, without a reference into
            // it.
            let done =
                unsafe { sys::madvise(start as usize, (end - start) as usize, sys::MADV_DONTNEED) };
            if let Err(errno) = done {
                fail::kernel("giving pages back", errno);
            }
        });
    }
}

fn unmap((start, end): Range) {
    // SAFETY: the range is memory that this program has mapped, without a reference into it.
    if let Err(errno) = unsafe { sys::munmap(start as usize, (end - start) as usize) } {
        fail::kernel("giving memory back", errno);
    }
}

/// Calls `each` with the stretches that are in both of two ascending lists.
fn both(one: &[Range], other: &[Range], mut each: impl FnMut(Range)) {
    let from = other.first().map_or(0, |first| first.0);
    let mut i = one.partition_point(|range| range.1 <= from);
    let mut j = 0;
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        let range = (a.0.max(b.0), a.1.min(b.1));
        if range.0 < range.1 {
            each(range);
        }
        if a.1 < b.1 {
            i += 1
        } else {
            j += 1
        }
    }
}

/// Calls `each` with the parts of a stretch that are in no stretch of a list.
fn rest((start, end): Range, list: &[Range], mut each: impl FnMut(Range)) {
    let mut at = start;
    let first = list.partition_point(|range| range.1 <= start);
    for range in list[first..].iter().take_while(|range| range.0 < end) {
        if at < range.0 {
            each((at, range.0));
        }
        at = range.1.min(end);
    }
    if at < end {
        each((at, end));
    }
}

/// Puts the stretches of these mappings into a list, joined where they touch.
fn stretches(image: &Image, list: &mut List<Range>, is_one: impl Fn(&Mapping) -> bool) {
    list.clear();
    for m in image.mappings.iter().filter(|m| is_one(m)) {
        match list.last_mut() {
            Some(last) if last.1 == m.start => last.1 = m.end,
            _ => list.push((m.start, m.end)),
        }
    }
}

/// Whether all of a stretch lies in stretches of these lists.
fn are_there(lists: [&[Range]; 2], (start, end): Range) -> bool {
    let mut at = start;
    while at < end {
        let around = lists.iter().filter_map(|list| {
            let next = list.partition_point(|range| range.1 <= at);
            list.get(next).filter(|range| range.0 <= at)
        });
        match around.map(|range| range.1).next() {
            Some(stop) => at = stop,
            None => return false,
        }
    }
    true
}

/// Calls `each` with the first page and the one behind the last of each run.
fn for_each_run(pages: u64, mut each: impl FnMut(u64, u64)) {
    let mut at = 0;
    while let Some(rest @ 1..) = pages.checked_shr(at) {
        let first = at + rest.trailing_zeros();
        at = first + (pages >> first).trailing_ones();
        each(first.into(), at.into());
    }
}
