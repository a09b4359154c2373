/work/wt-image/crates/eyrie-restorer/target/debug/deps/eyrie_restorer-45efe2365cf5ac76.d: src/main.rs src/../../eyrie-image/src/fingerprint.rs src/../../eyrie-image/src/format.rs src/../../eyrie-image/src/maps.rs src/../../eyrie-image/src/stream.rs src/../../eyrie-image/src/sys.rs src/address_space.rs src/become_it.rs src/descriptors.rs src/fail.rs src/image.rs src/memory_functions.rs src/place.rs Cargo.toml

/work/wt-image/crates/eyrie-restorer/target/debug/deps/libeyrie_restorer-45efe2365cf5ac76.rmeta: src/main.rs src/../../eyrie-image/src/fingerprint.rs src/../../eyrie-image/src/format.rs src/../../eyrie-image/src/maps.rs src/../../eyrie-image/src/stream.rs src/../../eyrie-image/src/sys.rs src/address_space.rs src/become_it.rs src/descriptors.rs src/fail.rs src/image.rs src/memory_functions.rs src/place.rs Cargo.toml

src/main.rs:
src/../../eyrie-image/src/fingerprint.rs:
src/../../eyrie-image/src/format.rs:
src/../../eyrie-image/src/maps.rs:
src/../../eyrie-image/src/stream.rs:
src/../../eyrie-image/src/sys.rs:
src/address_space.rs:
src/become_it.rs:
src/descriptors.rs:
src/fail.rs:
src/image.rs:
src/memory_functions.rs:
src/place.rs:
Cargo.toml:

# env-dep:CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# env-dep:CLIPPY_CONF_DIR
