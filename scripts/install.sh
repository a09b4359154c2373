#!/usr/bin/env bash
# Installs what was built, below $DESTDIR$PREFIX: the command in bin/, its libraries in lib/eyrie/
# (where the command looks for them), manual pages, completions and documentation in share/; and
# libeyrie-ulfm when it was built (make -C ulfm). Builds nothing, so that root can run it.
# Usage: [PREFIX=/usr/local] [DESTDIR=...] [BINARIES=target/release] [ULFM=no] scripts/install.sh
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$root"
binaries=$(realpath -m "${BINARIES:-${CARGO_TARGET_DIR:-target}/release}")
to=${DESTDIR:-}${PREFIX:-/usr/local}
case ${PREFIX:-/usr/local} in /*) ;; *) fail "PREFIX=$PREFIX: must begin with a slash" ;; esac

for file in eyrie libeyrie_fi.so libeyrie_calls.so libeyrie_pmix.so; do
    [ -f "$binaries/$file" ] || fail "$binaries/$file is missing: run make build"
done
command -v strip >/dev/null || fail "strip is missing: install binutils"

# A name, as libfabric and the command look for it, and the file that cargo has made. Names of
# functions stay, for backtraces.
library() {
    install -m 644 "$binaries/$2" "$to/lib/eyrie/$1"
    strip --strip-debug "$to/lib/eyrie/$1"
}
install -d "$to/bin" "$to/lib/eyrie"
install -m 755 "$binaries/eyrie" "$to/bin/eyrie"
strip --strip-debug "$to/bin/eyrie"
library libeyrie-fi.so libeyrie_fi.so
library libeyrie-calls.so libeyrie_calls.so
library libeyrie-pmix.so libeyrie_pmix.so

share=$to/share
install -d "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
"$binaries/eyrie" man "$share/man/man1"
"$binaries/eyrie" completions bash >"$share/bash-completion/completions/eyrie"
"$binaries/eyrie" completions zsh >"$share/zsh/site-functions/_eyrie"
"$binaries/eyrie" completions fish >"$share/fish/vendor_completions.d/eyrie.fish"

doc=$share/doc/eyrie
install -d "$doc/docs/internals" "$doc/docs/reproduction"
install -m 644 README.md ARCHITECTURE.md CHANGELOG.md LICENSE "$doc"
install -m 644 docs/*.* "$doc/docs"
install -m 644 docs/internals/*.md "$doc/docs/internals"
install -m 644 docs/reproduction/*.md docs/reproduction/*.svg "$doc/docs/reproduction"

# With the planner that is in it already: cargo has nothing to do here.
if [ "${ULFM:-}" != no ] && [ -f "$build/ulfm/libeyrie_ulfm.so.0" ]; then
    make -s -C ulfm CARGO=true PREFIX="${PREFIX:-/usr/local}" DESTDIR="${DESTDIR:-}" install
fi
say "installed below $to"
