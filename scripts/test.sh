#!/usr/bin/env bash
# Runs the checks of the project, part by part, and ends with exactly one line "N passed, M failed".
# Each part is a function below; what it prints is in build/test-logs/PART.log; what it says of
# tests that failed, and of unsteady ones, is shown at the end.
# Usage: scripts/test.sh [PART]...   (default: all that `scripts/test.sh --list` names)
# `make test-more` runs the longer ones, more_*: tests that have a short form above, in full
# (EYRIE_TEST_MORE), and what has none.
set -uo pipefail
source "$(dirname "$0")/lib.sh"
cd "$root" || exit 1

parts=(setup format build lint unit c_unit referee docs examples whole)
# What `whole` consists of.
of_whole=(jobs hosts guests monitor metrics page ulfm mpi4py install)

part_setup() { scripts/setup.sh; }

part_format() { scripts/format.sh --check; }

# The tests with everything else: compiled by themselves they would take other features of what they
# depend on, and all of it twice.
part_build() { cargo build --release --workspace --lib --bins --tests --examples && make --no-print-directory examples; }

# The monitor also without its server, as others use it: that is, without the command, which asks
# for it. No file imports another in a circle, in crates that are free of it.
part_lint() {
    scripts/circles.py &&
        cargo clippy --release --workspace --all-targets -- -D warnings &&
        cargo clippy --release --workspace --exclude eyrie --lib --tests -- -D warnings
}

part_unit() { scripts/unit.py; }

# Ledgers, planner, stores and routers over all their random cases; the ledger's orderings under
# loom, which is compiled for this; the header as cbindgen makes it; the benchmark.
part_more_unit() {
    export EYRIE_TEST_MORE=1
    cargo test --release -p eyrie-ledger -p eyrie-placement -p eyrie-router -p eyrie-store &&
        EYRIE_SCHEDULES=10000 cargo test --release -p eyrie-controller three_domains &&
        RUSTFLAGS="--cfg loom" cargo test --release -p eyrie-ledger --test loom &&
        cargo test --release -p eyrie-planner-c --features header &&
        cargo clippy --release -p eyrie-placement --features criterion --all-targets -- -D warnings
}

# libeyrie-ulfm with the planner that `build` has made: by itself cargo would compile it, and all
# that it depends on, once more.
ulfm() { make -s -C ulfm CARGO=true "$@"; }

# Those functions of libeyrie-ulfm that need no MPI.
part_c_unit() { ulfm unit; }

# Tables in docs/ that are made from something are as they would be made now; pages name what
# exists, and use the words of docs/glossary.md.
part_docs() { scripts/mpi_support.py --check && scripts/prose.py; }

# The example programs by themselves, over MPICH's own transport: what they print is what jobs under
# Eyrie are compared with.
part_examples() { examples/test.sh; }

# All whole jobs that follow, beside each other: each of these parts by itself leaves processors
# idle. What is named last is begun first: tests of hosts wait longest.
part_whole() {
    ulfm examples && whole_jobs tests/install/0* tests/mpi4py "${short_ulfm[@]}" tests/monitor tests/metrics "${short_page[@]}" \
        "${short_jobs[@]}" "${short_guests[@]}" "${short_hosts[@]}"
}

# Whole jobs under `eyrie run`: each executable file of tests/jobs/ is one test and counts as one.
# Left out: random kills of programs like those that stay, and all roles apart.
shopt -s extglob
short_jobs=(tests/jobs/!(@(013|100|101|103|105|107|110|112|120)-*))
part_jobs() { whole_jobs "${short_jobs[@]}"; }

# Every combination, 200 runs that are disturbed at random over ten programs, an hour of kills.
part_more_jobs() {
    EYRIE_TEST_MORE=1 EYRIE_TEST_RUNS=20 EYRIE_TEST_LIMIT_S=4500 whole_jobs tests/jobs
}

# The same jobs, each in its short form, with all messages through the router.
part_more_router() { EYRIE_PATH=router whole_jobs tests/jobs; }

# Jobs on several hosts, which are namespaces of this machine: each executable file of tests/hosts/
# is one test, skipped when we are not root. Left out: most under a real Slurm (02*), and what
# takes longest beside others like it.
short_hosts=(tests/hosts/!(@(02[!1]|033|034|035|036|039|041|043|045|047|051|052|053|055|056|060|079|080|081|083|084|085)-*))
part_hosts() { whole_jobs "${short_hosts[@]}"; }

# All of them, more under Slurm; an hour of load; 100 runs whose hosts fail at random.
part_more_hosts() {
    EYRIE_TEST_MORE=1 EYRIE_TEST_LOAD_S=3600 EYRIE_TEST_RUNS=100 EYRIE_TEST_LIMIT_S=7200 \
        whole_jobs tests/hosts
}

