"""Several hosts on one machine: each is a network, host-name, IPC, process and mount namespace with
an sshd of its own. Hosts share the file system of the machine, as nodes of a cluster share one, but
each has its own /dev/shm, /proc, /run and /tmp; the checkout and the directory of the test keep
their paths. They lose power, cables and packets as a test wants it.

All of it lies in a network namespace that the test moves into and in mounts of the test itself, so
that two tests that run at the same time cannot meet, and the kernel removes everything when the
test ends, however it ends. Nothing here changes the network or a file of the machine.
"""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import jobs
from jobs import (
    MNT_DETACH,
    PATIENCE_S,
    ROOT,
    Job,
    Skipped,
    await_condition,
    check,
    command_line,
    is_alive,
    kill,
    process_state,
    workshop,
)

CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
# The machine itself, for `partition`; its number in addresses.
HERE, HERE_NUMBER = "here", 254
PREFIX4, PREFIX6 = "10.77.0.", "fd65:7972:6965::"
SSH_PORT = 22
# What each host can hold in its /tmp: Eyrie's directory with what it keeps on disk.
DISK_MIB = 512
FILLER = "tmp/filler"

libc = ctypes.CDLL(None, use_errno=True)


def mac(number):
    return f"02:65:79:00:00:{number:02x}"


def tool(name):
    """The path of a program that may lie in a directory of the administrator's only."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def need(tools):
    """Skips the test when hosts cannot be made here."""
    if os.geteuid() or not jobs.OWN_MOUNTS:
        raise Skipped("hosts need root")
    missing = [name for name in tools if not tool(name)]
    if missing:
        raise Skipped(f"{', '.join(missing)} missing: run make setup as root")


def batch(command, lines):
    """Gives lines to `ip -batch` or `tc -batch`."""
    ran = subprocess.run(
        [tool(command), "-batch", "-"], input="\n".join(lines) + "\n", text=True,
        capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    check(ran.returncode == 0, f"{command}: {ran.stderr.strip()} in {lines}")


def own_network():
    """Moves this process into a network namespace of its own; returns the one it was in."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    if libc.unshare(CLONE_NEWNET) != 0:
        os.close(before)
        raise Skipped(f"no network namespaces here: {os.strerror(ctypes.get_errno())}")
    return before


def enter_network(namespace):
    check(libc.setns(namespace, CLONE_NEWNET) == 0, "cannot enter a network namespace")


def new_network():
    """A new network namespace, as a descriptor."""
    before = own_network()
    try:
        return os.open("/proc/self/ns/net", os.O_RDONLY)
    finally:
        enter_network(before)
        os.close(before)


class Host:
    """One host. `network` keeps its network alive, also while no process is in it."""

    def __init__(self, number):
        self.number = number
        self.name = f"h{number}"
        self.address = f"{PREFIX4}{number + 1}"
        self.address6 = f"{PREFIX6}{number + 1:x}"
        self.port = f"port{number}"
        # Its networks: the port on this side, its own name of it, its address there and the bridge.
        self.links = [(self.port, "eth0", mac(number), "eth0")]
        self.network = None
        self.shell = None  # the process unshare: waits for the host's process 1 and dies with it
        self.frozen = []
        self.unheard = set()  # numbers of those whose packets do not arrive
        self.lost = {"in": 0.0, "out": 0.0}  # share of packets

    def init(self):
        """The host's process 1, or None."""
        return next(iter(jobs.children(self.shell.pid)), None) if self.shell else None

    def root(self):
        """The host's file system as this process can open it."""
        return pathlib.Path(f"/proc/{self.init()}/root")

    def pids(self):
        """Every process of the host, with its process 1."""
        init = self.init()
        if init is None:
            return []
        mine = os.readlink(f"/proc/{init}/ns/pid")
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") == mine and is_alive(path.name):
                    found.append(int(path.name))
            except OSError:
                pass  # it has ended meanwhile
        return found


