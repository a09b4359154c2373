#!/usr/bin/env python3
"""What guests with different kernels run, one after the other: `begin` starts a job and saves it,
`go_on` continues it and saves it again, `end` lets it come to its end. What they share is in /out.
Must never run beside a measurement."""

import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

from guests import BETWEEN_KERNELS, HEARTBEAT
from jobs import EYRIE, await_condition, check, main, run, workshop

SAVED, PRINTED = pathlib.Path("/out/saved"), pathlib.Path("/out/printed")
# Of jobs, in each guest: a job goes on where it was.
JOBS = pathlib.Path("/tmp/jobs")


def test():
    step = sys.argv[1]
    images, events = workshop() / "images", workshop() / "events"
    begin = ("-n", BETWEEN_KERNELS.ranks, "--nodes", 1, "--images", images)
    if step == "begin":
        words = (*begin, "--dir", JOBS, "--job", "between")
        program = ("--", *BETWEEN_KERNELS.argv)
    else:
        shutil.copytree(SAVED, images)
        words, program = ("--resume-from", images), ()
    options = ("--checkpoint-every", "off", "--events", events, *HEARTBEAT)
    command = [str(word) for word in (EYRIE, "run", *words, *options, *program)]
    with PRINTED.open("ab") as printed:
        # Its directory is in each guest.
        job = subprocess.Popen(command, cwd="/", stdin=subprocess.DEVNULL, stdout=printed)

    def happened(kind):
        check(job.poll() is None, f"the job ended with {job.poll()}")
        # Whole lines: another one may be under way.
        text = events.read_text() if events.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    kind = "connected" if step == "begin" else "recovered"
    await_condition(lambda: len(happened(kind)) >= BETWEEN_KERNELS.ranks, kind)
    if kind == "recovered":
        for event in happened(kind):
            check(event["image"], f"rank {event['rank']} started from the beginning")
    if step == "end":
        (pathlib.Path("/") / BETWEEN_KERNELS.make).resolve().touch()
        code = job.wait(600)
        check(code == 0, f"exit code {code}")
        return
    ran = run([EYRIE, "stop", "--dir", JOBS, "between"])
    check(ran.returncode == 0 and job.wait(600) == 75, f"eyrie stop: {ran.stdout}{ran.stderr}")
    shutil.rmtree(SAVED, ignore_errors=True)
    shutil.copytree(images, SAVED)


main(test)
