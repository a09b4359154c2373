//! The windows through which this process has the ledgers of its host: all of them, to be read; its
//! own region, to be written; bells and boards. They lie at fixed addresses, in no image and in no
//! core dump. And the connection to their keeper, which lets this incarnation in. Nothing here may
//! be used in a restored process before the keeper has let it in again.

use crate::core::ledger_path::host::{AdmissionError, SpilledFile, SpilledRange, Windows};
use crate::descriptors::{move_up, receive_message};
use crate::identity::Identity;
use crate::memory;
use eyrie_ledger::bells::Bells;
use eyrie_ledger::mapped::{Mapped, MappedHints, MappedView};
use eyrie_transport::handshake::HandshakeError;
use eyrie_transport::role;
use eyrie_wire::auth::Secret;
use eyrie_wire::control::Claim;
use eyrie_wire::keeper::{FromKeeper, Ledgers, ToKeeper, MAX_MESSAGE};
use eyrie_wire::RouterId;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Where the ledgers of all ranks lie, the own region, and the bells: above the restorer's stretch
/// and below what the kernel gives to mmap.
const LEDGERS_AT: usize = 0x6600_0000_0000;
const OWN_AT: usize = 0x6e00_0000_0000;
const BELLS_AT: usize = 0x7600_0000_0000;

/// The first bytes of the own region have small pages, so that many ranks on a node that send
/// little need little memory. Behind them the kernel is asked for huge ones.
const SMALL_PAGES: usize = 16 << 20;

/// A stretch of addresses: where it begins, and its length in bytes.
type Stretch = (usize, usize);

/// Longest single sleep of a rank that waits for a message.
static SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What the keeper has sent is not what this library expects.
const OTHER_RELEASE: &str =
    "`eyrie run` and libeyrie-fi.so do not understand each other: are they of one release?";
/// Fewer descriptors came with the ledgers than there are files. The kernel drops those that find
/// no room in this process.
const NO_FILES: &str =
    "the files of the ledgers have not come with them: raise `ulimit -n`, which \
                        bounds the descriptors of this rank";

/// What this process has of its ledgers.
#[derive(Default)]
pub struct Ledger {
    connection: Option<OwnedFd>,
    bells: Option<MappedHints>,
    /// Where the windows are mapped.
    mapped: Vec<Stretch>,
}

impl Ledger {
    /// The stretches of the windows, which are not part of an image.
    pub fn stretches(&self) -> &[Stretch] {
        &self.mapped
    }
}

/// The windows as they are mapped.
pub type MappedWindows = Windows<Mapped, MappedView, MappedHints, SpilledOnDisk>;

/// What the keeper gives to a rank that it lets in.
struct Admitted {
    ledgers: Ledgers,
    /// The ledgers to be read, the ledgers to be written, the bells.
    files: [OwnedFd; 3],
    /// Spilled messages.
    spilled: Option<SpilledRange<SpilledOnDisk>>,
}

