#!/usr/bin/env bash
# A real program, LAMMPS, on 4 ranks, 2 nodes and a spare: once undisturbed, once with a rank and
# then a node killed under it. Shows Eyrie's line for each event as it happens, that the
# thermodynamic output is the same to the last digit, and what each recovery took, by phase.
# Everything it makes is in build/demo/.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
steps=1200
demo=$build/demo
eyrie=$root/target/release/eyrie
lmp=("$build/venv/bin/lmp" -in "$root/examples/lammps/in.melt" -log none -nocite -var steps "$steps")

[ -x "$eyrie" ] || fail "$eyrie is missing: run make build"
rm -rf "$demo" && mkdir -p "$demo"
cd "$demo"

# What LAMMPS prints has its timings in it; what is compared is what it computed.
thermodynamics() { sed -n '/^ *Step  */,/^Loop time/p' "$1" | grep -v '^Loop time'; }

echo "== undisturbed: 4 ranks on 2 nodes, LAMMPS melts $((4 * 20 * 20 * 20)) atoms for $steps steps"
begin=$SECONDS
"$eyrie" run -n 4 --nodes 2 --spares 1 --checkpoint-every 1s --events undisturbed.jsonl -- \
    "${lmp[@]}" -var out undisturbed.thermo >undisturbed.out
undisturbed=$((SECONDS - begin))

echo "== the same again; rank 1 is killed after 3 s, node 0 with its two ranks after 7 s"
begin=$SECONDS
"$eyrie" run -n 4 --nodes 2 --spares 1 --checkpoint-every 1s --inject kill-rank=1@3s --inject kill-node=0@7s \
    --events events.jsonl -- "${lmp[@]}" -var out disturbed.thermo | tee disturbed.out
disturbed=$((SECONDS - begin))

thermodynamics undisturbed.out >undisturbed.lines
thermodynamics disturbed.out >disturbed.lines
[ -s undisturbed.lines ] || fail "LAMMPS printed no thermodynamic output: see $demo/undisturbed.out"
cmp undisturbed.lines disturbed.lines || fail "the thermodynamic output differs: diff $demo/undisturbed.lines $demo/disturbed.lines"
cmp undisturbed.thermo disturbed.thermo || fail "the result file differs: diff $demo/undisturbed.thermo $demo/disturbed.thermo"
echo
echo "== $(($(wc -l <disturbed.lines) - 1)) lines of thermodynamic output and the file LAMMPS wrote: equal, byte for byte"
echo "   undisturbed ${undisturbed} s, disturbed ${disturbed} s"
"$build/venv/bin/python" "$root/scripts/recoveries.py" events.jsonl
