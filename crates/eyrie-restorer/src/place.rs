//! Where we are: this node's fingerprint and the kernel's own mappings in this process, which are
//! moved out of the way and later to where the image had them.

use crate::fail::{self, Bytes};
use crate::fingerprint;
use crate::format::{exit, map_flag, Fingerprint, WINDOW_START};
use crate::image::Image;
use crate::maps;
use crate::sys::{self, nr};

/// Where the kernel's mappings wait.
const PARKING: u64 = WINDOW_START + (1 << 36);

/// One of the kernel's mappings.
#[derive(Clone, Copy, Default)]
pub struct Special {
    pub flag: u32,
    pub start: u64,
    pub len: u64,
}

/// This node and this process as they are.
pub struct Node {
    pub fingerprint: Fingerprint,
    pub specials: [Special; 3],
}

impl Node {
    pub fn look() -> Node {
        let mut fingerprint = fingerprint::of_this_node();
        let mut specials = [Special::default(); 3];
        let fd = sys::open(b"/proc/self/maps\0", sys::O_CLOEXEC, 0)
            .unwrap_or_else(|e| fail::kernel("opening /proc/self/maps", e));
        let mut buf = [0u8; 8192];
        let read = maps::for_each_line(fd, &mut buf, |line| {
            let Some(line) = maps::parse(line) else { return true };
            let len = line.end - line.start;
            let (index, flag) = match line.name {
                b"[vvar]" => (0, map_flag::VVAR),
                b"[vvar_vclock]" => (1, map_flag::VVAR_VCLOCK),
                b"[vdso]" => (2, map_flag::VDSO),
                _ => return true,
            };
            specials[index] = Special { flag, start: line.start, len };
            true
        });
        sys::close(fd);
        if let Err(errno) = read {
            fail::kernel("reading /proc/self/maps", errno);
        }
        fingerprint.vvar_len = specials[0].len;
        fingerprint.vvar_vclock_len = specials[1].len;
        fingerprint.vdso_len = specials[2].len;
        if specials[2].len > 0 {
            // SAFETY: the kernel mapped the vDSO readable.
            let elf = unsafe {
                core::slice::from_raw_parts(
                    specials[2].start as *const u8,
                    specials[2].len as usize,
                )
            };
            fingerprint.vdso_id = fingerprint::build_id(elf);
        }
        Node { fingerprint, specials }
    }

    /// Refuses an image from a node that differs in what a program may rely on.
    pub fn check(&self, image: &Image) {
        let (here, there) = (&self.fingerprint, &image.header.fingerprint);
        let refuse = |what: core::fmt::Arguments| fail::now(exit::FINGERPRINT, what);
        if here.kernel != there.kernel {
            let (here, there) = (Bytes(&here.kernel), Bytes(&there.kernel));
            refuse(format_args!("the image is from kernel {there}, this node runs {here}"));
        }
        if here.cpu_vendor != there.cpu_vendor {
            let (here, there) = (Bytes(&here.cpu_vendor), Bytes(&there.cpu_vendor));
            refuse(format_args!("the image is from a CPU of {there}, this node has {here}"));
        }
        for (i, (here, there)) in here.features.iter().zip(&there.features).enumerate() {
            let missing = there & !here;
            if missing != 0 {
                let leaf =
                    ["1.ecx", "1.edx", "7.ebx", "7.ecx", "7.edx", "7.1.eax", "x1.ecx", "x1.edx"][i];
                refuse(format_args!(
                    "this node's CPU lacks features of the image's (cpuid {leaf} bits {missing:#x})"
                ));
            }
        }
        if (here.xcr0, here.xsave_len) != (there.xcr0, there.xsave_len) {
            let (h, t) = (here.xcr0, there.xcr0);
            refuse(format_args!(
                "the CPU's register state differs: {t:#x} in the image, {h:#x} on this node"
            ));
        }
        let kernel_maps = |f: &Fingerprint| (f.vvar_len, f.vvar_vclock_len, f.vdso_len, f.vdso_id);
        if kernel_maps(here) != kernel_maps(there) {
            refuse(format_args!("the kernel's vDSO has another layout than in the image"));
        }
        for s in &self.specials {
            let wanted = image.mappings.iter().find(|m| m.flags & s.flag != 0);
            if let (true, Some(m)) = (s.flag != 0, wanted) {
                if m.end - m.start != s.len {
                    refuse(format_args!("the kernel's vDSO has another length than in the image"));
                }
            }
        }
    }

    /// Moves the kernel's mappings into our stretch of addresses and unmaps all the rest.
    pub fn clear_out(&self) {
        for s in self.specials.iter().filter(|s| s.flag != 0) {
            relocate(s.start, PARKING + self.offset(s), s.len);
        }
        use crate::format::{USER_END, WINDOW_END};
        for (start, end) in [(0, WINDOW_START), (WINDOW_END, USER_END)] {
            // SAFETY: our program, its stack and data lie between the two.
            let done = unsafe { sys::munmap(start as usize, (end - start) as usize) };
            if let Err(errno) = done {
                fail::kernel("clearing the address space", errno);
            }
        }
    }

    /// Puts the kernel's mappings where the image has them.
    pub fn put_back(&self, image: &Image) {
        for s in self.specials.iter().filter(|s| s.flag != 0) {
            if let Some(m) = image.mappings.iter().find(|m| m.flags & s.flag != 0) {
                relocate(PARKING + self.offset(s), m.start, s.len);
            }
        }
    }

    fn offset(&self, special: &Special) -> u64 {
        let lowest = self.specials.iter().filter(|s| s.flag != 0).map(|s| s.start).min();
        special.start - lowest.unwrap_or(special.start)
    }
}

fn relocate(from: u64, to: u64, len: u64) {
    if from == to {
        return;
    }
    // SAFETY: the target is free: our parking, or a place the image keeps for it.
    let moved = unsafe {
        sys::call6(
            nr::MREMAP,
            from as usize,
            len as usize,
            len as usize,
            sys::MREMAP_MAYMOVE | sys::MREMAP_FIXED,
            to as usize,
            0,
        )
    };
    if let Err(errno) = moved {
        fail::kernel("moving the kernel's vDSO (is CONFIG_MSEAL_SYSTEM_MAPPINGS set?)", errno);
    }
}
