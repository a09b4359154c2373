//! Mapped files whose content the image has. A mapping of one becomes memory of the process's own,
//! with the content of the image. Where the node certainly has the same file, a mapping without
//! pages of its own is made of that, so that its pages are shared. What is not certain must never
//! be taken from the node.

use crate::fail::malformed;
use crate::files::build_id_of;
use crate::image::{Arena, Image, ObjectEntry};
use eyrie_image_format::{map_flag, object_kind, Object, NO_OBJECT};
use eyrie_image_kernel::fingerprint;
use eyrie_image_kernel::sys;

/// Where an image is in its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Another one follows, which may call any of its pages unchanged: all become memory.
    Earlier,
    Last,
}

/// Decides of each carried mapping whether it is made of a file that is here, or has no file from
/// now on.
pub fn settle(image: &mut Image, order: Order, arena: &mut Arena) {
    let is_here = arena.take::<bool>(image.objects.len());
    if order == Order::Last {
        find(image, is_here);
    }
    let objects = image.objects;
    for m in image.mappings.iter_mut() {
        let is_of_one = objects.get(m.object as usize).is_some_and(is_carried);
        if is_of_one != (m.flags & map_flag::CARRIED != 0) {
            malformed("a mapping of a file has content that is not the file's");
        }
        if !is_of_one {
            continue;
        }
        if m.flags & map_flag::SHARED != 0 {
            malformed("the content of a mapping is its own, but the mapping is shared");
        }
        if is_here[m.object as usize] && m.flags & map_flag::CHANGED == 0 {
            m.flags &= !map_flag::HAS_PAGES;
        } else {
            (m.object, m.offset) = (NO_OBJECT, 0);
        }
        m.flags &= !(map_flag::CARRIED | map_flag::CHANGED);
    }
}

/// Finds out which carried files are on this node as they were.
fn find(image: &Image, is_here: &mut [bool]) {
    let same_boot = image.header.boot_id == fingerprint::boot_id();
    for (is_here, object) in is_here.iter_mut().zip(image.objects).filter(|(_, o)| is_carried(o)) {
        if let Some(fd) = open(object.path, &object.record, same_boot) {
            sys::close(fd);
            *is_here = true;
        }
    }
}

fn is_carried(object: &ObjectEntry) -> bool {
    object.record.kind == object_kind::CARRIED
}

/// Opens the file that has this path (with its NUL) if it certainly has the content of the image:
/// it is the very file, unchanged, or has its ELF build id and its length.
pub fn open(path: &[u8], wanted: &Object, same_boot: bool) -> Option<i32> {
    let st = sys::stat(path).ok()?;
    // Checked before it is opened: another file may be a pipe whose other end is not open.
    if st.mode & sys::S_IFMT != sys::S_IFREG || st.size as u64 != wanted.size {
        return None;
    }
    let fd = sys::open(path, sys::O_RDONLY | sys::O_CLOEXEC, 0).ok()?;
    let is_unchanged = st.mtime == [wanted.mtime_s, wanted.mtime_ns]
        && same_boot
        && sys::identity(fd).is_ok_and(|here| here.is(&wanted.identity, same_boot));
    if is_unchanged || (wanted.build_id != 0 && build_id_of(fd) == wanted.build_id) {
        return Some(fd);
    }
    sys::close(fd);
    None
}
