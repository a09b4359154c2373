//! Compiles the restorer, a static program without libc, and puts it where restore.rs embeds it.
//! Calls rustc directly: a nested cargo would wait for cargo's own locks and would not use this
//! build's profile. So its dependencies must have no others than each other. EYRIE_RESTORER_LINKER
//! names a linker for the restorer, if the one for everything else cannot link it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the restorer is made of, each after its dependencies: the name, and the folder with it.
const LIBRARIES: [(&str, &str); 2] = [
    ("eyrie_image_format", "../eyrie-image-format/src"),
    ("eyrie_image_kernel", "../eyrie-image-kernel/src"),
];

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    // Cargo starts this in the crate's folder. Relative paths stay valid when the checkout is moved
    // together with its target folder.
    let source = PathBuf::from("../eyrie-restorer/src");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed={}", source.join("../link.ld").display());
    for (n, (name, folder)) in LIBRARIES.iter().enumerate() {
        println!("cargo::rerun-if-changed={folder}");
        let mut library = rustc(name, &Path::new(folder).join("lib.rs"), &out, n);
        run(library.args(["--crate-type", "rlib"]).arg("--out-dir").arg(&out));
    }
    let mut restorer = rustc("eyrie_restorer", &source.join("main.rs"), &out, LIBRARIES.len());
    let mut script = OsString::from("link-arg=-Wl,-T,");
    script.push(source.join("../link.ld"));
    restorer
        .args(["--crate-type", "bin"])
        .args(["-o".as_ref(), out.join("eyrie-restorer").as_os_str()])
        .args(["-C", "target-feature=+crt-static", "-C", "strip=symbols"])
        .args(["-C", "link-arg=-nostdlib", "-C", "link-arg=-nostartfiles"])
        .args(["-C", "link-arg=-static", "-C", "link-arg=-Wl,--build-id=none"])
        .args(["-C".as_ref(), script.as_os_str()])
        .args(["-C", "link-arg=-Wl,-z,norelro", "-C", "link-arg=-Wl,--no-eh-frame-hdr"]);
    println!("cargo::rerun-if-env-changed=EYRIE_RESTORER_LINKER");
    let own = std::env::var_os("EYRIE_RESTORER_LINKER");
    if let Some(linker) = own.or(std::env::var_os("RUSTC_LINKER")) {
        let mut arg = OsString::from("linker=");
        arg.push(linker);
        restorer.arg("-C").arg(arg);
    }
    run(&mut restorer);
}

/// A command that compiles a crate of the restorer, which uses the first so many libraries.
fn rustc(name: &str, source: &Path, out: &Path, libraries: usize) -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").expect("set by cargo"));
    command
        .arg(source)
        .args(["--crate-name", name, "--edition", "2021"])
        .args(["--target", &std::env::var("TARGET").expect("set by cargo")])
        .args(["-C", "panic=abort", "-C", "opt-level=3", "-C", "debuginfo=0"])
        // Above 2 GiB absolute addresses need the large code model.
        .args(["-C", "relocation-model=static", "-C", "code-model=large"]);
    for (library, _) in &LIBRARIES[..libraries] {
        let mut path = OsString::from(format!("{library}="));
        path.push(out.join(format!("lib{library}.rlib")));
        command.arg("--extern").arg(path);
    }
    command
}

fn run(command: &mut Command) {
    let done = command.status().unwrap_or_else(|e| panic!("cannot run rustc: {e}"));
    assert!(done.success(), "compiling the restorer failed: {command:?}");
}
