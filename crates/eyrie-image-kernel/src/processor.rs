//! Processors: which instructions and registers programs find, where the kernel saves registers in
//! signal frames, and the levels to which programs can be held so that their images are restored on
//! poorer processors. Must not allocate or call a C library.

use core::arch::x86_64::{__cpuid_count, _xgetbv};
use core::fmt;
use eyrie_image_format::{Processor, COMPONENTS};

/// Instructions that user code can see in cpuid and use, named as in /proc/cpuinfo, each after the
/// number of its bit. The other features (power management, virtualization, what only kernels use)
/// may differ between nodes. In the order of [`Processor::features`].
const FEATURES: [&str; 8] = [
    // 1.ecx
    "0 sse3 1 pclmulqdq 9 ssse3 12 fma 13 cx16 19 sse4_1 20 sse4_2 22 movbe 23 popcnt \
     25 aes 26 xsave 27 osxsave 28 avx 29 f16c 30 rdrand",
    // 1.edx
    "0 fpu 4 tsc 8 cx8 15 cmov 19 clflush 23 mmx 24 fxsr 25 sse 26 sse2",
    // 7.ebx
    "0 fsgsbase 3 bmi1 5 avx2 8 bmi2 9 erms 11 rtm 16 avx512f 17 avx512dq 18 rdseed \
     19 adx 21 avx512ifma 23 clflushopt 24 clwb 26 avx512pf 27 avx512er 28 avx512cd \
     29 sha_ni 30 avx512bw 31 avx512vl",
    // 7.ecx
    "1 avx512vbmi 5 waitpkg 6 avx512_vbmi2 8 gfni 9 vaes 10 vpclmulqdq 11 avx512_vnni \
     12 avx512_bitalg 14 avx512_vpopcntdq 22 rdpid 25 cldemote 27 movdiri 28 movdir64b",
    // 7.edx
    "2 avx512_4vnniw 3 avx512_4fmaps 4 fsrm 8 avx512_vp2intersect 14 serialize \
     22 amx_bf16 23 avx512_fp16 24 amx_tile 25 amx_int8",
    // 7.1.eax
    "0 sha512 1 sm3 2 sm4 3 rao_int 4 avx_vnni 5 avx512_bf16 7 cmpccxadd 21 amx_fp16 \
     23 avx_ifma",
    // x1.ecx
    "0 lahf_lm 5 abm 6 sse4a 8 3dnowprefetch 11 xop 16 fma4 21 tbm",
    // x1.edx
    "27 rdtscp",
];

/// The bits that [`FEATURES`] names.
pub(crate) const MASKS: [u32; 8] = {
    let mut masks = [0; 8];
    let mut leaf = 0;
    while leaf < 8 {
        masks[leaf] = mask(FEATURES[leaf].as_bytes());
        leaf += 1;
    }
    masks
};

/// The bits whose numbers are words of the text.
const fn mask(text: &[u8]) -> u32 {
    let mut mask = 0;
    let mut i = 0;
    while i < text.len() {
        let mut number = 0;
        let mut digits = true;
        let first = i;
        while i < text.len() && text[i] != b' ' {
            digits &= text[i].is_ascii_digit();
            number = if digits { 10 * number + (text[i] - b'0') as u32 } else { 0 };
            i += 1;
        }
        if digits && i > first {
            mask |= 1 << number;
        }
        i += 1;
    }
    mask
}

