#!/bin/sh
# How long a plan takes as the network grows: criterion, a table on standard output,
# docs/reproduction/placement-speed.svg.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
cd "$root"
cargo bench --quiet -p eyrie-placement --features criterion --bench plan >&2
cargo build --release --quiet -p eyrie --bin eyrie
python3 bench/placement.py "$target/criterion" "$target/release/eyrie" docs/reproduction
