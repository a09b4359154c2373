//! Links libeyrie-fi.so so that it stays in memory until the process ends. libfabric closes its
//! providers' libraries when the MPI library is through with it, and Intel MPI closes libfabric:
//! the handler of the signal that asks for an image must not go with them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
