"""From what bench/steering.py has measured to its tables and charts. It takes nothing but what the
JSON file has, so that an earlier measurement can be shown again."""

import pathlib
import statistics
import textwrap

from chart import dots
from page import table
from steered import cases, name_of

# How far a measured step may be from the predicted one.
WITHIN = 0.15
# The rows of jobs whose routers are on nodes.
LOG = "log"
REAL = "a real job, unmodified program"
# The Sliding report's slowdowns of the stencil.
PUBLISHED = {"tree": "at most 1.2", "torus": "up to 4.1 (K), hybrid clearly better", "mesh": "-"}


# From values to figures.


def busiest(part):
    """Messages of a step on the busiest link, by the bytes that it carried and a message's."""
    return max(part["links"].values()) / part["wire"]


def step(part):
    return part["step_s"]


def predicted_step(part):
    return part["predicted"]["step_s"]


def slowdown(row, what):
    """A step after the loss over one before."""
    return what(row["after"]) / what(row["before"])


def off(part):
    """By how much a measured step is longer than the predicted one."""
    return step(part) / predicted_step(part) - 1


def in_short(row):
    parts = [row["before"], row["after"]]
    steps = " to ".join(f"{milliseconds(step(of))} ms ({100 * off(of):+.1f} %)" for of in parts)
    after = row["after"]
    planned = after["predicted"]["messages"]
    return (
        f"{steps}; {busiest(after):.2f} of {planned} on a link; settled in {row['settled_s']:.1f} s"
    )


def milliseconds(seconds):
    return f"{1000 * seconds:.0f}"


def ratio(part):
    words = f"{1 + off(part):.2f}"
    return words if abs(off(part)) <= WITHIN else f"**{words}**"


def each_row(found):
    for case in cases():
        for row in found.get(case.name, []):
            yield case, row


def row_of(found, name, policy):
    return next((row for row in found.get(name, []) if row["policy"] == policy), None)


def of_row(row, what):
    return f"{what(row):.2f}" if row else "-"


def program_of(case):
    return pathlib.Path(case.program.argv[0]).name + (" --wind 1" if case.one_way else "")


# The tables.


def steps_table(found):
    head = ["network", "program", "nodes lost", "policy", "ranks moved"]
    head += ["busiest link: `eyrie plan`", "here, predicted", "measured"]
    head += ["step before, ms: predicted", "measured", "after: predicted", "measured"]
    head += ["measured ÷ predicted", "slowdown: predicted", "measured"]
    rows = []
    for case, row in each_row(found):
        before, after, method = row["before"], row["after"], row["method"]
        lost = " and ".join(name_of(case.network, node) for node in case.lost)
        line = [case.network.spec, program_of(case), lost, row["policy"], row["moved"]]
        line += [method["messages"] if method else "stuck", after["predicted"]["messages"]]
        line += [f"{busiest(after):.2f}"]
        for part in (before, after):
            line += [milliseconds(predicted_step(part)), milliseconds(step(part))]
        line += [ratio(after), *(f"{slowdown(row, of):.2f}" for of in (predicted_step, step))]
        rows.append(line)
    return table(head, rows)


def within(found):
    """How many of the steps are as predicted."""
    farthest = [abs(off(row[when])) for _, row in each_row(found) for when in ("before", "after")]
    good = sum(one <= WITHIN for one in farthest)
    return (
        f"{good} of {len(farthest)} steps, before and after losses, are within {100 * WITHIN:.0f} % "
        f"of what is predicted; the farthest is {100 * max(farthest, default=0):.1f} % off."
    )


def spare_table(found):
    """The Spare paper's figures."""
    lines = [
        ("one direction, rank on a spare", "one-way", "first-free", "2", "2.0"),
        ("one direction, slide of all behind it", "one-way", "2d", "-", "-"),
        ("four directions, rank on a spare", "mesh", "first-free", "5", "2.3 to 2.5"),
        ("four directions, slide of a line", "mesh", "1d", "-", "-"),
        ("four directions, slide of all behind it", "mesh", "2d", "-", "-"),
    ]
    head = ["", "most messages on a link: published", "`eyrie plan`", REAL]
    head += ["slowdown: published", "`eyrie plan`", REAL]
    rows = []
    for words, name, policy, messages, times in lines:
        row = row_of(found, name, policy)
        planned = row["after"]["predicted"]["messages"] if row else "-"
        rows.append(
            [words, messages, planned, of_row(row, lambda row: busiest(row["after"])), times]
            + [of_row(row, lambda row: slowdown(row, of)) for of in (predicted_step, step)]
        )
    return table(head, rows)


def sliding_table(found):
    """The Sliding report's figures: slowdowns of a stencil by number of failures."""
    head = ["network", "program", "failures", "published"]
    head += ["`eyrie plan`: 0d / hybrid / search", REAL]
    rows = []
    for case in cases():
        if not case.one_way and found.get(case.name):
            # After one loss it is the slide of most dimensions.
            slides = ("hybrid", "3d", "2d", "1d")
            hybrid = next(filter(None, (row_of(found, case.name, way) for way in slides)), None)
            of = [row_of(found, case.name, "0d"), hybrid, row_of(found, case.name, "search")]
            times = lambda what: " / ".join(
                of_row(row, lambda row: slowdown(row, what)) for row in of
            )
            published = PUBLISHED[case.name.partition("-")[0]]
            line = [case.network.spec, program_of(case), len(case.lost), published]
            rows.append([*line, times(predicted_step), times(step)])
    return table(head, rows)


def log_table(found):
    """What it means that messages go by routers on nodes."""
    head = ["routers", "on nodes", "busiest link: predicted", "measured"]
    head += ["step, ms: predicted", "measured", "measured ÷ predicted"]
    rows = []
    for row in found.get(LOG, []):
        part = row["phase"]
        nodes = ", ".join(map(str, row["nodes"]))
        links = [max(part["planned"].values()), f"{busiest(part):.2f}"]
        steps = [milliseconds(predicted_step(part)), milliseconds(step(part)), ratio(part)]
        rows.append([row["routers"], nodes, *links, *steps])
    return table(head, rows)


def wrapped(text):
    return textwrap.fill(text, 100, break_on_hyphens=False)


def text_of(kept):
    """The tables by their marks on the page."""
    found = kept["cases"]
    return {
        "steps": "\n".join(
            [steps_table(found), wrapped(within(found)), "", wrapped(kept["machine"])]
        ),
        "spare": spare_table(found),
        "sliding": sliding_table(found),
        "log": log_table(found),
    }


# The charts.


def spread(values):
    return {"least": min(values), "most": max(values), "median": statistics.median(values)}


def draw(found, to):
    """A chart for each number of losses and program: slowdowns, predicted and measured. Returns
    their files."""
    files = []
    for name, lost, program in (
        ("heat2d", 1, "heat2d"),
        ("two", 2, "heat2d"),
        ("heat3d", 1, "heat3d"),
    ):
        columns = []
        for case, row in each_row(found):
            if len(case.lost) == lost and program_of(case) == program:
                before = step(row["before"])
                windows = spread([one / before for one in row["after"]["windows_s"]])
                label = f"{case.name.partition('-')[0]} {row['policy']}"
                columns.append((label, [spread([slowdown(row, predicted_step)]), windows]))
        path = to / f"{name}.svg"
        what = "a node was lost" if lost == 1 else f"{lost} nodes were lost"
        title = f"{program}: a step after {what}, times a step before"
        if dots(path, title, "slowdown", ["predicted", "measured"], columns):
            files.append(path)
    return files
