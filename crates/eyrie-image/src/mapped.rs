//! Finds the numbers by which the kernel lists a mapped file. /proc/PID/maps has the device and
//! inode of the file that holds the pages. stat(2) has those of the subvolume on btrfs, and on
//! overlayfs those of the overlay. So a file is compared with a mapping by mapping it once more.
//! Must not allocate; makes no lasting change.

use eyrie_image_kernel::maps;
use eyrie_image_kernel::sys::{self, PAGE};

/// Device and inode number of a file, as either of the two has them.
pub type Number = (u64, u64);

/// Whether /proc/PID/maps lists the file that is open as `fd` by this number. `st` is its fstat(2).
pub fn is_listed_as(fd: i32, st: &sys::Stat, listed: Number) -> bool {
    (st.dev, st.ino) == listed || number_in_maps(fd) == Ok(listed)
}

/// The number by which /proc/PID/maps lists the file that is open as `fd` for reading.
///
/// # Errors
/// The kernel's error number: the file cannot be mapped, or there is no /proc.
pub fn number_in_maps(fd: i32) -> Result<Number, i32> {
    let at = sys::map_unreadable(fd)?;
    let number = number_at(at as u64);
    // SAFETY: the mapping was made above, and only this function has its address.
    let _ = unsafe { sys::munmap(at, PAGE) };
    number
}

fn number_at(address: u64) -> Result<Number, i32> {
    let fd = sys::open(b"/proc/self/maps\0", sys::O_CLOEXEC, 0)?;
    let mut number = Err(sys::EINVAL);
    let mut buf = [0u8; 8192];
    let read = maps::for_each_line(fd, &mut buf, |line| match maps::parse(line) {
        Some(line) if line.start <= address && address < line.end => {
            number = Ok((line.dev, line.ino));
            false
        }
        _ => true,
    });
    sys::close(fd);
    read.and(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_is_known_by_the_number_of_its_mappings() {
        let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let name = std::env::current_exe().unwrap();
        let text = std::fs::read("/proc/self/maps").unwrap();
        let lines = text.split(|b| *b == b'\n').filter_map(maps::parse);
        let own: Vec<_> =
            lines.filter(|line| line.name == name.as_os_str().as_encoded_bytes()).collect();
        let fd = program.as_raw_fd();
        assert!(!own.is_empty());
        assert_eq!(number_in_maps(fd), Ok((own[0].dev, own[0].ino)));
        assert!(is_listed_as(fd, &sys::fstat(fd).unwrap(), (own[0].dev, own[0].ino)));
        assert!(!is_listed_as(fd, &sys::fstat(fd).unwrap(), (own[0].dev, own[0].ino + 1)));
        let count = std::fs::read_to_string("/proc/self/maps").unwrap();
        let count = count
            .lines()
            .filter(|line| line.contains("---p") && line.ends_with(name.to_str().unwrap()));
        assert_eq!(count.count(), 0, "the mapping stays");
    }
}
