#!/bin/sh
# The first program of a guest. The machine's root comes read-only by 9p, under an overlay in the
# guest's memory; /out is a folder of the test, shared and writable. The command in /out/command is
# run, its status goes to /out/status; then the guest powers off. Nothing outside /out is changed.
/bin/busybox --install -s /bin
PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "$module" || echo "insmod $module failed"; done </mod/order
read -r line </proc/cmdline
for word in $line; do
    case $word in modules=*) modules=${word#modules=} ;; esac
done
options=trans=virtio,version=9p2000.L,msize=512000
mount -t tmpfs -o size=75% tmpfs /tmp
mkdir -p /tmp/upper /tmp/work
# What the machine has does not change meanwhile.
mount -t 9p -o "ro,$options,cache=loose" root /low || exec sh
mount -t overlay -o lowerdir=/low,upperdir=/tmp/upper,workdir=/tmp/work overlay /new || exec sh
mkdir -p /new/out
mount -t 9p -o "rw,$options,cache=none" out /new/out
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs run /new/run
mkdir -p /new/run/lock
# With the group of services that systemd would have made.
mount -t cgroup2 cgroup /new/sys/fs/cgroup 2>/dev/null && mkdir -p /new/sys/fs/cgroup/system.slice
mount -t securityfs security /new/sys/kernel/security 2>/dev/null
mkdir -p /new/lib/modules
mount --bind "/new$modules" /new/lib/modules
ip link set lo up
hostname guest
# Process 1 itself changes its root: the kernel's helpers share it, and find modprobe there. The
# mounts' root changes, too: a process that enters a namespace comes there.
exec switch_root /new /usr/bin/env -i \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb bash -c '
    bash /out/command
    echo $? >/out/status
    sync
    busybox poweroff -f
    sleep 60'
