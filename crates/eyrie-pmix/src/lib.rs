//! libeyrie-pmix.so, which is preloaded into ranks. It replaces those functions of the PMIx library
//! that Open MPI calls to reach its launcher, and lets the agent answer them over the PMI-1 socket
//! that every rank inherits. So a rank of Open MPI has neither PMIx's thread nor its connection,
//! and an image of it has nothing to connect again.
//!
//! In a process that is not a rank every call goes to the real library. What a job cannot have
//! (more ranks, ports, communicators made of groups) must be refused, and the user told.

#![allow(non_snake_case)]

pub mod abi;
mod buffer;
mod client;
mod job;
mod pmi;
mod real;
mod value;

use abi::*;
use buffer::pmix_data_buffer;
use client::Client;
use libc::{c_char, c_int, c_void, size_t};
use pmi::Refused;
use std::ffi::CStr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// This rank's side, from PMIx_Init on.
static CLIENT: Mutex<Option<Client>> = Mutex::new(None);

/// Whether this process is a rank of a job.
fn is_rank() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| std::env::var_os(eyrie_wire::agent::ENV_AGENT_FD).is_some())
}

/// Runs `f` with the client, if PMIx_Init was called.
fn with(f: impl FnOnce(&mut Client) -> c_int) -> c_int {
    let mut client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
    client.as_mut().map_or(ERR_INIT, f)
}

/// # Safety
/// `text` must be null or a C string.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the caller guarantees that `text` is a C string.
    // A key that is not UTF-8 becomes one that no rank has put.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Declares functions of PMIx with their bodies for a rank. In other processes the real library is
/// called.
macro_rules! functions {
    ($($(#[$about:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$about])*
            ///
            /// # Safety
            /// As for PMIx's function of this name.
            #[no_mangle]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                if is_rank() {
                    return $body;
                }
                const NAME: &str = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default();
                let Some(found) = real::find(name) else { return ERR_NOT_SUPPORTED };
                type Real = unsafe extern "C" fn($($type),*) -> c_int;
                // SAFETY: `found` is PMIx's function of this name, which has this type, and gets
                // the caller's arguments.
                unsafe { std::mem::transmute::<*mut c_void, Real>(found)($($arg),*) }
            }
        )*
    };
}

type Infos = *const c_void;

