#!/usr/bin/env bash
# Builds the command and its libraries so that they run where the C library is older than here, from
# glibc 2.17 on (the oldest that Rust's own library runs with), and makes packages of them in OUT.
# zig links them (its headers and stubs are of the version that is asked for); it comes from PyPI,
# as cargo-zigbuild does, into build/venv-package. The binaries are in target/portable/.
# Usage: [OUT=build] scripts/portable.sh
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$root"
oldest=2.17
target=$(uname -m)-unknown-linux-gnu

make_venv "$build/venv-package" scripts/requirements-package.txt "zig and cargo-zigbuild"
export CARGO_TARGET_DIR=$root/target/portable
# The restorer is static and needs nothing of a C library: zig would not take its linker script.
export EYRIE_RESTORER_LINKER=cc
PATH=$build/venv-package/bin:$PATH cargo zigbuild --release --target "$target.$oldest" \
    -p eyrie -p eyrie-provider -p eyrie-calls -p eyrie-pmix
export BINARIES=$CARGO_TARGET_DIR/$target/release
scripts/glibc.py --at-most $oldest "$BINARIES"/eyrie "$BINARIES"/libeyrie_{fi,calls,pmix}.so >/dev/null
scripts/package-wheel.py
scripts/package-deb.sh
