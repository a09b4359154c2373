//! The files of the ledgers and of the bells, and the keeper's mapping of the ledgers. They have no
//! name and end with the processes that use them. Ranks must never get more than one region to
//! write in good faith: the descriptor that they write by is of the whole file, because a mapping
//! of a part needs one.

use crate::huge_pages;
use eyrie_ledger::bells::Bells;
use eyrie_ledger::layout::Layout;
use eyrie_ledger::mapped::{Mapped, MappedHints};
use eyrie_wire::keeper::Ledgers;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{madvise, mmap, munmap, Advice, MapFlags, ProtFlags};
use rustix::process::{getrlimit, Resource};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tracing::debug;

/// Most bytes of addresses that the ledgers of a job take.
const WINDOW: u64 = 8 << 40;
/// Fewest bytes of addresses of a region, where there are not very many ranks: a long message fits,
/// however little memory there is for logs.
const LEAST: u64 = 4 << 30;
/// Regions are multiples of this, so that each can have huge pages.
const HUGE_PAGE: u64 = 2 << 20;

/// How the ledgers of `ranks` ranks lie in their file, which together use `log_memory` bytes. Any
/// one of them can use all of these. `least`: fewest bytes of a region.
///
/// # Errors
/// A text for users, when there are too many ranks.
pub fn lie(ranks: u32, log_memory: u64, least: u64) -> Result<Ledgers, String> {
    let too_many = || format!("{ranks} ranks are too many for ledgers in shared memory");
    if ranks == 0 || ranks > Layout::MOST_RANKS {
        return Err(too_many());
    }
    let tables = Layout::new(0, ranks, WINDOW).extents();
    let log = log_memory.clamp(1, WINDOW).next_power_of_two();
    let most = WINDOW / u64::from(ranks) / HUGE_PAGE * HUGE_PAGE;
    let region_bytes = (log + tables).max(LEAST).max(least).next_multiple_of(HUGE_PAGE).min(most);
    if region_bytes < least.max(2 * tables) {
        return Err(too_many());
    }
    Ok(Ledgers { ranks, region_bytes })
}

/// Ledgers take many addresses of each rank, most of them without memory.
///
/// # Errors
/// In words for users, when addresses are limited: ranks have the limit of this process.
pub fn check_addresses() -> io::Result<()> {
    match getrlimit(Resource::As).current {
        None => Ok(()),
        Some(_) => Err(said(
            Errno::NOMEM,
            "ledgers need more addresses than `ulimit -v` allows: raise it".into(),
        )),
    }
}

/// The files, as ranks get them.
pub struct Files {
    /// The ledgers, to be read only.
    pub readable: OwnedFd,
    /// The same file, to be written.
    pub writable: OwnedFd,
    pub bells: OwnedFd,
}

impl Files {
    /// Makes files for these ledgers. They are zero and have no memory yet.
    ///
    /// # Errors
    /// In words for users, when the system does not have what is needed.
    pub fn create(ledgers: Ledgers) -> io::Result<Files> {
        let bytes = u64::from(ledgers.ranks) * ledgers.region_bytes;
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes) {
            return Err(said(
                Errno::FBIG,
                format!(
                    "ledgers need a file of {bytes} bytes, most of them without memory, and \
                     `ulimit -f` allows less: raise it"
                ),
            ));
        }
        let writable = ledger_file(bytes)?;
        let bells = Bells::<MappedHints>::bytes(ledgers.ranks).next_multiple_of(4096);
        let bells = memory_file(c"eyrie-bells", bells)?;
        let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let readable = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| {
            said(e, format!("ledgers need /proc, and {path} cannot be opened: {e}"))
        })?;
        Ok(Files { readable, writable, bells })
    }
}

/// The file of the ledgers: one whose pages may be huge, else one of the kernel's own. The former
/// can have no seals. No process shrinks it all the same: ranks close the descriptor to write by as
/// soon as they have mapped their regions.
fn ledger_file(bytes: u64) -> io::Result<OwnedFd> {
    let name = c"eyrie-ledger";
    let file = huge_pages::create(name).and_then(|file| ftruncate(&file, bytes).map(|()| file));
    file.or_else(|e| {
        debug!("ledgers have small pages: {e}");
        memory_file(name, bytes)
    })
}

fn memory_file(name: &std::ffi::CStr, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not have the flag.
    let made = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    let file = made.and_then(|file| {
        ftruncate(&file, bytes)?;
        // No process can take memory away that others have mapped, or keep others from mapping it.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(file)
    });
    file.map_err(|e| said(e, format!("there is no shared memory for ledgers (memfd_create: {e})")))
}

