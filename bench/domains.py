#!/usr/bin/env python3
"""Measures jobs over two sites, which are namespaces of this machine with private networks and a
line between their gateways: the same MPICH over its tcp provider from gateway to gateway, Eyrie
within one site, and Eyrie over both, in turns; then lines of 100 Mbit/s and 1 Gbit/s, near and far;
then what it takes to leave a domain, and what two domains notice of recoveries in a third one.
Fills docs/reproduction/domains.md. Root only.

Usage: bench/domains.py [--rounds=N] [--only=TEXT] [KIND]...     (default: messages throughput
lines moves gaps; --only: of moves those whose line of the table has this text; they are printed)
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))

import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time

from jobs import EYRIE, ROOT, await_condition, check, example, main, python_program, workshop
from page import Page
from sites import Sites, SitesJob
from turns import figures, in_turns

# All messages of a run have room in the log: one that is full holds ranks back until an image.
QUIET = ("--checkpoint-every", "off", "--log-memory", "2GiB")
PLAIN, WITHIN, OVER = "MPICH over tcp, between the gateways", "Eyrie, one site", "Eyrie, two sites"
KIB, MIB = 1 << 10, 1 << 20
PING_PONG = (8, KIB, 64 * KIB, MIB)
ALLTOALL = (8, KIB, 64 * KIB)
LINES_MBIT = (100, 1000)
# Milliseconds one way, and what docs/domains.md advises for such a line.
FAR_MS = 50
WINDOW = "4096 16384 33554432"
# Ranks that leave a domain, and how large they are; those that compute on change all of the first
# MiB in each step.
LEAVERS = (2, 4, 8)
RANK_MIB = 86
STEP_MS = 20
# Room for two copies of all images, and for older ones.
DISK_MIB = 4096
STAY, LEAVE, THIRD = range(3)
# How long two domains exchange messages while ranks of a third one are recovered.
GAPS_MS = 10_000


def command(sites, way, ranks, argv):
    """The command line of a program on the first site's login node."""
    first, second = sites.sites
    each = ranks // 2
    if way == PLAIN:
        hosts = f"{first.login}:{each},{second.login}:{each}"
        where = ["-launcher", "ssh", "-iface", "wide", "-genv", "FI_TCP_IFACE", "wide"]
        return [ROOT / "scripts/mpiexec-tcp.sh", *where, "-hosts", hosts, "-n", ranks, *argv]
    run = [EYRIE, "run", "-q", "-n", ranks]
    if way == WITHIN:
        hosts = ",".join(f"h{number}:{each}" for number in first.compute[:2])
        return [*run, "--hosts", hosts, *QUIET, "--", *argv]
    path = workshop() / "sites.toml"
    half = [f"0-{each - 1}", f"{each}-{ranks - 1}"]
    path.write_text(sites.file(slots=each, ranks=half))
    return [*run, "--domains", path, *QUIET, "--", *argv]


