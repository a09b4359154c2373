//! Records that have a name. What is added to the format comes in one of them, so that a reader
//! that does not know it can say by name what it cannot restore, or skip it.

use crate::stream::{Kind, RecordHeader};
use core::fmt;

/// A flag of a [`Kind::Named`] record: a reader that does not know the name may skip the record.
/// Without it, such a reader must refuse the image.
pub const OPTIONAL: u32 = 1;

/// Longest name, bytes.
pub const NAME_MAX: usize = 64;
/// Longest content, bytes.
pub const CONTENT_MAX: usize = 4096;
/// The same of [`VDSO`].
pub const VDSO_MAX: usize = 32 << 10;

/// The names that this version restores. The process itself brings the state of the first two back,
/// with the code that its image contains.
pub const KNOWN: [&str; 4] = [CONNECTIONS, FILES, VDSO, PROCESSOR];
/// The connections of the provider, which a restored process makes anew.
pub const CONNECTIONS: &str = "connections";
/// What libeyrie-calls knows of the files that the program has open.
pub const FILES: &str = "files";
/// The vDSO of the kernel on which the image was taken: the restorer needs it on another kernel. An
/// image of which a thread was within that code does not have it.
pub const VDSO: &str = "vdso";
/// What the image demands of the processor, a [`crate::Demand`]. An image without this record
/// demands all that its node had.
pub const PROCESSOR: &str = "processor";

/// A record with a name: what it is called, and its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named<'a> {
    pub name: &'a str,
    pub content: &'a [u8],
    /// See [`OPTIONAL`].
    pub is_optional: bool,
}

impl<'a> Named<'a> {
    /// The header of its record; the payload is the name and then the content. `None` when one of
    /// them is too long, or the name is not one.
    pub fn header(&self) -> Option<RecordHeader> {
        (is_name(self.name.as_bytes()) && self.content.len() <= content_max(self.name)).then_some(
            RecordHeader {
                kind: Kind::Named,
                flags: self.is_optional as u32 * OPTIONAL,
                a: self.name.len() as u64,
                b: 0,
                len: (self.name.len() + self.content.len()) as u64,
            },
        )
    }

    /// Reads the payload of a record; `None` when it is not one with a name.
    pub fn read(header: &RecordHeader, payload: &'a [u8]) -> Option<Named<'a>> {
        let len = usize::try_from(header.a).ok()?;
        let (name, content) = payload.split_at_checked(len)?;
        let is_valid = header.kind == Kind::Named && is_name(name);
        let name = core::str::from_utf8(name).ok().filter(|_| is_valid)?;
        if content.len() > content_max(name) {
            return None;
        }
        Some(Named { name, content, is_optional: header.flags & OPTIONAL != 0 })
    }

    /// What a reader that restores the image must do with the record.
    pub fn verdict(&self) -> Verdict {
        match (KNOWN.contains(&self.name), self.is_optional) {
            (true, _) => Verdict::Known,
            (false, true) => Verdict::Skip,
            (false, false) => Verdict::Refuse,
        }
    }
}

/// What a reader does with a record that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Known,
    /// It says so, and goes on without the record.
    Skip,
    /// It says so, and restores nothing.
    Refuse,
}

/// That an image has something that its reader does not know, in words for the user.
pub struct Unknown<'a>(pub Named<'a>);

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = self.0.name;
        write!(f, "the image has '{name}', which this version of Eyrie does not know: ")?;
        if self.0.is_optional {
            f.write_str("the process goes on without it")
        } else {
            f.write_str("restore it with the version that took it")
        }
    }
}

fn content_max(name: &str) -> usize {
    if name == VDSO {
        VDSO_MAX
    } else {
        CONTENT_MAX
    }
}

/// Names are written to terminals, so they have only letters, digits, dots, dashes and
/// underscores of ASCII.
fn is_name(name: &[u8]) -> bool {
    let is_of_it = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    (1..=NAME_MAX).contains(&name.len()) && name.iter().all(is_of_it)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn a_record_with_a_name_is_read_as_it_was_written() {
        for is_optional in [false, true] {
            let named = Named { name: "gpu.0", content: b"\0\xff bytes", is_optional };
            let header = named.header().unwrap();
            let payload: Vec<u8> = [named.name.as_bytes(), named.content].concat();
            assert_eq!(header.len as usize, payload.len());
            let header = RecordHeader::decode(&header.encode()).unwrap();
            assert!(header.kind.is_description());
            assert_eq!(Named::read(&header, &payload), Some(named));
        }
    }

    #[test]
    fn what_is_unknown_is_named_and_only_the_optional_is_skipped() {
        let of = |name, is_optional| Named { name, content: &[], is_optional };
        assert_eq!(of(FILES, false).verdict(), Verdict::Known);
        assert_eq!(of("gpu", true).verdict(), Verdict::Skip);
        assert_eq!(of("gpu", false).verdict(), Verdict::Refuse);
        let said = Unknown(of("gpu", false)).to_string();
        assert_eq!(
            said,
            "the image has 'gpu', which this version of Eyrie does not know: restore it with the \
             version that took it"
        );
    }

    #[test]
    fn names_that_are_none_are_neither_written_nor_read() {
        let long = "x".repeat(NAME_MAX + 1);
        for name in ["", "a b", "a\n", "\x1b[31m", &long] {
            let named = Named { name, content: &[], is_optional: true };
            assert!(named.header().is_none(), "{name:?}");
            let a = name.len() as u64;
            let header = RecordHeader { kind: Kind::Named, flags: 0, a, b: 0, len: a };
            assert!(Named::read(&header, name.as_bytes()).is_none(), "{name:?}");
        }
        let header = RecordHeader { kind: Kind::Named, flags: 0, a: 9, b: 0, len: 4 };
        assert!(Named::read(&header, b"name").is_none(), "a name longer than its record");
        let content = &[0; CONTENT_MAX + 1];
        assert!(Named { name: "x", content, is_optional: true }.header().is_none());
    }
}
