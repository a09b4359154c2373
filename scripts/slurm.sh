#!/usr/bin/env bash
# Installs Slurm for tests (Debian packages), as root; does nothing when it is there. Where there is
# systemd the packages would start daemons of their own: there it only says what to install.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)
complete=yes
for program in slurmctld slurmd srun munged; do
    PATH=$PATH:/usr/sbin command -v $program >/dev/null || complete=no
done
[ $complete = no ] || exit 0
[ ! -d /run/systemd/system ] || fail "no Slurm here: apt-get install ${packages[*]}, and stop its daemons"
exec 9>"$build/.slurm.lock"
flock -w 600 9 || fail "another process has held $build/.slurm.lock for ten minutes"
install_packages "${packages[@]}"
