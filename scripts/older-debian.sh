#!/usr/bin/env bash
# Unpacks the C library of Debian 11 (glibc 2.31) into build/older-debian/root, without installing
# it, and builds examples/heat2d.c there for it: tests of what must run where the C library is older
# change their root to that folder. Prints the folder. Needs build/venv-package (portable.sh).
set -euo pipefail
source "$(dirname "$0")/lib.sh"

folder=$build/older-debian
if [ ! -d "$folder/root/lib64" ]; then
    # Debian 11's release file has expired.
    config=$(apt_config "$folder/apt" bullseye)
    echo 'Acquire::Check-Valid-Until "false";' >>"$config"
    # In the release itself: what is installed here is newer.
    APT_CONFIG=$config unpack_packages "$folder/root" libc6/bullseye libgcc-s1/bullseye libcrypt1/bullseye >&2
    rm -rf "$folder/apt"
fi
mpich=$build/venv
"$build/venv-package/bin/python" -m ziglang cc -target "$(uname -m)-linux-gnu.2.17" -O2 -std=c11 -D_GNU_SOURCE \
    -I"$mpich/include" -o "$folder/heat2d" "$root/examples/heat2d.c" -L"$mpich/lib" -lmpi -lm \
    -Wl,-rpath,"$mpich/lib" -Wl,--allow-shlib-undefined
echo "$folder"
