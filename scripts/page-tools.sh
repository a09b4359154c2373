#!/usr/bin/env bash
# Makes what tests of the page need: Debian's chromium with a font, and build/venv-page with what
# drives it. Prints the folder of the environment.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

exec 9>"$build/.page-tools.lock"
flock -w 900 9 || fail "another run has held $build/.page-tools.lock for a quarter of an hour"
missing=()
command -v chromium >/dev/null || missing+=(chromium)
[ -d /usr/share/fonts/truetype/dejavu ] || missing+=(fonts-dejavu-core)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
make_venv "$build/venv-page" scripts/requirements-page.txt "Playwright, axe"
echo "$build/venv-page"
