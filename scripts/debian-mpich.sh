#!/usr/bin/env bash
# Gets Debian's MPICH into build/debian-mpich, without installing it, and builds examples/stdio.c
# with it: a program whose MPI cannot use a libfabric provider (it is built for UCX alone), which
# Eyrie must refuse. Prints the path of the program.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

target=$build/debian-mpich
program=$target/stdio
# With the libraries of libmpich12 that a system without any MPI lacks.
packages=(libmpich12 libmpich-dev libucx0 libhwloc15 libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200)
libraries=$target/usr/lib/$(gcc -print-multiarch 2>/dev/null || echo x86_64-linux-gnu)

exec 9>"$build/.debian-mpich.lock"
flock -w 600 9 || fail "another run has held $build/.debian-mpich.lock for ten minutes"
if [ -x "$program" ] && [ "$program" -nt "$root/examples/stdio.c" ]; then
    echo "$program"
    exit
fi
unpack_packages "$target" "${packages[@]}"
gcc -O2 -std=c11 -D_GNU_SOURCE -I"$(echo "$target"/usr/include/*/mpich)" -o "$program" \
    "$root/examples/stdio.c" -L"$libraries" -Wl,-rpath,"$libraries" -Wl,-rpath-link,"$libraries" -Wl,--disable-new-dtags -lmpich ||
    fail "cannot build $program"
if ldd "$program" | grep 'not found' >&2; then
    rm "$program"
    fail "libraries of Debian's MPICH are missing"
fi
echo "$program"
