//! Compiles the restorer, a static program without libc, and puts it where lib.rs embeds it. Calls
//! rustc directly: a nested cargo would wait for cargo's own locks and would not use this build's
//! profile. EYRIE_RESTORER_LINKER names a linker for the restorer, if the one for everything else
//! cannot link it.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    let target = std::env::var("TARGET").expect("set by cargo");
    let rustc = std::env::var_os("RUSTC").expect("set by cargo");
    // Cargo starts this in the crate's folder. Relative paths stay valid when the checkout is moved
    // together with its target folder.
    let source = PathBuf::from("../eyrie-restorer/src");
    println!("cargo::rerun-if-changed={}", source.display());
    for shared in
        ["format.rs", "holes.rs", "names.rs", "stream.rs", "sys.rs", "maps.rs", "fingerprint.rs"]
    {
        println!("cargo::rerun-if-changed={}", PathBuf::from("src").join(shared).display());
    }
    println!("cargo::rerun-if-changed={}", source.join("../link.ld").display());
    let mut script = std::ffi::OsString::from("link-arg=-Wl,-T,");
    script.push(source.join("../link.ld"));
    let mut command = Command::new(rustc);
    command
        .arg(source.join("main.rs"))
        .args(["--crate-name", "eyrie_restorer", "--crate-type", "bin", "--edition", "2021"])
        .args(["--target", &target])
        .args(["-o".as_ref(), out.join("eyrie-restorer").as_os_str()])
        .args(["-C", "panic=abort", "-C", "opt-level=3", "-C", "debuginfo=0"])
        // Above 2 GiB absolute addresses need the large code model.
        .args(["-C", "relocation-model=static", "-C", "code-model=large"])
        .args(["-C", "target-feature=+crt-static", "-C", "strip=symbols"])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"])
        .args(["-C", "link-arg=-static", "-C", "link-arg=-Wl,--build-id=none"])
        .args(["-C".as_ref(), script.as_os_str()])
        .args(["-C", "link-arg=-Wl,-z,norelro", "-C", "link-arg=-Wl,--no-eh-frame-hdr"]);
    println!("cargo::rerun-if-env-changed=EYRIE_RESTORER_LINKER");
    let own = std::env::var_os("EYRIE_RESTORER_LINKER");
    if let Some(linker) = own.or(std::env::var_os("RUSTC_LINKER")) {
        let mut arg = std::ffi::OsString::from("linker=");
        arg.push(linker);
        command.arg("-C").arg(arg);
    }
    let done = command.status().unwrap_or_else(|e| panic!("cannot run rustc: {e}"));
    assert!(done.success(), "compiling the restorer failed: {command:?}");
}
