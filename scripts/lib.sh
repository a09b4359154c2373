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

# make_venv FOLDER REQUIREMENTS WHAT: a virtual environment, complete or not at all: the stamp is
# written last and names what it was made from. The folder is in it as well, because a virtual
# environment cannot be moved.
make_venv() {
    local venv requirements=$2 what=$3 stamp
    venv=$(realpath -m "$1") # as it is known to itself, also where build is a link
    stamp="$venv $(python3 -c 'import sys; print(sys.version)' | tr -d '\n') $(cat "$root/$requirements")"
    if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$stamp" ]; then
        return
    fi
    say "making $venv ($what from PyPI)"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$root/$requirements" ||
        fail "pip could not install the wheels of $requirements"
    printf '%s' "$stamp" >"$venv/.stamp"
}

# apt_config FOLDER RELEASE: makes a configuration of apt with this release of Debian only and lists
# of its own, in FOLDER, and prints its file.
apt_config() {
    local folder=$1 release=$2 keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $release main" >"$folder/sources.list"
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

# unpack_packages FOLDER PACKAGE...: Debian packages unpacked there without being installed; FOLDER
# is made anew. With APT_CONFIG set, apt has lists of its own, which any user may update.
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
