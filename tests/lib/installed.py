"""What was installed somewhere works from there: the command says its version, checks the host, and
runs a job through the libraries that came with it, of which a rank is killed."""

import dataclasses
import fcntl
import os
import pathlib
import re
import shutil
import subprocess

import jobs
from jobs import BUILD, EXAMPLES, EYRIE, PATIENCE_S, ROOT, SLOW, Job, Skipped, check, workshop

# What is packed: the command under test, and the libraries beside it.
BINARIES = EYRIE.parent
LIBRARIES = ("libeyrie-fi.so", "libeyrie-calls.so", "libeyrie-pmix.so")
# Libraries of the C library, and of the compiler.
EVERYWHERE = {f"lib{name}" for name in ("c.so.6", "m.so.6", "pthread.so.0", "dl.so.2", "rt.so.1")}
EVERYWHERE |= {"ld-linux-x86-64.so.2", "libgcc_s.so.1"}
# The C library that packages for older systems are content with.
OLDEST = "2.17"
# Slow enough for a rank to be killed, on any machine.
PROGRAM = dataclasses.replace(SLOW["heat2d"], ranks=2)


def needs(*commands):
    for command in commands:
        if not shutil.which(command):
            raise Skipped(f"there is no {command}")


def version():
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "(.*)"', text, re.M)[1]


def run(*argv, **environment):
    """Runs a command of the project's folder to its end; returns what it printed on both."""
    ran = subprocess.run(
        [str(word) for word in argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "BINARIES": str(BINARIES), **environment},
    )
    check(ran.returncode == 0, f"{argv}: exit code {ran.returncode}: {ran.stdout}{ran.stderr}")
    return ran.stdout + ran.stderr


def made(*command):
    """The files that a command has made in the test's directory, as it says."""
    said = run(*command, OUT=str(workshop()))
    return [pathlib.Path(path) for path in re.findall(r"^made (\S+)", said, re.M)]


def for_older_systems():
    """The wheel and the Debian package that `make packages` makes. The first test that asks has
    everything compiled, for which the others wait."""
    with open(BUILD / ".packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wheel, deb = made("make", "-s", "packages")
    check(f"libc6 (>= {OLDEST})" in run("dpkg-deb", "--field", deb), f"{deb} needs a newer glibc")
    return wheel, deb


def libraries_needed(files):
    """What the loader looks for when it loads these files."""
    said = run("objdump", "-p", *files)
    return set(re.findall(r"^ +NEEDED +(\S+)$", said, re.M))


def works(eyrie, libraries):
    """The command of this path works, with the libraries of this folder."""
    eyrie, libraries = pathlib.Path(eyrie), pathlib.Path(libraries).resolve()
    said = run(eyrie, "--version")
    check(said == f"eyrie {version()}\n", f"--version: {said}")
    said = run(eyrie, "check", "--dir", workshop() / "jobs", EXAMPLES / "heat2d")
    check(str(libraries) in said, f"eyrie check does not name {libraries}: {said}")
    others = libraries_needed([eyrie, *libraries.iterdir()]) - EVERYWHERE
    check(not others, f"needs {others}, which no package asks for")
    jobs.EYRIE = eyrie
    with Job(PROGRAM, "--checkpoint-every", "100ms") as job:
        job.await_output("step 500 ")
        maps = pathlib.Path(f"/proc/{job.rank_pids()[1][0]}/maps").read_text()
        for name in LIBRARIES:
            check(f"{libraries}/{name}" in maps, f"{name} does not come from {libraries}")
        check(job.kill_rank(1), "rank 1 was not there")
        job.await_event("recovered", rank=1)
        job.same_as_undisturbed()


def read_by_man(path):
    """A manual page is one."""
    if shutil.which("man"):
        text = subprocess.run(
            ["man", "-l", str(path)], capture_output=True, text=True, timeout=PATIENCE_S
        ).stdout
        check("SYNOPSIS" in text, f"man does not show {path}: {text[:200]}")