/// Instructions by name, from bits of one of [`Processor::features`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instructions {
    pub leaf: usize,
    pub bits: u32,
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut words = FEATURES[self.leaf].split_ascii_whitespace();
        let mut separator = "";
        while let (Some(number), Some(name)) = (words.next(), words.next()) {
            if number.parse().is_ok_and(|n: u32| self.bits & (1 << n) != 0) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// Components of the register state by the names of their instructions, as in
/// [`Processor::xcr0`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Components(pub u64);

/// Names of components, by their bits.
const NAMES: [(u64, &str); 6] = [
    (0x3, "SSE"),
    (AVX, "AVX"),
    (0x18, "MPX"),
    (AVX512, "AVX-512"),
    (PKRU, "protection keys"),
    (AMX, "AMX"),
];

const AVX: u64 = 1 << 2;
const AVX512: u64 = 0xe0;
const AMX: u64 = 3 << 17;
/// The rights of protection keys. Images of processes that have such keys are refused, so its
/// content is never missed.
pub const PKRU: u64 = 1 << 9;
/// The component that a process gets only if it asks for it (ARCH_REQ_XCOMP_PERM).
pub const ASKED_FOR: usize = 18;
/// Register state of FXSAVE and the header of XSAVE: where the other components begin, bytes.
pub const LEGACY_LEN: u32 = 576;

impl fmt::Display for Components {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut separator = "";
        for (_, name) in NAMES.iter().filter(|(bits, _)| self.0 & bits != 0) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        let known = NAMES.iter().fold(0, |all, (bits, _)| all | bits);
        match self.0 & !known {
            0 => Ok(()),
            others => write!(f, "{separator}components {others:#x}"),
        }
    }
}

/// Where a processor saves the components of the register state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of register state in a signal frame of a process that has asked for nothing more.
    pub len: u64,
    /// Bytes from its start; 0: the processor does not have the component.
    pub places: [u32; COMPONENTS],
}

impl Layout {
    /// That of a processor without any.
    pub const EMPTY: Layout = Layout { len: LEGACY_LEN as u64, places: [0; COMPONENTS] };

    /// That of this node, as far as its kernel has it enabled.
    pub fn of_this_node() -> Layout {
        let mut layout = Layout::EMPTY;
        let processor = of_this_node();
        if processor.xcr0 == 0 || __cpuid_count(0, 0).eax < 0xd {
            return layout;
        }
        for part in (2..COMPONENTS).filter(|part| processor.xcr0 & 1 << part != 0) {
            layout.places[part] = __cpuid_count(0xd, part as u32).ebx;
        }
        layout.len = frame_len(processor.xcr0, &layout.places);
        layout
    }
}

/// Bytes of register state in a signal frame with these components.
pub fn frame_len(xcr0: u64, places: &[u32; COMPONENTS]) -> u64 {
    let end = |part: usize| {
        let has = part != ASKED_FOR && xcr0 & 1 << part != 0 && places[part] != 0;
        if has {
            places[part] + SIZES[part]
        } else {
            LEGACY_LEN
        }
    };
    (2..COMPONENTS).map(end).max().unwrap_or(LEGACY_LEN).into()
}

/// Bytes of each component. The architecture fixes them, other than the places.
pub const SIZES: [u32; COMPONENTS] = {
    let mut sizes = [0; COMPONENTS];
    (sizes[2], sizes[3], sizes[4]) = (256, 64, 64);
    (sizes[5], sizes[6], sizes[7]) = (64, 512, 1024);
    (sizes[9], sizes[17], sizes[18], sizes[19]) = (8, 64, 8192, 128);
    sizes
};

/// What this node's processor has, as its kernel lets programs use it.
pub fn of_this_node() -> Processor {
    let mut processor = Processor { vendor: [0; 16], features: [0; 8], xcr0: 0, xsave_len: 0 };
    let leaf0 = __cpuid_count(0, 0);
    processor.vendor[0..4].copy_from_slice(&leaf0.ebx.to_le_bytes());
    processor.vendor[4..8].copy_from_slice(&leaf0.edx.to_le_bytes());
    processor.vendor[8..12].copy_from_slice(&leaf0.ecx.to_le_bytes());
    let leaf1 = __cpuid_count(1, 0);
    let mut raw = [leaf1.ecx, leaf1.edx, 0, 0, 0, 0, 0, 0];
    if leaf0.eax >= 7 {
        let leaf7 = __cpuid_count(7, 0);
        (raw[2], raw[3], raw[4]) = (leaf7.ebx, leaf7.ecx, leaf7.edx);
        if leaf7.eax >= 1 {
            raw[5] = __cpuid_count(7, 1).eax;
        }
    }
    if __cpuid_count(0x8000_0000, 0).eax >= 0x8000_0001 {
        let ext = __cpuid_count(0x8000_0001, 0);
        (raw[6], raw[7]) = (ext.ecx, ext.edx);
    }
    for i in 0..8 {
        processor.features[i] = raw[i] & MASKS[i];
    }
    if leaf1.ecx & (1 << 27) != 0 {
        // SAFETY: cpuid has shown OSXSAVE, so xgetbv exists and register 0 may be read.
        processor.xcr0 = unsafe { xcr0() };
        if leaf0.eax >= 0xd {
            processor.xsave_len = __cpuid_count(0xd, 0).ebx as u64;
        }
    }
    processor
}

