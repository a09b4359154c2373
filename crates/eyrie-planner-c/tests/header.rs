//! The C header is what cbindgen makes of the sources now.

#[test]
fn the_header_is_up_to_date() {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut made = Vec::new();
    cbindgen::generate(root).unwrap().write(&mut made);
    let path = format!("{root}/include/eyrie_planner.h");
    if std::env::var_os("EYRIE_UPDATE_HEADER").is_some() {
        std::fs::create_dir_all(format!("{root}/include")).unwrap();
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == made, "{path} is out of date: run the tests once with EYRIE_UPDATE_HEADER=1");
}
