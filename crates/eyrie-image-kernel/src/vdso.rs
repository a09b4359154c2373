//! The functions of a vDSO, the code that the kernel maps into each process: where they are, and
//! entries that lead from the place of one kernel's functions to those of another kernel. The
//! restorer uses them where an image comes from another kernel: programs have found the functions
//! at their start and call them where they were. Must not allocate.

use core::ops::Range;

/// Bytes of the longest entry. A function that is shorter cannot have one.
const ENTRY_LEN: usize = 12;

/// Numbers of the system calls that do what a function does, by its name: for functions that the
/// other kernel does not have.
const CALLS: [(&[u8], u32); 5] = [
    (b"gettimeofday", 96),
    (b"time", 201),
    (b"clock_gettime", 228),
    (b"clock_getres", 229),
    (b"getcpu", 309),
];
/// This one has state of a form that only the kernel knows from which it came.
const GETRANDOM: (&[u8], u32) = (b"getrandom", 318);
/// The error of a function that nothing can stand for.
const ENOSYS: i32 = 38;

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function<'a> {
    /// Without `__vdso_` in front.
    pub name: &'a [u8],
    /// Offset from the beginning.
    pub at: usize,
    /// Bytes of its code.
    pub len: usize,
}

/// Calls `each` with each function of a vDSO, with some of them twice. False: it is malformed.
pub fn for_each_function<'a>(elf: &'a [u8], each: impl FnMut(Function<'a>)) -> bool {
    functions(elf, each).is_some()
}

fn functions<'a>(elf: &'a [u8], mut each: impl FnMut(Function<'a>)) -> Option<()> {
    const DYNSYM: u32 = 11;
    const SYMBOL_LEN: usize = 24;
    const FUNCTION: u8 = 2;
    if elf.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = usize::try_from(u64_at(elf, 40)?).ok()?;
    let (size, count) = (usize::from(u16_at(elf, 58)?), usize::from(u16_at(elf, 60)?));
    // Where a section lies, and the one that belongs to it.
    let section = |index: usize| -> Option<(u32, Range<usize>, usize)> {
        let at = table.checked_add(index.checked_mul(size)?)?;
        let begin = usize::try_from(u64_at(elf, at.checked_add(24)?)?).ok()?;
        let len = usize::try_from(u64_at(elf, at.checked_add(32)?)?).ok()?;
        let kind = u32_at(elf, at.checked_add(4)?)?;
        let link = u32_at(elf, at.checked_add(40)?)?;
        Some((kind, begin..begin.checked_add(len)?, usize::try_from(link).ok()?))
    };
    let found = (0..count).find_map(|index| section(index).filter(|(kind, ..)| *kind == DYNSYM));
    let (_, symbols, names) = found?;
    let names = elf.get(section(names)?.1)?;
    for symbol in elf.get(symbols)?.chunks_exact(SYMBOL_LEN) {
        let is_defined = u16_at(symbol, 6)? != 0;
        if symbol[4] & 0xf != FUNCTION || !is_defined {
            continue;
        }
        let name = names.get(u32_at(symbol, 0)? as usize..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        let name = name.strip_prefix(b"__vdso_").unwrap_or(name);
        let at = usize::try_from(u64_at(symbol, 8)?).ok()?;
        let len = usize::try_from(u64_at(symbol, 16)?).ok()?;
        elf.get(at..at.checked_add(len)?)?;
        each(Function { name, at, len });
    }
    Some(())
}

/// Makes entries for all functions of the vDSO `old`: calls `write` with where the entry lies in it
/// and its code. They lead to the functions of `new`, which lies at the address `new_at`, or make a
/// system call instead.
///
/// # Errors
/// What is wrong with one of them.
pub fn entries(
    old: &[u8],
    new: &[u8],
    new_at: u64,
    mut write: impl FnMut(usize, &[u8]),
) -> Result<(), &'static str> {
    let mut too_short = false;
    let read = for_each_function(old, |function| {
        too_short |= function.len < ENTRY_LEN;
        if !too_short {
            let mut code = [0; ENTRY_LEN];
            let len = entry(function.name, new, new_at, &mut code);
            write(function.at, &code[..len]);
        }
    });
    match (read, too_short) {
        (false, _) => Err("the vDSO of its kernel cannot be read"),
        (_, true) => Err("a function of its kernel's vDSO has no room for an entry"),
        (true, false) => Ok(()),
    }
}

