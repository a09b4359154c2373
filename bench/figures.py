"""The figures of bench/direct.py: which programs are run, what is read from what they leave, and
what each figure is compared with. Nothing here runs a program by itself."""

import dataclasses
import hashlib
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

from jobs import BUILD, INTEL_MPI, PYTHON, ROOT, Program, example, lammps
from ways import LIMIT_S, Failed, Ran, end, events_in, last_words, workplace

KIB, MIB = 1 << 10, 1 << 20
SIZES = {8: "8 B", KIB: "1 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB"}
# How much of its memory a rank changes in each step while its images are taken.
PERCENT = 5
# Images of one rank whose pauses are taken, after a first one that builds on none.
IMAGES = 4
# Messages in the log whose memory is measured, and the bytes of each.
LOGGED, LOGGED_BYTES = 200_000, 8

# Whole programs that send small messages often, each about a second on two ranks, which
# scripts/compare.py runs as well; here they last longer, so that start and end are little beside
# the rest. `stencil` is numpy's, by mpi4py.
WHOLE = {
    "LAMMPS": lammps(steps=1000),
    "cg": example("cg", "--n", 24, "--solves", 80),
    "isort": example("isort", "--keys", 65536, "--iterations", 500),
    "heat2d": example("heat2d", "--nx", 200, "--ny", 200, "--steps", 16000),
    "stencil": Program(
        (str(PYTHON), str(ROOT / "examples/jacobi_numpy.py"), "--iterations", "1000")
    ),
}
# What of a command line says how long it takes.
LENGTHS = ("--steps", "steps", "--solves", "--iterations")
LONGER, TRIED = 4, 1 / 50


@dataclasses.dataclass(frozen=True)
class Run:
    """`measure(way, library)` runs something once, and returns its values by name."""

    name: str
    measure: callable
    eyrie_alone: bool = False


@dataclasses.dataclass(frozen=True)
class Figure:
    """A value of a run. It is compared with that of other ways, of which the better one counts, or
    with that of the same way in another run, or with nothing."""

    name: str
    unit: str
    run: str
    value: str
    ways: tuple = ()
    other_run: str | None = None
    aim: float | None = None  # for the ratio, or for the value where nothing is compared
    more_is_better: bool = False

    def compared_with(self):
        if self.other_run:
            return self.other_run
        return " or ".join(self.ways)

    def aim_text(self):
        sign, bound = ("≥" if self.more_is_better else "≤"), self.compared_with()
        if self.aim is None:
            return f"÷ {bound}" if bound else ""
        return f"{sign} {self.aim:g} × {bound}" if bound else f"{sign} {self.aim:g} {self.unit}"

    def is_met(self, median):
        if self.aim is None:
            return True
        return median >= self.aim if self.more_is_better else median <= self.aim


def lasting(program, times):
    """The program with so many times its steps."""
    words = list(program.argv)
    for i, word in enumerate(words[:-1]):
        if word in LENGTHS and words[i + 1].isdecimal():
            words[i + 1] = str(max(2, round(int(words[i + 1]) * times)))
    return dataclasses.replace(program, argv=tuple(words))


def once(program, read, *options):
    """Runs a program once; `read` takes the values from what it has left."""
    return lambda way, library: read(way.run(library.of(program), options))


# What is read.


def by_size(kind="trimmed_mean_us"):
    """Microseconds of a message, by its bytes, of what a kernel of examples/ prints."""

    def read(ran: Ran):
        lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"bench')]
        return {str(line["bytes"]): line[kind] for line in lines}

    return read


def megabytes_a_second(ran):
    """The bandwidth by size, of what examples/bandwidth prints."""
    return {size: int(size) / us for size, us in by_size("mean_us")(ran).items()}


def columns(first, value):
    """The values of a table of numbers by the size in its first column."""

    def read(ran: Ran):
        rows = [line.split() for line in ran.stdout.splitlines()]
        rows = [row for row in rows if all(re.fullmatch(r"[\d.]+", word) for word in row)]
        return {row[first]: float(row[value]) for row in rows if len(row) > value}

    return read


def whole(program):
    """Seconds of a whole program, and what it prints, as one number."""

    def read(ran: Ran):
        printed = program.comparable(ran.stdout.encode())
        return {"s": ran.seconds, "prints": hashlib.sha256(printed).hexdigest()}

    return read


def with_images(ran):
    pauses = [event["pause"] for event in ran.events if event["event"] == "checkpoint"]
    values = {"s": ran.seconds}
    if pauses:
        values |= {"pause": 1e3 * sum(pauses) / len(pauses), "images": float(len(pauses))}
    return values


# Runs that are watched while they go on.


