#!/usr/bin/env bash
# Gets Debian's Open MPI (4.1) into build/debian-openmpi, without installing it, and builds
# examples/stdio.c with it. Prints the path of the program.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

target=$build/debian-openmpi
program=$target/stdio
packages=(libopenmpi3 libopenmpi-dev openmpi-common libpmix2 libmunge2 libevent-core-2.1-7 libevent-pthreads-2.1-7
    libhwloc15 libfabric1 libpsm-infinipath1 libpsm2-2 libucx0 libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200
    libnuma1 libltdl7)
libraries=$target/usr/lib/$(gcc -print-multiarch 2>/dev/null || echo x86_64-linux-gnu)

exec 9>"$build/.debian-openmpi.lock"
flock -w 600 9 || fail "another run has held $build/.debian-openmpi.lock for ten minutes"
if [ -x "$program" ] && [ "$program" -nt "$root/examples/stdio.c" ]; then
    echo "$program"
    exit
fi
unpack_packages "$target" "${packages[@]}"
gcc -O2 -std=c11 -D_GNU_SOURCE -I"$libraries/openmpi/include" -o "$program" "$root/examples/stdio.c" \
    -L"$libraries" -L"$libraries/openmpi/lib" -Wl,-rpath,"$libraries" -Wl,-rpath-link,"$libraries" -Wl,--disable-new-dtags \
    -l:libmpi.so.40 || fail "cannot build $program"
if LD_LIBRARY_PATH=$libraries ldd "$program" | grep 'not found' >&2; then
    rm "$program"
    fail "libraries of Debian's Open MPI are missing"
fi
echo "$program"
