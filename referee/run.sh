#!/usr/bin/env bash
# Compares the planner's time ratios with SimGrid's SMPI: `make referee`. Arguments go to referee.py
# (--cases, --seed, --jobs, --json FILE). Installs libsimgrid-dev when that is possible, else says
# so.
set -euo pipefail
source "$(dirname "$0")/../scripts/lib.sh"
here=$root/referee
command -v smpicc >/dev/null || install_packages libsimgrid-dev
eyrie=${EYRIE:-}
if [ -z "$eyrie" ]; then
    (cd "$root" && cargo build --release --quiet -p eyrie --bin eyrie)
    eyrie=${CARGO_TARGET_DIR:-$root/target}/release/eyrie
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
smpicc -O2 -o "$work/exchange" "$here/exchange.c"
python3 "$here/referee.py" --planner "$eyrie" --program "$work/exchange" "$@"
