//! Reads another process's memory through the site's own libfabric, with the provider that the site
//! names (tcp, verbs). The library is opened on demand. One thread at a time uses each object, as
//! the domain is told. It must never access memory that is not registered.

use crate::abi::*;
use libc::{c_int, c_void};
use libloading::Library;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Duration;

/// The version of the interface: structures as in `abi`.
const VERSION: u32 = fi_version(1, 17);
/// Completions that a queue has room for.
const QUEUE: usize = 1024;
/// Longest address of an endpoint, bytes.
const NAME_MAX: usize = 256;
/// Memory modes that this file supports, if a provider requires them.
const MR_MODES: c_int = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const libc::c_char,
    *const libc::c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type Describe = unsafe extern "C" fn(c_int) -> *const libc::c_char;

/// The functions that the library exports. All others are reached through tables.
struct Functions {
    getinfo: GetInfo,
    dupinfo: DupInfo,
    freeinfo: FreeInfo,
    fabric: OpenFabric,
    describe: Describe,
    /// Keeps the functions valid.
    _library: Library,
}

/// A place in another process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    pub addr: u64,
    pub key: u64,
}

/// Memory that is registered until the endpoint is closed.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// For [`Endpoint::read`] of the other side.
    pub remote: Remote,
    descriptor: *mut c_void,
}

/// The other side of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Peer(u64);

/// An endpoint that serves reads of its memory and reads memory of others. It serves only during
/// calls of [`Endpoint::completed`].
pub struct Endpoint {
    info: *mut fi_info,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    queue: *mut fid_cq,
    addresses: *mut fid_av,
    endpoint: *mut fid_ep,
    registered: Vec<*mut fid_mr>,
    functions: Functions,
}

// SAFETY: libfabric's objects may be used by any thread, one at a time (FI_THREAD_DOMAIN), and
// every call needs `&mut` or the value itself.
unsafe impl Send for Endpoint {}
// SAFETY: it only holds what registering returned, which the library reads and never changes.
unsafe impl Send for Registered {}

impl Endpoint {
    /// Opens an endpoint of `provider` at `address`, which must be one of this host's.
    ///
    /// # Errors
    /// The library's error, or that there is no library.
    pub fn open(library: &Path, provider: &str, address: &str) -> Result<Endpoint, String> {
        let functions = Functions::load(library)?;
        let info = functions.choose(provider, address)?;
        let mut endpoint = Endpoint {
            info,
            fabric: null_mut(),
            domain: null_mut(),
            queue: null_mut(),
            addresses: null_mut(),
            endpoint: null_mut(),
            registered: Vec::new(),
            functions,
        };
        // If a step fails, dropping the endpoint closes what was opened before.
        endpoint.open_all()?;
        Ok(endpoint)
    }

