//! Loads an MPI library into a process with the environment of a rank: what it says about itself,
//! and whether its libfabric loads our provider. MPI is not initialized.

use super::trials::{failure, Trials, LONGEST};
use eyrie_proc::Maps;
use eyrie_supervision::bounded;
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Room for the text of MPI_Get_library_version, more than any library needs.
const VERSION_MAX: usize = 64 << 10;

/// What is known of an MPI library.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Library {
    /// The text of MPI_Get_library_version; empty if there is no such function.
    pub version: String,
    /// Version of the libfabric that the library uses.
    pub libfabric: Option<(u32, u32)>,
    /// That libfabric has loaded the provider.
    pub loads_provider: bool,
    /// libeyrie-calls is loaded before the C library.
    pub has_calls: bool,
}

type GetVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type FabricVersion = unsafe extern "C" fn() -> u32;
type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const c_void,
    *mut *mut c_void,
) -> c_int;

/// Runs in the trial: loads a library and asks it. `provider` is the file that it should then load.
///
/// # Errors
/// When it cannot be loaded.
pub fn ask_library(library: &Path, provider: &Path, calls: &Path) -> Result<Library, String> {
    let path = CString::new(library.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: loading runs the library's constructors, as it would in the program; the path is a C
    // string.
    let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if loaded.is_null() {
        // SAFETY: after a failure dlerror returns a C string, or null.
        let why = unsafe { libc::dlerror().as_ref().map(|e| CStr::from_ptr(e)) };
        return Err(why.map_or("it cannot be loaded".into(), |e| e.to_string_lossy().into_owned()));
    }
    let find = |name: &CStr| {
        // SAFETY: `loaded` is the handle from dlopen, which is never closed, and the name is a C
        // string.
        let symbol = unsafe { libc::dlsym(loaded, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    };
    let mut known = Library::default();
    if let Some(symbol) = find(c"MPI_Get_library_version") {
        // SAFETY: the MPI standard gives this function this type, and allows calling it before
        // MPI_Init.
        known.version = unsafe { version(std::mem::transmute::<*mut c_void, GetVersion>(symbol)) };
    }
    if let (Some(version), Some(getinfo)) = (find(c"fi_version"), find(c"fi_getinfo")) {
        // SAFETY: libfabric's functions with these names have these types, and null arguments are
        // allowed.
        unsafe {
            let version = std::mem::transmute::<*mut c_void, FabricVersion>(version)();
            known.libfabric = Some((version >> 16, version & 0xffff));
            let getinfo = std::mem::transmute::<*mut c_void, GetInfo>(getinfo);
            let none = std::ptr::null();
            let mut info = std::ptr::null_mut();
            // This loads the providers. Ours returns nothing outside of a job.
            getinfo(version, none, none, 0, std::ptr::null(), &mut info);
        }
    }
    let maps = Maps::read(eyrie_proc::OWN);
    let has = |file: &Path| maps.files().any(|mapping| mapping.path.ends_with(file));
    known.loads_provider = has(provider);
    known.has_calls = has(calls);
    Ok(known)
}

/// # Safety
/// `get` must be MPI_Get_library_version.
unsafe fn version(get: GetVersion) -> String {
    let mut text = vec![0u8; VERSION_MAX];
    let mut len = 0;
    // SAFETY: the caller passes MPI_Get_library_version, and the room is larger than any library's
    // text.
    unsafe { get(text.as_mut_ptr().cast(), &mut len) };
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

impl Trials<'_> {
    /// Loads a library in the environment of a rank.
    ///
    /// # Errors
    /// Why it cannot be loaded.
    pub fn library(
        &self,
        library: &Path,
        provider: &Path,
        calls: &Path,
        env: &[(OsString, OsString)],
    ) -> Result<Library, String> {
        let words =
            [OsStr::new("mpi"), library.as_os_str(), provider.as_os_str(), calls.as_os_str()];
        let mut command = self.command(&words);
        command.env_clear().envs(env.iter().map(|(key, value)| (key, value)));
        let ran = bounded::run(&mut command, LONGEST).map_err(|e| e.to_string())?;
        match (ran.succeeded(), serde_json::from_str(ran.stdout.trim())) {
            (true, Ok(known)) => Ok(known),
            _ => Err(failure(&ran)),
        }
    }
}
