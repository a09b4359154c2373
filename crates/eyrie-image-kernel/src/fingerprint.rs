//! What a node is: kernel, vDSO and processor, as far as a running program may depend on them; and
//! which differences between two nodes forbid that an image of one becomes a process on the other.
//! Must not allocate or call a C library.

use crate::processor::{self, Components, Instructions, Layout};
use crate::{maps, sys};
use eyrie_image_format::{map_flag, Demand, Fingerprint, MetaHash, Processor};

/// Why an image of one node cannot become a process on another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    CpuVendor,
    /// The code of the image may use instructions that the node lacks, because libraries choose
    /// their code when they are loaded.
    Lacks(Instructions),
    /// The register state in signal frames has other parts or another size.
    RegisterState,
    /// The image demands these registers, and the node lacks them or saves them in another place.
    LacksRegisters(Components),
}

/// Room on a signal stack beside the register state: the rest of the kernel's frame, and what a
/// short handler needs, bytes.
const HANDLER_ROOM: u64 = 1024;

/// Names everything for which a restore here refuses an image that demands all that its node had.
pub fn obstacles(here: &Processor, there: &Processor, mut found: impl FnMut(Obstacle)) {
    in_common(here, there, &there.features, &mut found);
    if (here.xcr0, here.xsave_len) != (there.xcr0, there.xsave_len) {
        found(Obstacle::RegisterState);
    }
}

/// As [`obstacles`], of an image that says what it demands. `layout` is this node's.
pub fn obstacles_to(
    (here, layout): (&Processor, &Layout),
    there: &Processor,
    demand: &Demand,
    mut found: impl FnMut(Obstacle),
) {
    in_common(here, there, &demand.features, &mut found);
    let lacks = |part: usize| {
        let is_elsewhere = layout.places[part] != demand.places[part];
        demand.xcr0 & 1 << part != 0 && (here.xcr0 & 1 << part == 0 || is_elsewhere)
    };
    match (2..layout.places.len()).filter(|part| lacks(*part)).fold(0, |all, part| all | 1 << part)
    {
        0 => {}
        parts => found(Obstacle::LacksRegisters(Components(parts))),
    }
}

/// Whether a signal stack of the image has no room for a signal frame of this node, though it had
/// for one of its own node.
pub fn lacks_signal_room(layout: &Layout, there: &Processor, demand: &Demand) -> bool {
    (1..layout.len + HANDLER_ROOM).contains(&demand.signal_stack)
        && layout.len > processor::frame_len(there.xcr0, &demand.places)
}

fn in_common(
    here: &Processor,
    there: &Processor,
    wanted: &[u32; 8],
    found: &mut impl FnMut(Obstacle),
) {
    if here.vendor != there.vendor {
        found(Obstacle::CpuVendor);
    }
    for (leaf, (here, wanted)) in here.features.iter().zip(wanted).enumerate() {
        match wanted & !here {
            0 => {}
            bits => found(Obstacle::Lacks(Instructions { leaf, bits })),
        }
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
        processor: processor::of_this_node(),
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
    use crate::processor::Level;
    use std::vec::Vec;

    fn between(here: &Processor, there: &Processor) -> Vec<Obstacle> {
        let mut all = Vec::new();
        obstacles(here, there, |obstacle| all.push(obstacle));
        all
    }

    #[test]
    fn a_node_that_has_more_takes_the_image_of_one_that_has_less() {
        let (fingerprint, _) = of_this_process().unwrap();
        assert!(fingerprint.vdso_len > 0 && fingerprint.vdso_id != 0);
        let rich = fingerprint.processor;
        assert!(rich.xsave_len > 0);
        let mut poor = rich;
        let lowest = poor.features[0] & poor.features[0].wrapping_neg();
        poor.features[0] &= !lowest;
        assert_eq!(between(&rich, &rich), []);
        assert_eq!(between(&rich, &poor), []);
        let lacks = Obstacle::Lacks(Instructions { leaf: 0, bits: lowest });
        assert_eq!(between(&poor, &rich), [lacks]);
        poor = Processor { xsave_len: rich.xsave_len + 64, ..rich };
        assert_eq!(between(&poor, &rich), [Obstacle::RegisterState]);
    }

    /// A processor with AVX-512 and one without, with their layouts as Intel's have them.
    fn pair() -> [(Processor, Layout); 2] {
        let level = |name: &str| Level::named(name).unwrap();
        let made = |level: Level, xcr0: u64, parts: &[(usize, u32)]| {
            let mut layout = Layout::EMPTY;
            parts.iter().for_each(|(part, place)| layout.places[*part] = *place);
            layout.len = processor::frame_len(xcr0, &layout.places);
            let vendor = *b"GenuineIntel\0\0\0\0";
            let xsave_len = layout.len;
            (Processor { vendor, features: level.features, xcr0, xsave_len }, layout)
        };
        let avx = (2, 576);
        let wide = [avx, (5, 1088), (6, 1152), (7, 1664), (9, 2688)];
        [made(level("x86-64-v4"), 0x2e7, &wide), made(level("x86-64-v3"), 0x7, &[avx])]
    }

    fn demanded(of: &(Processor, Layout), level: &str, signal_stack: u64) -> Demand {
        let level = Level::named(level).unwrap();
        let xcr0 = level.xcr0 & of.0.xcr0;
        Demand { features: level.features, xcr0, signal_stack, places: of.1.places }
    }

    fn to(here: &(Processor, Layout), there: &(Processor, Layout), d: &Demand) -> Vec<Obstacle> {
        let mut all = Vec::new();
        obstacles_to((&here.0, &here.1), &there.0, d, |obstacle| all.push(obstacle));
        all
    }

    #[test]
    fn an_image_that_demands_a_level_goes_from_rich_to_poor_and_back() {
        let [rich, poor] = pair();
        assert!(between(&poor.0, &rich.0).contains(&Obstacle::RegisterState));
        let v3 = demanded(&rich, "x86-64-v3", 8192);
        assert_eq!(to(&poor, &rich, &v3), []);
        assert_eq!(to(&rich, &poor, &demanded(&poor, "x86-64-v3", 8192)), []);
        let v4 = to(&poor, &rich, &demanded(&rich, "x86-64-v4", 8192));
        let wide = Obstacle::LacksRegisters(Components(0xe0));
        assert!(v4.contains(&wide) && v4.len() == 2, "{v4:?}");
        let mut elsewhere = poor;
        elsewhere.1.places[2] = 640;
        let avx = Obstacle::LacksRegisters(Components(1 << 2));
        assert_eq!(to(&elsewhere, &rich, &v3), [avx], "another place in the frame");
    }

    #[test]
    fn a_signal_stack_must_hold_the_larger_frame() {
        let [rich, poor] = pair();
        let stack = |bytes| demanded(&poor, "x86-64-v3", bytes);
        let lacks =
            |here: &(Processor, Layout), bytes| lacks_signal_room(&here.1, &poor.0, &stack(bytes));
        assert!(lacks(&rich, 2048) && !lacks(&rich, 8192));
        assert!(!lacks(&poor, 1700), "it had room there");
        assert!(!lacks(&rich, 0), "no thread has one");
    }
}