class Hosts:
    """`with Hosts(3) as hosts:` starts h0, h1 and h2; they are gone at its end."""

    def __init__(self, number, disk_mib=DISK_MIB, bound=False, diskless=()):
        """`bound`: each host has one processor, as far as there are some. `diskless`: hosts that
        can write nowhere but to their /tmp, /dev/shm and /run, which are memory."""
        check(number <= 200, "that many hosts have no addresses")
        self.bound, self.diskless = bound, set(diskless)
        self.hosts = [Host(i) for i in range(number)]
        self.names = [host.name for host in self.hosts]
        self.disk_mib = disk_mib
        self.unheard_here = set()
        # Programs and listening sockets of the hosts that belong to no job.
        self.services = {"sshd"}
        self.sockets = {f"tcp port {SSH_PORT}", f"tcp6 port {SSH_PORT}"}
        # Called with a host's number before it loses its power, to drop what is lost with it.
        self.when_power_goes = []
        self._outside = None
        self._files = False

    def __enter__(self):
        need(["sshd", "ssh", "ssh-keygen", "ip", "tc", "unshare", "nsenter"])
        try:
            self._prepare()
            for host in self.hosts:
                self._start(host)
            self._await_sshd(self.hosts)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    # Starting and ending hosts.

    def _prepare(self):
        self.home = workshop() / "hosts"
        jobs.remove(self.home)
        (self.home / "bin").mkdir(parents=True)
        for key in ("key", "hostkey"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.home / key], check=True
            )
        self._write_files()
        # Where jobs keep their directories: on the machine it is this test's, on each host its own.
        self.base = pathlib.Path(f"/tmp/eyrie-hosts-{os.getpid()}")
        self.base.mkdir(mode=0o700)
        jobs.bind(self.home / "etc-hosts", "/etc/hosts")
        self._files = True
        self._outside = own_network()
        self._prepare_network()

    def _prepare_network(self):
        """What the hosts are joined by, in the test's network."""
        lines = [
            "link set lo up",
            f"link add eth0 address {mac(HERE_NUMBER)} type bridge forward_delay 0 stp_state 0 "
            "mcast_snooping 0",
            f"addr add {PREFIX4}{HERE_NUMBER}/24 dev eth0",
            "link set eth0 up",
        ]
        if os.path.exists("/proc/sys/net/ipv6"):
            lines.append(f"addr add {PREFIX6}{HERE_NUMBER:x}/64 dev eth0 nodad")
        batch("ip", lines)
        batch("tc", ["qdisc add dev eth0 clsact"])

    def _names(self):
        """(name, address) of all that hosts and the machine know, those of ssh first."""
        found = [(host.name, host.address) for host in self.hosts]
        return found, [(f"{host.name}-6", host.address6) for host in self.hosts]

    def _network_lines(self, host):
        """For `ip -batch` on the host."""
        lines = ["link set lo up", f"addr add {host.address}/24 dev eth0", "link set eth0 up"]
        if os.path.exists("/proc/sys/net/ipv6"):
            lines.append(f"addr add {host.address6}/64 dev eth0 nodad")
        return lines

    def _write_files(self):
        for_ssh, more = self._names()
        names = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        names.append(f"{PREFIX4}{HERE_NUMBER} {HERE} {socket.gethostname()}")
        names += [f"{address} {name}" for name, address in for_ssh + more]
        config = [
            line for name, address in for_ssh for line in (f"Host {name}", f"  HostName {address}")
        ]
        config += [
            "Host *",
            f"  IdentityFile {self.home}/key",
            "  IdentitiesOnly yes",
            "  BatchMode yes",
            "  StrictHostKeyChecking no",
            "  UserKnownHostsFile /dev/null",
            "  LogLevel ERROR",
        ]
        server = [
            f"HostKey {self.home}/hostkey",
            f"AuthorizedKeysFile {self.home}/key.pub",
            "StrictModes no",
            "UsePAM no",
            "UseDNS no",
            "KexAlgorithms curve25519-sha256",  # the default one takes half a second
            "PidFile none",
            "PermitRootLogin yes",
            "PrintMotd no",
        ]
        # Root's shell is sh: what is in its .bashrc takes time and is no part of a test.
        users = pathlib.Path("/etc/passwd").read_text().splitlines()
        users = [re.sub("^(root:.*:).*", r"\1/bin/sh", line) for line in users]
        ssh = f'#!/bin/sh\nexec {tool("ssh")} -F {self.home}/ssh_config "$@"\n'
        files = {
            "etc-hosts": names,
            "etc-passwd": users,
            "ssh_config": config,
            "sshd_config": server,
            "bin/ssh": [ssh],
        }
        files.update({f"net.{host.name}": self._network_lines(host) for host in self.hosts})
        for name, lines in files.items():
            (self.home / name).write_text("\n".join(lines) + "\n")
        (self.home / "bin/ssh").chmod(0o755)
        (self.home / "start").write_text(self._start_script())

    def _start_script(self):
        """What a host's process 1 does before it becomes sshd. Its arguments: name, and
        "diskless"."""
        used = [ROOT, jobs.EYRIE.parent, pathlib.Path(sys.prefix), pathlib.Path(sys.base_prefix)]
        self.shared = [p for p in [workshop(), *used] if p.is_relative_to("/tmp")]
        keep = []
        for path in dict.fromkeys(self.shared):
            there = pathlib.Path("/mnt") / path.relative_to("/tmp")
            keep += [f"mkdir -p '{there}'", f"mount --bind '{path}' '{there}'"]
        return "\n".join(
            [
                "set -e",
                'hostname "$1"',
                f"mount -t tmpfs -o mode=1777,size={self.disk_mib}m tmpfs /mnt",
                *keep,
                "mount --move /mnt /tmp",
                f"mount --bind '{self.home}/etc-passwd' /etc/passwd",
                "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
                "mount -t tmpfs -o mode=755 tmpfs /run",
                "mkdir -m 755 /run/sshd",
                f"{tool('ip')} -batch '{self.home}/net.'\"$1\"",
                'if [ "$2" = diskless ]; then',
                # Each mount by itself: what cannot be had so stays as it is.
                "cut -d ' ' -f 5 /proc/self/mountinfo | while read -r at; do",
                'case "$at" in',
                "/dev | /dev/* | /proc | /proc/* | /sys | /sys/* | /run | /tmp) ;;",
                '*) mount -o remount,bind,ro "$at" || echo "$at can be written" ;;',
                "esac",
                "done",
                "fi",
                f"exec {tool('sshd')} -D -e -f '{self.home}/sshd_config'",
            ]
        )

    def _start(self, host):
        host.network = new_network()
        us = os.getpid()
        for port, name, address, bridge in host.links:
            batch(
                "ip",
                [
                    f"link add {port} type veth peer name {name} address {address} "
                    f"netns /proc/{us}/fd/{host.network}",
                    f"link set {port} master {bridge} up",
                ],
            )
            batch("tc", [f"qdisc add dev {port} clsact"])
        self._start_processes(host)

    def _start_processes(self, host):
        """The host's process 1, which becomes its sshd."""

        def inside():
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            libc.setns(host.network, CLONE_NEWNET)
            if self.bound:
                there = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(0, {there[host.number % len(there)]})

        flags = "--uts --ipc --pid --mount --fork --kill-child --mount-proc".split()
        words = ["sh", str(self.home / "start"), host.name]
        words += ["diskless"] if host.number in self.diskless else []
        with open(self.home / f"log.{host.name}", "ab") as log:
            host.shell = subprocess.Popen(
                [tool("unshare"), *flags, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=inside,
                start_new_session=True,
            )
        jobs.SET_APART.add(host.shell.pid)
        host.unheard, host.lost, host.frozen = set(), {"in": 0.0, "out": 0.0}, []

    def _await_sshd(self, hosts):
        for host in hosts:

            def listens():
                log = self.home / f"log.{host.name}"
                check(host.shell.poll() is None, f"{host.name}: {log.read_text()[-500:]}")
                init = host.init()
                return init is not None and f"tcp port {SSH_PORT}" in listening(init)

            await_condition(listens, f"sshd of {host.name}", 30)

    def _end(self, host):
        """Ends all processes of a host at once."""
        if host.shell is None:
            return
        # The process unshare ends when process 1 has, and with that all others of the host.
        kill(host.init() or host.shell.pid, signal.SIGKILL)
        host.shell.wait(PATIENCE_S)
        jobs.SET_APART.discard(host.shell.pid)
        host.shell = None

    def close(self):
        """Ends everything."""
        for host in self.hosts:
            self._end(host)
            self._close_network(host)
        if self._outside is not None:
            enter_network(self._outside)
            os.close(self._outside)
            self._outside = None
        if self._files:
            libc.umount2(b"/etc/hosts", MNT_DETACH)
            jobs.remove(self.base)
            self._files = False

    def _close_network(self, host):
        """The host's link and, when its last connection has timed out, its network are gone."""
        if host.network is not None:
            for port, *_ in host.links:
                subprocess.run([tool("ip"), "link", "del", port], capture_output=True)
            os.close(host.network)
            host.network = None

    # Failures.

    def power_off(self, number):
        """All processes end at once, and no packet leaves the host any more."""
        host = self.hosts[number]
        self.cut(number)
        for lose in self.when_power_goes:
            lose(number)
        self._end(host)
        self._close_network(host)

    def kill_all(self, number):
        """All processes, sshd too, end at once, but the host's kernel goes on: it closes their
        connections, and refuses new ones."""
        self._end(self.hosts[number])

    def power_on(self, number):
        """A new host with the name and the addresses of the old one, and nothing of it."""
        host = self.hosts[number]
        self._end(host)
        self._close_network(host)
        self._start(host)
        self._await_sshd([host])

    def is_on(self, number):
        return self.hosts[number].shell is not None

    def cut(self, number):
        """Unplugs the network cables; connections do not notice."""
        batch("ip", [f"link set {port} down" for port, *_ in self.hosts[number].links])

    def plug(self, number):
        batch("ip", [f"link set {port} up" for port, *_ in self.hosts[number].links])

    def drop(self, number, direction, share=1.0):
        """Of the packets that the host gets ("in") or sends ("out") this share is lost; 0 ends
        it."""
        self.hosts[number].lost[direction] = share
        self._filter([self.hosts[number]])

    def partition(self, *groups):
        """Splits the network: hosts (their numbers, or HERE for the machine itself) reach only
        those of their own group. A host in no group reaches all others."""
        named = [{HERE_NUMBER if n == HERE else n for n in group} for group in groups]
        self.unheard_here = others(HERE_NUMBER, named)
        for host in self.hosts:
            host.unheard = others(host.number, named)
        self._filter(self.hosts)

    def heal(self):
        """Ends partitions and losses; cables stay as they are."""
        self.unheard_here = set()
        for host in self.hosts:
            host.unheard, host.lost = set(), {"in": 0.0, "out": 0.0}
        self._filter(self.hosts)

    def _filter(self, hosts):
        """Puts the losses in force. What a port of the bridge sends is what its host gets."""
        lines = [filter_line("eth0", "ingress", self.unheard_here, 0.0)]
        for host in hosts:
            if host.network is not None:
                lines += [
                    filter_line(host.port, "egress", host.unheard, host.lost["in"]),
                    filter_line(host.port, "ingress", set(), host.lost["out"]),
                ]
        batch("tc", lines)

    def freeze(self, number):
        """Stops every process of the host; its kernel goes on to acknowledge what it gets. Those
        that were stopped before stay stopped when it thaws."""
        host = self.hosts[number]
        while True:
            moving = [pid for pid in host.pids() if process_state(pid) not in ("T", "t", "Z", None)]
            if not moving:
                return
            for pid in moving:
                if pid not in host.frozen and kill(pid, signal.SIGSTOP):
                    host.frozen.append(pid)
            time.sleep(0.001)

    def thaw(self, number):
        host = self.hosts[number]
        for pid in host.frozen:
            kill(pid, signal.SIGCONT)
        host.frozen = []

    def fill_disk(self, number):
        """Fills the host's /tmp to the last byte; `free_disk` takes that back."""
        with open(self.hosts[number].root() / FILLER, "wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass  # it is full

    def free_disk(self, number):
        (self.hosts[number].root() / FILLER).unlink()

    # Running commands on hosts.

    def environment(self):
        """What a process needs to reach the hosts by `ssh h0`, on the machine or on a host."""
        return {"PATH": f"{self.home}/bin:{os.environ['PATH']}"}

    def command(self, number, argv, cwd="/"):
        """A command of this machine that runs `argv` on a host."""
        flags = "--mount --uts --ipc --net --pid".split()
        enter = [tool("nsenter"), "--target", str(self.hosts[number].init()), *flags]
        return [*enter, "env", "-C", str(cwd), *map(str, argv)]

    def run(self, number, argv, **options):
        """Runs a command on a host without ssh, so also when its network is cut; returns the
        finished process with its output as text."""
        return subprocess.run(
            self.command(number, argv),
            env={**os.environ, **self.environment()},
            **{
                "stdin": subprocess.DEVNULL,
                "capture_output": True,
                "text": True,
                "timeout": 2 * PATIENCE_S,
                **options,
            },
        )

    def ssh(self, name, *argv, timeout=PATIENCE_S):
        """Runs a command on a host by ssh, from the machine itself."""
        return subprocess.run(
            [self.home / "bin/ssh", name, *map(str, argv)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    # Looking at hosts.

    def pids(self, number):
        """The living processes of a host, but those that serve every job."""
        return [pid for pid in self.hosts[number].pids() if program(pid) not in self.services]

    def processes(self, number):
        """Command lines of the living processes of a host, but those that serve every job."""
        lines = [" ".join(command_line(pid)) for pid in self.pids(number)]
        return [line for line in lines if line]

    def host_of(self, pid):
        """The number of the host that a process is on; None for the machine itself."""
        try:
            place = os.readlink(f"/proc/{pid}/ns/pid")
            for host in self.hosts:
                init = host.init()
                if init is not None and os.readlink(f"/proc/{init}/ns/pid") == place:
                    return host.number
        except OSError:
            pass  # it has ended
        return None

    def living(self):
        """Numbers of the hosts that are on and not frozen."""
        return [h.number for h in self.hosts if h.init() is not None and not h.frozen]

    def leftovers(self, number):
        """What jobs left on a host: files in /dev/shm and /tmp, and sockets that listen."""
        host = self.hosts[number]
        if host.init() is None:
            return []
        found = [f"/dev/shm/{entry.name}" for entry in os.scandir(host.root() / "dev/shm")]
        found += self._left_in_tmp(host)
        return found + self.listening(host.init())

    def listening(self, pid="self"):
        """Sockets that listen in the network of a process (the machine's own), but those that serve
        every job."""
        return [name for name in listening(pid) if name not in self.sockets]

    def _left_in_tmp(self, host):
        """An empty directory of jobs may stay: Eyrie makes it once."""
        found = []
        for entry in os.scandir(host.root() / "tmp"):
            path = pathlib.Path("/tmp") / entry.name
            ours = any(p.is_relative_to(path) for p in self.shared) or str(path) == f"/{FILLER}"
            empty = entry.is_dir(follow_symlinks=False) and not os.listdir(entry.path)
            if not ours and not empty:
                inside = sorted(os.listdir(entry.path)) if entry.is_dir() else []
                found.append(f"{path} {inside}" if inside else str(path))
        return found


def program(pid):
    """The name of the program of a process."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def others(number, groups):
    """Those in other groups than this one; none when it is in no group."""
    mine = [group for group in groups if number in group]
    return set().union(*groups) - mine[0] if mine else set()


def listening(pid):
    """Sockets that listen in the network of a process."""
    found = []
    for kind in ("tcp", "tcp6"):
        for line in proc_lines(f"/proc/{pid}/net/{kind}"):
            port = int(line[1].rpartition(":")[2], 16)
            if line[3] == "0A":
                found.append(f"{kind} port {port}")
    for line in proc_lines(f"/proc/{pid}/net/unix"):
        if int(line[3], 16) & 0x10000:
            found.append(f"Unix socket {' '.join(line[7:])}")
    return found


def proc_lines(path):
    try:
        return [line.split() for line in pathlib.Path(path).read_text().splitlines()[1:]]
    except OSError:
        return []  # this kernel has no such sockets


def filter_line(device, direction, unheard, share):
    """For tc: a program in classic BPF that drops what comes from those numbers, and of the rest a
    share at random. This needs neither netem nor nftables."""
    drop, accept = "6 0 0 2", "6 0 0 0"
    senders = sorted(unheard)
    chance = []
    if share >= 1.0:
        accept = drop
    elif share > 0.0:  # a random number that is not below share * 2^32 is accepted
        chance = [f"32 0 0 {0xFFFFF000 + 56}", f"53 0 1 {int(share * 2**32)}"]
    # The last byte of the sender's address, compared with each: a hit jumps to the end.
    known = [f"21 {len(senders) - i + len(chance)} 0 {n}" for i, n in enumerate(senders)]
    program = ["48 0 0 11", *known, *chance, accept, drop]
    text = f"{len(program)}," + ",".join(program)
    return f"filter replace dev {device} {direction} pref 1 handle 1 bpf da bytecode '{text}'"


class HostsJob(Job):
    """A running `eyrie run` on several hosts: started on the machine itself, or on host `at`. Each
    keeps its directories of jobs to itself."""

    def __init__(self, hosts, program, *options, at=None, env=None, **rest):
        self.hosts, self.at = hosts, at
        env = {**hosts.environment(), **(env or {})}
        super().__init__(program, *options, base=hosts.base, env=env, **rest)

    def launched(self, command):
        if self.at is None:
            return command
        return self.hosts.command(self.at, command, cwd=self.cwd)

    def launcher(self):
        """On a host it is a child of the process nsenter, which waits for it and ends as it
        does."""
        if self.at is None:
            return self.process.pid
        return next(iter(jobs.children(self.process.pid)), self.process.pid)

    def pids(self):
        """In the order in which they began: a parent comes before its children."""
        below = set(jobs.descendants(self.launcher()))
        for number in range(len(self.hosts.hosts)):
            below.update(self.hosts.pids(number))
        return sorted(below - {self.launcher(), self.process.pid}, key=age)

    def agent_pids(self):
        """{node: pid} of the living agents. A child of one that has not become a rank yet looks
        like it, and is younger."""
        found = {}
        for pid in self.pids():
            words = command_line(pid)
            if words[1:3] == ["agent", "--node"]:
                found.setdefault(int(words[3]), pid)
        return found

    def find_dir(self):
        """It has the same path on each host that has it."""
        found = super().find_dir()
        for number in self.hosts.living():
            found = found or self.dir_on(number)
        return found and self.base / found.name

    def dir_on(self, number):
        """Its directory on a host, as this process can open it; None when it has none there."""
        base = self.hosts.hosts[number].root() / str(self.base).lstrip("/")
        return jobs.job_dir(base, self.name)

    def host_of_rank(self, rank):
        """The number of the host that a rank runs on; None when it runs on none."""
        pids = self.rank_pids().get(rank)
        return self.hosts.host_of(pids[0]) if pids else None

    def nothing_left(self):
        """No process, no job directory, no file in /dev/shm and no socket on the machine itself
        and on each host that is on and not frozen."""
        hosts = self.hosts
        for number in hosts.living():
            await_condition(
                lambda: not hosts.processes(number),
                lambda: f"processes of h{number} to end: {hosts.processes(number)}",
            )
            left = hosts.leftovers(number)
            check(not left, f"left on h{number}: {left}")
        super().nothing_left()
        check(not hosts.listening(), f"sockets are left: {hosts.listening()}")


def age(pid):
    """When a process began, in ticks since the machine's start, then its number; what has ended
    comes last."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(stat[19]), pid
    except OSError:
        return 1 << 63, pid
