#!/usr/bin/env python3
"""Compares the time ratios of `eyrie plan` with SimGrid's SMPI on random instances.

SimGrid gets the network as its own torus, fat tree or dragonfly with its own routing, the traffic
as a program, and the ranks on the hosts that the plan names. Nothing of eyrie's routing or timing
reaches it. Standard library only.
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import subprocess
import sys
import tempfile

CONFIG = [
    "network/crosstraffic:0",
    "smpi/simulate-computation:no",
    "smpi/bw-factor:0:1",
    "smpi/lat-factor:0:1",
    "network/TCP-gamma:1e15",
    # The default solves the shares again only near what changed, and is off where a weight changed
    # elsewhere.
    "network/optim:Full",
    "smpi/host-speed:1Gf",
    "smpi/allreduce:rdb",
]
SIZES = ["4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB"]
METHODS = ["first-free", "0d", "1d", "hybrid", "search"]


def platform(kind, extents, nodes):
    """SimGrid's cluster of this topology: 5 GB/s and 1 us a link."""
    parameters = {
        "TORUS": ",".join(str(e) for e in reversed(extents)),
        "FAT_TREE": f"2;{extents[0]},{extents[0]};1,{extents[0]};1,1",
        "DRAGONFLY": "{0},1;1,1;{1},1;{2}".format(*extents) if kind == "DRAGONFLY" else "",
    }[kind]
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n<platform version="4.1">\n'
        f'<cluster id="net" prefix="node" suffix="" radical="0-{nodes - 1}" speed="1Gf" bw="5GBps" lat="1us" '
        f'topology="{kind}" topo_parameters="{parameters}" sharing_policy="SPLITDUPLEX" loopback_bw="100GBps" loopback_lat="0"/>\n</platform>\n'
    )


def random_case(rng):
    """One instance: what `eyrie plan` is asked, and SimGrid's platform for it."""
    kind = rng.choice(["torus", "torus", "fattree", "dragonfly"])
    traffic = rng.choice(["stencil", "stencil", "stencil", "allreduce"])
    if kind == "torus":
        # SimGrid breaks ties of even rings otherwise than we do; odd rings have none.
        extents = (
            [rng.choice([7, 9, 11, 13]) for _ in range(2)] if rng.random() < 0.6 else [5, 5, 5]
        )
        # SimGrid numbers and routes its first axis fastest and first; ours is numbered last axis
        # fastest.
        axes, nodes = len(extents), math.prod(extents)
        order = ",".join(str(a) for a in reversed(range(axes)))
        spec, job = "torus:" + "x".join(map(str, extents)) + ":order=" + order, None
    else:
        axes = rng.choice([2, 3])
        job = (
            [rng.randint(3, 8), rng.randint(3, 8)]
            if axes == 2
            else [rng.randint(3, 4) for _ in range(3)]
        )
        cells = math.prod(job) * 2
        if kind == "fattree":
            k = next(k for k in range(4, 40) if k * k >= cells)
            extents, spec, nodes = [k], f"fattree:{k}^2", k * k
        else:
            groups, per = rng.randint(4, 7), rng.randint(2, 4)
            routers = max(groups, math.ceil(cells / groups / per))
            extents, nodes = [groups, routers, per], groups * routers * per
            spec = f"dragonfly:{groups}x{routers}x{per}"
    pattern = "allreduce" if traffic == "allreduce" else f"stencil{2 * axes + 1}"
    args = [
        "--network",
        spec,
        "--traffic",
        pattern,
        "--bytes",
        rng.choice(SIZES),
        "--method",
        rng.choice(METHODS),
    ]
    args += ["--spares", f"{axes}d(2,1)"]
    if job:
        args += [
            "--job",
            "x".join(map(str, job)),
            "--arrangement",
            rng.choice(["contiguous", "separate"]),
        ]
    return {
        "kind": {"torus": "TORUS", "fattree": "FAT_TREE", "dragonfly": "DRAGONFLY"}[kind],
        "extents": extents,
        "nodes": nodes,
        "args": args,
        "pattern": pattern,
        "axes": axes,
        "bytes": args[5],
        "method": args[7],
        "failures": rng.choice([1, 1, 2, 3, 5]),
        "seed": rng.randrange(1 << 30),
    }


def size(text):
    return int(text[:-3]) * {"KiB": 1 << 10, "MiB": 1 << 20}[text[-3:]]


def matrix(job, bytes_):
    """The star stencil of a job, as the program reads it."""
    lines, strides = [], [math.prod(job[a + 1 :]) for a in range(len(job))]
    for rank in range(math.prod(job)):
        for axis, stride in enumerate(strides):
            at = rank // stride % job[axis]
            for step in (-1, 1):
                if 0 <= at + step < job[axis]:
                    lines.append(f"{rank} {rank + step * stride} {bytes_} 1")
    return "\n".join(lines) + "\n"


