//! What a node is: kernel, vDSO and CPU, as far as a running program may depend on them.
//! Compiled into both sides; must not allocate or call a C library.

use super::format::{Fingerprint, MetaHash};
use super::sys;
use core::arch::x86_64::{__cpuid_count, _xgetbv};

/// Bits of cpuid that user code can see and use, by leaf; the rest (power management,
/// virtualization, what only kernels use) may differ between nodes.
const MASKS: [u32; 8] = [
    // 1.ecx: SSE3 PCLMUL SSSE3 FMA CX16 SSE4.1 SSE4.2 MOVBE POPCNT AES XSAVE OSXSAVE AVX F16C RDRAND
    bits(&[0, 1, 9, 12, 13, 19, 20, 22, 23, 25, 26, 27, 28, 29, 30]),
    // 1.edx: FPU TSC CX8 CMOV CLFSH MMX FXSR SSE SSE2
    bits(&[0, 4, 8, 15, 19, 23, 24, 25, 26]),
    // 7.0.ebx: FSGSBASE BMI1 AVX2 BMI2 ERMS RTM AVX512F DQ RDSEED ADX IFMA CLFLUSHOPT CLWB PF ER CD
    // SHA BW VL
    bits(&[0, 3, 5, 8, 9, 11, 16, 17, 18, 19, 21, 23, 24, 26, 27, 28, 29, 30, 31]),
    // 7.0.ecx: VBMI WAITPKG VBMI2 GFNI VAES VPCLMUL VNNI BITALG VPOPCNT RDPID CLDEMOTE MOVDIR*
    bits(&[1, 5, 6, 8, 9, 10, 11, 12, 14, 22, 25, 27, 28]),
    // 7.0.edx: 4VNNIW 4FMAPS FSRM VP2INTERSECT SERIALIZE AMX-BF16 FP16 AMX-TILE AMX-INT8
    bits(&[2, 3, 4, 8, 14, 22, 23, 24, 25]),
    // 7.1.eax: SHA512 SM3 SM4 RAO-INT AVX-VNNI AVX512-BF16 CMPCCXADD AMX-FP16 AVX-IFMA
    bits(&[0, 1, 2, 3, 4, 5, 7, 21, 23]),
    // 80000001.ecx: LAHF ABM SSE4A PREFETCHW XOP FMA4 TBM
    bits(&[0, 5, 6, 8, 11, 16, 21]),
    // 80000001.edx: RDTSCP
    bits(&[27]),
];

const fn bits(list: &[u32]) -> u32 {
    let (mut mask, mut i) = (0, 0);
    while i < list.len() {
        mask |= 1 << list[i];
        i += 1;
    }
    mask
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
    // SAFETY: struct utsname is six fields of 65 bytes.
    let _ = unsafe { sys::call3(sys::nr::UNAME, uts.as_mut_ptr() as usize, 0, 0) };
    fp.kernel.copy_from_slice(&uts[2][..64]);
    cpu(&mut fp);
    fp
}

/// Which node this is and since when, as text; all zero where the kernel does not tell.
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
        // SAFETY: OSXSAVE is set, so xgetbv exists and register 0 may be read.
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
    // SAFETY: handed on to the caller.
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
        let (table, size, count) =
            (u64_at(32)? as usize, u16_at(54)? as usize, u16_at(56)? as usize);
        for i in 0..count {
            let entry = table.checked_add(i * size)?;
            if u32_at(entry)? != 4 {
                continue; // not PT_NOTE
            }
            let start = u64_at(entry + 8)? as usize;
            let end = start.checked_add(u64_at(entry + 32)? as usize)?;
            let mut at = start;
            while at.checked_add(12)? <= end {
                let (name, desc, kind) =
                    (u32_at(at)? as usize, u32_at(at + 4)? as usize, u32_at(at + 8)?);
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
