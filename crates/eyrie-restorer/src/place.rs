//! This node's fingerprint, and the kernel's own mappings in this process: they are moved out of
//! the way, and later to where the image had them.

use crate::fail::{self, Bytes};
use crate::image::Image;
use eyrie_image_format::{exit, Fingerprint, WINDOW_START};
use eyrie_image_kernel::fingerprint::{self, obstacles, Obstacle, Special};
use eyrie_image_kernel::sys::{self, nr};

/// Where the kernel's mappings wait.
const PARKING: u64 = WINDOW_START + (1 << 36);

/// This node and this process as they are.
pub struct Here {
    pub fingerprint: Fingerprint,
    pub specials: [Special; 3],
}

impl Here {
    pub fn look() -> Here {
        let (fingerprint, specials) =
            fingerprint::of_this_process().unwrap_or_else(|(step, e)| fail::kernel(step, e));
        Here { fingerprint, specials }
    }

    /// Refuses an image from a node that differs in what a program may rely on.
    pub fn check(&self, image: &Image) {
        let (here, there) = (&self.fingerprint, &image.header.fingerprint);
        obstacles(here, there, |obstacle| self.refuse(there, obstacle));
        for s in &self.specials {
            let wanted = image.mappings.iter().find(|m| m.flags & s.flag != 0);
            if let (true, Some(m)) = (s.flag != 0, wanted) {
                if m.end - m.start != s.len {
                    self.refuse(there, Obstacle::KernelMappings);
                }
            }
        }
    }

    fn refuse(&self, there: &Fingerprint, obstacle: Obstacle) -> ! {
        let here = &self.fingerprint;
        let refuse = |what: core::fmt::Arguments| fail::now(exit::FINGERPRINT, what);
        match obstacle {
            Obstacle::Kernel => {
                let (here, there) = (Bytes(&here.kernel), Bytes(&there.kernel));
                refuse(format_args!("the image is from kernel {there}, this node runs {here}"))
            }
            Obstacle::CpuVendor => {
                let (here, there) = (Bytes(&here.cpu_vendor), Bytes(&there.cpu_vendor));
                refuse(format_args!("the image is from a CPU of {there}, this node has {here}"))
            }
            Obstacle::Lacks(instructions) => refuse(format_args!(
                "this node's CPU lacks features of the image's: {instructions}"
            )),
            Obstacle::RegisterState => {
                let (here, there) = (here.xcr0, there.xcr0);
                refuse(format_args!(
                    "the CPU's register state differs: {there:#x} in the image, {here:#x} on this \
                     node"
                ))
            }
            Obstacle::KernelMappings => {
                refuse(format_args!("the kernel's vDSO has another layout than in the image"))
            }
        }
    }

    /// Moves the kernel's mappings into our stretch of addresses and unmaps all the rest.
    pub fn clear_out(&self) {
        for s in self.specials.iter().filter(|s| s.flag != 0) {
            relocate(s.start, PARKING + self.offset(s), s.len);
        }
        use eyrie_image_format::{USER_END, WINDOW_END};
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