functions! {
    /// Initializes the client, or counts one more initialization.
    fn PMIx_Init(proc: *mut pmix_proc, _infos: Infos, _count: size_t) {
        let mut client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
        if client.is_none() {
            *client = Client::of_environment();
        }
        let Some(client) = client.as_mut() else { return ERR_UNREACH };
        // SAFETY: PMIx's contract: the pointer is null, or has room for the result.
        if let Some(proc) = unsafe { proc.as_mut() } {
            *proc = client.name();
        }
        client.begin()
    }

    /// Whether the client was initialized more often than finalized.
    fn PMIx_Initialized() {
        let client = CLIENT.lock().unwrap_or_else(PoisonError::into_inner);
        c_int::from(client.as_ref().is_some_and(Client::has_begun))
    }

    /// Counts one finalization. The last one is that of the rank's MPI.
    fn PMIx_Finalize(_infos: Infos, _count: size_t) {
        with(Client::end)
    }

    /// Ends the job.
    fn PMIx_Abort(status: c_int, _message: *const c_char, _procs: *mut c_void, _count: size_t) {
        with(|client| client.abort(status))
    }

    /// Puts a value that the other ranks can get.
    fn PMIx_Put(scope: u8, key: *const c_char, value: *const pmix_value) {
        // SAFETY: PMIx's contract: the key is null or a C string, and the value null or whole.
        let (key, value) = unsafe { (text(key), value::Value::copy(value)) };
        with(|client| client.put(scope, key, value))
    }

    /// Does nothing, because the agent already has what was put.
    fn PMIx_Commit() {
        with(|_| SUCCESS)
    }

    /// Gets a value of a rank, in memory that the caller frees.
    fn PMIx_Get(
        proc: *const pmix_proc,
        key: *const c_char,
        _infos: Infos,
        _count: size_t,
        value: *mut *mut pmix_value,
    ) {
        // SAFETY: PMIx's contract: `proc` and `key` are null or whole, and `value` has room for the
        // result.
        unsafe {
            let proc = proc.as_ref();
            let key = text(key);
            with(|client| match client.get(proc, key) {
                Ok(found) => {
                    *value = found.give();
                    if (*value).is_null() { ERR_NOMEM } else { SUCCESS }
                }
                Err(status) => status,
            })
        }
    }

    /// Keeps a value that this rank will ask for.
    fn PMIx_Store_internal(
        proc: *const pmix_proc,
        key: *const c_char,
        value: *const pmix_value,
    ) {
        // SAFETY: PMIx's contract: each argument is null or whole.
        let (proc, key, value) = unsafe { (proc.as_ref(), text(key), value::Value::copy(value)) };
        with(|client| client.keep(proc, key, value))
    }

    /// Waits for all ranks.
    fn PMIx_Fence(procs: *const pmix_proc, count: size_t, _infos: Infos, _info_count: size_t) {
        // SAFETY: PMIx's contract: `procs` is null or has `count` elements.
        with(|client| client.fence(unsafe { list(procs, count) }))
    }

    /// Waits for all ranks. Calls `done` before it returns, so that nothing happens asynchronously.
    fn PMIx_Fence_nb(
        procs: *const pmix_proc,
        count: size_t,
        _infos: Infos,
        _info_count: size_t,
        done: op_done,
        data: *mut c_void,
    ) {
        // SAFETY: PMIx's contract: `procs` is null or has `count` elements.
        let status = with(|client| client.fence(unsafe { list(procs, count) }));
        // SAFETY: PMIx's contract: `done` may be called with `data`.
        unsafe { finish(status, done, data) }
    }

    /// Registers a handler. No event ever comes: failures are repaired, and the ranks of a lost
    /// agent end.
    fn PMIx_Register_event_handler(
        _codes: *mut c_int,
        _count: size_t,
        _infos: Infos,
        _info_count: size_t,
        _handler: *mut c_void,
        done: registered,
        data: *mut c_void,
    ) {
        let mut number = 0;
        let status = with(|client| {
            number = client.next_handler();
            SUCCESS
        });
        match done {
            // SAFETY: PMIx's contract: `done` may be called with `data`.
            Some(done) => unsafe { done(status, number, data) },
            // Without `done` the number of the handler is the result.
            None => return c_int::try_from(number).unwrap_or(c_int::MAX),
        }
        status
    }

    /// Succeeds, because no handler is kept.
    fn PMIx_Deregister_event_handler(_handler: size_t, done: op_done, data: *mut c_void) {
        // SAFETY: PMIx's contract: `done` may be called with `data`.
        unsafe { finish(with(|_| SUCCESS), done, data) }
    }

    /// Succeeds, because no process handles events.
    fn PMIx_Notify_event(
        _status: c_int,
        _source: *const pmix_proc,
        _range: u8,
        _infos: Infos,
        _count: size_t,
        done: op_done,
        data: *mut c_void,
    ) {
        // SAFETY: PMIx's contract: `done` may be called with `data`.
        unsafe { finish(SUCCESS, done, data) }
    }

    /// There is nothing to query.
    fn PMIx_Query_info_nb(
        _queries: *mut c_void,
        _count: size_t,
        _done: *mut c_void,
        _data: *mut c_void,
    ) {
        ERR_NOT_FOUND
    }

    /// Open MPI finds the topology by itself.
    fn PMIx_Load_topology(_topology: *mut c_void) {
        ERR_NOT_FOUND
    }

    /// Open MPI finds the set by itself.
    fn PMIx_Get_cpuset(_set: *mut c_void, _of: c_int) {
        ERR_NOT_FOUND
    }

    /// Appends values to a buffer.
    fn PMIx_Data_pack(
        _target: *const pmix_proc,
        to: *mut pmix_data_buffer,
        values: *mut c_void,
        count: i32,
        kind: u16,
    ) {
        // SAFETY: PMIx's contract: the buffer is null or constructed, and there are `count` values
        // of this type.
        unsafe {
            match (to.as_mut(), usize::try_from(count)) {
                (Some(to), Ok(count)) => buffer::pack(to, values, count, kind),
                _ => ERR_BAD_PARAM,
            }
        }
    }

    /// Reads the next values of a buffer.
    fn PMIx_Data_unpack(
        _source: *const pmix_proc,
        from: *mut pmix_data_buffer,
        values: *mut c_void,
        count: *mut i32,
        kind: u16,
    ) {
        // SAFETY: PMIx's contract: the buffer is null or constructed, and there is room for `count`
        // values of this type.
        unsafe {
            match (from.as_mut(), count.as_mut()) {
                (Some(from), Some(count)) => buffer::unpack(from, values, count, kind),
                _ => ERR_BAD_PARAM,
            }
        }
    }

    /// Refuses MPI_Comm_spawn.
    fn PMIx_Spawn(
        _infos: Infos,
        _info_count: size_t,
        _apps: *const c_void,
        _count: size_t,
        _nspace: *mut c_char,
    ) {
        with(|client| client.refuse(Refused::Spawn))
    }

    /// Refuses MPI_Comm_connect and MPI_Comm_accept when the two sides have met.
    fn PMIx_Connect(
        _procs: *const pmix_proc,
        _count: size_t,
        _infos: Infos,
        _info_count: size_t,
    ) {
        with(|client| client.refuse(Refused::Ports))
    }

    /// Refuses MPI_Publish_name and MPI_Comm_accept.
    fn PMIx_Publish(_infos: Infos, _count: size_t) {
        with(|client| client.refuse(Refused::Ports))
    }

    /// Refuses MPI_Lookup_name and MPI_Comm_connect.
    fn PMIx_Lookup(_data: *mut c_void, _count: size_t, _infos: Infos, _info_count: size_t) {
        with(|client| client.refuse(Refused::Ports))
    }

    /// Refuses MPI_Unpublish_name.
    fn PMIx_Unpublish(_keys: *mut *mut c_char, _infos: Infos, _count: size_t) {
        with(|client| client.refuse(Refused::Ports))
    }

    /// Refuses MPI_Comm_create_from_group.
    fn PMIx_Group_construct(
        _name: *const c_char,
        _procs: *const pmix_proc,
        _count: size_t,
        _infos: Infos,
        _info_count: size_t,
        _results: *mut *mut c_void,
        _result_count: *mut size_t,
    ) {
        with(|client| client.refuse(Refused::Groups))
    }

    /// Fails, because no group was made.
    fn PMIx_Group_destruct(_name: *const c_char, _infos: Infos, _count: size_t) {
        ERR_NOT_SUPPORTED
    }
}

