//! What capture and restorer both ask the kernel, by raw system calls. Nothing here may allocate,
//! take a lock, panic or call a C library: the capture runs in a signal handler, and the restorer
//! has no C library.
#![cfg_attr(not(test), no_std)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "Eyrie takes process images on x86_64 Linux only: registers and signal frames differ elsewhere"
);

pub mod fingerprint;
pub mod frame;
pub mod hide;
pub mod holes;
pub mod maps;
pub mod names;
pub mod processor;
pub mod sys;
pub mod vdso;
