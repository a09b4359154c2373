#!/usr/bin/env python3
"""What a guest runs, for each MPI library in its arguments. `eyrie check` finds no fault. A job
loses a rank and a node, comes back from images each time, is saved, and goes on. Output and files
are as undisturbed. Must never run beside a measurement."""

import os
import pathlib
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

from guests import HEARTBEAT, PROGRAMS
from jobs import EYRIE, Job, check, kill, main, run, take_image, workshop

# The first saved job: the machine tries to continue it, and must refuse.
SAVED = pathlib.Path("/out/saved")


def say(text):
    print(f"[{time.monotonic():.0f} s] {text}", flush=True)


def checked(program):
    """`eyrie check` sees the program itself, and not a command that sets variables for it."""
    words, variables = list(program.argv), dict(os.environ)
    if words[0] == "/usr/bin/env":
        del words[0]
        while "=" in words[0]:
            name, variables[name] = words.pop(0).split("=", 1)
    ran = run([EYRIE, "check", "--dir", workshop() / "jobs", *words], env=variables)
    lines = ran.stdout.splitlines()
    say("\n".join(line for line in lines if not line.startswith("ok ") or " rank: " in line))
    check(ran.returncode == 0, f"eyrie check: exit code {ran.returncode}: {ran.stdout}{ran.stderr}")
    check(
        any(line.startswith("ok    rank: ") for line in lines), f"no rank was tried: {ran.stdout}"
    )


def recovered(job, times):
    """Waits for a rank to have come back; it must have come from an image."""
    event = job.await_event("recovered", times)
    say(f"rank {event['rank']} recovered on node {event['node']} from image {event['image']}")
    check(event["image"], "a rank started from the beginning")


def disturbed(program):
    images = workshop() / f"images{Job.count}"
    nodes = ("--nodes", 2, "--spares", 1, *HEARTBEAT)
    with Job(program, "--images", images, "--checkpoint-every", "off", *nodes) as job:
        job.await_event("connected", program.ranks)
        take_image(job)
        say("images are taken")
        check(job.kill_rank(1), "rank 1 was not there")
        recovered(job, 1)
        take_image(job)
        kill(job.agent_pids()[0], signal.SIGKILL)
        recovered(job, 2)
        ran = job.eyrie("stop")
        check(ran.returncode == 0 and job.wait() == 75, f"eyrie stop: {ran.stderr}")
        say("saved")
        if not SAVED.exists():
            shutil.copytree(images, SAVED)
        job.go_on(images, "--nodes", 1, "--checkpoint-every", "off", *HEARTBEAT)
        for times in range(program.ranks):
            recovered(job, times + 1)
        job.same_as_undisturbed()
        say("as undisturbed")
        print("\n".join(job.stderr().splitlines()[-40:]), flush=True)


def test():
    for name in sys.argv[1:]:
        say(f"== {name}")
        checked(PROGRAMS[name])
        disturbed(PROGRAMS[name])


if __name__ == "__main__":
    main(test)