impl Ledger {
    /// Connects to the keeper, waits until it lets this incarnation in, and maps the ledgers.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &mut self,
        identity: &Identity,
        timeout: Duration,
    ) -> Result<MappedWindows, AdmissionError> {
        let admitted = self.ask_keeper(identity, timeout)?;
        let rank = identity.instance.rank.0;
        let windows = map(rank, admitted, &mut self.mapped).map_err(AdmissionError::Refused)?;
        self.bells = Some(windows.bells);
        Ok(windows)
    }

    /// Tells the keeper. What does not reach it is lost with the connection.
    pub fn tell(&mut self, message: &ToKeeper) {
        let Some(connection) = &self.connection else { return };
        let Ok(encoded) = postcard::to_stdvec(message) else { return };
        let bytes = [&(encoded.len() as u32).to_le_bytes()[..], &encoded].concat();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the bytes live through the call, and are as many as said.
        unsafe { libc::send(connection.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    }

    /// Whether the connection stands.
    pub fn is_connected(&mut self) -> bool {
        let Some(connection) = &self.connection else { return false };
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: one byte, which lives through the call.
        let n = unsafe { libc::recv(connection.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        let waits = n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        if n <= 0 && !waits {
            self.connection = None;
        }
        self.connection.is_some()
    }

    /// Connects again; the windows stay, because they are of the same file.
    ///
    /// # Errors
    /// Why not.
    pub fn connect_again(
        &mut self,
        identity: &Identity,
        timeout: Duration,
    ) -> Result<(), AdmissionError> {
        self.ask_keeper(identity, timeout).map(|_| ())
    }

    /// The descriptor of the connection.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.connection.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Wakes the rank that sleeps at this place of the bells.
    pub fn wake(&self, at: u64) {
        let Some(bells) = &self.bells else { return };
        let word = bells.word(at).as_ptr();
        // SAFETY: the word is mapped as long as the bells are.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
    }

    /// Sleeps at this place of the bells while it has this value, shortly.
    pub fn sleep(&self, at: u64, value: u32) {
        let Some(bells) = &self.bells else { return };
        let word = bells.word(at);
        if word.load(Ordering::Relaxed) == value {
            let timeout = &raw const SLEEP;
            // SAFETY: the word is mapped as long as the bells are; the timeout is a constant.
            unsafe {
                libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, timeout)
            };
        }
    }

    /// Connects to the keeper, and waits until it lets this incarnation in.
    fn ask_keeper(
        &mut self,
        identity: &Identity,
        timeout: Duration,
    ) -> Result<Admitted, AdmissionError> {
        let deadline = Instant::now() + timeout;
        let addr = identity.directory.routers.get(RouterId(0).index());
        let addr = addr.ok_or_else(|| AdmissionError::Refused("there is no keeper".into()))?;
        let secret = Secret(memory::page().secret());
        let claim = Claim::Ledger { instance: identity.instance };
        let stream = role::connect(addr, &secret, &claim).map_err(|e| match e {
            HandshakeError::Io(_) | HandshakeError::Silent => {
                AdmissionError::Unreachable(e.to_string())
            }
            other => AdmissionError::Refused(other.to_string()),
        })?;
        if !stream.passes_files() {
            let why = "the keeper of the ledgers is on another host; use --path router";
            return Err(AdmissionError::Refused(why.into()));
        }
        let connection = move_up(stream.into_parts().0);
        let (bytes, files) = receive(&connection, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::InvalidData => AdmissionError::Refused(e.to_string()),
            _ => AdmissionError::Unreachable(e.to_string()),
        })?;
        let admitted = postcard::from_bytes(&bytes);
        let Ok(FromKeeper::Admitted { ledgers, spilled_begin, spilled_end }) = admitted else {
            return Err(AdmissionError::Refused(OTHER_RELEASE.into()));
        };
        let mut files = files.into_iter();
        let (Some(read), Some(write), Some(bells)) = (files.next(), files.next(), files.next())
        else {
            return Err(AdmissionError::Refused(NO_FILES.into()));
        };
        self.connection = Some(connection);
        let spilled = files.next().map(|file| {
            let file = SpilledOnDisk(File::from(move_up(file)));
            SpilledRange { file, begin: spilled_begin, end: spilled_end }
        });
        if spilled.is_none() && spilled_end > spilled_begin {
            return Err(AdmissionError::Refused(NO_FILES.into()));
        }
        Ok(Admitted { ledgers, files: [read, write, bells], spilled })
    }
}

/// The keeper's file of spilled messages.
pub struct SpilledOnDisk(File);

impl SpilledFile for SpilledOnDisk {
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(to, at)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

/// A message, and the descriptors that came with it.
fn receive(connection: &OwnedFd, deadline: Instant) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = Vec::new();
    let mut files = Vec::new();
    let mut missing = 4;
    loop {
        let came = receive_some(connection, missing, &mut files, deadline)?;
        bytes.extend_from_slice(&came);
        missing -= came.len();
        if missing > 0 {
            continue;
        }
        let Some((head, content)) = bytes.split_first_chunk() else { continue };
        let len = u32::from_le_bytes(*head) as usize;
        if len > MAX_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, OTHER_RELEASE));
        }
        missing = len - content.len();
        if missing == 0 {
            return Ok((content.to_vec(), files));
        }
    }
}

