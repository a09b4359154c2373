#!/usr/bin/env bash
# Makes a Debian package of what was built: OUT/eyrie_VERSION_ARCHITECTURE.deb. It asks for the C
# library that the files need, so it can be installed wherever that is (for older ones, see
# scripts/portable.sh). libeyrie-ulfm is not in it: that is built against the site's MPI library.
# Usage: [BINARIES=target/release] [OUT=build] scripts/package-deb.sh
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$root"
version=$(sed -nE '/^\[workspace.package\]/,/^$/s/^version = "(.*)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
file=$(realpath -m "${OUT:-$build}")/eyrie_${version}_$architecture.deb
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
umask 022

PREFIX=/usr DESTDIR=$tree ULFM=no scripts/install.sh
doc=$tree/usr/share/doc/eyrie
rm "$doc/LICENSE"
install -d "$tree/usr/share/zsh/vendor-completions"
mv "$tree/usr/share/zsh/site-functions/_eyrie" "$tree/usr/share/zsh/vendor-completions/"
rmdir "$tree/usr/share/zsh/site-functions"
gzip -9n "$tree"/usr/share/man/man1/*.1
mv "$doc/CHANGELOG.md" "$doc/changelog"
gzip -9n "$doc/changelog"
scripts/licences.py | gzip -9n >"$doc/licences-of-crates.gz"
cat >"$doc/copyright" <<EOF
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: eyrie

Files: *
Copyright: the contributors of Eyrie
License: Apache-2.0
 On Debian systems, the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
 .
 Rust crates are linked into the programs: their licences are in
 /usr/share/doc/eyrie/licences-of-crates.gz.
EOF

binaries=("$tree/usr/bin/eyrie" "$tree"/usr/lib/eyrie/*.so)
glibc=$(scripts/glibc.py "${binaries[@]}")
depends="libc6 (>= $glibc)"
# Unwinding: what zig links has its own. The second name is that of Debian 10 and before.
# Without -q: grep would end at the first line, and objdump fail as it writes the next.
! objdump -p "${binaries[@]}" | grep 'NEEDED *libgcc_s' >/dev/null || depends+=", libgcc-s1 | libgcc1"
install -d "$tree/DEBIAN"
(cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
cat >"$tree/DEBIAN/control" <<EOF
Package: eyrie
Version: $version
Architecture: $architecture
Maintainer: the contributors of Eyrie <eyrie@localhost>
Section: science
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Recommends: openssh-client
Suggests: libbpf1
Description: keeps MPI jobs running when ranks and nodes die
 Eyrie runs MPI programs, unchanged, so that they survive the loss of ranks and
 nodes: it loads as a libfabric provider, logs every message before it is
 delivered, takes images of the running processes, and when something dies
 restarts only that.
 .
 It needs an MPICH 4.3 or newer with libfabric, which Debian's MPICH is not:
 /usr/share/doc/eyrie/docs/install.md says where one is.
EOF
dpkg-deb --root-owner-group -Zxz --build "$tree" "$file.new" >/dev/null
mv "$file.new" "$file"
say "made $file (glibc $glibc or newer)"
