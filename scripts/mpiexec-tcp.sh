#!/usr/bin/env bash
# Runs a program with the wheel's own mpiexec over its own tcp provider, each rank as if on a node
# of its own: what Eyrie is compared with. Usage: scripts/mpiexec-tcp.sh -n RANKS PROGRAM [ARGS...]
# Without these variables MPICH takes shared memory between ranks of one machine, and says nothing
# of it.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp
exec "$root/build/venv/bin/mpiexec" "$@"
