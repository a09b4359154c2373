#!/usr/bin/env python3
"""Measures jobs on a mesh, a torus and a fat tree of network namespaces with slow links: how long a
step of a stencil takes before nodes are lost and after, by each policy, beside what `eyrie plan`
predicts for it, and how many messages each link really carries. Fills
docs/reproduction/steering.md. Root only.

    bench/steering.py [--only NAME...] [--policies POLICY...] [--page]
    bench/steering.py --draw --page      measures nothing: shows what was measured before
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/lib"))
# All of it takes longer than a test may.
os.environ.setdefault("EYRIE_TEST_LIMIT_S", "14400")

from jobs import ROOT, await_condition, check
from jobs import main as in_a_place
from page import Page, machine
from shaped import NetworkHosts, NetworkJob, loads
from steered import KBIT, MTU, as_planned, between, cases, predicted
from steering_report import LOG, draw, in_short, off, text_of

OUT = ROOT / "build/steering-bench"
PAGE = Page("steering")
# A window in which steps are counted: so many, as they are predicted, and so long at least.
STEPS, LEAST_S = 8, 4
# The middle one counts: something else may use the processors for a moment.
WINDOWS = 3
# Steps and seconds after which ranks wait for each other as they will from then on.
SETTLING, SETTLING_S = 3, 3
# Where routers are on nodes, most messages take few links.
LOG_KBIT = 10 * KBIT
QUIET = ("--checkpoint-every", "off", "--monitor", "off", "--run-time", "100h")
# Policies by which no rank moves that lives.
STAY = ("first-free", "0d")


def phase(job, case, messages, expected_s):
    """The steps of a phase of the job in which these messages go, (node, node) each."""
    time.sleep(SETTLING_S + SETTLING * expected_s)
    seconds = max(LEAST_S, STEPS * expected_s)
    found = [job.carried(case.pairs(), case.size, seconds) for _ in range(WINDOWS)]
    rate, links = sorted(found, key=lambda of: of[0])[WINDOWS // 2]
    planned = loads(case.network, messages)
    return {
        "step_s": 1 / rate,
        "windows_s": [1 / rate for rate, _ in found],
        # Bytes of a link that a message takes, if each is where it is planned.
        "wire": sum(links.values()) / rate / sum(planned.values()),
        # Bytes of a step on each link.
        "links": {f"{a}>{b}": sent / rate for (a, b), sent in links.items()},
        "planned": {f"{a}>{b}": count for (a, b), count in planned.items()},
    }


def guessed(case, messages):
    """Roughly the seconds of a step, before anything was measured."""
    return 1.3 * case.size / (125 * case.kbit) * max(loads(case.network, messages).values())


def measured(hosts, case, policy):
    """One job: before nodes are lost, and after."""
    options = (*QUIET, "--policy", policy, "--bandwidth", 125 * case.kbit)
    start = list(range(case.program.ranks))
    at_start = between(start, case.pairs())
    with NetworkJob(hosts, case.program, *options) as job:
        job.await_event("connected", case.program.ranks)
        await_condition(job.placed, "all ranks to run")
        before = phase(job, case, at_start, guessed(case, at_start))
        job.await_event("traffic_measured")
        wire = before["wire"]
        before["predicted"] = predicted(case, at_start, wire)
        began = time.monotonic()
        for node in case.lost:
            hosts.kill_all(node)
        weighed = settle(job, case, policy)
        at = await_condition(job.placed, "all ranks to run on nodes that are up")
        settled_s = time.monotonic() - began
        messages = between(at, case.pairs())
        foretold = predicted(case, messages, wire)
        after = phase(job, case, messages, foretold["step_s"])
        after["predicted"] = foretold
        check(job.placed() == at, "ranks have moved meanwhile")
        recovered = [event["total"] for event in job.events("recovered")]
        job.terminate()
        job.wait()
    for node in case.lost:
        hosts.start_again(node)
    return {
        "policy": policy,
        "at": at,
        "before": before,
        "after": after,
        "method": as_planned(case, policy, wire),
        "moved": sum(a != b for a, b in zip(start, at)),
        "weighed": weighed,
        "recovered_s": recovered,
        "settled_s": settled_s,
    }


def settle(job, case, policy):
    """Waits until ranks are back and, by a policy that has others move, these have moved; returns
    what was weighed."""
    for rank in case.lost:
        job.await_event("recovered", rank=rank)
    if policy in STAY:
        return None
    weighed = job.await_event("moves_weighed")
    if weighed["pays"]:
        over = job.await_event("rearranged")
        check(over["cause"] is None, f"moves were turned back: {over}")
    return weighed


def by_routers(case, routers):
    """A job without losses whose routers are on nodes, as many as `--routers` says: a message goes
    to the router of its receiver, and from there on."""
    ranks = case.program.ranks
    with (
        NetworkHosts(case.network, case.kbit, MTU, ranks, roles_on_nodes=True) as hosts,
        NetworkJob(hosts, case.program, *QUIET, "--routers", routers) as job,
    ):
        job.await_event("connected", ranks)
        await_condition(job.placed, "all ranks to run")
        roles = [role for role in job.status()["roles"] if role["role"].startswith("router")]
        nodes = [role["node"] for role in sorted(roles, key=lambda of: int(of["role"].split()[1]))]
        # As the controller shares them out: by the nodes that ranks start on.
        router = lambda rank: nodes[rank * len(nodes) // ranks]
        legs = [(a, router(b)) for a, b in case.pairs()] + [(router(b), b) for _, b in case.pairs()]
        found = phase(job, case, legs, guessed(case, legs))
        job.terminate()
        job.wait()
    found["predicted"] = predicted(case, legs, found["wire"])
    say(f"{routers} routers on nodes {nodes}: {100 * off(found):+.1f} %")
    return {"routers": routers, "nodes": sorted(set(nodes)), "phase": found}


def measure(options, keep):
    said, begun, found = machine(), time.monotonic(), {}

    def add(name, row):
        found.setdefault(name, []).append(row)
        keep(said.format(after=os.getloadavg()[0], seconds=time.monotonic() - begun), found)

    for case in cases():
        if options.only and case.name not in options.only:
            continue
        ranks = case.program.ranks
        with NetworkHosts(case.network, case.kbit, MTU, ranks) as hosts:
            for policy in case.policies:
                if not options.policies or policy in options.policies:
                    row = measured(hosts, case, policy)
                    say(f"{case.name}, {policy}: {in_short(row)}")
                    add(case.name, row)
    if not options.only or LOG in options.only:
        case = dataclasses.replace(cases()[0], kbit=LOG_KBIT)
        for routers in (2, case.program.ranks):
            add(LOG, by_routers(case, routers))


def say(text):
    print(text, file=sys.stderr, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in cases()] + [LOG]
    words = ", ".join(names)
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help=words)
    parser.add_argument("--policies", nargs="+", default=[], help="default: those of each case")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--page", action="store_true", help="also fill the page")
    return parser.parse_args()


def test():
    options = arguments()
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "steering.json"
    # With --only the others stay as they were measured before.
    before = json.loads(path.read_text()) if path.exists() and options.only else {"cases": {}}

    def keep(conditions, found):
        measured_cases = {**before["cases"], **found}
        kept = {"machine": before.get("machine", conditions), "cases": measured_cases}
        path.write_text(json.dumps(kept, indent=1) + "\n")

    if not options.draw:
        measure(options, keep)
    kept = json.loads(path.read_text())
    texts, files = text_of(kept), draw(kept["cases"], OUT)
    print("\n".join(texts.values()))
    if options.page:
        for file in files:
            PAGE.path.with_name(f"steering-{file.name}").write_text(file.read_text())
        for kind, text in texts.items():
            PAGE.insert(kind, text)
    say(f"JSON and charts: {OUT}")


in_a_place(test)
