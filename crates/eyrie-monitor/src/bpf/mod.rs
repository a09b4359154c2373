//! The BPF programs, embedded, and the few functions of libbpf that load them. libbpf is opened
//! when it is needed, so that neither building nor running Eyrie depends on it. Must never keep a
//! monitor from starting: a program that cannot be loaded is an error with its reason.

use libloading::Library;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

pub const OPEN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/open.bpf.o"));
pub const ITER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/iter.bpf.o"));

/// `struct record` of kernel.h.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Record {
    pub own: u64,
    pub runtime: u64,
    pub utime: u64,
    pub stime: u64,
    pub rss_pages: i64,
    pub pid: u32,
    pub threads: u32,
    pub state: u32,
    pub exit_state: u32,
    pub start_boottime: u64,
    pub cgroup: u64,
    pub parent: u32,
    pub flags: u32,
    pub comm: [u8; 16],
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;
/// Inode of the first pid namespace (PROC_PID_INIT_INO of the kernel).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Checks whether BPF can be used here; if not, says why.
fn obstacle(object: &[u8]) -> Result<(), String> {
    if object.is_empty() {
        return Err("this eyrie was built without clang".into());
    }
    if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err("the kernel has no type information (BTF)".into());
    }
    let namespace =
        eyrie_proc::host::namespace("pid").map_err(|e| format!("/proc/self/ns/pid: {e}"))?;
    if namespace != FIRST_PID_NAMESPACE {
        return Err("this is a container with process numbers of its own".into());
    }
    let have = capabilities();
    let has = |cap: u32| have >> cap & 1 == 1 || have >> CAP_SYS_ADMIN & 1 == 1;
    match (has(CAP_BPF), has(CAP_PERFMON)) {
        (true, true) => Ok(()),
        (false, _) => Err("no permission: CAP_BPF is missing".into()),
        (_, false) => Err("no permission: CAP_PERFMON is missing".into()),
    }
}

/// The effective capabilities of this process.
fn capabilities() -> u64 {
    eyrie_proc::Status::read(eyrie_proc::OWN).bits("CapEff").unwrap_or(0)
}

/// Opaque objects of libbpf.
type Object = c_void;
type Map = c_void;
type Program = c_void;
type Link = c_void;

/// The functions of libbpf 1.x that are used; their types are those of bpf/libbpf.h.
struct Functions {
    open: unsafe extern "C" fn(*const c_void, usize, *const c_void) -> *mut Object,
    load: unsafe extern "C" fn(*mut Object) -> c_int,
    close: unsafe extern "C" fn(*mut Object),
    find_map: unsafe extern "C" fn(*const Object, *const c_char) -> *mut Map,
    set_max_entries: unsafe extern "C" fn(*mut Map, u32) -> c_int,
    map_fd: unsafe extern "C" fn(*const Map) -> c_int,
    find_program: unsafe extern "C" fn(*const Object, *const c_char) -> *mut Program,
    program_fd: unsafe extern "C" fn(*const Program) -> c_int,
    attach_iter: unsafe extern "C" fn(*const Program, *const c_void) -> *mut Link,
    link_fd: unsafe extern "C" fn(*const Link) -> c_int,
    destroy_link: unsafe extern "C" fn(*mut Link) -> c_int,
    set_print: unsafe extern "C" fn(*const c_void) -> *const c_void,
}

impl Functions {
    fn find(library: &Library) -> Result<Functions, libloading::Error> {
        // SAFETY: the types above are those of libbpf's interface, which is stable in version 1.
        unsafe {
            Ok(Functions {
                open: *library.get(b"bpf_object__open_mem\0")?,
                load: *library.get(b"bpf_object__load\0")?,
                close: *library.get(b"bpf_object__close\0")?,
                find_map: *library.get(b"bpf_object__find_map_by_name\0")?,
                set_max_entries: *library.get(b"bpf_map__set_max_entries\0")?,
                map_fd: *library.get(b"bpf_map__fd\0")?,
                find_program: *library.get(b"bpf_object__find_program_by_name\0")?,
                program_fd: *library.get(b"bpf_program__fd\0")?,
                attach_iter: *library.get(b"bpf_program__attach_iter\0")?,
                link_fd: *library.get(b"bpf_link__fd\0")?,
                destroy_link: *library.get(b"bpf_link__destroy\0")?,
                set_print: *library.get(b"libbpf_set_print\0")?,
            })
        }
    }
}

/// A loaded object. Its programs and maps live until it is dropped.
pub struct Loaded {
    object: NonNull<Object>,
    links: Vec<NonNull<Link>>,
    functions: Functions,
    /// The last field, so that the library is unloaded after the last use of its functions.
    _library: Library,
}

// SAFETY: libbpf's objects are bound to no thread; after construction they are used only through
// `&mut self` or read-only functions.
unsafe impl Send for Loaded {}

impl Loaded {
    /// Loads an embedded object; `sizes` are entries of maps that are known only now.
    ///
    /// # Errors
    /// The reason, for users, to stand after "not available:".
    pub fn new(object: &'static [u8], sizes: &[(&CStr, u32)]) -> Result<Loaded, String> {
        obstacle(object)?;
        // SAFETY: libbpf's initialization has no requirements.
        let library = unsafe { Library::new("libbpf.so.1") }
            .map_err(|_| "libbpf.so.1 is missing (Debian: apt-get install libbpf1)".to_string())?;
        let functions =
            Functions::find(&library).map_err(|e| format!("libbpf is not as expected: {e}"))?;
        // SAFETY: null switches printing off; `object` is static; null options are allowed.
        let opened = unsafe {
            (functions.set_print)(std::ptr::null());
            (functions.open)(object.as_ptr().cast(), object.len(), std::ptr::null())
        };
        let object = NonNull::new(opened)
            .ok_or_else(|| format!("libbpf cannot read the program: {}", last_error()))?;
        let loaded = Loaded { object, links: Vec::new(), functions, _library: library };
        for (name, entries) in sizes {
            let map = loaded.map(name)?;
            // SAFETY: `map` belongs to the object, which is open and not loaded yet.
            if unsafe { (loaded.functions.set_max_entries)(map, *entries) } != 0 {
                return Err(format!("a map cannot have {entries} entries"));
            }
        }
        // SAFETY: the object is open and not loaded yet.
        if unsafe { (loaded.functions.load)(loaded.object.as_ptr()) } != 0 {
            return Err(format!("the kernel refuses the program: {}", last_error()));
        }
        Ok(loaded)
    }

