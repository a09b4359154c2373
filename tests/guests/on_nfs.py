#!/usr/bin/env python3
"""What is done in a guest: the kernel's own NFS server gives a directory of an ext4 disk (/dev/vda)
to this same guest, which mounts it by the version of its arguments; there programs that use files
run while ranks of theirs are killed. Files, output and exit code are as undisturbed, byte for byte.
It must never run on the machine itself: it mounts, and starts a server."""

import ctypes
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

from guests import ON_NFS
from jobs import RANDOM, Job, await_condition, check, main, run, workshop

SERVED, MOUNTED = pathlib.Path("/mnt/served"), pathlib.Path("/mnt/nfs")
# Where the server keeps which clients it has.
CLIENTS = pathlib.Path("/var/lib/nfs/v4recovery")
NEVER = 0x7FFFFFFF
# Of include/uapi/linux/nfsd/export.h: any port, no checks of subtrees, the root of NFSv4.
INSECURE, NO_SUBTREES, ROOT_OF_ALL = 0x2, 0x400, 0x2000
KERNEL = pathlib.Path("/proc/fs/nfsd")


def command(*words):
    subprocess.run(words, check=True)


def tell(cache, line):
    """Puts a line into a cache of the kernel's server, which would ask rpc.mountd for it."""
    with open(f"/proc/net/rpc/{cache}/channel", "wb", buffering=0) as channel:
        channel.write(line.encode() + b"\n")


def serve():
    """Starts the server: one client, one file system, and no other program."""
    for module in ("nfsd", "nfsv4", "ext4"):
        command("modprobe", module)
    for directory in (SERVED, MOUNTED, CLIENTS):
        directory.mkdir(parents=True)
    command("mkfs.ext4", "-q", "/dev/vda")
    command("mount", "/dev/vda", str(SERVED))
    if not (KERNEL / "threads").exists():
        command("mount", "-t", "nfsd", "nfsd", str(KERNEL))
    (KERNEL / "versions").write_text("-2 -3 +4 +4.1 +4.2\n")
    for name in ("nfsv4leasetime", "nfsv4gracetime"):
        (KERNEL / name).write_text("10\n")
    flags = INSECURE | NO_SUBTREES | ROOT_OF_ALL
    tell("auth.unix.ip", f"nfsd 127.0.0.1 {NEVER} guest")
    tell("nfsd.export", f"guest {SERVED} {NEVER} {flags} 65534 65534 0")
    tell("nfsd.fh", f"guest 1 \\x00000000 {NEVER} {SERVED}")
    listens = socket.create_server(("127.0.0.1", 2049))
    (KERNEL / "portlist").write_text(f"{listens.fileno()}\n")
    (KERNEL / "threads").write_text("4\n")


def mount(version):
    options = f"vers={version},addr=127.0.0.1,clientaddr=127.0.0.1".encode()
    c = ctypes.CDLL(None, use_errno=True)
    if c.mount(b"127.0.0.1:/", str(MOUNTED).encode(), b"nfs4", 0, options) != 0:
        raise OSError(ctypes.get_errno(), f"NFS {version} cannot be mounted")


def disturbed(name, program, every, kills):
    """Kills ranks, one after the other, each when the job has come some way further."""
    options = ("--checkpoint-every", every, "--heartbeat-timeout", "120s")
    with Job(program, *options, base=pathlib.Path("/tmp/jobs")) as job:
        job.await_event("connected", program.ranks)
        for _ in range(kills):
            wanted = messages_of(job) + RANDOM.randrange(3, 15)
            await_condition(lambda: job.has_ended() or messages_of(job) >= wanted, "messages")
            back = len(job.events("recovered"))
            if job.kill_rank(RANDOM.randrange(program.ranks)):
                is_back = lambda: len(job.events("recovered")) > back
                await_condition(lambda: job.has_ended() or is_back(), "the rank")
        job.same_as_undisturbed()
        died = len(job.events("rank_failed"))
        print(f"{name}, {' '.join(options[:2])}: {died} kills, as undisturbed", flush=True)
        print("\n".join(job.stderr().splitlines()[-20:]), flush=True)
        return died


def messages_of(job):
    status = job.status()
    return status["messages"] if status else 0


def test():
    kind = run(["stat", "-f", "-c", "%T", workshop()]).stdout.strip()
    check(kind == "nfs", f"{workshop()} is on {kind}")
    for (name, program), every in zip(ON_NFS.items(), ("5s", "off", "5s")):
        died = disturbed(name, program, every, RANDOM.randrange(2, 5))
        check(died > 0, f"{name} ended before a rank was killed")


if __name__ == "__main__":
    serve()
    mount(sys.argv[1])
    # Places of tests are made there.
    os.environ["TMPDIR"] = str(MOUNTED)
    main(test)
