//! A file in memory whose pages may be huge: in a tmpfs of its own that is mounted nowhere and ends
//! with the file. A new huge page costs a third of what its small ones cost. In the kernel's own
//! tmpfs, which has memfds, pages are huge only where an administrator has allowed it.
//!
//! To mount needs a privilege that most users have in a user namespace only. So a child process
//! makes the file, in namespaces of its own and in this process's table of descriptors. Between
//! its start and its end the child must never allocate memory or take a lock: another thread may
//! have held that lock.

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{openat, unlinkat, AtFlags, Mode, OFlags};
use rustix::io::{dup3, write, DupFlags, Errno};
use rustix::mount::{
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, FsMountFlags, FsOpenFlags,
    MountAttrFlags,
};
use rustix::process::{getegid, geteuid};
use std::ffi::CStr;
use std::os::fd::OwnedFd;

/// A file without bytes, to be read and written. It has no link; /proc shows it by this name.
///
/// # Errors
/// Where the kernel has no such files (before Linux 5.2, or without huge pages), or does not let
/// this process have namespaces.
pub fn create(name: &CStr) -> Result<OwnedFd, Errno> {
    // The child puts the file in this one's place. A descriptor that it made itself would have a
    // number that it cannot say.
    let mut file = eventfd(0, EventfdFlags::CLOEXEC)?;
    let identity = Identity::of_this_process();
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_FILES;
    // SAFETY: without CLONE_VM the child has a copy of this process's memory, and goes on here. It
    // makes system calls only, and ends without running anything of this process.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        let error = make(name, &mut file, &identity).err();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(error.map_or(0, Errno::raw_os_error)) };
    }
    if child < 0 {
        return Err(last_error());
    }
    match wait(child as libc::pid_t)? {
        status if libc::WIFEXITED(status) => match libc::WEXITSTATUS(status) {
            0 => Ok(file),
            error => Err(Errno::from_raw_os_error(error)),
        },
        _killed => Err(Errno::CHILD),
    }
}

/// Waits until the child has ended; its status. It sends no signal when it ends, so that nothing
/// else that awaits children learns of it.
fn wait(child: libc::pid_t) -> Result<libc::c_int, Errno> {
    let mut status = 0;
    loop {
        // SAFETY: the status lives through the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) } == child {
            return Ok(status);
        }
        match last_error() {
            Errno::INTR => {}
            e => return Err(e),
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// The user and the group of this process, as a namespace's maps say them: each is itself.
struct Identity {
    user: String,
    group: String,
}

impl Identity {
    fn of_this_process() -> Identity {
        let user = geteuid().as_raw();
        let group = getegid().as_raw();
        Identity { user: format!("{user} {user} 1"), group: format!("{group} {group} 1") }
    }
}

/// Makes the file in the child, which is in new namespaces, and puts it in the place of `file`.
fn make(name: &CStr, file: &mut OwnedFd, identity: &Identity) -> Result<(), Errno> {
    write_to(c"/proc/self/setgroups", b"deny")?;
    write_to(c"/proc/self/uid_map", identity.user.as_bytes())?;
    write_to(c"/proc/self/gid_map", identity.group.as_bytes())?;
    let tmpfs = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&tmpfs, c"huge", c"advise")?;
    // As many as there is memory for: the keeper bounds what ranks use.
    fsconfig_set_string(&tmpfs, c"nr_blocks", c"0")?;
    fsconfig_create(&tmpfs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let made = openat(&root, name, flags, Mode::RUSR | Mode::WUSR)?;
    unlinkat(&root, name, AtFlags::empty())?;
    dup3(&made, file, DupFlags::CLOEXEC)
}

fn write_to(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    write(&file, text).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fstat, ftruncate};
    use rustix::io::{fcntl_getfd, FdFlags};
    use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};
    use std::fs::read_to_string;
    use std::os::fd::AsRawFd;
    use std::ptr::null_mut;

    const HUGE_PAGE: usize = 2 << 20;

    /// Whether this process may have user namespaces, and the kernel huge pages in a tmpfs.
    fn are_possible() -> bool {
        let read = |path: &str| read_to_string(path).unwrap_or_default();
        let thp = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        let namespaces = read("/proc/sys/user/max_user_namespaces");
        !thp.is_empty() && !thp.contains("[deny]") && namespaces.trim() != "0"
    }

    #[test]
    fn its_pages_are_huge_where_they_are_asked_for_and_it_leaves_no_descriptor() {
        if !are_possible() {
            println!("skipped: this kernel gives this process no huge pages in a tmpfs");
            return;
        }
        let file = create(c"ledgers").unwrap();
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(std::fs::read_link(link).unwrap().to_str(), Some("/ledgers (deleted)"));
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        (0..100).for_each(|_| drop(create(c"another").unwrap()));
        assert!(descriptors() < before + 100, "children have left some open");
        assert_eq!(fcntl_getfd(&file).unwrap(), FdFlags::CLOEXEC);
        ftruncate(&file, 1 << 40).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let bytes_in_use = || fstat(&file).unwrap().st_blocks * 512;
        // SAFETY: the kernel chooses addresses for three huge pages; two are mapped within them, at
        // a multiple of their size. The rest are calls about these very mappings.
        unsafe {
            let reserved = mmap_anonymous(null_mut(), 3 * HUGE_PAGE, prot, MapFlags::PRIVATE);
            let reserved = reserved.unwrap().cast::<u8>();
            let at = reserved.add(reserved.align_offset(HUGE_PAGE));
            let fixed = flags | MapFlags::FIXED;
            assert_eq!(mmap(at.cast(), 2 * HUGE_PAGE, prot, fixed, &file, 0), Ok(at.cast()));
            at.write(1);
            assert!(bytes_in_use() <= 64 << 10, "huge where it was not asked for");
            madvise(at.add(HUGE_PAGE).cast(), HUGE_PAGE, Advice::LinuxHugepage).unwrap();
            at.add(HUGE_PAGE).write(1);
            munmap(reserved.cast(), 3 * HUGE_PAGE).unwrap();
        };
        assert!(bytes_in_use() >= HUGE_PAGE as i64, "{} bytes", bytes_in_use());
    }
}