def watched(way, program, options, look):
    """Starts a job, asks `look(way, place, name)` until it returns values, and ends the job."""
    with workplace() as place:
        name = place.name
        words = (*options, "--job", name, "--events", place / "events")
        job = way.start(program, place, words)
        try:
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                values = look(way, place, name)
                if values is not None:
                    return values
                try:
                    code = job.wait(0.05)
                    raise Failed(f"ended with {code} before it was measured: {last_words(place)}")
                except subprocess.TimeoutExpired:
                    pass
            raise Failed(f"was not measured within {LIMIT_S} s")
        finally:
            end(job)


def asked(way, *words):
    """What a command of a way's eyrie prints; None when it fails."""
    words = [str(word) for word in (way.eyrie, *words)]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    return ran.stdout if ran.returncode == 0 else None


def pause(mebibytes):
    """Milliseconds that rank 0 stands still for an image of so much memory. A step takes about as
    long as an image and the time to the next one, so that an image has what one or two steps have
    changed."""
    words = ("--mb", mebibytes, "--rank", 0, "--percent", PERCENT, "--spin", 2000000)
    slowly = ("--slow-until", "never", "--slow-ms", 200)
    program = example("memory", *words, "--steps", 10**8, *slowly, ranks=2)

    def look(way, place, name):
        if not any(event["event"] == "connected" for event in events_in(place)):
            return None
        # It fails where the rank cannot be captured yet; the events have what became of it.
        asked(way, "checkpoint", name, 0)
        taken = [
            event["pause"]
            for event in events_in(place)
            if event["event"] == "checkpoint"
            and event["rank"] == 0
            and event["bytes"] >= mebibytes * MIB
            and event["pause"] > 0
        ]
        if len(taken) <= IMAGES:
            return None
        return {"pause": 1e3 * statistics.median(taken[1:])}

    def measure(way, library):
        return watched(way, library.of(program), ("--checkpoint-every", "off"), look)

    return measure


def memory_of_log(way, library):
    """Bytes of log that a message has beside its content."""
    words = ("--max", LOGGED_BYTES, "--repetitions", 10**8, "--budget-ms", 10**8, "--batch", 100)
    program = example("pingpong", *words, ranks=2)

    def look(way, place, name):
        status = json.loads(asked(way, "status", name, "--json") or "{}")
        if status.get("messages", 0) < LOGGED:
            return None
        held = status["log_memory_bytes"] + status["log_disk_bytes"]
        return {"bytes": held / status["messages"] - LOGGED_BYTES}

    return watched(way, library.of(program), ("--checkpoint-every", "off"), look)


# All runs.


def osu_of_python(name):
    """A program of the OSU Micro-Benchmarks in Python, from mpi4py's sources, which
    scripts/setup.sh fetches."""
    places = sorted(BUILD.glob("mpi4py-*/demo"))
    place = places[-1] if places else BUILD / "mpi4py/demo"
    text = f"import sys; sys.path.insert(0, {str(place)!r}); import {name}"
    return Program((str(PYTHON), "-c", f"{text}; {name}.{name}(MAX_MSG_SIZE={MIB})"), 2)


def built(name, *args, ranks=2):
    """A program that was built by hand for a library: build/programs/NAME, with `*` for it."""

    def measure_with(read, *options):
        def measure(way, library):
            path = BUILD / "programs" / name.replace("*", library.folder)
            program = Program((str(path), *map(str, args)), ranks)
            # A library's own mpiexec says where its parts are; Eyrie does not.
            if way.is_eyrie and library.folder == "intelmpi":
                program = library.of(program)
            return read(way.run(program, options))

        return measure

    return measure_with


def imb(benchmark):
    """Intel's benchmarks, on each library with MPICH's binary interface. scripts/setup.sh fetches
    them."""
    sizes = ("-msglog", "3:20", "-time", 1, "-npmin", 2)

    def measure(way, library):
        if library.folder == "openmpi":
            raise Failed("IMB-MPI1 has the binary interface of MPICH")
        libraries = BUILD / ("venv/lib" if library.folder == "mpich" else "venv-intelmpi/lib")
        words = ("/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", INTEL_MPI / "bin/IMB-MPI1")
        program = Program(tuple(map(str, (*words, *sizes, benchmark))), 2)
        return columns(0, 2)(way.run(program))

    return measure


