//! Mappings of the address space.

use crate::plain::Plain;

/// `object` of a mapping that has none.
pub const NO_OBJECT: u32 = u32::MAX;

/// Properties of a mapping.
pub mod map_flag {
    pub const SHARED: u32 = 1;
    pub const GROWS_DOWN: u32 = 1 << 1;
    pub const NO_RESERVE: u32 = 1 << 2;
    pub const DROPPABLE: u32 = 1 << 3;
    /// Pages records for it follow.
    pub const HAS_PAGES: u32 = 1 << 4;
    pub const VVAR: u32 = 1 << 5;
    pub const VVAR_VCLOCK: u32 = 1 << 6;
    pub const VDSO: u32 = 1 << 7;
    /// Huge pages from the pool; bits 24 to 31 hold the binary logarithm of their size.
    pub const HUGETLB: u32 = 1 << 8;
    /// A shared mapping whose content is all in the image: where it has no pages it is zero.
    pub const WHOLE: u32 = 1 << 9;
    /// The mapping cannot be changed (mseal).
    pub const SEALED: u32 = 1 << 10;
    /// The kernel's own mappings of every process.
    pub const SPECIAL: u32 = VVAR | VVAR_VCLOCK | VDSO;
    /// A mapping of a file whose content is all in the image, as of memory of the process's own. It
    /// becomes such memory unless the very file is on the node
    /// ([`CARRIED`](crate::object_kind::CARRIED)).
    pub const CARRIED: u32 = 1 << 11;
    /// Some pages of a carried mapping are not as they are in the file.
    pub const CHANGED: u32 = 1 << 12;
    pub const HUGETLB_SHIFT: u32 = 24;
    pub const ALL: u32 = 0x1fff | 0xff << HUGETLB_SHIFT;
}

/// Advice given for a mapping, as bits.
pub mod advice {
    pub const HUGE_PAGE: u32 = 1;
    pub const NO_HUGE_PAGE: u32 = 1 << 1;
    pub const DONT_FORK: u32 = 1 << 2;
    pub const WIPE_ON_FORK: u32 = 1 << 3;
    pub const DONT_DUMP: u32 = 1 << 4;
    pub const MERGEABLE: u32 = 1 << 5;
    pub const SEQUENTIAL: u32 = 1 << 6;
    pub const RANDOM: u32 = 1 << 7;
    pub const LOCKED: u32 = 1 << 8;
}

/// Payload of a Mapping record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Offset into the object, bytes.
    pub offset: u64,
    /// PROT_READ, PROT_WRITE, PROT_EXEC.
    pub prot: u32,
    pub flags: u32,
    pub advice: u32,
    /// Number of the object it maps, or [`NO_OBJECT`].
    pub object: u32,
    /// mbind(2): mode and nodes up to 64; the mode is [`UNKNOWN`] if the process's own applies.
    pub memory_policy: u32,
    pub reserved: u32,
    pub memory_nodes: u64,
}
// SAFETY: `repr(C)` with integers only, no padding.
unsafe impl Plain for Mapping {}

impl Mapping {
    /// Whether it is the process's own memory, private and anonymous, or can become such memory.
    /// It can be put in place on another node before the rest of an image is known.
    pub fn is_own(&self) -> bool {
        let other = map_flag::SHARED | map_flag::SPECIAL | map_flag::DROPPABLE | map_flag::HUGETLB;
        let has_content = self.object == NO_OBJECT || self.flags & map_flag::CARRIED != 0;
        has_content && self.flags & other == 0
    }
}
