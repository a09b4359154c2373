//! Files as objects of the image.

use eyrie_image_format::{Identity, Object};
use eyrie_image_kernel::sys;

/// An open file as an object of the image.
pub fn object_of(kind: u32, (fd, st): (i32, &sys::Stat), path_len: usize) -> Object {
    Object {
        kind,
        mode: st.mode & 0o7777,
        size: st.size as u64,
        mtime_s: st.mtime[0],
        mtime_ns: st.mtime[1],
        identity: Identity { dev: st.dev, ino: st.ino, born_ns: sys::born_ns(fd) },
        build_id: 0,
        path_len: path_len as u32,
        seals: 0,
    }
}
