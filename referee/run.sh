#!/bin/sh
# Compares the planner's time ratios with SimGrid's SMPI: `make referee`. Arguments go to referee.py
# (--cases, --seed, --jobs, --json FILE). Installs libsimgrid-dev when root on Debian, else says so.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
if ! command -v smpicc >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libsimgrid-dev >/dev/null
    else
        echo "referee: smpicc is missing: install libsimgrid-dev (apt-get install libsimgrid-dev)" >&2
        exit 1
    fi
fi
eyrie=${EYRIE:-}
if [ -z "$eyrie" ]; then
    (cd "$root" && cargo build --release --quiet -p eyrie --bin eyrie)
    eyrie=${CARGO_TARGET_DIR:-$root/target}/release/eyrie
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
smpicc -O2 -o "$work/exchange" "$here/exchange.c"
python3 "$here/referee.py" --planner "$eyrie" --program "$work/exchange" "$@"
