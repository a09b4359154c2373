"""Disturbs programs again and again, at random moments of the time that they usually run: ranks and
nodes die, ranks move, and other processes of the job die at the worst moment. Each run's standard
output, files and exit code are compared with those of an undisturbed run, byte for byte.
tests/matrix.py and tests/cases.py make tables of it, tests/jobs/145 is a short form."""

import dataclasses
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from dying import process_of_role
from jobs import BUILD, RANDOM, Job, await_condition, check, family, overlook_shared_memory
from jobs import kill as kill_process

# A run that takes longer hangs.
PATIENCE_S = 90
# Where the files of wrong runs are kept.
FAILURES = BUILD / "wrong-runs"


class Wrong(Exception):
    """What a run did that it must not do."""


@dataclasses.dataclass(frozen=True)
class Usual:
    """How long a program runs: until all ranks are connected, and from then on."""

    until_connected_s: float = 0.3
    then_s: float = 1.0

    @staticmethod
    def of(job, program):
        started = job.events("job_started")[0]["time"]
        connected = job.events("connected")[program.ranks - 1]["time"]
        return Usual(connected - started, job.events("job_ended")[0]["time"] - connected)

    def moment(self):
        """A random one, in seconds from the start of the ranks."""
        return RANDOM.uniform(0.1, self.until_connected_s + self.then_s)


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """What is done to a job, and how to see how often it took place. It is asked for when the job
    starts, or done while the job runs: `do` gets the job and one of its ranks, at random
    moments."""

    name: str
    took_place: object  # gets the job, and the text that `do` returned last
    options: object = lambda program, usual: ()
    do: object = None
    most: int = 1  # `do` is called one to so many times
    images: tuple = ("off", "100ms", "400ms")


def seen(event, times=1):
    """So many of these events."""
    return lambda job, said: len(job.events(event)) >= times


def counted(event):
    """How many of these events."""
    return lambda job, said: len(job.events(event))


def moved(job, said):
    """A rank moved, or the move was refused by name, because several ranks map a file to write
    it."""
    return bool(job.events("rank_moved")) or "did not move: it has" in said


def injected(*failures):
    """Options of `eyrie run`: each failure at a random moment, or at the moment that it names."""

    def options(program, usual):
        ranks = RANDOM.sample(range(program.ranks), 2)
        words = {"rank": ranks[0], "other": ranks[1], "node": RANDOM.randrange(2)}
        specs = [text.format(**words) for text in failures]
        moments = [text if "@" in text else f"{text}@{usual.moment():.3f}s" for text in specs]
        return [word for text in moments for word in ("--inject", text)]

    return options


def move(job, rank):
    """Moves a rank to another node while it computes. The job may just end."""
    return job.eyrie("migrate", rank).stderr


def drain(job, rank):
    """Drains the node of a rank."""
    status = job.status()
    return job.eyrie("drain", status["ranks"][rank]["node"]).stderr if status else ""


def move_or_drain(job, rank):
    return RANDOM.choice([move, drain])(job, rank)


def stop_router_then_kill_it(job, rank):
    """The router is stopped for so long that a rank waits for it, in a call that must be stored
    first."""
    try:
        router = process_of_role(job, "router 0")
    except AssertionError:
        return  # the job has just ended
    kill_process(router, signal.SIGSTOP)
    time.sleep(RANDOM.uniform(0.05, 0.3))  # the random time is the point
    kill_process(router, signal.SIGKILL)


def on_nodes(nodes, spares, *more, inject=()):
    """The job runs on so many nodes, and these failures happen."""
    return lambda program, usual: (
        *("--nodes", nodes, "--spares", spares, *more),
        *injected(*inject)(program, usual),
    )