    fn map(&self, name: &CStr) -> Result<*mut Map, String> {
        // SAFETY: `self` keeps the object open, and the name ends with a zero.
        let map = unsafe { (self.functions.find_map)(self.object.as_ptr(), name.as_ptr()) };
        if map.is_null() {
            return Err(format!("the program has no map {name:?}"));
        }
        Ok(map)
    }

    fn program(&self, name: &CStr) -> Result<*mut Program, String> {
        // SAFETY: `self` keeps the object open, and the name ends with a zero.
        let program = unsafe { (self.functions.find_program)(self.object.as_ptr(), name.as_ptr()) };
        if program.is_null() {
            return Err(format!("there is no program {name:?}"));
        }
        Ok(program)
    }

    /// The descriptor of a program; valid as long as `self`.
    pub fn program_fd(&self, name: &CStr) -> Result<RawFd, String> {
        // SAFETY: the program belongs to the object, which `new` has loaded.
        Ok(unsafe { (self.functions.program_fd)(self.program(name)?) })
    }

    /// Maps an array that was made mappable; `bytes` are its size.
    pub fn mapped(&self, name: &CStr, bytes: usize) -> Result<Mapped, String> {
        // SAFETY: the map belongs to the object, which `new` has loaded.
        let fd = unsafe { (self.functions.map_fd)(self.map(name)?) };
        Mapped::new(fd, bytes).map_err(|e| format!("cannot map {name:?}: {e}"))
    }

    /// Attaches an iterator; returns the descriptor of the link, valid as long as `self`.
    pub fn attach_iterator(&mut self, name: &CStr) -> Result<RawFd, String> {
        let program = self.program(name)?;
        // SAFETY: the program belongs to the object, which `new` has loaded; null options are
        // allowed.
        let link = unsafe { (self.functions.attach_iter)(program, std::ptr::null()) };
        let link = NonNull::new(link)
            .ok_or_else(|| format!("cannot attach {name:?}: {}", last_error()))?;
        self.links.push(link);
        // SAFETY: `link` was just made, and `self.links` keeps it.
        Ok(unsafe { (self.functions.link_fd)(link.as_ptr()) })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        for link in &self.links {
            // SAFETY: `attach_iterator` made the link, and nothing else destroys it.
            unsafe { (self.functions.destroy_link)(link.as_ptr()) };
        }
        // SAFETY: `new` opened the object, and nothing else closes it.
        unsafe { (self.functions.close)(self.object.as_ptr()) };
    }
}

fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// Memory shared with a BPF program.
pub struct Mapped {
    at: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory, which only the owner of this value reads or writes.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(fd: RawFd, bytes: usize) -> std::io::Result<Mapped> {
        // SAFETY: the kernel chooses the address, so that the mapping overlaps no other.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        match NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED) {
            Some(at) => Ok(Mapped { at, bytes }),
            None => Err(last_error()),
        }
    }

    /// The memory as `count` values of type `T`.
    ///
    /// # Safety
    /// Any bytes are a valid `T`, and the program does not run meanwhile.
    pub unsafe fn slice<T: Copy>(&self, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= self.bytes);
        // SAFETY: the assertion keeps the slice within the mapping, which is aligned to a page. The
        // caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.at.cast().as_ptr(), count) }
    }

    /// Writes a value at the beginning.
    pub fn write<T: Copy>(&mut self, value: T) {
        assert!(size_of::<T>() <= self.bytes);
        // SAFETY: the assertion keeps the value within the mapping, which is aligned to a page, and
        // `&mut self` excludes a borrowed slice.
        unsafe { self.at.cast().write(value) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this size, and nothing uses it after `self`.
        unsafe { libc::munmap(self.at.as_ptr(), self.bytes) };
    }
}

const BPF_PROG_TEST_RUN: c_int = 10;
const BPF_ITER_CREATE: c_int = 33;

/// `union bpf_attr`: the fields that are used, zeros otherwise.
#[repr(C, align(8))]
struct Attributes([u32; 32]);

fn bpf(command: c_int, first: RawFd) -> std::io::Result<c_int> {
    let mut attributes = Attributes([0; 32]);
    attributes.0[0] = first as u32;
    // SAFETY: `attributes` lives through the call, and its size is passed.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, &attributes, size_of::<Attributes>()) };
    match done {
        -1 => Err(last_error()),
        value => Ok(value as c_int),
    }
}

/// Runs a program of the kind "syscall" once, on this processor.
pub fn run(program: RawFd) -> std::io::Result<()> {
    bpf(BPF_PROG_TEST_RUN, program).map(drop)
}

/// Begins to read from an iterator.
pub fn begin(link: RawFd) -> std::io::Result<OwnedFd> {
    let fd = bpf(BPF_ITER_CREATE, link)?;
    // SAFETY: `fd` is a new descriptor, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    debug_assert!(fd.as_raw_fd() >= 0);
    Ok(fd)
}
