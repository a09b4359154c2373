//! Prints one line on standard error and exits. Must never return to a half-made process.

use core::fmt::{Arguments, Write};
use core::sync::atomic::{AtomicI32, Ordering};
use eyrie_image_format::exit;
use eyrie_image_kernel::sys;

/// Where messages go; moved out of the way of the image's own descriptors.
pub static ERROR_FD: AtomicI32 = AtomicI32::new(2);

struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for b in text.bytes() {
            if self.len < self.bytes.len() - 1 {
                self.bytes[self.len] = if b == b'\n' { b' ' } else { b };
                self.len += 1;
            }
        }
        Ok(())
    }
}

/// Prints the reason and exits with `code`.
pub fn now(code: i32, what: Arguments) -> ! {
    print(what);
    sys::exit(code)
}

/// Prints what the user should know; the restore goes on.
pub fn note(what: Arguments) {
    print(what);
}

fn print(what: Arguments) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = line.write_str("eyrie-restorer: ");
    let _ = line.write_fmt(what);
    line.bytes[line.len] = b'\n';
    let _ = sys::write(ERROR_FD.load(Ordering::Relaxed), &line.bytes[..line.len + 1]);
}

/// The kernel refused `step`.
pub fn kernel(step: &str, errno: i32) -> ! {
    now(exit::KERNEL, format_args!("{step} failed: {}", Errno(errno)))
}

/// The stream is not a sound image.
pub fn malformed(what: &str) -> ! {
    now(exit::MALFORMED, format_args!("this is not a sound image: {what}"))
}

/// An error number in words, where there are common words for it.
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let words = match self.0 {
            1 => "operation not permitted",
            2 => "no such file or directory",
            5 => "input/output error",
            9 => "bad file descriptor",
            12 => "out of memory, or of addresses that are allowed (`ulimit -v`)",
            13 => "permission denied",
            14 => "bad address",
            20 => "not a directory",
            21 => "is a directory",
            22 => "invalid argument",
            24 => "too many open files",
            26 => "text file busy",
            28 => "no space left on device",
            30 => "read-only file system",
            n => return write!(f, "error {n}"),
        };
        f.write_str(words)
    }
}

/// Bytes of a path or name, as they are where they are text.
pub struct Bytes<'a>(pub &'a [u8]);

impl core::fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(self.0.len());
        for chunk in self.0[..end].utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("?")?;
            }
        }
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let line = info.location().map_or(0, |l| l.line());
    let file = info.location().map_or("?", |l| l.file());
    let name = file.rsplit('/').next().unwrap_or(file);
    now(
        exit::INTERNAL,
        format_args!("the restorer is at fault at {name}:{line}: please report this"),
    )
}
