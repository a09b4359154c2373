#!/usr/bin/env bash
# Runs each example once at a small size and compares what it prints, and the files it writes, with
# examples/expected/.
# Usage: examples/test.sh [--accept] [LAUNCHER [ARGS...]]   (default: scripts/mpiexec-tcp.sh)
# The launcher is called with -n RANKS PROGRAM ARGS, so `examples/test.sh target/release/eyrie run`
# does the same under Eyrie.
# --accept makes what was printed the expected output. Prints "ok NAME" or "not ok NAME" for each.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
expected=$root/examples/expected
accept=no
if [ "${1:-}" = --accept ]; then
    accept=yes
    shift
fi
launcher=("$@")
[ $# -gt 0 ] || launcher=("$root/scripts/mpiexec-tcp.sh")
[ ! -e "${launcher[0]}" ] || launcher[0]=$(realpath "${launcher[0]}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# job FOLDER LAUNCHER... -n RANKS PROGRAM ARGS...: runs it in a new folder; FOLDER.out gets standard
# output (without what LAMMPS says of its timings) and the hash of every file that was written,
# FOLDER.err the rest. Returns the exit code.
job() {
    local folder=$1 status=0 limit
    shift
    mkdir "$folder" && cd "$folder" || exit 1
    # MPICH over libfabric's tcp provider hangs now and then.
    for limit in 30 60 120; do
        status=0
        timeout $limit "$@" </dev/null >"$folder.raw" 2>"$folder.err" || status=$?
        [ "$status" = 124 ] || break
        find . -mindepth 1 -delete
    done
    sed -E '/CPU = |^Loop time|^Total wall time/d' "$folder.raw" | ${filter:-cat} >"$folder.out"
    find . -type f | sort | xargs -r b2sum -l 128 >>"$folder.out"
    return $status
}

# verdict NAME STATUS EXPECTED GOT BEGIN
verdict() {
    if [ "$2" = 0 ] && diff -u "$3" "$4"; then
        printf 'ok %s (%.1f s)\n' "$1" "$(echo "$(date +%s.%N) $5" | awk '{print $1 - $2}')"
    else
        cat "${4%.out}.err"
        echo "not ok $1 (exit code $2)"
        failed=1
    fi
}

# run NAME RANKS PROGRAM ARGS...: compared with the committed output of that name.
run() {
    local name=$1 ranks=$2 program=$3 status=0 begin
    shift 3
    begin=$(date +%s.%N)
    job "$work/$name" "${launcher[@]}" -n "$ranks" "$root/build/examples/$program" "$@" || status=$?
    [ $accept = no ] || { mkdir -p "$expected" && cp "$work/$name.out" "$expected/$name.txt"; }
    verdict "$name" $status "$expected/$name.txt" "$work/$name.out" "$begin"
}

# run_twice NAME RANKS PROGRAM ARGS...: for what differs from one CPU to another; compared with a
# run over MPICH's own transport.
run_twice() {
    local name=$1 ranks=$2 status=0 begin
    shift 2
    begin=$(date +%s.%N)
    job "$work/$name-plain" "$root/scripts/mpiexec-tcp.sh" -n "$ranks" "$@" || status=$?
    job "$work/$name" "${launcher[@]}" -n "$ranks" "$@" || status=$?
    verdict "$name" $status "$work/$name-plain.out" "$work/$name.out" "$begin"
}

run heat2d 4 heat2d --nx 200 --ny 300 --steps 300 --out plate --log log
run heat2d-prime 3 heat2d --nx 101 --ny 67 --steps 50 --every 0 --out plate
run heat3d 4 heat3d --nx 20 --ny 24 --nz 18 --steps 60 --every 20
run heat3d-wind 3 heat3d --nx 40 --ny 24 --nz 1 --steps 60 --every 20 --wind 1
run cg 4 cg --n 24 --solves 2 --out solution
run isort 4 isort --keys 65536 --iterations 4 --out keys
run farm 4 farm --tasks 400 --work 5000
run rma 3 rma --words 512 --rounds 10 --every 5 --out sums
run crash-none 3 crash --rank -1
run io 3 io --steps 100 --spin 1000
run memory 3 memory --mb 8 --steps 50 --spin 1000
run uneven 4 uneven --steps 60 --spin 1000 --grow 20
run waits 2 waits --ms 20
run waiters 3 waiters --rounds 200 --every 50
run hybrid 3 hybrid --steps 200
run pool 2 pool --rounds 50 --every 10
run flood 4 flood --mb 32 --hold-ms 100 --rounds 200
# Launchers keep the order of lines within a rank, not between ranks.
# shellcheck disable=SC2209 # the name of a command
filter=sort run stdio 3 stdio --lines 4
run_twice jacobi_numpy 3 "$root/build/venv/bin/python" "$root/examples/jacobi_numpy.py" --iterations 200 --out field.npy
run_twice blas_threads 2 "$root/build/venv/bin/python" "$root/examples/blas_threads.py" --iterations 20 --size 100
run_twice lammps 4 "$root/build/venv/bin/lmp" -in "$root/examples/lammps/in.melt" -log none -nocite -var size 10 -var steps 200
exit $failed
