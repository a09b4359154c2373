//! `/proc/self/fd/N`: another way to an open file, whatever its name is.

use eyrie_image_kernel::sys;

pub struct Link([u8; 32], usize);

impl Link {
    pub fn new(fd: i32) -> Link {
        use core::fmt::Write;
        let mut link = Link([0; 32], 0);
        let _ = write!(link, "/proc/self/fd/{fd}");
        link
    }

    /// With its NUL.
    pub fn as_c(&self) -> &[u8] {
        &self.0[..self.1 + 1]
    }

    /// Opens the file once more. The path is a link: shm_open asks for O_NOFOLLOW.
    pub fn open(&self, flags: u32) -> Result<i32, i32> {
        sys::open(self.as_c(), flags & !sys::O_NOFOLLOW, 0)
    }

    /// The path that leads to the file now, as the kernel says it.
    pub fn target<'a>(&self, room: &'a mut [u8]) -> Option<&'a [u8]> {
        let path = self.as_c().as_ptr() as usize;
        let to = room.as_mut_ptr() as usize;
        // SAFETY: the path ends in a NUL; the room is writable for its length.
        let len = unsafe { sys::call3(sys::nr::READLINK, path, to, room.len()) }.ok()?;
        room.get(..len)
    }
}

impl core::fmt::Write for Link {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for b in text.bytes() {
            if self.1 < 31 {
                self.0[self.1] = b;
                self.1 += 1;
            }
        }
        Ok(())
    }
}