/// Writes an entry for the function of this name. Returns its length in bytes.
fn entry(name: &[u8], new: &[u8], new_at: u64, code: &mut [u8; ENTRY_LEN]) -> usize {
    let mut target = None;
    if name != GETRANDOM.0 {
        let _ = for_each_function(new, |function| {
            if function.name == name {
                target = Some(new_at + function.at as u64);
            }
        });
    }
    if let Some(target) = target {
        // movabs rax, target; jmp rax
        code[..2].copy_from_slice(&[0x48, 0xb8]);
        code[2..10].copy_from_slice(&target.to_le_bytes());
        code[10..].copy_from_slice(&[0xff, 0xe0]);
        return ENTRY_LEN;
    }
    let call = CALLS.iter().chain([&GETRANDOM]).find(|(of, _)| *of == name);
    let value = call.map_or((-ENOSYS) as u32, |(_, number)| *number);
    // mov eax, value; the arguments of the call are where those of the function are.
    code[0] = 0xb8;
    code[1..5].copy_from_slice(&value.to_le_bytes());
    if call.is_some() {
        // syscall; ret
        code[5..8].copy_from_slice(&[0x0f, 0x05, 0xc3]);
        8
    } else {
        // ret
        code[5] = 0xc3;
        6
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::fingerprint;
    use eyrie_image_format::{map_flag, named};
    use std::vec::Vec;

    /// The vDSO of this process, and its address.
    fn own() -> (&'static [u8], u64) {
        let (_, specials) = fingerprint::of_this_process().unwrap();
        let vdso = specials.iter().find(|s| s.flag == map_flag::VDSO).unwrap();
        // SAFETY: the kernel maps the vDSO readable, as long as the process lives.
        let elf =
            unsafe { core::slice::from_raw_parts(vdso.start as *const u8, vdso.len as usize) };
        (elf, vdso.start)
    }

    fn names(elf: &[u8]) -> Vec<&[u8]> {
        let mut all = Vec::new();
        assert!(for_each_function(elf, |function| all.push(function.name)));
        all
    }

    #[test]
    fn the_functions_of_this_kernel_are_found_and_have_room() {
        let (elf, _) = own();
        for name in [&b"clock_gettime"[..], b"gettimeofday", b"time", b"clock_getres", b"getcpu"] {
            assert!(names(elf).contains(&name));
        }
        assert!(elf.len() <= named::VDSO_MAX);
        assert!(for_each_function(elf, |function| assert!(function.len >= ENTRY_LEN)));
    }

    #[test]
    fn entries_lead_to_the_other_ones_functions_or_to_system_calls() {
        let (elf, at) = own();
        let of = |name: &[u8], new: &[u8]| {
            let mut code = [0; ENTRY_LEN];
            let len = entry(name, new, at, &mut code);
            code[..len].to_vec()
        };
        let mut clock = 0;
        for_each_function(elf, |f| {
            if f.name == b"clock_gettime" {
                clock = at + f.at as u64;
            }
        });
        let jump = [&[0x48, 0xb8][..], &clock.to_le_bytes(), &[0xff, 0xe0]].concat();
        assert_eq!(of(b"clock_gettime", elf), jump);
        assert_eq!(of(b"clock_gettime", b""), [0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        assert_eq!(of(b"getrandom", elf), [0xb8, 62, 1, 0, 0, 0x0f, 0x05, 0xc3]);
        assert_eq!(of(b"sgx_enter_enclave", b""), [0xb8, 0xda, 0xff, 0xff, 0xff, 0xc3]);
        let mut written = 0;
        assert_eq!(entries(elf, elf, at, |_, code| written += code.len().min(1)), Ok(()));
        assert_eq!(written, names(elf).len());
        let nothing = entries(b"\x7fELF\x02", elf, at, |_, _| {});
        assert_eq!(nothing, Err("the vDSO of its kernel cannot be read"));
    }

    /// Whatever is damaged is refused or read, and nothing panics.
    #[test]
    fn damaged_ones_do_no_harm() {
        let (elf, at) = own();
        let mut random = 1u64;
        for _ in 0..20_000 {
            let mut damaged = elf.to_vec();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let place = (random >> 33) as usize;
                // Most of them in the headers and the tables.
                let within = [64, 0x600, elf.len()][place % 3].min(elf.len());
                damaged[place / 3 % within] = (random >> 24) as u8;
            }
            let _ = entries(&damaged, elf, at, |at, code| {
                assert!(at + code.len() <= damaged.len());
            });
        }
    }
}
