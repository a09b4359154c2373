//! Compiles the BPF programs with clang, to be embedded. Without clang the build goes on with empty
//! programs, and the monitor says why it uses a slower reader. Neither kernel headers nor libbpf
//! are needed.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // A clang that is installed later must be noticed: its path is watched, whether it exists or
    // not.
    if let Some(path) = std::env::var_os("PATH") {
        if let Some(dir) = std::env::split_paths(&path).find(|dir| dir.join(&clang).exists()) {
            println!("cargo::rerun-if-changed={}", dir.join(&clang).display());
        } else {
            println!("cargo::rerun-if-changed=/usr/bin/clang");
        }
    }
    for program in ["open", "iter"] {
        let object = out.join(format!("{program}.bpf.o"));
        if let Err(why) = compile(&clang, program, &object) {
            println!("cargo::warning=the BPF reader {program} is left out: {why}");
            std::fs::write(&object, []).expect("cannot write to OUT_DIR");
        }
    }
}

fn compile(clang: &str, program: &str, object: &Path) -> Result<(), String> {
    let done = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-c"])
        .arg(format!("src/bpf/{program}.bpf.c"))
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("cannot run {clang}: {e}"))?;
    if done.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).replace('\n', "; "))
    }
}
