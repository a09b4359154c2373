# What the scripts share; sourced, never run. Sets `root` and `build`, the folder that everything made goes to.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
mkdir -p "$build"

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$(basename "$0"): $*"
    exit 1
}

# install_packages PACKAGE...: installs Debian packages when that is possible, else says which ones are missing and ends.
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
