#!/bin/sh
# Makes docs/reproduction/placement.md and its plots: the Spare and Sliding papers' placement
# experiments. Cut off, it goes on where it was. BENCH names another binary. MANY is the number of
# placements of the larger runs (1000; half an hour of two cores), FEWER that of the rows that take
# longest: Barrier and Allreduce at 5³ and 7³, the dragonfly at 7³ (as MANY; with 100 it takes a
# quarter of an hour).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bench=${BENCH:-}
if [ -z "$bench" ]; then
    (cd "$root" && cargo build --release --quiet -p eyrie-bench)
    bench=${CARGO_TARGET_DIR:-$root/target}/release/eyrie-bench
fi
new=$(mktemp)
trap 'rm -f "$new"' EXIT
mkdir -p "$root/build/placement"
python3 "$here/placement.py" "$bench" "$here" "$root/build/placement" "${MANY:-1000}" "${FEWER:-${MANY:-1000}}" >"$new"
cat "$new" >"$here/placement.md"
