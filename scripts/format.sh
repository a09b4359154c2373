#!/usr/bin/env bash
# Formats every source: Rust (rustfmt), C (clang-format), Python (ruff), shell (shfmt), each by its
# file in the root of the project; lines have 100 columns.
# Usage: scripts/format.sh [--check]   (--check: changes nothing, fails when something would change,
# and looks for mistakes in Python (ruff) and shell (shellcheck))
set -uo pipefail
source "$(dirname "$0")/lib.sh"
cd "$root" || exit 1

tools=$build/venv-tools/bin
# It is no member of the workspace.
restorer=crates/eyrie-restorer/Cargo.toml
check=no
[ "${1:-}" != --check ] || check=yes
# The header that cbindgen makes is as it makes it.
mapfile -t c < <(git ls-files '*.c' '*.cpp' '*.h' ':!crates/eyrie-planner-c/include')
mapfile -t shell < <(git ls-files '*.sh' tests/run .ci/run)
if [ $check = no ]; then
    cargo fmt --all
    cargo fmt --manifest-path $restorer
    "$tools/clang-format" -i "${c[@]}"
    "$tools/ruff" format -q
    "$tools/shfmt" -w "${shell[@]}"
    exit
fi
wrong=0
cargo fmt --all --check || wrong=1
cargo fmt --manifest-path $restorer --check || wrong=1
"$tools/clang-format" --dry-run -Werror "${c[@]}" || wrong=1
"$tools/ruff" format --check || wrong=1
"$tools/ruff" check || wrong=1
"$tools/shfmt" -d "${shell[@]}" || wrong=1
"$tools/shellcheck" -x "${shell[@]}" || wrong=1
# What formatters leave alone: comments that are wider than the lines.
wide=$(git ls-files '*.rs' '*.py' '*.f90' | LC_ALL=C.UTF-8 xargs grep -nE '^.{101,}' -- "${c[@]}" "${shell[@]}" |
    grep -E '^[^:]+:[0-9]+: *(//|# |/?\* )')
[ -z "$wide" ] || { echo "comments of more than 100 columns:" && echo "$wide" && wrong=1; }
exit $wrong
