#!/usr/bin/env bash
# Fetches libfabric's headers of the oldest and of the newest version that Debian has into
# build/libfabric-headers/VERSION: eyrie-provider's test compares its own structures with them.
# Installs nothing, and leaves the system's package lists alone. Does nothing when all is there.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

# Debian's release, its package version, libfabric's version.
wanted=("bookworm 1.17.0-3 1.17.0" "trixie 2.1.0-1.1 2.1.0")
target=$build/libfabric-headers

# apt_config RELEASE: a configuration of apt with this release only and lists of its own.
apt_config() {
    local folder=$target/apt/$1 keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $1 main" >"$folder/sources.list"
    cat >"$folder/apt.conf" <<END
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$folder/lists";
Dir::Cache "$folder/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
END
    echo "$folder/apt.conf"
}

for line in "${wanted[@]}"; do
    read -r release package version <<<"$line"
    [ -f "$target/$version/usr/include/rdma/fabric.h" ] && continue
    say "fetching the headers of libfabric $version (Debian $release)"
    APT_CONFIG=$(apt_config "$release") unpack_packages "$target/$version" "libfabric-dev=$package"
done
rm -rf "$target/apt"