/// # Safety
/// The CPU must have OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller guarantees that the CPU has OSXSAVE.
    unsafe { _xgetbv(0) }
}

/// What programs may use of a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// As [`Processor::features`].
    pub features: [u32; 8],
    /// As [`Processor::xcr0`].
    pub xcr0: u64,
}

/// The levels of the psABI for x86-64 by name, each with what it has besides the level before it:
/// instructions, and components of the register state. In front what all have.
const LEVELS: [(&str, &str, u64); 4] = [
    ("x86-64", "fpu tsc cx8 cmov clflush mmx fxsr sse sse2", 3),
    ("x86-64-v2", "cx16 lahf_lm popcnt sse3 sse4_1 sse4_2 ssse3", 0),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave osxsave", AVX),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl", AVX512),
];

impl Level {
    /// The level of the psABI with this name; `None`: it has none of it.
    pub fn named(name: &str) -> Option<Level> {
        let last = LEVELS.iter().position(|(known, ..)| *known == name).filter(|at| *at > 0)?;
        let none = Level { features: [0; 8], xcr0: 0 };
        Some(LEVELS[..=last].iter().fold(none, |level, (_, names, xcr0)| Level {
            features: or(&level.features, &bits_of(names)),
            xcr0: level.xcr0 | xcr0,
        }))
    }

    /// All that a processor has.
    pub fn of(processor: &Processor) -> Level {
        Level { features: processor.features, xcr0: processor.xcr0 }
    }

    /// What both have.
    pub fn in_common(&self, other: &Level) -> Level {
        Level {
            features: core::array::from_fn(|leaf| self.features[leaf] & other.features[leaf]),
            xcr0: self.xcr0 & other.xcr0,
        }
    }

    /// Instructions of the level that a processor lacks, by leaf.
    pub fn lacking(&self, processor: &Processor) -> impl Iterator<Item = Instructions> {
        let all = self.features;
        let has = processor.features;
        let lacks = move |leaf: usize| Instructions { leaf, bits: all[leaf] & !has[leaf] };
        (0..all.len()).map(lacks).filter(|lacks| lacks.bits != 0)
    }

    /// Whether it has an instruction, named as in /proc/cpuinfo.
    pub fn has(&self, name: &str) -> bool {
        let bits = bits_of(name);
        (0..8).all(|leaf| bits[leaf] & !self.features[leaf] == 0)
    }

    /// Instructions that are known and not in the level, by leaf as in [`Processor::features`].
    pub fn masked(&self) -> [u32; 8] {
        core::array::from_fn(|leaf| MASKS[leaf] & !self.features[leaf])
    }

    /// Reads what its [`fmt::Display`] has written.
    pub fn parse(text: &[u8]) -> Option<Level> {
        let mut level = Level { features: [0; 8], xcr0: 0 };
        let mut words = text.split(|b| *b == b',');
        for word in &mut level.features {
            *word = u32::try_from(hex(words.next()?)?).ok()?;
        }
        level.xcr0 = hex(words.next()?)?;
        words.next().is_none().then_some(level)
    }
}

fn hex(word: &[u8]) -> Option<u64> {
    crate::maps::hex(word).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
}

/// Numbers in hexadecimal with commas between them, the components last.
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for word in &self.features {
            write!(f, "{word:x},")?;
        }
        write!(f, "{:x}", self.xcr0)
    }
}

