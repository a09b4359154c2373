#!/bin/sh
# Makes docs/reproduction/placement.md and its plots: the Spare and Sliding papers' placement experiments. It takes one to two hours
# of two cores; cut off, it goes on where it was. EYRIE names another binary; MANY the placements of the larger runs (1000).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
eyrie=${EYRIE:-}
if [ -z "$eyrie" ]; then
    (cd "$root" && cargo build --release --quiet -p eyrie --bin eyrie)
    eyrie=${CARGO_TARGET_DIR:-$root/target}/release/eyrie
fi
new=$(mktemp)
trap 'rm -f "$new"' EXIT
mkdir -p "$root/build/placement"
python3 "$here/placement.py" "$eyrie" "$here" "$root/build/placement" "${MANY:-1000}" > "$new"
cat "$new" > "$here/placement.md"
