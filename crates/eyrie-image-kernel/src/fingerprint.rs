//! What a node is: kernel, vDSO and CPU, as far as a running program may depend on them; and which
//! differences between two nodes forbid that an image of one becomes a process on the other.
//! Must not allocate or call a C library.

use crate::{maps, sys};
use core::arch::x86_64::{__cpuid_count, _xgetbv};
use core::fmt;
use eyrie_image_format::{map_flag, Fingerprint, MetaHash};

/// Instructions that user code can see in cpuid and use, named as in /proc/cpuinfo, each after the
/// number of its bit. The other features (power management, virtualization, what only kernels use)
/// may differ between nodes. In the order of [`Fingerprint::features`].
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
const MASKS: [u32; 8] = {
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

/// Instructions by name, from bits of one of [`Fingerprint::features`].
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

/// Why an image of one node cannot become a process on another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    CpuVendor,
    /// The code of the image may use instructions that the node lacks, because libraries choose
    /// their code when they are loaded.
    Lacks(Instructions),
    /// The register state in signal frames has other parts or another size.
    RegisterState,
}

/// Names everything for which a restore here refuses an image from there.
pub fn obstacles(here: &Fingerprint, there: &Fingerprint, mut found: impl FnMut(Obstacle)) {
    if here.cpu_vendor != there.cpu_vendor {
        found(Obstacle::CpuVendor);
    }
    for (leaf, (here, there)) in here.features.iter().zip(&there.features).enumerate() {
        match there & !here {
            0 => {}
            bits => found(Obstacle::Lacks(Instructions { leaf, bits })),
        }
    }
    if (here.xcr0, here.xsave_len) != (there.xcr0, there.xsave_len) {
        found(Obstacle::RegisterState);
    }
}

/// Whether two kernels map the same into each process: then the mappings of one can be put where
/// those of the other were.
pub fn same_mappings(here: &Fingerprint, there: &Fingerprint) -> bool {
    let mappings = |f: &Fingerprint| (f.vvar_len, f.vvar_vclock_len, f.vdso_len, f.vdso_id);
    mappings(here) == mappings(there)
}

/// One of the kernel's own mappings in this process.
#[derive(Clone, Copy, Default)]
pub struct Special {
    /// A bit of [`map_flag::SPECIAL`]; 0: there is none.
    pub flag: u32,
    pub start: u64,
    pub len: u64,
}

/// This node's fingerprint without the C library, and where the kernel's mappings are: vvar,
/// vvar_vclock, vdso. The error names the step that failed, with the kernel's error number.
pub fn of_this_process() -> Result<(Fingerprint, [Special; 3]), (&'static str, i32)> {
    let mut fp = of_this_node();
    let mut specials = [Special::default(); 3];
    let fd = sys::open(b"/proc/thread-self/maps\0", sys::O_CLOEXEC, 0)
        .map_err(|e| ("opening /proc/self/maps", e))?;
    let mut buf = [0u8; 8192];
    let read = maps::for_each_line(fd, &mut buf, |line| {
        let Some(line) = maps::parse(line) else { return true };
        let (index, flag) = match line.name {
            b"[vvar]" => (0, map_flag::VVAR),
            b"[vvar_vclock]" => (1, map_flag::VVAR_VCLOCK),
            b"[vdso]" => (2, map_flag::VDSO),
            _ => return true,
        };
        specials[index] = Special { flag, start: line.start, len: line.end - line.start };
        true
    });
    sys::close(fd);
    read.map_err(|e| ("reading /proc/self/maps", e))?;
    [fp.vvar_len, fp.vvar_vclock_len, fp.vdso_len] = specials.map(|s| s.len);
    if specials[2].len > 0 {
        let start = specials[2].start as *const u8;
        let len = specials[2].len as usize;
        // SAFETY: the kernel maps the vDSO readable, and /proc/self/maps says where it is.
        fp.vdso_id = build_id(unsafe { core::slice::from_raw_parts(start, len) });
    }
    Ok((fp, specials))
}

/// This node's fingerprint, without the vDSO and C library fields.
pub fn of_this_node() -> Fingerprint {
    let mut fp = Fingerprint {
        kernel: [0; 64],
        cpu_vendor: [0; 16],
        features: [0; 8],
        xcr0: 0,
        xsave_len: 0,
        vvar_len: 0,
        vvar_vclock_len: 0,
        vdso_len: 0,
        vdso_id: 0,
        libc_id: 0,
    };
    let mut uts = [[0u8; 65]; 6];
    // SAFETY: the kernel writes struct utsname, six fields of 65 bytes, which `uts` holds.
    let _ = unsafe { sys::call3(sys::nr::UNAME, uts.as_mut_ptr() as usize, 0, 0) };
    fp.kernel.copy_from_slice(&uts[2][..64]);
    cpu(&mut fp);
    fp
}

