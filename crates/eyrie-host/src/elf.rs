//! The part of an ELF file that says how it is loaded. Accepts any bytes.

use eyrie_wire::facts::TEXT_MAX;

/// Longest table of segments that is read, bytes.
const TABLE_MAX: usize = 65536;

/// The loader of a program whose first bytes are `front`; `None` for a static program, or if it is
/// not an ELF file of this machine. `read` returns bytes of the file from an offset on.
pub fn loader(front: &[u8], read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<String> {
    const PT_INTERP: u32 = 3;
    if front.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let u16_at = |i: usize| Some(u16::from_le_bytes(front.get(i..i + 2)?.try_into().ok()?));
    let table_at = u64::from_le_bytes(front.get(32..40)?.try_into().ok()?);
    let size = usize::from(u16_at(54)?);
    let count = usize::from(u16_at(56)?);
    let table = read(table_at, (size * count).min(TABLE_MAX))?;
    let entry = table.chunks_exact(size.max(40)).find(|e| e[..4] == PT_INTERP.to_le_bytes())?;
    let word = |i: usize| Some(u64::from_le_bytes(entry.get(i..i + 8)?.try_into().ok()?));
    let at = word(8)?;
    let len = usize::try_from(word(32)?).ok()?;
    let path = read(at, len.min(TEXT_MAX))?;
    let path = path.split(|byte| *byte == 0).next()?;
    String::from_utf8(path.to_vec()).ok().filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_program_has_a_loader() {
        let me = std::fs::read("/proc/self/exe").unwrap();
        let read = |at: u64, len: usize| me.get(at as usize..at as usize + len).map(<[u8]>::to_vec);
        let loader = loader(&me[..4096], read).unwrap();
        assert!(loader.contains("ld-"), "{loader}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, numbers: [u8; 60]) {
            let read = |_: u64, len: usize| bytes.get(..len).map(<[u8]>::to_vec);
            let mut front = numbers;
            front[..5].copy_from_slice(b"\x7fELF\x02");
            let _ = loader(&front, read);
            let _ = loader(&bytes, read);
        }
    }
}
