#!/usr/bin/env bash
# Runs every check of the project, part by part, and ends with exactly one line "N passed, M failed". Each part is a function below; what
# it prints is in build/test-logs/PART.log; what it says of the tests that failed is shown at the end.
# Usage: scripts/test.sh [PART]...   (default: the parts that `scripts/test.sh --list` names)
# `make test-more` runs the longer ones: more_ulfm.
set -uo pipefail
source "$(dirname "$0")/lib.sh"
cd "$root" || exit 1

parts=(setup format build lint unit referee docs examples jobs monitor ulfm mpi4py)

part_setup() { scripts/setup.sh; }

part_format() { cargo fmt --all --check; }

# The tests with everything else: compiled by themselves they would take other features of what they depend on, and all of it twice.
part_build() { cargo build --release --workspace --lib --bins --tests --examples && make --no-print-directory -C examples; }

# The monitor also without its server, as others use it. No file imports another in a circle, in crates that are free of it.
part_lint() {
    scripts/circles.py &&
        cargo clippy --release --workspace --all-targets -- -D warnings &&
        cargo clippy --release -p eyrie-monitor --all-targets -- -D warnings
}

part_unit() { cargo test --release --workspace; }

# Tables in docs/ that are made from something are as they would be made now.
part_docs() { scripts/mpi_support.py --check; }

# The example programs by themselves, over MPICH's own transport: what they print is what jobs under Eyrie are compared with.
part_examples() { examples/test.sh; }

# Whole jobs under `eyrie run`: each executable file of tests/jobs/ is one test and counts as one.
part_jobs() { run_each tests/jobs/*-*; }

# `eyrie monitor` as a whole: each executable file of tests/monitor/ is one test and counts as one.
part_monitor() { run_each tests/monitor/*; }

# libeyrie-ulfm on Open MPI: whole jobs struck in the library's every step; the longer ones apart.
part_ulfm() { make -s -C ulfm examples && run_each tests/ulfm/01* tests/ulfm/02* tests/ulfm/03[23]*; }

part_more_ulfm() { make -s -C ulfm examples && run_each tests/ulfm/03[01]* tests/ulfm/0[4-9]* tests/ulfm/1*; }

part_referee() { referee/small.sh; }

part_mpi4py() { run_each "tests/mpi4py/run.sh 2" "tests/mpi4py/run.sh 4"; }

# Runs each command of its arguments and notes one result for each in the part's tally, so that a part may count for many tests.
run_each() {
    local command failed=0 begin
    for command in "$@"; do
        begin=$SECONDS
        # shellcheck disable=SC2086 # a command with its arguments
        if $command; then
            echo "ok $command ($((SECONDS - begin)) s)" | tee -a "$tally"
        else
            echo "not ok $command ($((SECONDS - begin)) s)" | tee -a "$tally"
            failed=1
        fi
    done
    return $failed
}

# Adds a part's tests to the totals: what run_each noted, else the lines "ok NAME" and "not ok NAME" and cargo's summaries in its log.
count() {
    local log=$1 status=$2 ok bad
    [ ! -s "$tally" ] || log=$tally
    ok=$(($(grep -c '^ok ' "$log") + $(sum_of '^test result: .* ([0-9]+) passed; .*' "$log")))
    bad=$(($(grep -c '^not ok ' "$log") + $(sum_of '^test result: .* ([0-9]+) failed; .*' "$log")))
    # A part that failed without naming a test (it did not compile, say) is one failure; one that names none and passed is one pass.
    [ "$status" = 0 ] || [ "$bad" != 0 ] || bad=1
    [ "$status" != 0 ] || [ "$ok" != 0 ] || ok=1
    passed=$((passed + ok))
    failed=$((failed + bad))
}

# sum_of REGEX FILE: of the numbers that the first group of REGEX matches.
sum_of() { echo $(($(sed -nE "s/$1/\\1/p" "$2" | paste -sd+ | sed 's/^$/0/') + 0)); }

run_part() {
    local part=$1 log=$build/test-logs/$1.log begin=$SECONDS status=0
    tally=$build/test-logs/$part.tally
    : >"$tally"
    printf '%-10s ' "$part"
    "part_$part" >"$log" 2>&1 </dev/null || status=$?
    count "$log" "$status"
    if [ "$status" = 0 ]; then
        echo "passed  $((SECONDS - begin)) s"
        return
    fi
    echo "FAILED  $((SECONDS - begin)) s, see $log"
    what_failed "$part" "$log" >>"$failures"
    return 1
}

# What a failed part's log says of each test of it that failed, else its end: short enough to be read at the end of all output.
what_failed() {
    echo "$1 failed:"
    { grep -B 12 '^not ok ' "$2" || grep -A 8 '^---- .* stdout ----' "$2" || tail -n 12 "$2"; } | cut -c-240 | sed 's/^/    /'
}

passed=0
failed=0
failures=$build/test-logs/failures
if [ "${1:-}" = --list ]; then
    printf '%s\n' "${parts[@]}"
    exit
fi
[ $# -gt 0 ] && parts=("$@")
mkdir -p "$build/test-logs"
: >"$failures"
for part in "${parts[@]}"; do
    declare -F "part_$part" >/dev/null || fail "no such part: $part (one of: $("$0" --list | paste -sd' '))"
    if ! run_part "$part" && { [ "$part" = setup ] || [ "$part" = build ]; }; then
        break # nothing that follows could run
    fi
done
cat "$failures"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