def simulate(case, job, placement, directory, program):
    """Seconds that SimGrid takes for one step with ranks on these nodes."""

    def put(name, text):
        path = os.path.join(directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    xml = put("platform.xml", platform(case["kind"], case["extents"], case["nodes"]))
    hosts = put("hosts", "".join(f"node{n}\n" for n in placement))
    what = ["allreduce", str(size(case["bytes"]))]
    if case["pattern"] != "allreduce":
        what = ["stencil", put("matrix", matrix(job, size(case["bytes"])))]
    command = ["smpirun", "-np", str(len(placement)), "-platform", xml, "-hostfile", hosts]
    command += [f"--cfg={c}" for c in CONFIG] + ["--log=root.thres:error", program] + what
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=directory)
    for line in run.stdout.splitlines():
        if line.startswith("latest "):
            return float(line.split()[1])
    raise RuntimeError(f"smpirun printed no time: {run.stderr[-400:]}")


def judge(case, eyrie, program):
    """The case with both ratios, or None when the method is stuck."""
    rng = random.Random(case["seed"])
    # Ask once without failures that matter to learn where the ranks are, then fail random ones.
    home = json.loads(
        subprocess.run(
            [eyrie, "plan", *case["args"], "--failed", "0", "--json"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    )
    ranks = home["before"]["placement"]
    failed = rng.sample(ranks, min(case["failures"], len(ranks) - 1))
    args = list(case["args"])
    for node in failed:
        args += [
            "--failed",
            str(node) if case["kind"] != "TORUS" else coordinates(node, case["extents"]),
        ]
    results = {}
    for sharing in ("path", "fair"):
        run = subprocess.run(
            [eyrie, "plan", *args, "--json", "--sharing", sharing],
            capture_output=True,
            text=True,
            check=False,
        )
        if not run.stdout:
            raise RuntimeError(run.stderr)
        plan = json.loads(run.stdout)["methods"][0]["plan"]
        if plan is None:
            return None
        results[sharing] = plan
    # The search may settle on another placement under the other sharing; SimGrid judges the first.
    plan, fair = results["path"], results["fair"]
    with tempfile.TemporaryDirectory() as directory:
        before = simulate(case, home["job"], ranks, directory, program)
        after = simulate(case, home["job"], plan["placement"], directory, program)
    same = plan["placement"] == fair["placement"]
    return {
        **case,
        "failed": failed,
        "load": plan["busiest_link_messages"],
        "command": "eyrie plan " + " ".join(args),
        "ours": plan["slowdown"],
        "ours_fair": fair["slowdown"] if same else None,
        "simgrid": after / before,
        "before_s": before,
        "after_s": after,
        "our_after_s": plan["step_s"],
    }


def coordinates(node, extents):
    out = []
    for extent in reversed(extents):
        out.append(node % extent)
        node //= extent
    return ",".join(str(c) for c in reversed(out))


def limit(case):
    return 0.10 if size(case["bytes"]) >= 1 << 20 else 0.25


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planner", required=True, help="the eyrie binary")
    parser.add_argument("--program", required=True)
    parser.add_argument("--cases", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", help="write every case here")
    parser.add_argument(
        "--within", type=float, default=0.0, help="fail when a smaller share is inside its limit"
    )
    options = parser.parse_args()
    rng = random.Random(options.seed)
    cases = [random_case(rng) for _ in range(options.cases)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        judged = list(pool.map(lambda c: judge(c, options.planner, options.program), cases))
    done = [c for c in judged if c]
    for case in done:
        case["off"] = case["ours"] / case["simgrid"] - 1
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(done, file, indent=1)
    print(f"{len(done)} cases judged, {len(judged) - len(done)} stuck methods left out\n")
    print(
        "| network | traffic | size | cases | median off | worst off | inside the limit |\n|---|---|---|---|---|---|---|"
    )
    inside_all = 0
    groups = {}
    for case in done:
        large = "1 MiB and above" if limit(case) == 0.10 else "below 1 MiB"
        traffic = "allreduce" if case["pattern"] == "allreduce" else "stencil"
        groups.setdefault((case["kind"].lower(), traffic, large), []).append(case)
    for (kind, traffic, large), members in sorted(groups.items()):
        offs = sorted(abs(c["off"]) for c in members)
        inside = sum(abs(c["off"]) <= limit(c) for c in members)
        inside_all += inside
        print(
            f"| {kind} | {traffic} | {large} | {len(members)} | {100 * offs[len(offs) // 2]:.1f} % | {100 * offs[-1]:.1f} % | {inside} |"
        )
    print(f"\n{inside_all} of {len(done)} inside the limit (10 % at 1 MiB and above, 25 % below)")
    fair = [c for c in done if c["ours_fair"]]
    held = sum(abs(c["ours_fair"] / c["simgrid"] - 1) <= limit(c) for c in fair)
    print(
        f"with `--sharing fair`, the planner's default, instead of SimGrid's `path`: {held} of {len(fair)}\n"
    )
    outliers = sorted((c for c in done if abs(c["off"]) > limit(c)), key=lambda c: -abs(c["off"]))
    if outliers:
        print("| off | ours | SimGrid | load | case |\n|---|---|---|---|---|")
        for c in outliers:
            print(
                f"| {100 * c['off']:+.0f} % | {c['ours']:.2f} | {c['simgrid']:.2f} | {c['load']} | `{c['command']}` |"
            )
    if inside_all < options.within * len(done):
        sys.exit(
            f"only {inside_all} of {len(done)} cases are inside the limit, {options.within:.0%} are expected"
        )


if __name__ == "__main__":
    main()
