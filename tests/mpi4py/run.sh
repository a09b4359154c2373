#!/usr/bin/env bash
# Runs mpi4py's own test suite under `eyrie run`, without the tests named in excluded.csv.
# Usage: tests/mpi4py/run.sh [--mpi NAME] [--plain] [RANKS] [MAIN.PY OPTIONS...]
#   --mpi    on another library than MPICH: openmpi or intelmpi; left out is what excluded-NAME.csv
#            says
#   --plain  under the wheel's mpiexec over its tcp provider instead: what MPICH alone does; only
#            tests that fail there as well (column mpich_over_tcp of excluded.csv) are left out
#   RANKS    default 2
# More options go to mpi4py's test/main.py, e.g. `-i test_rma` for one module, `-f` to stop at the
# first failure.
# alone: four ranks keep every processor busy
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
limit_s=$((${EYRIE_TEST_LIMIT_S:-600} - 20)) # of tests/conftest.py, less what it takes to say why
launcher=("${EYRIE_BIN:-$root/target/release/eyrie}" run)
excluded='$2 == "any" || $2 == ranks'
venv=$root/build/venv
table=$root/tests/mpi4py/excluded.csv
alone=("$root/scripts/mpiexec-tcp.sh")
if [ "${1:-}" = --mpi ]; then
    venv=$venv-$2
    table=$root/tests/mpi4py/excluded-$2.csv
    case $2 in
    intelmpi)
        export LD_LIBRARY_PATH=$venv/lib
        alone=("$venv/bin/mpiexec" -genv I_MPI_FABRICS ofi -genv FI_PROVIDER tcp)
        ;;
    openmpi)
        alone=("$venv/bin/mpiexec" --allow-run-as-root --oversubscribe --bind-to none
            --mca pml cm --mca mtl ofi --mca btl self --mca mtl_ofi_provider_include tcp)
        ;;
    esac
    shift 2
fi
if [ "${1:-}" = --plain ]; then
    launcher=("${alone[@]}")
    excluded='($2 == "any" || $2 == ranks) && $3 != "works"'
    shift
fi
ranks=2
if [[ "${1:-}" =~ ^[0-9]+$ ]]; then
    ranks=$1
    shift
fi
"$root/scripts/setup.sh" || exit 1
suite=$(echo "$root"/build/mpi4py-*/test/runtests.py)
log=$root/build/mpi4py-$(basename "$venv")-$ranks.log

options=()
while read -r pattern; do
    options+=(-x "$pattern")
done < <(awk -F, -v ranks="$ranks" "NR > 1 && ($excluded) {print \$1}" "$table")

# The log has every rank's words in the order they came: a test that hangs is the last that some
# rank has begun. MPI-IO's and the suite's temporary files go to a folder of its own, in memory: a
# disk would be what a third of the time is spent on.
mkdir -p "$root/build/tmp"
scratch=$(mktemp -d /dev/shm/eyrie-mpi4py.XXXXXX 2>/dev/null) || scratch=$(mktemp -d "$root/build/tmp/XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
begin=$SECONDS
TMPDIR=$scratch timeout -k 10 $limit_s "${launcher[@]}" -n "$ranks" "$venv/bin/python" "$suite" \
    --no-builddir -v "${options[@]}" "$@" </dev/null >"$log" 2>&1
status=$?

# Ranks write at the same time: their lines may run into each other, so what is looked for may stand
# anywhere in a line.
ended=$(grep -oE 'Ran [0-9]+ tests in' "$log" | wc -l)
echo "mpi4py's suite at $ranks ranks: $((SECONDS - begin)) s, $((${#options[@]} / 2)) patterns of $(basename "$table") left out, log $log"
if [ $status = 124 ]; then
    echo "not finished after $limit_s s; the last that was begun:"
    tail -n "$((2 * ranks))" "$log"
fi
# Every rank must have come to the end and found nothing wrong (the suite's exit code says so).
# Which test failed is said with the reason, behind the tests' lines: in those, one rank's result
# may stand behind another rank's test. The next run leaves the log of a failure alone.
if [ $status != 0 ] || [ "$ended" != "$ranks" ]; then
    kept=${log%.log}-failed.log
    mv "$log" "$kept"
    reasons=$(grep -E '^(FAIL|ERROR): |^[A-Za-z_.]*(Error|Exception|Timeout)\b' "$kept" | head -n 8)
    echo "failed: exit code $status, $ended of $ranks ranks came to the end, log $kept"
    [ -z "$reasons" ] || printf '%s\n' "$reasons"
    exit 1
fi
echo "$(grep -oE 'Ran [0-9]+ tests' "$log" | sort -u | paste -sd,) on each of $ranks ranks, all passed or skipped"