TWO_NODES = on_nodes(2, 1)
# At any moment.
OF_FILES = (
    Disturbance(
        "two kills",
        seen("rank_failed"),
        injected("kill-rank={rank}", "kill-rank={other}"),
    ),
    Disturbance("node loss", seen("node_lost"), on_nodes(3, 1, inject=["kill-node={node}"])),
    Disturbance("move or drain", moved, TWO_NODES, do=move_or_drain),
)
# At the worst moments.
AT_WORST = (
    Disturbance(
        "killed again in its recovery",
        seen("rank_failed", 2),
        injected("kill-rank={rank}", "kill-rank={rank}@recovery"),
    ),
    Disturbance(
        "another one killed meanwhile",
        seen("rank_failed", 2),
        injected("kill-rank={rank}", "kill-rank={other}@recovery"),
    ),
    Disturbance(
        "three killed close together",
        seen("rank_failed", 3),
        injected("kill-rank={rank}", "kill-rank={other}@recovery", "kill-rank={rank}@recovery"),
    ),
    Disturbance(
        "a router stopped, then killed",
        seen("role_lost"),
        on_nodes(2, 1, "--roles", "nodes"),
        do=stop_router_then_kill_it,
        images=("100ms", "400ms"),
    ),
    Disturbance(
        "a node's agent killed in a recovery",
        lambda job, said: bool(job.events("rank_failed") and job.events("node_lost")),
        on_nodes(2, 1, inject=["kill-rank={rank}", "kill-node={node}@recovery"]),
    ),
)


def disturbed_once(program, disturbance, usual):
    """One run that is disturbed. Returns how often that took place, and how long it ran."""
    every = RANDOM.choice(disturbance.images)
    options = disturbance.options(program, usual)
    with Job(program, "--checkpoint-every", every, *options) as job:
        said = ""
        try:
            if disturbance.do:
                await_condition(
                    lambda: len(job.events("connected")) >= program.ranks or job.has_ended(),
                    "the ranks",
                    PATIENCE_S,
                )
                begun, times = time.monotonic(), RANDOM.randint(1, disturbance.most)
                for moment in sorted(RANDOM.uniform(0, usual.then_s) for _ in range(times)):
                    # The moment itself is what is random.
                    time.sleep(max(0, begun + moment - time.monotonic()))
                    said = disturbance.do(job, RANDOM.randrange(program.ranks))
            job.wait(PATIENCE_S)
            job.same_as_undisturbed()
            differs = job.events("content_differs")
            check(not differs, f"a re-executed rank sent other content: {differs}")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            keep(job, f"{error}")
            words = ("refuse", "not")
            lines = [line for line in job.stderr().splitlines() if any(w in line for w in words)]
            text = re.sub(r"\s+", " ", lines[-1] if lines else str(error))
            raise Wrong(text.replace("|", "/")[:160]) from None
        return int(disturbance.took_place(job, said)), Usual.of(job, program)


def keep(job, why):
    """Keeps the files of a wrong run, so that they can be examined."""
    FAILURES.mkdir(exist_ok=True)
    place = pathlib.Path(tempfile.mkdtemp(dir=FAILURES))
    shutil.copytree(job.home, place, dirs_exist_ok=True)
    (place / "why").write_text(f"{job.command}\n{why}\n")
    print(f"wrong: {job.command}\n   {why[:300]}\n   kept: {place}", flush=True)


def disturbed(program, disturbance, times, go_on=False):
    """So many runs in which it took place; returns how many there were, and what was wrong with
    those that were. `go_on`: they count as well, else the first one ends it."""
    done, wrong, runs, usual = 0, [], 0, Usual()
    while done < times and runs < 4 * times:
        runs += 1
        try:
            hit, usual = disturbed_once(program, disturbance, usual)
        except Wrong as problem:
            wrong.append(str(problem))
            end_all()
            if not go_on:
                break
            hit = True
        done += hit
    return done, wrong


def end_all():
    """Removes what a wrong run left, so that later runs do not fail because of it."""
    for pid in family():
        kill_process(pid, signal.SIGKILL)
    await_condition(lambda: not family(), "what was killed to end", PATIENCE_S)
    overlook_shared_memory()
