#!/usr/bin/env bash
# Gets Debian's Prometheus, process-exporter and collectl into build/tools, without installing them
# (so that no service is started): what `eyrie monitor` is scraped by in a test and compared with in
# `eyrie-bench monitor bench`. Prints the folder.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

target=$build/tools
packages=(prometheus prometheus-process-exporter collectl)

exec 9>"$build/.monitor-tools.lock"
flock -w 600 9 || fail "another run has held $build/.monitor-tools.lock for ten minutes"
if [ "$(cat "$target/.stamp" 2>/dev/null)" = "${packages[*]}" ]; then
    echo "$target"
    exit
fi
unpack_packages "$target" "${packages[@]}"
printf '%s' "${packages[*]}" >"$target/.stamp"
echo "$target"
