#!/usr/bin/env bash
# Makes Debian's kernel of a release ready to be started as a guest of this machine, without
# installing it: the kernel itself, its modules, and an initramfs that hands over to
# tests/guests/init.sh. Prints the folder.
# Usage: scripts/guest-kernel.sh RELEASE     e.g. bullseye, bookworm, trixie, trixie-backports
# Needs: qemu-system-x86 busybox-static cpio kmod xz-utils zstd btrfs-progs (root has them
# installed).
set -euo pipefail
source "$(dirname "$0")/lib.sh"

release=${1:?usage: scripts/guest-kernel.sh RELEASE}
folder=$build/guests/$release
init=$root/tests/guests/init.sh

install_tools() {
    local missing=() tool
    for tool in qemu-system-x86_64:qemu-system-x86 cpio:cpio depmod:kmod xz:xz-utils zstd:zstd mkfs.btrfs:btrfs-progs; do
        command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
    done
    [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing+=(busybox-static)
    [ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
}

# package_name: the package that the release's metapackage depends on.
package_name() {
    apt-cache show --no-all-versions linux-image-amd64 | sed -n 's/^Depends: //p' |
        grep -o 'linux-image-[0-9][^ ,]*' | head -n 1
}

# fetch: the package, unpacked to the folder; what a newer kind of package leaves to others, too.
fetch() {
    local config package also
    config=$(apt_config "$folder.apt" "$release")
    echo 'Acquire::Check-Valid-Until "false";' >>"$config" # Debian 11's release file has expired
    export APT_CONFIG=$config
    apt-get -q update >"$build/apt.log" 2>&1 || fail "apt-get update failed: see $build/apt.log"
    package=$(package_name)
    [ -n "$package" ] || fail "Debian $release has no linux-image-amd64"
    # From 7.0 on a kernel is three packages.
    also=$(apt-cache show "$package" | sed -n 's/^Depends: //p' | sed 's/[,|]/\n/g' |
        sed -nE 's/^ *(linux-(binary|modules|base)-[0-9][^ ]*).*/\1/p' | sort -u)
    # shellcheck disable=SC2086
    unpack_packages "$folder.new" "$package" $also >&2
    rm -rf "$folder.apt"
}

# vmlinux IMAGE: the kernel out of its compressed image, to standard output: a guest that is
# emulated takes long to unpack it. Offsets: Documentation/arch/x86/boot.rst, payload_offset.
vmlinux() {
    python3 - "$1" <<'END'
import lzma, struct, subprocess, sys, zlib

image = open(sys.argv[1], "rb").read()
setup_sectors = image[0x1F1] or 4
offset, length = struct.unpack_from("<II", image, 0x248)
start = (setup_sectors + 1) * 512 + offset
payload = image[start : start + length]
if payload[:6] == b"\xfd7zXZ\0":
    kernel = lzma.LZMADecompressor().decompress(payload)
elif payload[:4] == b"\x28\xb5\x2f\xfd":
    # The length of what is unpacked follows, 4 bytes.
    kernel = subprocess.run(["zstd", "-dqc"], input=payload[:-4], stdout=subprocess.PIPE).stdout
else:
    kernel = zlib.decompressobj(31).decompress(payload)
if kernel[:4] != b"\x7fELF":
    sys.exit(f"{sys.argv[1]}: an unknown compression")
sys.stdout.buffer.write(kernel)
END
}

# pack_initramfs FOLDER VERSION: busybox, and the modules that it takes to reach the shared root, in
# the order of loading.
pack_initramfs() {
    local dir=$1 version=$2 tree module
    tree=$(mktemp -d)
    mkdir -p "$tree"/{bin,proc,sys,dev,mod,new,low,tmp}
    cp /bin/busybox "$tree/bin/busybox"
    ln -s busybox "$tree/bin/sh"
    for module in virtio_pci virtio_console virtio_blk 9pnet_virtio 9p overlay; do
        modprobe -d "$dir" -S "$version" --show-depends "$module" 2>/dev/null |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' | while read -r module; do
        local name
        name=$(basename "${module%%.ko*}").ko
        case $module in
        *.xz) xz -dc "$module" ;;
        *.zst) zstd -dqc "$module" ;;
        *) cat "$module" ;;
        esac >"$tree/mod/$name"
        echo "/mod/$name" >>"$tree/mod/order"
    done
    cp "$init" "$tree/init"
    chmod +x "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$dir/initramfs.gz"
    rm -r "$tree"
}

exec 9>"$build/.guest-kernel.lock"
flock -w 900 9 || fail "another run has held $build/.guest-kernel.lock for a quarter of an hour"
if [ -e "$folder/initramfs.gz" ] && [ "$folder/initramfs.gz" -nt "$init" ] &&
    [ "$folder/initramfs.gz" -nt "$0" ]; then
    echo "$folder"
    exit
fi
install_tools
say "making a guest with the kernel of Debian $release"
fetch
[ -d "$folder.new/lib/modules" ] || ln -sfn usr/lib "$folder.new/lib" # newer packages have /usr/lib only
version=$(ls "$folder.new/lib/modules")
depmod -b "$folder.new" "$version"
image=$(find "$folder.new" -name 'vmlinuz*' | head -n 1)
vmlinux "$image" >"$folder.new/vmlinux"
pack_initramfs "$folder.new" "$version"
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$version" >"$folder/version"
touch "$folder/initramfs.gz"
echo "$folder"