# Jobs in guests with other kernels, emulated by QEMU: one of them here, all of them in more_guests.
short_guests=(tests/guests/010*)
part_guests() { whole_jobs "${short_guests[@]}"; }

part_more_guests() { EYRIE_TEST_MORE=1 EYRIE_TEST_LIMIT_S=3600 whole_jobs tests/guests; }

# `eyrie monitor` as a whole: each executable file of tests/monitor/ is one test and counts as one.
part_monitor() { whole_jobs tests/monitor; }

# What jobs tell Prometheus and OpenTelemetry: each executable file of tests/metrics/ is one test.
part_metrics() { whole_jobs tests/metrics; }

# `eyrie serve` in a real browser: each executable file of tests/page/ is one test, skipped where
# there is no chromium and we are not root to install it.
short_page=(tests/page/04* tests/page/05*)
part_page() { whole_jobs "${short_page[@]}"; }

part_more_page() { EYRIE_TEST_LIMIT_S=1200 whole_jobs tests/page; }

# libeyrie-ulfm on Open MPI: whole jobs whose ranks die in the library's every step; the longer ones
# apart.
short_ulfm=(tests/ulfm/011* tests/ulfm/02[!1-3]* tests/ulfm/03[23]*)
part_ulfm() { ulfm examples && whole_jobs "${short_ulfm[@]}"; }

part_more_ulfm() { ulfm examples && EYRIE_TEST_MORE=1 EYRIE_TEST_LIMIT_S=1800 whole_jobs tests/ulfm; }

# What was built, installed in each way, and a job run from there; and the packages for older
# systems, which everything is compiled for once more.
part_install() { whole_jobs tests/install/0*; }

part_more_install() { EYRIE_TEST_LIMIT_S=7200 whole_jobs tests/install/1*; }

part_referee() { EYRIE=$root/target/release/eyrie referee/small.sh; }

part_mpi4py() { whole_jobs tests/mpi4py; }

part_more_mpi4py() { EYRIE_TEST_MORE=1 EYRIE_TEST_LIMIT_S=1200 whole_jobs tests/mpi4py; }

# Runs files of tests/, of which each is one test, or several; the part's tally gets a line for
# each.
whole_jobs() { EYRIE_TEST_TALLY=$tally tests/run "$@"; }

# Adds a part's tests to the totals: what tests/run noted, else the lines "ok NAME" and "not ok
# NAME" and cargo's summaries in its log.
count() {
    local log=$1 status=$2 ok bad
    [ ! -s "$tally" ] || log=$tally
    ok=$(($(grep -c '^ok ' "$log") + $(sum_of '^test result: .* ([0-9]+) passed; .*' "$log")))
    bad=$(($(grep -c '^not ok ' "$log") + $(sum_of '^test result: .* ([0-9]+) failed; .*' "$log")))
    # A part that failed without naming a test (it did not compile, say) is one failure; one that
    # names none and passed is one pass.
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
    with_details unsteady "$tally" >>"$unsteady"
    if [ "$status" = 0 ]; then
        echo "passed  $((SECONDS - begin)) s"
        return
    fi
    echo "FAILED  $((SECONDS - begin)) s, see $log"
    what_failed "$part" >>"$failures"
    return 1
}

# What a failed part's tally or log says of each test of it that failed, else its end: short enough
# to be read at the end of all output.
what_failed() {
    local log=$build/test-logs/$1.log
    echo "$1 failed:"
    {
        with_details 'not ok' "$build/test-logs/$1.tally" || grep -B 12 '^not ok ' "$log" ||
            grep -E -A 2 'panicked at|^test .* FAILED' "$log" | head -n 60 | grep . ||
            tail -n 12 "$log"
    } | cut -c-240 | sed 's/^/    /'
}

# with_details WORD TALLY: the lines that begin with WORD, each with the indented ones above it;
# false when there is none.
with_details() {
    awk -v word="$1 " '
        /^ / { details = details $0 "\n"; next }
        index($0, word) == 1 { printf "%s%s\n", details, $0; found = 1 }
        { details = "" }
        END { exit !found }' "$2"
}

passed=0
failed=0
failures=$build/test-logs/failures
unsteady=$build/test-logs/unsteady
if [ "${1:-}" = --list ]; then
    printf '%s\n' "${parts[@]}"
    echo "    (whole is: ${of_whole[*]})"
    exit
fi
[ $# -gt 0 ] && parts=("$@")
mkdir -p "$build/test-logs"
: >"$failures"
: >"$unsteady"
for part in "${parts[@]}"; do
    declare -F "part_$part" >/dev/null || fail "no such part: $part (one of: $("$0" --list | paste -sd' '))"
    if ! run_part "$part" && { [ "$part" = setup ] || [ "$part" = build ]; }; then
        break # nothing that follows could run
    fi
done
cat "$failures" "$unsteady"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
