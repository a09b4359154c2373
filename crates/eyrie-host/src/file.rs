//! A file that a rank uses, and how it is compared with another. A restore accepts a file of the
//! same size that has the same build id, or else the same time of change. This compares in the same
//! way, and also by content, which a restore has no time to read.

use crate::elf;
use eyrie_image::fingerprint::build_id;
use eyrie_proc::Maps;
use eyrie_wire::facts::{cut, File, Role};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes at the beginning of a file in which images look for a build id.
const FRONT: usize = 4096;
/// Longest file whose content is hashed, bytes.
const HASHED_MAX: u64 = 256 << 20;

/// Looks at a file.
pub fn look(role: Role, path: &Path) -> File {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mut file = File::unknown(role, &path.to_string_lossy(), "");
    if let Err(e) = read(&mut file, &path) {
        file.problem = cut(&e.to_string());
    }
    file
}

fn read(known: &mut File, path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::open(path)?;
    let meta = file.metadata()?;
    known.size = meta.len();
    known.modified_ns =
        meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
    known.build_id = build_id(&front(&file)?);
    if known.build_id == 0 && meta.is_file() && known.size <= HASHED_MAX {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&file)?;
        known.content = hasher.finalize().to_hex()[..32].to_string();
    }
    Ok(())
}

/// The first bytes of a file.
pub(crate) fn front(file: &std::fs::File) -> std::io::Result<Vec<u8>> {
    let mut front = vec![0; FRONT];
    let len = file.read_at(&mut front, 0)?;
    front.truncate(len);
    Ok(front)
}

/// The loader of this program, if it has one.
pub(crate) fn loader(path: &Path) -> Option<PathBuf> {
    let file = std::fs::File::open(path).ok()?;
    let read = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    };
    elf::loader(&front(&file).ok()?, read).map(PathBuf::from)
}

/// The programs and libraries that a process has mapped now; none when it is gone.
pub fn mapped_by(pid: u32) -> Vec<File> {
    let maps = Maps::read(eyrie_proc::directory(pid));
    let mut paths: Vec<&Path> = Vec::new();
    for mapping in maps.files().filter(|mapping| mapping.permissions.contains('x')) {
        if !paths.contains(&mapping.path) {
            paths.push(mapping.path);
        }
    }
    paths.into_iter().map(|path| look(Role::Library, path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_with_its_times_is_taken_and_one_without_is_known_to_be_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        for path in &paths {
            std::fs::write(path, "no ELF").unwrap();
        }
        let look = |path: &PathBuf| super::look(Role::Library, path);
        let [a, mut b] = [look(&paths[0]), look(&paths[1])];
        assert!(a.has_content_of(&b) && a.name() == "a" && a.content.len() == 32);
        b.modified_ns = a.modified_ns + 1;
        assert!(!a.is_taken_for(&b));
        b.modified_ns = a.modified_ns;
        assert!(a.is_taken_for(&b));
        std::fs::write(&paths[1], "not it").unwrap();
        let mut other = look(&paths[1]);
        other.modified_ns = a.modified_ns;
        assert!(!a.has_content_of(&other) && !a.is_taken_for(&other));
        let none = look(&dir.path().join("none"));
        assert!(none.problem.contains("No such file"), "{none:?}");
    }

    #[test]
    fn a_process_has_mapped_its_program() {
        let mine = mapped_by(std::process::id());
        let me = std::env::current_exe().unwrap();
        assert!(mine.iter().any(|f| Path::new(&f.path) == me), "{mine:?}");
        assert!(mine.iter().any(|f| f.name().starts_with("libc") && f.build_id != 0), "{mine:?}");
    }
}
