#!/usr/bin/env python3
"""What machines with different kernels and processors run, one after the other: `begin` starts a
job and saves it, `go_on` continues it and saves it again, `end` lets it come to its end. The second
argument is the folder that they share. The third is a path that each of them has for itself, since
a job goes on where it was. Options of `eyrie run` may follow, for `begin`. Must never run beside a
measurement."""

import json
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

from guests import BETWEEN_KERNELS, HEARTBEAT
from jobs import EYRIE, await_condition, check, main, run, workshop


def test():
    step = sys.argv[1]
    shared = pathlib.Path(sys.argv[2])
    place = pathlib.Path(sys.argv[3])
    cwd = place / "cwd"
    jobs = place / "jobs"
    saved = shared / "saved"
    images = workshop() / "images"
    events = workshop() / "events"
    cwd.mkdir(parents=True, exist_ok=True)
    begin = ("-n", BETWEEN_KERNELS.ranks, "--nodes", 1, "--images", images)
    if step == "begin":
        words = (*begin, "--dir", jobs, "--job", "between", *sys.argv[4:])
        program = ("--", *BETWEEN_KERNELS.argv)
    else:
        shutil.copytree(saved, images)
        words, program = ("--resume-from", images), ()
    options = ("--checkpoint-every", "off", "--events", events, *HEARTBEAT)
    command = [str(word) for word in (EYRIE, "run", *words, *options, *program)]
    with (shared / "printed").open("ab") as printed:
        job = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=printed)

    def happened(kind):
        check(job.poll() is None, f"the job ended with {job.poll()}")
        # Whole lines: another one may be under way.
        text = events.read_text() if events.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def lines_printed():
        check(job.poll() is None, f"the job ended with {job.poll()}")
        return (shared / "printed").read_bytes().count(b"\n")

    kind = "connected" if step == "begin" else "recovered"
    await_condition(lambda: len(happened(kind)) >= BETWEEN_KERNELS.ranks, kind)
    if kind == "recovered":
        for event in happened(kind):
            check(event["image"], f"rank {event['rank']} started from the beginning")
    if step == "end":
        (cwd / BETWEEN_KERNELS.make).resolve().touch()
        code = job.wait(600)
        check(code == 0, f"exit code {code}")
        return
    # The ranks compute here, too: the second line from now on is of a step that began here.
    before = lines_printed()
    await_condition(lambda: lines_printed() >= before + 2, "two lines more")
    ran = run([EYRIE, "stop", "--dir", jobs, "between"])
    check(ran.returncode == 0 and job.wait(600) == 75, f"eyrie stop: {ran.stdout}{ran.stderr}")
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(images, saved)


main(test)
