//! A rank of a small job, in the MPI library that a program would use: MPI_Init, then messages back
//! and forth until a file says that it is enough. The library is loaded by its path and its
//! functions are found by name, so that nothing must be compiled on the host. Only calls functions
//! that every MPI library has since MPI 2.0.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// What rank 0 prints when messages have been exchanged.
pub const CONNECTED: &str = "connected";
/// Bytes of a message: too many for a frame, so that the log writes them to a segment.
const MESSAGE: usize = 64 << 10;
/// How long rank 0 sleeps between two messages, so that the trial uses little of a processor.
const REST: Duration = Duration::from_millis(1);

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;
type CommRank = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, c_int, usize, c_int, c_int, usize) -> c_int;
type Receive =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, usize, *mut c_void) -> c_int;

/// The functions of a library, and its constants: numbers in MPICH and its relatives (their common
/// ABI), addresses in Open MPI.
struct Mpi {
    init: Init,
    finalize: Finalize,
    comm_rank: CommRank,
    send: Send,
    receive: Receive,
    world: usize,
    byte: usize,
    ignored_status: usize,
}

/// Runs in the trial: is rank 0 or 1 until the file `end` exists.
///
/// # Errors
/// What the library lacks, or which of its calls failed.
pub fn be_a_rank(library: &Path, end: &Path) -> Result<(), String> {
    let mpi = Mpi::load(library)?;
    let done = |call: &str, code: c_int| match code {
        0 => Ok(()),
        code => Err(format!("{call} failed with error code {code}")),
    };
    let tag = 1;
    let mut rank = 0;
    let mut message = [0u8; MESSAGE];
    let len = MESSAGE as c_int;
    // SAFETY: each call gets arguments of the types that the MPI standard gives, and the buffer is
    // as long as the calls say.
    unsafe {
        done("MPI_Init", (mpi.init)(std::ptr::null_mut(), std::ptr::null_mut()))?;
        done("MPI_Comm_rank", (mpi.comm_rank)(mpi.world, &mut rank))?;
        let other = 1 - rank;
        let mut rounds = 0u64;
        loop {
            if rank == 0 {
                message[0] = u8::from(end.exists());
            } else {
                done("MPI_Recv", mpi.receive(&mut message, other, tag))?;
            }
            let sent = (mpi.send)(message.as_ptr().cast(), len, mpi.byte, other, tag, mpi.world);
            done("MPI_Send", sent)?;
            if rank == 0 {
                done("MPI_Recv", mpi.receive(&mut message, other, tag))?;
                std::thread::sleep(REST);
            }
            rounds += 1;
            if rank == 0 && rounds == 1 {
                println!("{CONNECTED}");
                std::io::stdout().flush().map_err(|e| e.to_string())?;
            }
            if message[0] == 1 {
                return done("MPI_Finalize", (mpi.finalize)());
            }
        }
    }
}

impl Mpi {
    fn load(library: &Path) -> Result<Mpi, String> {
        let path = CString::new(library.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: loading runs the library's constructors, as it would in a program; the path is a
        // C string.
        let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if loaded.is_null() {
            // SAFETY: after a failure dlerror returns a C string, or null.
            let why = unsafe { libc::dlerror().as_ref().map(|e| CStr::from_ptr(e)) };
            let why = why.map_or("cannot be loaded".into(), CStr::to_string_lossy);
            return Err(format!("{}: {why}", library.display()));
        }
        let find = |name: &CStr| {
            // SAFETY: `loaded` is the handle from dlopen, which is never closed, and the name is a
            // C string.
            let symbol = unsafe { libc::dlsym(loaded, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        };
        let function = |name: &CStr| {
            let missing = || format!("{} has no {}", library.display(), name.to_string_lossy());
            find(name).ok_or_else(missing)
        };
        let (world, byte, ignored_status) =
            match (find(c"ompi_mpi_comm_world"), find(c"ompi_mpi_byte")) {
                (Some(world), Some(byte)) => (world as usize, byte as usize, 0),
                _ => (0x4400_0000, 0x4c00_010d, 1),
            };
        // SAFETY: the MPI standard gives the functions with these names these types.
        unsafe {
            Ok(Mpi {
                init: std::mem::transmute::<*mut c_void, Init>(function(c"MPI_Init")?),
                finalize: std::mem::transmute::<*mut c_void, Finalize>(function(c"MPI_Finalize")?),
                comm_rank: std::mem::transmute::<*mut c_void, CommRank>(function(
                    c"MPI_Comm_rank",
                )?),
                send: std::mem::transmute::<*mut c_void, Send>(function(c"MPI_Send")?),
                receive: std::mem::transmute::<*mut c_void, Receive>(function(c"MPI_Recv")?),
                world,
                byte,
                ignored_status,
            })
        }
    }

    /// Receives a message into all of `message`. Returns the error code.
    ///
    /// # Safety
    /// MPI must be initialized.
    unsafe fn receive(&self, message: &mut [u8; MESSAGE], from: c_int, tag: c_int) -> c_int {
        let at = message.as_mut_ptr().cast();
        let len = MESSAGE as c_int;
        let status = self.ignored_status as *mut c_void;
        // SAFETY: the buffer has the length that is passed, and the caller guarantees that MPI is
        // initialized.
        unsafe { (self.receive)(at, len, self.byte, from, tag, self.world, status) }
    }
}