def runs(quick):
    """All runs; with `quick` so short that their values say nothing."""
    budget = ("--budget-ms", 5 if quick else 100)
    batch = ("--batch", 5 if quick else 100, "--warm-up", 2 if quick else 20)
    kernel = lambda name, ranks, *words: example(
        name, "--max", MIB, "--repetitions", 1000, *budget, *words, ranks=ranks
    )
    yield Run("ping-pong", once(kernel("pingpong", 2, *batch), by_size()))
    for size, words in SIZES.items():
        if size in (8, MIB):
            sizes = ("--min", size, "--max", size, *batch[:2], "--warm-up", 2)
            window = kernel("bandwidth", 2, *sizes)
            yield Run(f"bandwidth {words}", once(window, megabytes_a_second))
    for name in ("osu_latency", "osu_bw"):
        yield Run(f"{name}.py", once(osu_of_python(name), columns(0, 1)))
        yield Run(name, built(f"osu/*/{name}")(columns(0, 1)))
    for name in ("PingPong", "Uniband"):
        yield Run(f"IMB {name}", imb(name))
    for ranks in (4, 8):
        yield Run(f"alltoall {ranks}", once(kernel("alltoall", ranks), by_size()))
    yield from whole_programs(quick)
    both = ("--both", 1, "--min", MIB, "--seconds", 0.1 if quick else 8)
    sustained = kernel("bandwidth", 2, *both)
    yield Run("sustained", once(sustained, megabytes_a_second))
    for mebibytes in (1, KIB):
        yield Run(f"pause {mebibytes}", pause(mebibytes), eyrie_alone=True)
    yield Run("memory", memory_of_log, eyrie_alone=True)


def whole_programs(quick):
    """Whole programs, also those that images are taken of every 500 ms."""
    nothing = example("memory", "--mb", 1, "--steps", 1, "--spin", 0)
    # Four ranks take turns on two processors: shared memory then needs ten times as long.
    for ranks, longer in ((2, LONGER), (4, LONGER / 4)):
        times = TRIED if quick else longer
        for name, program in {"start and end": nothing, **WHOLE}.items():
            program = dataclasses.replace(lasting(program, times), ranks=ranks)
            yield Run(f"{name} {ranks}", once(program, whole(program)))
    often = ("--checkpoint-every", "500ms")
    plate = ("--nx", 400, "--ny", 400, "--steps", 320 if quick else 6000)
    plate = example("heat2d", *plate, ranks=8)
    # It ends by itself when its time is over: after 575 steps with cubes of 10.
    cubes, longer_cubes = (
        built("lulesh/*/lulesh2.0", "-s", size, "-i", 20 if quick else 2500, ranks=8)
        for size in (10, 16)
    )
    yield Run("heat2d 8", once(plate, with_images), eyrie_alone=True)
    yield Run("heat2d 8 with images", once(plate, with_images, *often), eyrie_alone=True)
    yield Run("LULESH 8", cubes(with_images))
    yield Run("LULESH 8 longer", longer_cubes(with_images), eyrie_alone=True)
    yield Run("LULESH 8 longer with images", longer_cubes(with_images, *often), eyrie_alone=True)


def figures():
    """What the issue of the direct path wants to be shown, in its order."""
    better, shm = ("shm", "tcp"), ("shm",)
    aims = {8: 1.2, MIB: 0.7}
    for source in ("ping-pong", "osu_latency", "osu_latency.py", "IMB PingPong"):
        for size, words in SIZES.items():
            yield Figure(f"{source}, {words}", "µs", source, str(size), shm, aim=aims.get(size))
    rates = {8: 0.9, MIB: 1.0}
    for source in ("bandwidth", "osu_bw", "osu_bw.py", "IMB Uniband"):
        for size, aim in rates.items():
            run = f"bandwidth {SIZES[size]}" if source == "bandwidth" else source
            value = (str(size), shm)
            yield Figure(
                f"{source}, {SIZES[size]}", "MB/s", run, *value, aim=aim, more_is_better=True
            )
    for ranks in (4, 8):
        for size, words in SIZES.items():
            name, run = f"alltoall, {ranks} ranks, {words}", f"alltoall {ranks}"
            yield Figure(name, "µs", run, str(size), better, aim=1.2)
    for name in WHOLE:
        for ranks in (2, 4):
            yield Figure(f"{name}, {ranks} ranks", "s", f"{name} {ranks}", "s", shm, aim=1.02)
    yield Figure("LULESH, 8 ranks", "s", "LULESH 8", "s", shm, aim=1.02)
    for ranks in (2, 4):
        run = f"start and end {ranks}"
        yield Figure(f"start and end alone, {ranks} ranks", "s", run, "s", shm)
    rate = ("sustained", str(MIB), ("tcp",))
    name = "sustained exchange, 1 MiB"
    yield Figure(name, "MB/s each way", *rate, aim=1.0, more_is_better=True)
    for run in ("LULESH 8 longer", "heat2d 8"):
        images = f"{run.split()[0]}, 8 ranks, images every 500 ms"
        usual = f"{run} with images"
        yield Figure(images, "s", usual, "s", other_run=run, aim=1.15)
        yield Figure(f"{images}: pause", "ms", usual, "pause", aim=3)
        yield Figure(f"{images}: images", "", usual, "images")
    yield Figure("pause of an image, 3 MB", "ms", "pause 1", "pause", aim=3)
    yield Figure("pause of an image, 1 GiB, 5 % changed", "ms", f"pause {KIB}", "pause", aim=5)
    yield Figure("log beside the payload, a message", "B", "memory", "bytes", aim=8)
