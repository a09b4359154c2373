//! The C header is what cbindgen makes of the present sources. Compiling cbindgen takes longer than
//! the rest of this crate, so it needs the feature `header`. Without it, a digest of the sources in
//! the header shows whether they have changed since it was made.

use std::path::Path;

const ANEW: &str =
    "EYRIE_UPDATE_HEADER=1 cargo test -p eyrie-planner-c --features header makes it anew";

/// The first line of the header.
fn made_from(root: &Path) -> String {
    let mut files = vec![root.join("cbindgen.toml")];
    let sources = std::fs::read_dir(root.join("src")).unwrap();
    files.extend(sources.map(|entry| entry.unwrap().path()));
    files.sort();
    let bytes: Vec<u8> = files.iter().flat_map(|file| std::fs::read(file).unwrap()).collect();
    format!(
        "/* Of sources with the XXH3 digest {:016x}. */\n",
        twox_hash::XxHash3_64::oneshot(&bytes)
    )
}

#[test]
fn the_header_is_of_these_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/eyrie_planner.h");
    #[cfg(feature = "header")]
    {
        let mut made = made_from(root).into_bytes();
        cbindgen::generate(root).unwrap().write(&mut made);
        if std::env::var_os("EYRIE_UPDATE_HEADER").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(kept == made, "{} is out of date: {ANEW}", path.display());
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept.starts_with(&made_from(root)), "{} is out of date: {ANEW}", path.display());
}