fn receive_some(
    connection: &OwnedFd,
    most: usize,
    files: &mut Vec<OwnedFd>,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
    let mut poll = libc::pollfd { fd: connection.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives through the call.
    if unsafe { libc::poll(&mut poll, 1, left) } == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = vec![0; most];
    let received = receive_message(connection.as_raw_fd(), &mut bytes, false, &mut |fd| {
        files.push(fd);
    })?;
    bytes.truncate(received.unwrap_or(0));
    Ok(bytes)
}

/// Maps the windows.
///
/// # Errors
/// Why they cannot be, in words for the user.
fn map(rank: u32, admitted: Admitted, mapped: &mut Vec<Stretch>) -> Result<MappedWindows, String> {
    // What an earlier attempt has mapped. A restored process has none of it.
    for (at, bytes) in mapped.drain(..) {
        // SAFETY: a window of ours, of which no view is in use: this process is only being let in.
        unsafe { libc::munmap(at as *mut _, bytes) };
    }
    let Admitted { ledgers, files, spilled } = admitted;
    let Ledgers { ranks, region_bytes } = ledgers;
    let all = region_bytes.checked_mul(u64::from(ranks));
    let all = all.filter(|all| rank < ranks && *all <= (OWN_AT - LEDGERS_AT) as u64);
    let all = all.ok_or(OTHER_RELEASE)? as usize;
    let read = libc::PROT_READ;
    let write = libc::PROT_READ | libc::PROT_WRITE;
    let own_offset = u64::from(rank) * region_bytes;
    let bells_bytes = Bells::<MappedHints>::bytes(ranks);
    mapped.push(map_at(LEDGERS_AT, all, read, &files[0], 0)?);
    mapped.push(map_at(OWN_AT, region_bytes as usize, write, &files[1], own_offset)?);
    if let Some(rest) = (region_bytes as usize).checked_sub(SMALL_PAGES) {
        // SAFETY: the range lies in the mapping that was just made, and its content stays. Where
        // the kernel refuses, or its file has none, pages are small.
        unsafe { libc::madvise((OWN_AT + SMALL_PAGES) as *mut _, rest, libc::MADV_HUGEPAGE) };
    }
    mapped.push(map_at(BELLS_AT, bells_bytes as usize, write, &files[2], 0)?);
    let region = |n: u32| {
        let at = LEDGERS_AT + n as usize * region_bytes as usize;
        // SAFETY: the window is mapped above, as long as the process lives or until it is mapped
        // anew in a restored one, which forgets this view first; the file does not shrink.
        unsafe { MappedView::new(at as *const u8, region_bytes) }
    };
    // SAFETY: as above; the own region and the bells are mapped to be written, from the file.
    let (own, bells) = unsafe {
        let own = Mapped::new(OWN_AT as *mut u8, region_bytes);
        (own, MappedHints::new(BELLS_AT as *mut u8, bells_bytes))
    };
    Ok(Windows { ledgers, own, regions: (0..ranks).map(region).collect(), bells, spilled })
}

/// Maps a file at an address.
fn map_at(
    at: usize,
    bytes: usize,
    prot: i32,
    file: &OwnedFd,
    offset: u64,
) -> Result<Stretch, String> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing that is mapped.
    let got = unsafe {
        libc::mmap(at as *mut _, bytes, prot, flags, file.as_raw_fd(), offset as libc::off_t)
    };
    if got as usize == at {
        // SAFETY: the range was just mapped. What fails here costs a larger core dump, or time when
        // the program forks.
        unsafe {
            libc::madvise(got, bytes, libc::MADV_DONTDUMP);
            libc::madvise(got, bytes, libc::MADV_DONTFORK);
        }
        return Ok((at, bytes));
    }
    let cause = match got {
        libc::MAP_FAILED => io::Error::last_os_error(),
        got => {
            // SAFETY: an older kernel ignores the flag and has mapped `got` elsewhere. It is not in
            // use.
            unsafe { libc::munmap(got, bytes) };
            io::ErrorKind::AddrInUse.into()
        }
    };
    Err(format!(
        "the ledgers need {} MiB of addresses at {at:#x}, and cannot have them ({cause}): raise the \
         limit on address space (`ulimit -v`), or start the job with --path router",
        bytes >> 20
    ))
}
