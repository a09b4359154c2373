//! libeyrie-fi.so, the libfabric provider in every rank. The MPI library loads it; nothing in the
//! program changes. It must never start a thread, nor need a symbol of libfabric.

mod calls;
mod capture;
mod channel;
mod chosen_path;
mod core;
mod descriptors;
mod ending;
mod entry;
mod identity;
mod interrupted;
mod ledger_host;
mod level;
mod memory;
mod mpi_library;
mod observing;
mod ofi;
mod process;
mod signals;
mod sockets;
mod stack;
mod symbol;
mod windows;

/// What libfabric looks for in a provider's library.
///
/// # Safety
/// Called by libfabric, once, before anything else.
#[no_mangle]
pub unsafe extern "C" fn fi_prov_ini() -> *mut eyrie_libfabric::abi::fi_provider {
    ofi::info::PROVIDER.0.get()
}