def measured(sites, way, ranks, argv):
    """What a program of examples/ prints last, as JSON."""
    words = [str(word) for word in command(sites, way, ranks, argv)]
    with tempfile.TemporaryDirectory(dir=workshop()) as place:
        ran = subprocess.run(
            sites.command(sites.sites[0].gateway, words, cwd=place),
            env={**os.environ, **sites.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        check(ran.returncode == 0, f"{way}: {ran.stderr}")
        return json.loads(ran.stdout.splitlines()[-1])


def microseconds(line):
    return next(line[key] for key in line if key.endswith("us"))


def spread(values):
    """The median of some values, with their quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{figures(middle)} ({figures(low)} to {figures(high)})"


def messages(rounds):
    """Microseconds of a message, and what two gateways add to the line."""
    cases = {
        **{f"ping-pong {size} B": (2, "pingpong", size) for size in PING_PONG},
        **{f"alltoall of 4, {size} B": (4, "alltoall", size) for size in ALLTOALL},
    }
    with Sites(2, 2) as sites:

        def one(case, way):
            ranks, program, size = cases[case]
            argv = example(program, "--min", size, "--max", size, "--budget-ms", 1000).argv
            return microseconds(measured(sites, way, ranks, argv))

        ways = (PLAIN, WITHIN, OVER)
        values = in_turns(rounds, cases, ways, one)
    lines = [
        f"| message | {PLAIN}, µs | {WITHIN}, µs | {OVER}, µs | ÷ plain | − one site, µs |",
        "|---" * 6 + "|",
    ]
    for case in cases:
        plain, within, over = (values[case, way] for way in ways)
        cells = [figures(statistics.median(of)) for of in (plain, within, over)]
        cells.append(spread([a / b for a, b in zip(over, plain)]))
        cells.append(spread([a - b for a, b in zip(over, within)]))
        lines.append("| " + " | ".join([case, *cells]) + " |")
    return "\n".join(lines)


def processor_time(pid):
    """Seconds that a process has computed, by all its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def streamed(sites, size):
    """One rank sends to one of another domain as many messages as it can: how many a second, and
    the seconds that the sender's and the receiver's gateway compute for one."""
    program = example("bandwidth", "--min", size, "--max", size, "--seconds", 10, ranks=2)
    with SitesJob(sites, program, *QUIET, ranks=["0", "1"]) as job:
        job.await_event_of(1, "connected", 1)
        job.await_messages(100)
        pids = [job.gateway(site)[1] for site in (0, 1)]
        began, before = time.monotonic(), [processor_time(pid) for pid in pids]
        time.sleep(4)
        seconds, after = time.monotonic() - began, [processor_time(pid) for pid in pids]
        result = job.result()
        check(result.code == 0, f"exit code {result.code}: {result.stderr}")
    line = json.loads(result.stdout.splitlines()[-1])
    rate = 1e6 / line["mean_us"]
    return rate, *((b - a) / seconds / rate for a, b in zip(before, after))


def throughput(rounds):
    """Messages a second through two gateways, and what these compute for one."""
    found = [
        "| message | messages/s | MB/s | sender's gateway, µs of a processor "
        "| receiver's gateway, µs of a processor |",
        "|---" * 5 + "|",
    ]
    with Sites(1, 1) as sites:
        values = in_turns(rounds, PING_PONG, [OVER], lambda size, _: streamed(sites, size))
    for size in PING_PONG:
        rates, sender, receiver = zip(*values[size, OVER])
        cells = [f"{size} B", spread(rates), spread([size * rate / 1e6 for rate in rates])]
        cells += [spread([1e6 * seconds for seconds in of]) for of in (sender, receiver)]
        found.append("| " + " | ".join(cells) + " |")
    return "\n".join(found)


def widen(sites):
    """Has the gateways keep as much for a connection as is under way on a line that is far."""
    for site in sites.sites:
        word = f"echo {WINDOW} >/proc/sys/net/ipv4/tcp_wmem"
        ran = sites.run(site.gateway, ["sh", "-c", word])
        check(ran.returncode == 0, ran.stderr)


def lines(rounds):
    """What of a shaped line, near or far, messages of 1 MiB get."""
    found = [
        f"| line | to and fro | {PLAIN}, Mbit/s | {OVER}, Mbit/s | of the line | ÷ plain |",
        "|---" * 6 + "|",
    ]
    for mbit, far in itertools.product(LINES_MBIT, (0, FAR_MS)):
        with Sites(2, 2) as sites:
            sites.slow_lines(mbit)
            if far:
                sites.far_lines(far)
                widen(sites)

            def one(size, way):
                words = ("--min", size, "--max", size, "--seconds", 8)
                line = measured(sites, way, 2, example("bandwidth", *words).argv)
                return 8 * line["bytes"] / line["mean_us"]

            values = in_turns(rounds, [MIB], (PLAIN, OVER), one)
        plain, over = (values[MIB, way] for way in (PLAIN, OVER))
        cells = [spread(plain), spread(over), spread([rate / mbit for rate in over])]
        cells.append(spread([a / b for a, b in zip(over, plain)]))
        line = [f"{mbit} Mbit/s", f"{2 * far} ms" if far else "0"]
        found.append("| " + " | ".join([*line, *cells]) + " |")
    return "\n".join(found)


def received(sites, site):
    """Bytes that have come to a site from others."""
    pid = sites.hosts[sites.sites[site].gateway].init()
    for line in pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "wide":
            return int(counts.split()[0])
    raise AssertionError("the gateway has no cable to other sites")


def move(sites, mbit, ranks, way):
    """All ranks of a domain go to another one, which has rank 0. What it took, in seconds and
    bytes."""
    words = ("--mb", RANK_MIB, "--within", 1, "--percent", 2, "--spin", 0, "--gaps", 1)
    paced = ("--steps", 30000, "--slow-until", "../end", "--slow-ms", STEP_MS)
    program = example("memory", *words, *paced, ranks=1 + ranks, make="../end")
    options = ("--checkpoint-every", "off", "--log-memory", "2GiB")
    name = sites.sites[STAY].name
    places = ["0", f"1-{ranks}"]
    with SitesJob(sites, program, *options, slots=ranks + 1, ranks=places) as job:
        job.await_event_of(LEAVE, "connected", ranks)
        job.await_messages(100)
        before = received(sites, STAY)
        argv = [EYRIE, "migrate-domain", "--dir", job.base, job.name, "--to", name, "--way", way]
        ran = sites.run(sites.sites[LEAVE].gateway, argv)
        check(ran.returncode == 0, f"eyrie migrate-domain: {ran.stderr}")
        came = received(sites, STAY) - before
        took = {e["phase"]: e["took"] for e in job.events_of(LEAVE, "domain_move")}
        newest = {e["rank"]: e["bytes"] for e in job.events_of(LEAVE, "checkpoint")}
        job.await_event_of(STAY, "recovered", ranks)
        (job.cwd / "../end").touch()
        result = job.result()
        check(result.code == 0, f"exit code {result.code}: {result.stderr}")
        gap = json.loads(result.stdout.splitlines()[-1])["longest_s"]
    size = sum(newest.values())
    return {
        "size": size,
        "model": 8 * size / (mbit * 1e6),
        "took": took["resumed"],
        "still": took["resumed"] - took["flushed"],
        "gap": gap,
        "came": came,
        "phases": took,
    }


def moves(rounds, only=""):
    """Eagle's cost model against what it takes to leave a domain."""
    lines = [
        "| line | ranks | way | images, MB | model, s | took, s | ÷ model | stood still, s "
        "| longest gap of a peer, s | bytes ÷ images |",
        "|---" * 10 + "|",
    ]
    for mbit in LINES_MBIT:
        for ranks in LEAVERS:
            for way in ("stop", "live"):
                line = f"{mbit} Mbit/s | {ranks} | {way}"
                if only not in line:
                    continue
                with Sites(2, 2, disk_mib=DISK_MIB) as sites:
                    sites.slow_lines(mbit)
                    runs = [move(sites, mbit, ranks, way) for _ in range(rounds)]
                print(line, runs, file=sys.stderr)
                of = lambda key: statistics.median(run[key] for run in runs)
                ratio = statistics.median(run["took"] / run["model"] for run in runs)
                sent = statistics.median(run["came"] / run["size"] for run in runs)
                cells = [f"{of('size') / 1e6:.0f}", *(figures(of(k)) for k in ("model", "took"))]
                cells += [figures(ratio), figures(of("still")), figures(of("gap")), figures(sent)]
                lines.append("| " + " | ".join([line, *cells]) + " |")
    return "\n".join(lines)


# Ranks 0 and 1 send 8 B to and fro for so many seconds, and so do 2 and 3, with pauses.
PAIRS = """
import json, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
other = world.rank ^ 1
going, took = bytearray(b"1" * 8), []
world.Barrier()
until = time.perf_counter() + float(sys.argv[1])
while going[0] == ord("1"):
    began = time.perf_counter()
    if world.rank % 2:
        world.Recv(going, other)
        world.Send(going, other)
        continue
    if began > until:
        going[:] = b"0" * 8
    world.Send(going, other)
    world.Recv(going, other)
    took.append((time.perf_counter() - began) / 2 * 1e6)
    if world.rank:
        time.sleep(0.001)
if world.rank == 0:
    took.sort()
    at = lambda share: took[int(share * (len(took) - 1))]
    print(json.dumps({"median_us": at(0.5), "p90_us": at(0.9), "max_us": at(1)}), flush=True)
"""


def ping_pong_beside(sites, recoveries):
    """Messages of 8 B to and fro between two domains for a while, in a third one of which ranks are
    killed and recovered again and again, or not. What the program prints, and how many were."""
    program = python_program(PAIRS, GAPS_MS / 1000)
    options = ("--checkpoint-every", "off", "--log-memory", "2GiB")
    with SitesJob(sites, program, *options, ranks=["0", "1", "2,3"]) as job:
        job.await_event_of(THIRD, "library")
        argv = [EYRIE, "checkpoint", "--dir", job.base, job.name]
        ran = sites.run(sites.sites[THIRD].gateway, argv)
        check(ran.returncode == 0, f"eyrie checkpoint: {ran.stderr}")
        until = time.monotonic() + GAPS_MS / 2000
        done = 0
        while recoveries and time.monotonic() < until:
            victim = 2 + done % 2
            before = len(job.events_of(THIRD, "recovered", rank=victim))
            await_condition(lambda: job.kill_rank(victim), f"a process of rank {victim}")
            job.await_event_of(THIRD, "recovered", before + 1, rank=victim)
            done += 1
        result = job.result()
        check(result.code == 0, f"exit code {result.code}: {result.stderr}")
        return json.loads(result.stdout.splitlines()[-1]), done


def gaps(rounds):
    """What two domains notice of recoveries in a third one."""
    with Sites(1, 1, 1) as sites:
        one = lambda case, way: ping_pong_beside(sites, way)
        values = in_turns(rounds, ["8 B"], (False, True), one)
    lines = [
        "| third domain | recoveries | median, µs | 90 of 100 within, µs | longest, ms |",
        "|---" * 5 + "|",
    ]
    for way, name in ((False, "at rest"), (True, "ranks killed and recovered")):
        runs = values["8 B", way]
        of = lambda key: [run[key] for run, _ in runs]
        recovered = statistics.median(done for _, done in runs)
        cells = [figures(recovered), spread(of("median_us")), spread(of("p90_us"))]
        cells.append(spread([longest / 1000 for longest in of("max_us")]))
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


KINDS = {
    "messages": messages,
    "throughput": throughput,
    "lines": lines,
    "moves": moves,
    "gaps": gaps,
}
PAGE = Page("domains", kinds=tuple(KINDS))


def test():
    options, kinds = PAGE.chosen(__doc__, "--rounds=[0-9]+|--only=.*")
    given = dict(option[2:].split("=") for option in options)
    rounds = int(given.get("rounds", 10))
    if "only" in given:
        return print(moves(rounds, given["only"]))
    for kind in kinds:
        PAGE.insert(kind, KINDS[kind](rounds))


main(test)
