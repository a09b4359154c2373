//! The few functions of MPICH's library that a rank of a job calls. It is loaded by its path, so
//! that the command itself needs no MPI; its numbers are those of MPICH's binary interface.

use anyhow::{anyhow, bail, ensure};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

/// MPI_COMM_WORLD, MPI_DOUBLE and MPI_STATUS_IGNORE there.
const WORLD: c_int = 0x4400_0000;
const DOUBLE: c_int = 0x4c00_080b;
const IGNORED: *mut c_void = std::ptr::without_provenance_mut(1);

type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type Number = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type Replace = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;
type Barrier = unsafe extern "C" fn(c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// An initialized MPI library.
pub struct Mpi {
    pub rank: u32,
    ranks: u32,
    replace: Replace,
    barrier: Barrier,
    finalize: Finalize,
    /// Keeps the library loaded as long as its functions are called.
    _library: Library,
}

impl Mpi {
    /// Loads the library and initializes it.
    ///
    /// # Errors
    /// When it cannot be loaded, or is not MPI.
    pub fn init(library: &Path) -> anyhow::Result<Mpi> {
        let failed = |e| anyhow!("{} cannot be loaded: {e}", library.display());
        // SAFETY: loading runs the library's initialization, as for any program. MPI's standard
        // gives the types of these functions, and MPICH's ABI that of its handles. `own` and `all`
        // live through the calls.
        unsafe {
            let loaded = Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL).map_err(failed)?;
            let init = loaded.get::<Init>(b"MPI_Init\0").map_err(failed)?;
            let rank = loaded.get::<Number>(b"MPI_Comm_rank\0").map_err(failed)?;
            let size = loaded.get::<Number>(b"MPI_Comm_size\0").map_err(failed)?;
            let mut own = 0;
            let mut all = 0;
            let done = init(std::ptr::null_mut(), std::ptr::null_mut());
            if done | rank(WORLD, &mut own) | size(WORLD, &mut all) != 0 {
                bail!("MPI cannot be initialized");
            }
            Ok(Mpi {
                rank: own as u32,
                ranks: all as u32,
                replace: *loaded.get::<Replace>(b"MPI_Sendrecv_replace\0").map_err(failed)?,
                barrier: *loaded.get::<Barrier>(b"MPI_Barrier\0").map_err(failed)?,
                finalize: *loaded.get::<Finalize>(b"MPI_Finalize\0").map_err(failed)?,
                _library: loaded,
            })
        }
    }

    /// Sends these numbers to the next rank of a ring, and replaces them by those of the previous.
    ///
    /// # Errors
    /// When MPI returns an error.
    pub fn pass_on(&self, numbers: &mut [f64]) -> anyhow::Result<()> {
        let len = c_int::try_from(numbers.len())?;
        let next = (self.rank + 1) % self.ranks;
        let before = (self.rank + self.ranks - 1) % self.ranks;
        let next = next as c_int;
        let before = before as c_int;
        let at = numbers.as_mut_ptr().cast();
        // SAFETY: `numbers` has `len` numbers and lives through the call.
        let done = unsafe { (self.replace)(at, len, DOUBLE, next, 0, before, 0, WORLD, IGNORED) };
        ensure!(done == 0, "MPI_Sendrecv_replace failed with {done}");
        Ok(())
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// When MPI returns an error.
    pub fn barrier(&self) -> anyhow::Result<()> {
        // SAFETY: `init` has called MPI_Init, and `finalize`, which takes `self`, has not run yet.
        let done = unsafe { (self.barrier)(WORLD) };
        ensure!(done == 0, "MPI_Barrier failed with {done}");
        Ok(())
    }

    /// # Errors
    /// When MPI returns an error.
    pub fn finalize(self) -> anyhow::Result<()> {
        // SAFETY: `init` has called MPI_Init, and taking `self` makes this the last call.
        let done = unsafe { (self.finalize)() };
        ensure!(done == 0, "MPI_Finalize failed with {done}");
        Ok(())
    }
}
