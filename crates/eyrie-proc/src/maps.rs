//! /proc/PID/maps: what a process has mapped.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The text of /proc/PID/maps.
#[derive(Clone, Debug, Default)]
pub struct Maps(Vec<u8>);

/// A mapping of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping<'a> {
    /// Bytes.
    pub len: u64,
    /// As `r-xp`.
    pub permissions: &'a str,
    /// Major and minor number.
    pub device: (u32, u32),
    pub inode: u64,
    /// Of a removed file it ends with ` (deleted)`.
    pub path: &'a Path,
}

impl Maps {
    /// Reads it from a directory of /proc; empty when the process is gone, or executes another
    /// program at this moment.
    pub fn read(dir: impl AsRef<Path>) -> Maps {
        Maps(std::fs::read(dir.as_ref().join("maps")).unwrap_or_default())
    }

    /// The mappings of files.
    pub fn files(&self) -> impl Iterator<Item = Mapping<'_>> {
        self.0.split(|byte| *byte == b'\n').filter_map(file)
    }
}

/// The file of a line `start-end permissions offset major:minor inode path`.
fn file(line: &[u8]) -> Option<Mapping<'_>> {
    let slash = line.iter().position(|byte| *byte == b'/')?;
    let (fields, path) = line.split_at(slash);
    let mut fields = std::str::from_utf8(fields).ok()?.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).ok());
    let len = end?.checked_sub(start?)?;
    let permissions = fields.next()?;
    let device = fields.nth(1)?;
    let inode = fields.next()?.parse().ok()?;
    if fields.next().is_some() {
        return None; // a name as [anon:a/b]
    }
    let (major, minor) = device.split_once(':')?;
    let [major, minor] = [major, minor].map(|number| u32::from_str_radix(number, 16).ok());
    let path = Path::new(OsStr::from_bytes(path));
    Some(Mapping { len, permissions, device: (major?, minor?), inode, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_names_its_file() {
        let line = b"7f68f9b89000-7f68f9be0000 r--p 00001000 103:1a 316526     /a b";
        let Mapping { device, inode, path, .. } = file(line).unwrap();
        assert_eq!((path, device, inode), (Path::new("/a b"), (0x103, 0x1a), 316_526));
        assert!(file(b"7ffd0000-7ffe0000 rw-p 00000000 00:00 0 [stack]").is_none());
    }

    #[test]
    fn only_mappings_of_files_are_found_whatever_their_names() {
        let text = b"00400000-00452000 r-xp 00000000 fe:02 173521      /usr/bin/a b\n\
                     00e03000-00e24000 rw-p 00000000 00:00 0           [heap]\n\
                     00e25000-00e26000 rw-p 00000000 00:00 0           [anon:a/b]\n\
                     35b1800000-35b1820000 rw-s 00000000 08:02 0\n\
                     7e00000000-7e00001000 r--p 00000000 00:01 7 /no text: \xff\n\
                     7f00000000-7f00001000 rw-s 00000000 00:01 9 /SYSV0000 (deleted)\n";
        let maps = Maps(text.to_vec());
        let of = |file: Mapping| (file.device, file.inode, file.path.as_os_str().len());
        let files: Vec<_> = maps.files().map(of).collect();
        assert_eq!(files, [((0xfe, 2), 173_521, 12), ((0, 1), 7, 11), ((0, 1), 9, 19)]);
        let first = maps.files().next().unwrap();
        assert_eq!((first.permissions, first.path), ("r-xp", Path::new("/usr/bin/a b")));
        let own = std::env::current_exe().unwrap();
        assert!(Maps::read(crate::OWN).files().any(|file| file.path == own));
        assert_eq!(Maps::read("/none").files().count(), 0);
    }
}
