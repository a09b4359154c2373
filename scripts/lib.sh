# shellcheck shell=bash
# What the scripts share; sourced, never run. Sets `root` and `build`, the folder that everything
# made goes to.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
mkdir -p "$build"

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$(basename "$0"): $*"
    exit 1
}

# install_packages PACKAGE...: installs Debian packages when that is possible, else says which ones
# are missing and ends.
install_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "missing Debian packages; run as root: apt-get install $*"
    fi
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update >"$build/apt.log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@" \
            >>"$build/apt.log" 2>&1 ||
        fail "cannot install $*: see $build/apt.log"
}

# unpack_packages FOLDER PACKAGE...: Debian packages unpacked there without being installed; FOLDER
# is made anew. With APT_CONFIG set, apt has lists of its own, which anybody may update.
unpack_packages() {
    local target=$1 package
    shift
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "needs apt-get and dpkg (Debian)"
    if [ "$(id -u)" = 0 ] || [ -n "${APT_CONFIG:-}" ]; then
        apt-get -q update >"$build/apt.log" 2>&1 || fail "apt-get update failed: see $build/apt.log"
    fi
    apt-cache show "$1" >/dev/null 2>&1 || fail "apt knows no $1: run apt-get update as root"
    rm -rf "$target" && mkdir -p "$target/packages"
    (cd "$target/packages" && apt-get -q -o APT::Sandbox::User=root download "$@" >"$build/apt.log" 2>&1) ||
        fail "cannot download $*: see $build/apt.log"
    for package in "$target"/packages/*.deb; do
        dpkg -x "$package" "$target"
    done
    rm -r "$target/packages"
}
