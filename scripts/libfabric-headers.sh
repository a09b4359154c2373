#!/usr/bin/env bash
# Fetches libfabric's headers of the oldest and of the newest version that Debian has into
# build/libfabric-headers/VERSION: eyrie-libfabric's test compares its own structures with them.
# Installs nothing, and leaves the system's package lists alone. Does nothing when all is there.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

# Debian's release, its package version, libfabric's version.
wanted=("bookworm 1.17.0-3 1.17.0" "trixie 2.1.0-1.1 2.1.0")
target=$build/libfabric-headers

for line in "${wanted[@]}"; do
    read -r release package version <<<"$line"
    [ -f "$target/$version/usr/include/rdma/fabric.h" ] && continue
    say "fetching the headers of libfabric $version (Debian $release)"
    APT_CONFIG=$(apt_config "$target/apt/$release" "$release") unpack_packages "$target/$version" "libfabric-dev=$package"
done
rm -rf "$target/apt"