/// Identifies the boot of this node, as text; all zero if the kernel does not say.
pub fn boot_id() -> [u8; 40] {
    let mut text = [0; 40];
    if let Ok(fd) = sys::open(b"/proc/sys/kernel/random/boot_id\0", sys::O_CLOEXEC, 0) {
        let _ = sys::read(fd, &mut text);
        sys::close(fd);
    }
    text
}

fn cpu(fp: &mut Fingerprint) {
    let leaf0 = __cpuid_count(0, 0);
    fp.cpu_vendor[0..4].copy_from_slice(&leaf0.ebx.to_le_bytes());
    fp.cpu_vendor[4..8].copy_from_slice(&leaf0.edx.to_le_bytes());
    fp.cpu_vendor[8..12].copy_from_slice(&leaf0.ecx.to_le_bytes());
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
        fp.features[i] = raw[i] & MASKS[i];
    }
    if leaf1.ecx & (1 << 27) != 0 {
        // SAFETY: cpuid has shown OSXSAVE, so xgetbv exists and register 0 may be read.
        fp.xcr0 = unsafe { xcr0() };
        if leaf0.eax >= 0xd {
            fp.xsave_len = __cpuid_count(0xd, 0).ebx as u64;
        }
    }
}

/// # Safety
/// The CPU must have OSXSAVE.
#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller guarantees that the CPU has OSXSAVE.
    unsafe { _xgetbv(0) }
}

/// Hash of the GNU build id in an ELF image whose first bytes are `elf`; 0 if none is found there.
pub fn build_id(elf: &[u8]) -> u64 {
    let u16_at = |i: usize| Some(u16::from_le_bytes(elf.get(i..i + 2)?.try_into().ok()?));
    let u32_at = |i: usize| Some(u32::from_le_bytes(elf.get(i..i + 4)?.try_into().ok()?));
    let u64_at = |i: usize| Some(u64::from_le_bytes(elf.get(i..i + 8)?.try_into().ok()?));
    let find = || -> Option<u64> {
        if elf.get(..5)? != b"\x7fELF\x02" {
            return None;
        }
        let table = u64_at(32)? as usize;
        let size = u16_at(54)? as usize;
        let count = u16_at(56)? as usize;
        for i in 0..count {
            let entry = table.checked_add(i * size)?;
            if u32_at(entry)? != 4 {
                continue; // not PT_NOTE
            }
            let start = u64_at(entry + 8)? as usize;
            let end = start.checked_add(u64_at(entry + 32)? as usize)?;
            let mut at = start;
            while at.checked_add(12)? <= end {
                let name = u32_at(at)? as usize;
                let desc = u32_at(at + 4)? as usize;
                let kind = u32_at(at + 8)?;
                let body = at.checked_add(12)?.checked_add(name.checked_add(3)? & !3)?;
                let bytes = elf.get(body..body.checked_add(desc)?)?;
                if kind == 3 && name == 4 && elf.get(at + 12..at + 16)? == b"GNU\0" {
                    let mut hash = MetaHash::new();
                    hash.update(bytes);
                    return Some(hash.value());
                }
                at = body.checked_add(desc.checked_add(3)? & !3)?;
            }
        }
        None
    };
    find().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

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
    fn a_node_that_has_more_takes_the_image_of_one_that_has_less() {
        let (rich, _) = of_this_process().unwrap();
        assert!(rich.vdso_len > 0 && rich.vdso_id != 0 && rich.xsave_len > 0);
        let mut poor = rich;
        let lowest = poor.features[0] & poor.features[0].wrapping_neg();
        poor.features[0] &= !lowest;
        let between = |here: &Fingerprint, there: &Fingerprint| {
            let mut all = Vec::new();
            obstacles(here, there, |obstacle| all.push(obstacle));
            all
        };
        assert_eq!(between(&rich, &rich), []);
        assert_eq!(between(&rich, &poor), []);
        let lacks = Obstacle::Lacks(Instructions { leaf: 0, bits: lowest });
        assert_eq!(between(&poor, &rich), [lacks]);
    }
}