/// The keeper's mapping of all ledgers.
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
    ledgers: Ledgers,
}

// SAFETY: the mapping belongs to this value, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the ledgers.
    ///
    /// # Errors
    /// In words for users, when there are not so many addresses.
    pub fn new(file: impl AsFd, ledgers: Ledgers) -> io::Result<Mapping> {
        let bytes = (u64::from(ledgers.ranks) * ledgers.region_bytes) as usize;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so that the mapping overlaps no other.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, file, 0) };
        let base: *mut u8 = base.map_err(|e| unmappable(e, bytes))?.cast();
        for advice in [Advice::LinuxDontDump, Advice::LinuxDontFork] {
            // SAFETY: the range is the mapping that was just made, and neither advice changes its
            // content. Where the kernel refuses, core dumps are larger, or children have it, too.
            let _ = unsafe { madvise(base.cast(), bytes, advice) };
        }
        Ok(Mapping { base, bytes, ledgers })
    }

    /// The region of each rank.
    ///
    /// # Safety
    /// They must not be used after this mapping is dropped.
    pub unsafe fn regions(&self) -> Vec<Mapped> {
        let Ledgers { ranks, region_bytes } = self.ledgers;
        let region = |rank| {
            let base = self.base.wrapping_add((u64::from(rank) * region_bytes) as usize);
            // SAFETY: the region lies in the mapping, is shared and writable, and begins at a page.
            // No process shrinks the file. The caller promises the rest.
            unsafe { Mapped::new(base, region_bytes) }
        };
        (0..ranks).map(region).collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping that `new` made. The caller of `regions` has promised
        // that no region is used any more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

fn unmappable(e: Errno, bytes: usize) -> io::Error {
    let tib = (bytes >> 40).max(1);
    said(
        e,
        format!(
            "ledgers need up to {tib} TiB of addresses, most of them without memory, and they \
             cannot be mapped ({e}): raise `ulimit -v`"
        ),
    )
}

fn said(e: Errno, text: String) -> io::Error {
    io::Error::new(io::Error::from(e).kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use eyrie_ledger::memory::{Memory, View};

    #[test]
    fn any_region_can_have_the_whole_log_and_all_lie_in_the_window() {
        for ranks in [1, 2, 8, 128, 4096, 100_000] {
            for log in [0, 1 << 20, 64 << 20, (1 << 30) + 1, 1 << 40, u64::MAX] {
                let Ledgers { region_bytes, .. } = lie(ranks, log, 0).unwrap();
                assert_eq!(region_bytes % HUGE_PAGE, 0);
                assert!(region_bytes * u64::from(ranks) <= WINDOW);
                let extents = Layout::new(0, ranks, region_bytes).extents();
                let all = region_bytes - extents >= log.min(1 << 40);
                assert!(all || region_bytes * u64::from(ranks + 1) > WINDOW / 2, "{ranks} {log}");
            }
        }
        assert_eq!(lie(1, 0, 0).unwrap().region_bytes, LEAST);
        assert!(lie(2, 1 << 20, 1 << 30).unwrap().region_bytes >= 1 << 30);
        assert!(lie(Layout::MOST_RANKS, 1 << 30, 0).is_err());
    }

    #[test]
    fn ranks_read_what_is_written_and_cannot_write_by_the_readable_one() {
        let ledgers = lie(3, 16 << 20, 0).unwrap();
        let files = Files::create(ledgers).unwrap();
        let mapping = Mapping::new(&files.writable, ledgers).unwrap();
        // SAFETY: `mapping` lives until the end of the test.
        let regions = unsafe { mapping.regions() };
        assert!(regions[2].populate(0, 4096));
        regions[2].store(8, 77);
        let mut word = [0; 8];
        let at = 2 * ledgers.region_bytes + 8;
        rustix::io::pread(&files.readable, &mut word, at).unwrap();
        assert_eq!((u64::from_le_bytes(word), regions[1].load(8)), (77, 0));
        assert_eq!(rustix::io::pwrite(&files.readable, &word, 0), Err(Errno::BADF));
        assert_eq!(ftruncate(&files.bells, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&files.readable, 4096), Err(Errno::INVAL));
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address; nothing is mapped.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, &files.readable, 0) };
        assert_eq!(mapped, Err(Errno::ACCESS));
    }
}
