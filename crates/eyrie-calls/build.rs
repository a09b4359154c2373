//! Says whether the compiler knows naked functions (1.88), by which one function is put in front of
//! the C library's ([`files::loading`]); with an older one it is left out.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(naked_functions)");
    println!("cargo:rerun-if-changed=build.rs");
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let said = std::process::Command::new(compiler).arg("--version").output();
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let minor = said.ok().and_then(|said| said.split('.').nth(1)?.parse::<u32>().ok());
    if minor.is_some_and(|minor| minor >= 88) {
        println!("cargo:rustc-cfg=naked_functions");
    }
}