    fn open_all(&mut self) -> Result<(), String> {
        let mut cq = fi_cq_attr {
            size: QUEUE,
            flags: 0,
            format: FI_CQ_FORMAT_CONTEXT,
            wait_obj: FI_WAIT_UNSPEC,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        // SAFETY: an all-zero attribute is valid: it leaves the choices to the provider.
        let mut av: fi_av_attr = unsafe { std::mem::zeroed() };
        av.type_ = FI_AV_TABLE;
        // SAFETY: each object is opened from the one before, which is open and whose table has the
        // function. The library writes one pointer for each.
        unsafe {
            let attr = (*self.info).fabric_attr;
            let done = (self.functions.fabric)(attr, &mut self.fabric, null_mut());
            self.done("open the fabric", done)?;
            let ops = &*(*self.fabric).ops;
            let done = (ops.domain)(self.fabric, self.info, &mut self.domain, null_mut());
            self.done("open the domain", done)?;
            let ops = &*(*self.domain).ops;
            let done = (ops.cq_open)(self.domain, &mut cq, &mut self.queue, null_mut());
            self.done("open a completion queue", done)?;
            let done = (ops.av_open)(self.domain, &mut av, &mut self.addresses, null_mut());
            self.done("open an address vector", done)?;
            let done = (ops.endpoint)(self.domain, self.info, &mut self.endpoint, null_mut());
            self.done("open an endpoint", done)?;
            let ep = &raw mut (*self.endpoint).fid;
            let queue = &raw mut (*self.queue).fid;
            let addresses = &raw mut (*self.addresses).fid;
            let ops = &*(*ep).ops;
            let (Some(bind), Some(control)) = (ops.bind, ops.control) else {
                return Err("the endpoint of libfabric cannot be bound".into());
            };
            self.done("bind the queue", bind(ep, queue, FI_SEND | FI_RECV))?;
            self.done("bind the addresses", bind(ep, addresses, 0))?;
            self.done("enable the endpoint", control(ep, FI_ENABLE, null_mut()))
        }
    }

    /// The address of this endpoint, for [`Endpoint::peer`] of the other side.
    ///
    /// # Errors
    /// The library's error.
    pub fn name(&mut self) -> Result<Vec<u8>, String> {
        let mut name = vec![0; NAME_MAX];
        let mut len = NAME_MAX;
        // SAFETY: the endpoint is open, and `name` has room for `len` bytes.
        let done = unsafe {
            let getname = (*(*self.endpoint).cm).getname;
            getname(&raw mut (*self.endpoint).fid, name.as_mut_ptr().cast(), &mut len)
        };
        self.done("say its address", done)?;
        name.truncate(len);
        Ok(name)
    }

    /// The peer whose [`Endpoint::name`] this is.
    ///
    /// # Errors
    /// When the library refuses the name.
    pub fn peer(&mut self, name: &[u8]) -> Result<Peer, String> {
        let mut peer = 0;
        // The library reads a whole address, whatever the length of the name.
        let mut room = [0u8; NAME_MAX];
        let len = name.len().min(NAME_MAX);
        room[..len].copy_from_slice(&name[..len]);
        // SAFETY: `room` is longer than any address, and the library writes one number.
        let inserted = unsafe {
            let insert = (*(*self.addresses).ops).insert;
            insert(self.addresses, room.as_ptr().cast(), 1, &mut peer, 0, null_mut())
        };
        match inserted {
            1 => Ok(Peer(peer)),
            failed => Err(self.functions.why("take the other side's address", failed)),
        }
    }

    /// Registers memory, for reads by the other side and as the target of own reads.
    ///
    /// # Errors
    /// The library's error.
    ///
    /// # Safety
    /// The memory must exist until the endpoint is closed. Nothing else may read or write it while
    /// a read from or into it is under way.
    pub unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<Registered, String> {
        let mut region = null_mut();
        let key = self.registered.len() as u64 + 1;
        // SAFETY: the domain is open, and the caller guarantees that the memory exists until the
        // endpoint is closed.
        unsafe {
            let reg = (*(*self.domain).mr).reg;
            let domain = &raw mut (*self.domain).fid;
            let access = FI_READ | FI_REMOTE_READ;
            let done = reg(domain, at.cast(), len, access, 0, key, 0, &mut region, null_mut());
            self.done("register memory", done)?;
            self.registered.push(region);
            let virtual_addresses = (*(*self.info).domain_attr).mr_mode & FI_MR_VIRT_ADDR != 0;
            let addr = if virtual_addresses { at as u64 } else { 0 };
            let remote = Remote { addr, key: (*region).key };
            Ok(Registered { remote, descriptor: (*region).mem_desc })
        }
    }

    /// Begins to read `len` bytes of the other side into memory that was registered as `local`.
    /// [`Endpoint::completed`] returns `context` when they have arrived. Returns false when the
    /// queue is full; the caller then tries again.
    ///
    /// # Errors
    /// The library's error.
    ///
    /// # Safety
    /// `into` must be the beginning of that memory, which nothing else may access until then.
    pub unsafe fn read(
        &mut self,
        (into, local): (*mut u8, Registered),
        len: usize,
        (peer, remote): (Peer, Remote),
        context: usize,
    ) -> Result<bool, String> {
        // SAFETY: the endpoint is open, and the caller guarantees that `into` is registered and not
        // accessed meanwhile. The context is only a number: no agreed mode lets the provider write
        // to it.
        let done = unsafe {
            let read = (*(*self.endpoint).rma).read;
            let context = context as *mut c_void;
            let Remote { addr, key } = remote;
            read(self.endpoint, into.cast(), len, local.descriptor, peer.0, addr, key, context)
        };
        match done as c_int {
            0 => Ok(true),
            again if again == -libc::EAGAIN => Ok(false),
            failed => Err(self.functions.why("read the other side's memory", failed)),
        }
    }

    /// Returns the context of a completed read. Waits for one for at most `wait`, and serves reads
    /// by the other side meanwhile.
    ///
    /// # Errors
    /// The error of the read that failed, or of the queue.
    pub fn completed(&mut self, wait: Duration) -> Result<Option<usize>, String> {
        let mut context: *mut c_void = null_mut();
        let wait = wait.as_millis().min(1000) as c_int;
        // SAFETY: the queue is open, and its entries are one pointer long, as `open_all` chose.
        let got = unsafe {
            let ops = &*(*self.queue).ops;
            let place = (&raw mut context).cast();
            match (ops.read)(self.queue, place, 1) as c_int {
                empty if empty == -libc::EAGAIN && wait > 0 => {
                    (ops.sread)(self.queue, place, 1, null(), wait) as c_int
                }
                got => got,
            }
        };
        match got {
            1 => Ok(Some(context as usize)),
            0 => Ok(None),
            none if none == -libc::EAGAIN || none == -libc::EINTR => Ok(None),
            failed if failed == -FI_EAVAIL => Err(self.failure()),
            failed => Err(self.functions.why("wait for a read", failed)),
        }
    }

    /// Why an operation failed.
    fn failure(&mut self) -> String {
        // Later versions write more than `abi` defines.
        let mut room = [0u64; 64];
        // SAFETY: the room is longer than any version's entry, and its zeros ask for no more data.
        let error = unsafe {
            let readerr = (*(*self.queue).ops).readerr;
            readerr(self.queue, room.as_mut_ptr().cast(), 0);
            (*room.as_ptr().cast::<fi_cq_err_entry>()).err
        };
        self.functions.why("finish a read", -error)
    }

    fn done(&self, what: &str, code: c_int) -> Result<(), String> {
        match code {
            0 => Ok(()),
            failed => Err(self.functions.why(what, failed)),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let close = |object: *mut fid| {
            // SAFETY: the pointer is null or an open object. Each is closed once, before the
            // objects that it was opened from.
            unsafe {
                if !object.is_null() {
                    ((*(*object).ops).close)(object);
                }
            }
        };
        close(self.endpoint.cast());
        for region in &self.registered {
            close(region.cast());
        }
        close(self.addresses.cast());
        close(self.queue.cast());
        close(self.domain.cast());
        close(self.fabric.cast());
        // SAFETY: `choose` made the list, and nothing uses it any more.
        unsafe { (self.functions.freeinfo)(self.info) };
    }
}

impl Functions {
    fn load(path: &Path) -> Result<Functions, String> {
        // SAFETY: this is the site's own libfabric, whose constructors every program that uses it
        // runs. The functions have the types that its headers give.
        let found = unsafe {
            Library::new(path).and_then(|library| {
                Ok(Functions {
                    getinfo: *library.get::<GetInfo>(b"fi_getinfo\0")?,
                    dupinfo: *library.get::<DupInfo>(b"fi_dupinfo\0")?,
                    freeinfo: *library.get::<FreeInfo>(b"fi_freeinfo\0")?,
                    fabric: *library.get::<OpenFabric>(b"fi_fabric\0")?,
                    describe: *library.get::<Describe>(b"fi_strerror\0")?,
                    _library: library,
                })
            })
        };
        found.map_err(|e| format!("cannot use libfabric {}: {e}", path.display()))
    }

    /// The first of the provider's offers that can read remote memory reliably.
    fn choose(&self, provider: &str, address: &str) -> Result<*mut fi_info, String> {
        let text = |words: &str| CString::new(words).map_err(|_| "a name holds a NUL".to_string());
        let name = text(provider)?;
        let node = text(address)?;
        let mut info = null_mut();
        // SAFETY: asked for a copy of null, the library returns empty hints of its own length, with
        // all their parts. It frees the name together with them.
        let done = unsafe {
            let hints = (self.dupinfo)(null());
            if hints.is_null() {
                return Err("libfabric is out of memory".into());
            }
            (*hints).caps = FI_RMA | FI_READ | FI_REMOTE_READ;
            (*(*hints).ep_attr).type_ = FI_EP_RDM;
            (*(*hints).domain_attr).mr_mode = MR_MODES;
            (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            let done = (self.getinfo)(VERSION, node.as_ptr(), null(), FI_SOURCE, hints, &mut info);
            (self.freeinfo)(hints);
            done
        };
        match done {
            0 => Ok(info),
            failed => Err(self
                .why(&format!("offer remote reads by provider {provider} at {address}"), failed)),
        }
    }

    fn why(&self, what: &str, code: c_int) -> String {
        // SAFETY: the function returns a constant C string for any number.
        let text = unsafe { CStr::from_ptr((self.describe)(-code)) };
        format!("libfabric cannot {what}: {}", text.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// The libfabric of the MPICH that `make build` has installed.
    fn library() -> std::path::PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = root.join("build/venv/lib/mpich/libfabric.so.1");
        assert!(path.is_file(), "{} is missing: run scripts/setup.sh", path.display());
        path
    }

    /// Two endpoints of this process, each in a thread of its own.
    #[test]
    fn memory_of_the_other_side_is_read() {
        const LEN: usize = 1 << 17;
        let mut source = Endpoint::open(&library(), "tcp", "127.0.0.1").unwrap();
        let mut theirs: Vec<u8> = (0..LEN).map(|i| (i * 7 % 251) as u8).collect();
        let expected = theirs.clone();
        // SAFETY: `theirs` outlives the thread that closes the endpoint, and nothing writes to it.
        let registered = unsafe { source.register(theirs.as_mut_ptr(), LEN).unwrap() };
        let name = source.name().unwrap();
        let remote = registered.remote;
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                assert_eq!(source.completed(Duration::from_millis(20)), Ok(None));
            }
        });
        let mut target = Endpoint::open(&library(), "tcp", "127.0.0.1").unwrap();
        let mut ours = vec![0u8; LEN];
        let begin = ours.as_mut_ptr();
        // SAFETY: `ours` outlives the endpoint, and is only read when the read has completed.
        let local = unsafe { target.register(begin, LEN).unwrap() };
        let peer = target.peer(&name).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        // SAFETY: `begin` is the beginning of `ours`, which is only read when the read has
        // completed.
        while !unsafe { target.read((begin, local), LEN, (peer, remote), 42).unwrap() } {
            assert_eq!(target.completed(Duration::from_millis(1)), Ok(None));
            assert!(Instant::now() < until, "the read was never begun");
        }
        let mut found = None;
        while found.is_none() && Instant::now() < until {
            found = target.completed(Duration::from_millis(20)).unwrap();
        }
        drop((target, stop));
        server.join().unwrap();
        assert_eq!(found, Some(42));
        assert!(ours == expected, "other bytes were read");
    }

    #[test]
    fn a_missing_library_or_provider_is_named() {
        let open = |library: &Path, provider: &str| {
            Endpoint::open(library, provider, "127.0.0.1").map(drop).unwrap_err()
        };
        assert!(open(Path::new("/nowhere.so"), "tcp").contains("/nowhere.so"));
        assert!(open(&library(), "nonsense").contains("nonsense"));
    }
}