/// The bits of instructions whose names stand in a text.
pub fn bits_of(names: &str) -> [u32; 8] {
    let mut all = [0; 8];
    for (leaf, known) in FEATURES.iter().enumerate() {
        let mut words = known.split_ascii_whitespace();
        while let (Some(number), Some(known)) = (words.next(), words.next()) {
            if names.split_ascii_whitespace().any(|name| name == known) {
                all[leaf] |= number.parse().map_or(0, |number: u32| 1 << number);
            }
        }
    }
    all
}

/// Instructions that libraries within Eyrie's own (ring, blake3) use in ranks, where they find
/// them.
pub const OURS: &str =
    "ssse3 sse4_1 sse4_2 pclmulqdq aes movbe avx avx2 bmi1 bmi2 adx sha_ni vaes \
                        vpclmulqdq avx512f avx512vl";

impl Level {
    /// What an image demands of a processor, of a process that was started for this level on a
    /// node with `has`. `hidden`: the libraries within Eyrie's own were shown no more than the
    /// level.
    pub fn demanded(&self, has: &[u32; 8], hidden: bool) -> [u32; 8] {
        let ours = if hidden { [0; 8] } else { bits_of(OURS) };
        core::array::from_fn(|leaf| (self.features[leaf] | ours[leaf]) & has[leaf])
    }
}

/// What one of both has, leaf by leaf.
pub fn or(a: &[u32; 8], b: &[u32; 8]) -> [u32; 8] {
    core::array::from_fn(|leaf| a[leaf] | b[leaf])
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn each_leaf_has_its_bits_by_name() {
        assert_eq!(MASKS[0], 0x7ed8_3203);
        assert_eq!(MASKS[7], 1 << 27);
        let both = Instructions { leaf: 2, bits: 1 << 5 | 1 << 16 };
        assert_eq!(both.to_string(), "avx2, avx512f");
        for (leaf, mask) in MASKS.into_iter().enumerate() {
            let names = Instructions { leaf, bits: u32::MAX }.to_string();
            assert_eq!(names.split(", ").count(), mask.count_ones() as usize, "{names}");
        }
    }

    #[test]
    fn levels_are_those_of_the_psabi_each_within_the_next() {
        let level = |name: &str| Level::named(name).unwrap();
        let [v2, v3, v4] = ["x86-64-v2", "x86-64-v3", "x86-64-v4"].map(level);
        assert_eq!((v2.xcr0, v3.xcr0, v4.xcr0), (3, 7, 0xe7));
        assert!(v2.has("sse4_2") && !v2.has("avx") && v3.has("avx2 fma") && !v3.has("avx512f"));
        assert!(v4.has("avx512vl") && !v4.has("avx512_bf16") && !v4.has("aes"));
        assert_eq!((v2.in_common(&v3), v3.in_common(&v4)), (v2, v3));
        for (_, names, _) in LEVELS {
            let bits: u32 = bits_of(names).iter().map(|word| word.count_ones()).sum();
            assert_eq!(bits as usize, names.split(' ').count(), "{names}: each is known");
        }
        assert_eq!(Level::named("x86-64"), None);
        assert_eq!(Level::named("v3"), None);
    }

    #[test]
    fn a_level_is_read_as_it_was_written() {
        let all = Level::of(&of_this_node());
        for level in [all, Level::named("x86-64-v3").unwrap()] {
            assert_eq!(Level::parse(level.to_string().as_bytes()), Some(level));
        }
        for bad in ["", "1,2", "1,2,3,4,5,6,7,8,9,a", "1,2,3,4,5,6,7,x,9", "1ffffffff,,,,,,,,"] {
            assert_eq!(Level::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn components_have_the_sizes_that_the_processor_says() {
        let layout = Layout::of_this_node();
        for part in (2..COMPONENTS).filter(|part| layout.places[*part] != 0) {
            assert_eq!(__cpuid_count(0xd, part as u32).eax, SIZES[part], "component {part}");
        }
        assert!(layout.len >= LEGACY_LEN.into() && layout.len <= of_this_node().xsave_len);
        assert_eq!(Components(0xe4).to_string(), "AVX, AVX-512");
        assert_eq!(Components(1 << 62).to_string(), "components 0x4000000000000000");
    }
}
