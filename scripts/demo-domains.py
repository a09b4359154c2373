#!/usr/bin/env python3
"""LAMMPS on 6 ranks over three sites of this machine: network namespaces whose hosts reach each
other by one gateway of each site. A gateway is killed, and the line between two sites breaks for
2 s. Then all ranks of the first site go to the second one, where one of them is killed, and all
come back, while they compute. Shows Eyrie's lines as they come, and that the output is that of an
undisturbed run, byte for byte. Needs root."""

import dataclasses
import pathlib
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

from dying import OFTEN
from jobs import EYRIE, check, kill, lammps, main
from sites import Sites, SitesJob

HOME, CLOUD = range(2)
RANKS = ["0,1", "2,3", "4,5"]
STEPS = 4000


def say(text):
    print(f"== {text}", flush=True)


def show_lines(job):
    """Passes Eyrie's lines on as they come."""
    shown = 0
    while job.process.poll() is None:
        lines = job.stderr().splitlines()
        for line in lines[shown:]:
            print(line, flush=True)
        shown = len(lines)
        time.sleep(0.1)


def migrate(job, site, to):
    argv = [EYRIE, "migrate-domain", "--dir", job.base, job.name, "--to", to]
    begin = time.monotonic()
    ran = job.sites.run(job.sites.sites[site].gateway, argv)
    check(ran.returncode == 0, f"eyrie migrate-domain: {ran.stderr}")
    say(f"all ranks are at {to}, after {time.monotonic() - begin:.1f} s")


def test():
    with Sites(2, 2, 2, names=("home", "cloud", "lab")) as sites:
        say("6 ranks over three sites: 2 at home, 2 in the cloud, 2 in the lab")
        program = dataclasses.replace(lammps(steps=STEPS), ranks=6)
        with SitesJob(sites, program, *OFTEN, slots=2, ranks=RANKS) as job:
            threading.Thread(target=show_lines, args=(job,), daemon=True).start()
            job.await_event_of(CLOUD, "checkpoint", 3)
            say("the gateway of the cloud is killed")
            kill(job.gateway(CLOUD)[1], signal.SIGKILL)
            job.await_event_of(CLOUD, "role_lost")
            say("the line between home and the cloud is cut for 2 s")
            sites.break_line(HOME, CLOUD)
            # The time is what is shown.
            time.sleep(2)
            sites.mend_line(HOME, CLOUD)
            say("home is crowded: its ranks go to the cloud")
            migrate(job, HOME, "cloud")
            say("rank 1 is killed there")
            job.kill_rank(1)
            job.await_event_of(CLOUD, "recovered", rank=1)
            say("and all come home")
            migrate(job, CLOUD, "home")
            job.await_event("domain_gone")
            job.same_as_undisturbed()
        say("output and files: equal to those of an undisturbed run, byte for byte")


main(test)
