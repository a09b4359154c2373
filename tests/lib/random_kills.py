#!/usr/bin/env python3
"""kill -9 of random ranks at random times, again and again, over one program. The last word of the
name by which the test is called says which (each program has a link in tests/jobs/). Each run has
another way of messages, number of nodes, other checkpoints and other moments; all are printed. In
the first run kills come in its first two seconds. In later runs they come at any time within the
length of the run before. EYRIE_TEST_RUNS asks for another number of runs than one (with more time:
EYRIE_TEST_LIMIT_S), `make test-more` for 20 of each."""

import os
import time

import jobs
from jobs import PROGRAMS, RANDOM, Job, check, counted, main

RUNS = 1
# Half of all runs go straight.
RANDOM_WAYS = [(), (), ("--routers", 1), ("--routers", 3)]
# These programs watch their own helpers: under mpiexec, too, they end when a helper is killed.
STARTS_OTHERS = ["helpers", "file_users"]


def random_options():
    options = [*RANDOM.choice(RANDOM_WAYS), "--nodes", RANDOM.choice([1, 2])]
    every = RANDOM.choice(["off", "100ms", "300ms"])
    options += ["--checkpoint-every", every]
    if every != "off":
        options += ["--checkpoint-mode", RANDOM.choice(["async", "sync"])]
        options += ["--checkpoint-order", RANDOM.choice(["batch", "sequential", "self-timed"])]
    return options


def test():
    name = next(name for name in PROGRAMS if jobs.sys.argv[0].endswith(name))
    program = PROGRAMS[name]
    usual_s = 2.0
    runs = int(os.environ.get("EYRIE_TEST_RUNS", RUNS))
    hits = 0
    for run in range(runs):
        moments = sorted(RANDOM.uniform(0, usual_s) for _ in range(RANDOM.randint(1, 3)))
        victims = [RANDOM.randrange(program.ranks) for _ in moments]
        options = random_options()
        with Job(program, *options) as job:
            job.await_event("job_started")
            begun, hit = time.monotonic(), 0
            for moment, victim in zip(moments, victims):
                time.sleep(
                    max(0, begun + moment - time.monotonic())
                )  # the moment itself is what is random
                hit += job.kill_rank(victim, any_process=name not in STARTS_OTHERS)
            job.same_as_undisturbed()
            usual_s = job.events("job_ended")[0]["time"]
            failures = counted(job.events()).get("rank_failed", 0)
            check(failures <= hit, f"{failures} ranks died of {hit} kills")
            differs = job.events("content_differs")
            check(not differs, f"a re-executed rank sent other content: {differs}")
        kills = ", ".join(f"rank {r} at {m:.3f} s" for r, m in zip(victims, moments))
        print(
            f"{name} {run}: {' '.join(map(str, options))}: {kills}: {hit} hit, {failures} died",
            flush=True,
        )
        hits += failures
    check(
        hits >= (runs - 1) // 2,
        f"only {hits} kills hit a rank in {runs} runs: the runs are too short",
    )


main(test)
