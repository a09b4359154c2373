//! What the agent makes for each incarnation of a rank and sends with the welcome: the page that it
//! shares with the rank, and the file of directories. Neither is ever part of an image.

use eyrie_wire::auth::Secret;
use eyrie_wire::control::TraceRecord;
use eyrie_wire::directory::Directory;
use eyrie_wire::page::{Endpoint, RankPage, Record, PAGE_BYTES, SIGNALS};
use eyrie_wire::signals::Signals;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use rustix::time::{clock_gettime, ClockId};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The page of one incarnation of a rank.
#[derive(Debug)]
pub struct Page {
    fd: OwnedFd,
    memory: *mut RankPage,
}

/// The present moment on the processor's and on the kernel's clock.
fn moment() -> (u64, u64) {
    let time = clock_gettime(ClockId::Monotonic);
    let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    // SAFETY: the instruction only reads the time stamp counter, which every x86-64 processor has.
    (unsafe { std::arch::x86_64::_rdtsc() }, ns)
}

impl Page {
    /// `epoch`: that of the directory that the rank gets with the page.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn create(secret: &Secret, epoch: u64) -> std::io::Result<Page> {
        let fd = memfd_create(c"eyrie-page", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, PAGE_BYTES as u64)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so that the mapping overlaps no other.
        let memory =
            unsafe { mmap(std::ptr::null_mut(), PAGE_BYTES, prot, MapFlags::SHARED, &fd, 0)? };
        let page = Page { fd, memory: memory.cast() };
        let (tsc, monotonic_ns) = moment();
        page.shared().prepare(&secret.0, tsc, monotonic_ns);
        page.set_directory(epoch);
        Ok(page)
    }

    fn shared(&self) -> &RankPage {
        // SAFETY: `create` has mapped PAGE_BYTES, which are valid from all zero on, and the mapping
        // is there as long as `self`. All fields are atomic, so the rank may access them meanwhile.
        unsafe { &*self.memory }
    }

    /// The last directory in the rank's file has this epoch now.
    pub fn set_directory(&self, epoch: u64) {
        self.shared().set_directory(epoch);
    }

    /// Epoch of the last directory that the rank was given.
    pub fn directory(&self) -> u64 {
        self.shared().directory()
    }

    /// For how long the rank has asked for messages and found none.
    pub fn polled(&self) -> Duration {
        let (tsc, now_ns) = moment();
        Duration::from_nanos(self.shared().polled_ns(tsc, now_ns))
    }

    /// For how long the rank has waited for messages, whether it kept its processor busy or not.
    pub fn waited(&self) -> Duration {
        let (tsc, now_ns) = moment();
        Duration::from_nanos(self.shared().waited_ns(tsc, now_ns))
    }

    /// Steps of the rank in its trace so far: mostly messages that it has sent or received.
    pub fn steps(&self) -> u64 {
        self.shared().steps()
    }

    /// The signals of the job for this rank.
    pub fn signals(&self) -> &Signals<SIGNALS> {
        self.shared().signals()
    }

    /// Whether the rank has caught up: what it does now it has never done before.
    pub fn is_new(&self) -> bool {
        self.shared().is_new()
    }

    /// The state of the rank's endpoint, also when the rank has ended.
    pub fn endpoint(&self) -> Endpoint {
        self.shared().endpoint()
    }

    /// What the rank did last, oldest first. A record that the rank is writing may be mixed with
    /// the one that it overwrites.
    pub fn trace(&self) -> Vec<TraceRecord> {
        let (tsc, now_ns) = moment();
        let records = self.shared().read(tsc, now_ns);
        let in_words = |(time_ns, record): (u64, Record)| TraceRecord {
            age_us: now_ns.saturating_sub(time_ns) / 1000,
            clock: record.clock,
            text: record.text(),
        };
        records.into_iter().map(in_words).collect()
    }
}

impl AsFd for Page {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `create` made the mapping with this length, and nothing uses it after `self`.
        let _ = unsafe { munmap(self.memory.cast(), PAGE_BYTES) };
    }
}

/// The file of directories of one incarnation of a rank: newer ones are added to it.
#[derive(Debug)]
pub struct Directories(File);

impl Directories {
    /// # Errors
    /// When there is no memory.
    pub fn create(directory: &[u8]) -> std::io::Result<Directories> {
        let file = File::from(memfd_create(c"eyrie-directory", MemfdFlags::CLOEXEC)?);
        let directories = Directories(file);
        directories.add(directory)?;
        Ok(directories)
    }

    /// # Errors
    /// When there is no memory.
    pub fn add(&self, directory: &[u8]) -> std::io::Result<()> {
        let end = self.0.metadata()?.len();
        self.0.write_all_at(&Directory::record(directory), end)
    }
}

impl AsFd for Directories {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
