//! The first record: which image this is, and of which process on which node.

use crate::plain::Plain;
use core::fmt;

/// First bytes of a Header record.
pub const MAGIC: [u8; 8] = *b"EYRIEIMG";
/// Version of the payloads below; another one is refused. What is added without a new version is a
/// record with a name ([`crate::named`]).
pub const VERSION: u32 = 7;
/// Longest opaque `meta` in a Header record, bytes.
pub const META_MAX: usize = 4096;

/// What a program may find of a node's processor, as its kernel lets programs use it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processor {
    /// CPU vendor as cpuid says, NUL-padded.
    pub vendor: [u8; 16],
    /// Instruction set bits a program can use, from cpuid leaves 1 (ecx, edx), 7.0 (ebx, ecx, edx),
    /// 7.1 (eax) and 0x80000001 (ecx, edx), masked to what user code can see.
    pub features: [u32; 8],
    /// Register state components the kernel has enabled (XCR0).
    pub xcr0: u64,
    /// Bytes of register state in a signal frame for those.
    pub xsave_len: u64,
}
// SAFETY: `repr(C)` with arrays and integers only, 16 + 32 + 2 * 8 bytes, no padding.
unsafe impl Plain for Processor {}

/// What must be the same on the node an image was taken on and the one it is restored on. An image
/// that demands less of the processor says so in a record, see [`Demand`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    /// Kernel release as uname(2) says, NUL-padded.
    pub kernel: [u8; 64],
    pub processor: Processor,
    /// Lengths of the kernel's mappings in every process: vvar, vvar_vclock, vdso.
    pub vvar_len: u64,
    pub vvar_vclock_len: u64,
    pub vdso_len: u64,
    /// Hash of the vDSO's build id. If it is the same, its functions are where the image expects
    /// them.
    pub vdso_id: u64,
    /// Hash of the C library's build id (0: none found). For information: the library's file
    /// itself is checked like every mapped file.
    pub libc_id: u64,
}
// SAFETY: `repr(C)`: 64 bytes, then a plain type aligned to 8, then 5 * 8 bytes; no padding.
unsafe impl Plain for Fingerprint {}

/// Components of the register state that have a place of their own in a signal frame; the first two
/// (x87 and SSE) are where FXSAVE has them.
pub const COMPONENTS: usize = 20;

/// Content of the record [`crate::named::PROCESSOR`]: what the image of a process demands of its
/// node's processor, in place of all that its first node had. Its process was started so that it
/// uses no more.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// As [`Processor::features`].
    pub features: [u32; 8],
    /// Components of the register state, as in [`Processor::xcr0`].
    pub xcr0: u64,
    /// Bytes of the smallest signal stack of a thread; 0: none has one.
    pub signal_stack: u64,
    /// Where each component is in a signal frame of its node, bytes from the start of the register
    /// state; 0: its node does not have it.
    pub places: [u32; COMPONENTS],
}
// SAFETY: `repr(C)` with arrays and integers only, 32 + 2 * 8 + 80 bytes, no padding.
unsafe impl Plain for Demand {}

/// Payload of a Header record; `meta_len` opaque bytes follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub rank: u32,
    pub incarnation: u32,
    pub meta_len: u32,
    pub clock: u64,
    pub rsn: u64,
    /// Wall-clock time of the capture, nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Process id in the original.
    pub pid: u32,
    /// [`NAMES_STAY`]: files keep the names that they have at the time of the restore. And
    /// [`MAPS_FILES`]: where the process had files mapped, shared and to be written, it gets memory
    /// of its own with what was there, and maps the files again by itself.
    pub names_stay: u32,
    /// /proc/sys/kernel/random/boot_id: identifies the boot of the node.
    pub boot_id: [u8; 40],
    pub fingerprint: Fingerprint,
}
// SAFETY: `repr(C)`: 8 + 4 * 4 + 3 * 8 + 8 + 40 bytes, then a plain type aligned to 8; no padding.
unsafe impl Plain for Header {}

/// `names_stay` of a Header record.
pub const NAMES_STAY: u32 = 1;
pub const MAPS_FILES: u32 = 2;

impl Header {
    /// Checks by the first bytes of a Header record that this version of Eyrie can read what
    /// follows. Another version may have a header of another length.
    pub fn check(payload: &[u8]) -> Result<(), Unreadable> {
        let behind = payload.strip_prefix(&MAGIC).ok_or(Unreadable::NoImage)?;
        match behind.first_chunk().map(|version| u32::from_le_bytes(*version)) {
            None => Err(Unreadable::NoImage),
            Some(VERSION) => Ok(()),
            Some(version) => Err(Unreadable::Version(version)),
        }
    }
}

/// Why a stream is not read, in words for the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// It is something else.
    NoImage,
    /// It is an image of this version of the format.
    Version(u32),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Unreadable::NoImage => f.write_str("its first bytes are not those of an image"),
            Unreadable::Version(found) => write!(
                f,
                "the image has format {found}, and this version of Eyrie restores format \
                 {VERSION}: go on with the version that took it, or start the job anew"
            ),
        }
    }
}
