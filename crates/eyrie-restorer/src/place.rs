//! This node's fingerprint, and the kernel's own mappings in this process: they are moved out of
//! the way, and later to where the image had them.
//!
//! Another kernel's have another layout. Then they go to a free place, and where the image had its
//! vDSO it gets that again, as memory of its own with entries that lead to the new one: programs
//! have found its functions there. In later images this is memory like any other, so a process may
//! go on from kernel to kernel.

use crate::fail::{self, malformed, Bytes};
use crate::image::Image;
use crate::mapping::mmap;
use eyrie_image_format::{exit, map_flag, Fingerprint, Mapping, WINDOW_START};
use eyrie_image_kernel::fingerprint::{
    self, lacks_signal_room, obstacles, obstacles_to, same_mappings, Obstacle, Special,
};
use eyrie_image_kernel::processor::Layout;
use eyrie_image_kernel::sys::{self, nr};
use eyrie_image_kernel::vdso;

/// Where the kernel's mappings wait.
const PARKING: u64 = WINDOW_START + (1 << 36);
/// Where those of another kernel are put: at the first of these places that is free.
const PLACES: u64 = WINDOW_START - (1 << 32);
const PLACE_LEN: u64 = 1 << 20;

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
        let here = &self.fingerprint;
        let there = &image.header.fingerprint;
        let refuse = |obstacle| self.refuse(there, obstacle);
        match &image.demand {
            None => obstacles(&here.processor, &there.processor, refuse),
            Some(demand) => {
                let layout = Layout::of_this_node();
                obstacles_to((&here.processor, &layout), &there.processor, demand, refuse);
                if lacks_signal_room(&layout, &there.processor, demand) {
                    let len = demand.signal_stack;
                    let more = layout.len;
                    fail::now(
                        exit::FINGERPRINT,
                        format_args!(
                            "a thread of the image has a signal stack of {len} bytes, and this \
                             node's CPU saves {more} bytes of registers for a signal: let the \
                             program ask for more (sysconf(_SC_SIGSTKSZ)), or restore it on a CPU \
                             with fewer registers"
                        ),
                    );
                }
            }
        }
        if vdso_of(image).is_some() && image.vdso.is_empty() && !self.is_alike(image) {
            let (here, there) = (Bytes(&here.kernel), Bytes(&there.kernel));
            fail::now(
                exit::FINGERPRINT,
                format_args!(
                    "the image is from kernel {there}, this node runs {here}, and a thread was \
                     within the code of the first (its vDSO): another image of this rank can be \
                     restored here"
                ),
            );
        }
    }

    /// Whether this kernel's mappings can be put where the image has those of its kernel.
    fn is_alike(&self, image: &Image) -> bool {
        let found = |s: &Special| {
            let wanted = image.mappings.iter().find(|m| m.flags & s.flag != 0);
            wanted.is_none_or(|m| m.end - m.start == s.len)
        };
        let mut specials = self.specials.iter().filter(|s| s.flag != 0);
        same_mappings(&self.fingerprint, &image.header.fingerprint) && specials.all(found)
    }

    fn refuse(&self, there: &Fingerprint, obstacle: Obstacle) -> ! {
        let here = &self.fingerprint.processor;
        let there = &there.processor;
        let refuse = |what: core::fmt::Arguments| fail::now(exit::FINGERPRINT, what);
        match obstacle {
            Obstacle::CpuVendor => {
                let (here, there) = (Bytes(&here.vendor), Bytes(&there.vendor));
                refuse(format_args!("the image is from a CPU of {there}, this node has {here}"))
            }
            Obstacle::Lacks(instructions) => refuse(format_args!(
                "this node's CPU lacks features that the image demands: {instructions}; start the \
                 job with --cpu common or a level that all hosts have, or restore it on a CPU that \
                 has them"
            )),
            Obstacle::RegisterState => {
                let here = here.xcr0;
                let there = there.xcr0;
                refuse(format_args!(
                    "the CPU's register state differs: {there:#x} in the image, {here:#x} on this \
                     node; start the job with --cpu common or a level that all hosts have"
                ))
            }
            Obstacle::LacksRegisters(components) => refuse(format_args!(
                "the image demands the registers of {components}, which this node's CPU lacks or \
                 saves elsewhere: restore it on a CPU that has them"
            )),
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

    /// Puts the kernel's mappings where the image has them, or makes its vDSO's functions lead to
    /// this kernel's.
    pub fn put_back(&self, image: &Image) {
        if self.is_alike(image) {
            for s in self.specials.iter().filter(|s| s.flag != 0) {
                if let Some(m) = image.mappings.iter().find(|m| m.flags & s.flag != 0) {
                    relocate(PARKING + self.offset(s), m.start, s.len);
                }
            }
        } else if let Some(there) = vdso_of(image) {
            self.lead_from(image, there);
        }
    }

    /// Puts this kernel's mappings to a free place, together as they were, since the code of its
    /// vDSO finds the others beside it. Then makes the image's vDSO, whose functions lead there.
    fn lead_from(&self, image: &Image, there: &Mapping) {
        let specials = || self.specials.iter().filter(|s| s.flag != 0);
        let span = specials().map(|s| self.offset(s) + s.len).max().unwrap_or(0);
        let is_free = |at: &u64| {
            let lie_there = |m: &Mapping| m.start < at + PLACE_LEN && m.end > *at;
            !image.mappings.iter().any(lie_there)
        };
        let mut places = (PLACES..WINDOW_START).step_by(PLACE_LEN as usize);
        let Some(place) = places.find(is_free).filter(|_| span <= PLACE_LEN) else {
            malformed("it has no room for this kernel's vDSO");
        };
        // A kernel may have none: then all entries are system calls.
        let mut code: &[u8] = &[];
        let mut at: u64 = 0;
        for s in specials() {
            let to = place + self.offset(s);
            relocate(PARKING + self.offset(s), to, s.len);
            if s.flag == map_flag::VDSO {
                // SAFETY: the kernel's vDSO is readable, and was moved there just now.
                code = unsafe { core::slice::from_raw_parts(to as *const u8, s.len as usize) };
                at = to;
            }
        }
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        let len = image.vdso.len();
        mmap(there.start, len as u64, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0)
            .unwrap_or_else(|e| fail::kernel("making the vDSO of the image's kernel", e));
        // SAFETY: memory that was mapped above, of the length that the image's mapping has. Nothing
        // else refers to it.
        let own = unsafe { core::slice::from_raw_parts_mut(there.start as *mut u8, len) };
        own.copy_from_slice(image.vdso);
        let written = vdso::entries(image.vdso, code, at, |at, entry| {
            if let Some(to) = own.get_mut(at..at + entry.len()) {
                to.copy_from_slice(entry);
            }
        });
        written.unwrap_or_else(|what| malformed(what));
        let prot = (sys::PROT_READ | sys::PROT_EXEC) as usize;
        // SAFETY: the memory that was mapped above, which nothing writes any more.
        if let Err(e) = unsafe { sys::call3(nr::MPROTECT, there.start as usize, len, prot) } {
            fail::kernel("protecting the vDSO of the image's kernel", e);
        }
    }

    fn offset(&self, special: &Special) -> u64 {
        let lowest = self.specials.iter().filter(|s| s.flag != 0).map(|s| s.start).min();
        special.start - lowest.unwrap_or(special.start)
    }
}

fn vdso_of(image: &Image) -> Option<&Mapping> {
    image.mappings.iter().find(|m| m.flags & map_flag::SPECIAL == map_flag::VDSO)
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
