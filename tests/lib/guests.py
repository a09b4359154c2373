"""Guests: this machine once more with another kernel, by QEMU's software emulation. A guest sees
the machine's files through an overlay in its own memory, so that nothing of the machine changes. It
has one folder in common with the test, /out.

A guest takes about 5 s of processor time to start and is several times slower than the machine, so
nothing in it may depend on time.
"""

import pathlib
import re
import shlex
import shutil
import subprocess

from jobs import (
    EYRIE,
    LIMIT_S,
    MORE,
    ROOT,
    Skipped,
    check,
    example,
    over_intel_mpi,
    over_open_mpi,
    run,
    slow,
    undisturbed,
    workshop,
)

# What runs in a guest: small, because emulated floating point is slow, and paced, so that it still
# runs at the last disturbance.
SIZE = ("--nx", 40, "--ny", 40, "--steps", 3000, "--every", 500, "--out", "plate")
HEAT = slow("heat2d", *SIZE, ms=400, ranks=2)
PROGRAMS = {"mpich": HEAT, "intelmpi": over_intel_mpi(HEAT), "openmpi": over_open_mpi(HEAT)}
# One that prints all that it computes, and reads its clock; it goes on on another kernel.
OFTEN = ("--nx", 40, "--ny", 40, "--steps", 3000, "--every", 5)
BETWEEN_KERNELS = slow("heat2d", *OFTEN, ms=200, ranks=2)
# Heartbeat timeout in seconds, for a machine where everything is slow.
HEARTBEAT = ("--heartbeat-timeout", "120s")
# Programs that use files, each with two ranks; they rest for so long that they can be disturbed.
ON_NFS = {
    "growing_file": example("growing_file", "--steps", 60, "--rest-ms", 250, ranks=2),
    "read_back": example("read_back", "--steps", 60, "--rest-ms", 250, ranks=2),
    "directories": example("directories", "--steps", 60, "--rest-ms", 250, ranks=2),
}

# Under QEMU's emulation a kernel crashes now and then while it starts and changes its own code: one
# start in thirty. It is started again if the command has not begun.
STARTS = 3
# The security modules are those that Debian's kernels have by default: Yama is one of them.
KERNEL = "console=ttyS0 quiet loglevel=3 panic=-1 no_timer_check mitigations=off nokaslr"


def kernel_of(release):
    """The folder with the kernel of a release of Debian, which is fetched where it is missing."""
    ran = subprocess.run(
        [ROOT / "scripts/guest-kernel.sh", release],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise Skipped(f"there is no guest: {last}")
    return pathlib.Path(ran.stdout.strip().splitlines()[-1])


class Guest:
    """A machine with the kernel of a release of Debian."""

    def __init__(self, release, processors=2, memory_mib=3072, cpu="max", out=None):
        self.kernel = kernel_of(release)
        self.version = (self.kernel / "version").read_text().strip()
        self.machine = ("-smp", processors, "-m", memory_mib, "-cpu", cpu)
        self.out = out or workshop() / f"guest-{release}"
        self.out.mkdir(exist_ok=True)

    def run(self, *command, limit_s=LIMIT_S - 60, disks=(), **environment):
        """Starts the guest, runs a command in it and powers it off. Returns the exit code and what
        the command printed. `disks`: files that it has as /dev/vda and so on."""
        if not shutil.which("qemu-system-x86_64"):
            raise Skipped("there is no qemu-system-x86_64")
        variables = [f"{name}={value}" for name, value in environment.items()]
        line = shlex.join(["env", *variables, *map(str, command)])
        (self.out / "command").write_text(f"{line} >/out/said 2>&1\n")
        for name in ("said", "status"):
            (self.out / name).unlink(missing_ok=True)
        for _ in range(STARTS):
            console = subprocess.run(
                [str(word) for word in self.arguments(disks)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
            if (self.out / "said").exists():
                break
        shown = console.stdout.decode(errors="replace")[-2000:]
        check(
            (self.out / "status").exists(),
            f"the guest ended with {console.returncode}: {shown}{console.stderr.decode()[-500:]}",
        )
        said = (self.out / "said").read_text(errors="replace")
        return int((self.out / "status").read_text()), said + of_the_kernel(shown)

    def passes(self, *command, disks=(), **environment):
        """The same of a command that must succeed, with limits of tests for so slow a machine.
        Returns what it printed, which is shown."""
        limits = {"EYRIE_TEST_PATIENCE": 600, "EYRIE_TEST_LIMIT_S": LIMIT_S}
        code, said = self.run(*command, disks=disks, **limits, **environment)
        print(f"Linux {self.version}\n{said}", flush=True)
        check(code == 0, f"in the guest with Linux {self.version}: exit code {code}")
        return said

    def arguments(self, disks):
        share = "local,security_model=none"
        yield from ("qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=512")
        yield from ("-machine", "q35", *self.machine, "-nodefaults", "-no-user-config")
        yield from ("-display", "none", "-serial", "stdio", "-no-reboot")
        yield from ("-kernel", self.kernel / "vmlinux", "-initrd", self.kernel / "initramfs.gz")
        yield from ("-append", f"{KERNEL} modules={self.kernel}/lib/modules")
        yield from ("-fsdev", f"{share},id=root,path=/,readonly=on,multidevs=remap")
        yield from ("-device", "virtio-9p-pci,fsdev=root,mount_tag=root")
        yield from ("-fsdev", f"{share},id=out,path={self.out}")
        yield from ("-device", "virtio-9p-pci,fsdev=out,mount_tag=out")
        yield from ("-object", "rng-random,id=rng,filename=/dev/urandom")
        yield from ("-device", "virtio-rng-pci,rng=rng")
        for disk in disks:
            yield from ("-drive", f"file={disk},if=virtio,format=raw")


def of_the_kernel(console):
    """What a kernel says of a program, or of itself, that went wrong."""
    lines = re.findall(r".*(?:segfault|BUG:|WARNING:|traps:|Oops).*", console)
    return "".join(f"kernel: {line}\n" for line in lines[:10])


def everything_in(release):
    """What tests/guests/inside.py does, in a guest with the kernel of that release; in the short
    form with one MPI library."""
    mpis = tuple(PROGRAMS) if MORE else ("mpich",)
    for name in mpis:
        # Computed on the machine, which is faster than the guest.
        undisturbed(PROGRAMS[name].reference or PROGRAMS[name])
    guest = Guest(release)
    guest.passes(ROOT / "tests/guests/inside.py", *mpis)
    refused_here(guest.out / "saved")


def refused_here(saved):
    """A job that was saved on another processor is refused before ranks start, and what was saved
    stays. The guest's processor is one of AMD's, with less than most have, and with a register
    state that AMD's own have not."""
    is_amd = "AuthenticAMD" in pathlib.Path("/proc/cpuinfo").read_text()
    differs = "register state" if is_amd else "AuthenticAMD"
    ran = run([EYRIE, "run", "--resume-from", saved, "--events", workshop() / "refused"])
    check(ran.returncode == 1, f"exit code {ran.returncode}: {ran.stderr}")
    for words in (differs, "cannot go on here", "as it was when the job was"):
        check(words in ran.stderr, f"{words!r} is not in {ran.stderr!r}")
    check(len(ran.stderr.splitlines()) == 1, f"it says more: {ran.stderr!r}")
    check(list(saved.glob("saved-*")), "what was saved is gone")
