#!/usr/bin/env bash
# Gets Debian's Prometheus, process-exporter and collectl into build/tools, without installing them (so that no service is started): what
# `eyrie monitor` is scraped by in a test and compared with in `eyrie monitor bench`. Prints the folder.
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
command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "needs apt-get and dpkg (Debian)"
if [ "$(id -u)" = 0 ]; then
    apt-get -q update >"$build/apt.log" 2>&1 || fail "apt-get update failed: see $build/apt.log"
fi
apt-cache show prometheus >/dev/null 2>&1 || fail "apt knows no prometheus: run apt-get update as root"
rm -rf "$target" && mkdir -p "$target/packages"
(cd "$target/packages" && apt-get -q -o APT::Sandbox::User=root download "${packages[@]}" >"$build/apt.log" 2>&1) ||
    fail "cannot download ${packages[*]}: see $build/apt.log"
for package in "$target"/packages/*.deb; do
    dpkg -x "$package" "$target"
done
rm -r "$target/packages"
printf '%s' "${packages[*]}" >"$target/.stamp"
echo "$target"
