"""What bench/steering.py measures: programs on networks from which nodes are lost, and what
`eyrie plan` predicts for them. It measures nothing."""

import collections
import dataclasses
import json
import subprocess
import tempfile

from jobs import EYRIE, Program, check, example, workshop
from shaped import Cartesian, FatTree, star

# What links carry. Those of a fat tree are faster: a node has one, which all that it sends takes.
KBIT, TREE_KBIT = 160, 640
MTU = 296
# More steps than are ever made.
FOREVER = 10_000_000
# After one loss the hybrid method is the slide of most dimensions.
SLIDES_2D = ("0d", "1d", "2d", "search")
SLIDES_3D = ("0d", "1d", "2d", "3d", "search")
# Where the network has no grid nodes are a line.
ON_A_LINE = ("0d", "1d", "search")
ENDLESS = ("--steps", FOREVER, "--every", 0)


@dataclasses.dataclass(frozen=True)
class Case:
    """A program on a network from which nodes are lost. `grid`: of its ranks; `size`: bytes of each
    message of a step; `one_way`: ranks send up the first axis only."""

    name: str
    network: object
    kbit: int
    program: Program
    grid: tuple
    size: int
    lost: tuple
    policies: tuple
    one_way: bool = False

    def pairs(self):
        return star(self.grid, self.one_way)


def cases():
    size = ("--nx", 72, "--ny", 72, "--nz", 48)
    heat2d = example("heat2d", "--nx", 2048, "--ny", 2048, *ENDLESS, ranks=16)
    heat3d = example("heat3d", *size, *ENDLESS, ranks=18)
    # One layer. Ranks at the beginning of the wind wait for none: all meet now and then.
    size = ("--nx", 1024, "--ny", 2048, "--nz", 1)
    wind = example("heat3d", *size, "--steps", FOREVER, "--every", 5, "--wind", 1, ranks=16)
    plate = {"program": heat2d, "grid": (4, 4), "size": 512 * 8}
    block = {"program": heat3d, "grid": (3, 3, 2), "size": 24 * 24 * 8}
    blown = {"program": wind, "grid": (4, 4), "size": 512 * 8, "one_way": True}
    mesh, torus, tree = Cartesian((5, 4)), Cartesian((5, 4), wrap=True), FatTree(4, 5, 4)
    mesh3, torus3 = Cartesian((4, 3, 2)), Cartesian((4, 3, 2), wrap=True)
    tree3 = FatTree(4, 6, 4)
    two = ("0d", "hybrid", "search")
    return [
        Case("mesh", mesh, KBIT, lost=(5,), policies=("first-free", *SLIDES_2D), **plate),
        Case("one-way", mesh, KBIT, lost=(5,), policies=("first-free", "2d"), **blown),
        Case("torus", torus, KBIT, lost=(7,), policies=("first-free", *SLIDES_2D), **plate),
        Case("tree", tree, TREE_KBIT, lost=(5,), policies=ON_A_LINE, **plate),
        Case("mesh-two", mesh, KBIT, lost=(5, 10), policies=("first-free", *two), **plate),
        Case("mesh-3d", mesh3, KBIT, lost=(8,), policies=SLIDES_3D, **block),
        Case("torus-two", torus, KBIT, lost=(5, 10), policies=two, **plate),
        Case("tree-two", tree, TREE_KBIT, lost=(5, 10), policies=two, **plate),
        Case("torus-3d", torus3, KBIT, lost=(8,), policies=SLIDES_3D, **block),
        Case("tree-3d", tree3, TREE_KBIT, lost=(8,), policies=ON_A_LINE, **block),
    ]


def between(at, pairs):
    """The nodes that messages go between, with ranks on these nodes."""
    return [(at[sender], at[receiver]) for sender, receiver in pairs]


def name_of(network, node):
    """A node as `eyrie plan` reads it."""
    return ",".join(map(str, network.coordinates(node))) if hasattr(network, "dims") else str(node)


def matrix(pairs, wire):
    """What `--traffic matrix:FILE` reads: these messages, of so many bytes each."""
    counts = sorted(collections.Counter(pairs).items())
    return "".join(f"{a} {b} {round(count * wire)} {count}\n" for (a, b), count in counts)


def plan(case, text, *words):
    """What `eyrie plan` says of the case's network and a matrix of traffic."""
    # In a job that goes on, the busiest link is never idle: what a hop adds to one message is not
    # added to a step.
    links = ("--bandwidth", 125 * case.kbit, "--hop-latency", "0s")
    with tempfile.NamedTemporaryFile("w", dir=workshop()) as file:
        file.write(text)
        file.flush()
        traffic = ("--traffic", f"matrix:{file.name}")
        argv = [EYRIE, "plan", "--json", "--network", case.network.spec, *links, *traffic, *words]
        ran = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    # 2: the method cannot be carried out; what was before it is there.
    check(ran.returncode in (0, 2), f"{argv}: {ran.stderr}")
    return json.loads(ran.stdout)


def predicted(case, messages, wire):
    """The step and the busiest link with these messages, (node, node) each, when one takes so many
    bytes of a link: those of the planner for a job that has every node of the network."""
    network = case.network
    extents = getattr(network, "dims", (network.nodes,))
    job = ("--job", "x".join(map(str, extents)), "--spares", "contiguous:0")
    # It needs a node to fail, which what was before does not depend on.
    words = (*job, "--failed", name_of(network, 0), "--method", "0d")
    before = plan(case, matrix(messages, wire), *words)["before"]
    return {"step_s": before["step_s"], "messages": before["busiest_link_messages"]}


def as_planned(case, policy, wire):
    """What the method of that name comes to in `eyrie plan`; None where it is stuck."""
    network, ranks = case.network, case.program.ranks
    spares = ";".join(name_of(network, node) for node in range(ranks, network.nodes))
    job = ("--job", "x".join(map(str, case.grid)), "--spares", f"list:{spares}")
    failed = [word for node in case.lost for word in ("--failed", name_of(network, node))]
    text = matrix(case.pairs(), wire)
    (found,) = plan(case, text, *job, *failed, "--method", policy)["methods"]
    chosen = found["plan"]
    return chosen and {"messages": chosen["busiest_link_messages"], "slowdown": chosen["slowdown"]}
