//! /proc/PID/mountinfo: where file systems are mounted.

use std::path::{Path, PathBuf};

/// Where a process has the file system of this device mounted, by proc_pid_mountinfo(5); `None`:
/// nowhere.
///
/// # Errors
/// When the process is gone.
pub fn mount_point(
    dir: impl AsRef<Path>,
    (major, minor): (u32, u32),
) -> std::io::Result<Option<PathBuf>> {
    let mounts = std::fs::read_to_string(dir.as_ref().join("mountinfo"))?;
    Ok(place_of(&mounts, major, minor))
}

/// The third field is the number of the file system, the fifth is the mount point, in which special
/// characters are octal.
fn place_of(mounts: &str, major: u32, minor: u32) -> Option<PathBuf> {
    let number = format!("{major}:{minor}");
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let place = (fields.nth(2)? == number).then(|| fields.nth(1))??;
        Some(PathBuf::from(unescaped(place)))
    })
}

fn unescaped(place: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(place.to_string(), |place, (escape, is)| place.replace(escape, is))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "21 1 254:0 / / rw - ext4 /dev/vda rw\n\
                          30 21 0:40 / /far\\040away rw,relatime shared:9 - nfs4 srv:/x rw\n";

    #[test]
    fn a_file_system_is_found_by_its_number() {
        assert_eq!(place_of(MOUNTS, 254, 0), Some("/".into()));
        assert_eq!(place_of(MOUNTS, 0, 40), Some("/far away".into()));
        assert_eq!(place_of(MOUNTS, 0, 4), None);
        assert!(mount_point("/none", (0, 4)).is_err());
    }
}