/// The start of Open MPI 4, which connects to a daemon of its launcher and needs that later as
/// well. A rank would start as the only one, so its job is refused.
///
/// # Safety
/// As for Open MPI's function of this name.
#[no_mangle]
pub unsafe extern "C" fn orte_init(argc: *mut c_int, argv: *mut c_void, flags: u32) -> c_int {
    const ERR_SILENT: c_int = -43;
    if is_rank() {
        if let Some(mut client) = Client::of_environment() {
            client.begin();
            client.refuse(Refused::Orte);
            client.abort(1);
        }
        return ERR_SILENT;
    }
    let Some(found) = real::find(c"orte_init") else { return ERR_SILENT };
    type Real = unsafe extern "C" fn(*mut c_int, *mut c_void, u32) -> c_int;
    // SAFETY: `found` is Open MPI's function of this name, which has this type, and gets the
    // caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Real>(found)(argc, argv, flags) }
}

/// # Safety
/// `first` must be null or the first of `count` elements.
unsafe fn list<'a>(first: *const pmix_proc, count: usize) -> &'a [pmix_proc] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees that `first` is the first of `count` elements.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// Calls the function that waits for a result, if that is a success.
///
/// # Safety
/// `done` must be null or callable with `data`.
unsafe fn finish(status: c_int, done: op_done, data: *mut c_void) -> c_int {
    if let (SUCCESS, Some(done)) = (status, done) {
        // SAFETY: the caller guarantees that `done` may be called with `data`.
        unsafe { done(status, data) };
    }
    status
}
