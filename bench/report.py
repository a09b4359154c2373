"""From the values that bench/direct.py has measured to its figures, table and charts. It takes
nothing but what the JSON file has, so that an earlier measurement can be drawn again."""

import collections
import statistics
import textwrap

from bootstrap import drawn_again, nine_of_ten
from chart import chart, dots
from figures import WHOLE, figures
from page import table
from ways import LIBRARIES

NOTES = """\
- ÷: Eyrie's value over that of the way in the last column, round by round. Rounds: {rounds}. It is the
  median, in parentheses the interval that holds nine of ten medians of rounds drawn again, then the
  least and the greatest. Bold: the aim is missed.
- {machine}
"""
# So many rounds make an interval.
ENOUGH = 5
FEW = "- These rounds are too few to rely on: they show that the command works.\n"
QUICK = "- With `--quick`: far too short. Believe none of these figures.\n"


# From values to figures.


def spread(values):
    """The median, the interval that holds nine of ten medians of rounds drawn again, the range."""
    middle = statistics.median(values)
    low, high = nine_of_ten(lambda: statistics.median(drawn_again(values)))
    interval = {"low": low, "high": high, "least": min(values), "most": max(values)}
    return {"median": middle, **interval, "rounds": len(values)}


def rounds_of(kept, run, way, value):
    """The values of all rounds that have one."""
    found = kept["values"].get(run, {}).get(way, [])
    return [one[value] for one in found if value in one]


def ratios(ours, theirs):
    """Round by round: what disturbs the machine for longer than a round disturbs both."""
    return [value / other for value, other in zip(ours, theirs)]


def bound_of(figure, kept, way):
    """What a figure of a way is compared with, round by round: the better of some ways, or another
    run of the same way."""
    if figure.other_run:
        return rounds_of(kept, figure.other_run, way, figure.value)
    each = [rounds_of(kept, figure.run, other, figure.value) for other in figure.ways]
    best = max if figure.more_is_better else min
    return [best(values) for values in zip(*(values for values in each if values))]


def judged(figure, kept):
    """A figure on one library: the median that each way has, what Eyrie's ways have of what they
    are compared with (or, where that is nothing, have), and whether that meets the aim. None when
    nothing was measured."""
    values = {way: rounds_of(kept, figure.run, way, figure.value) for way in kept["ways"]}
    values = {way: of_rounds for way, of_rounds in values.items() if of_rounds}
    ours = {way: values[way] for way in kept["eyries"] if way in values}
    if figure.compared_with():
        ours = {way: ratios(values[way], bound_of(figure, kept, way)) for way in ours}
    spreads = {way: spread(of_rounds) for way, of_rounds in ours.items() if of_rounds}
    if not values:
        return None
    return {
        "name": figure.name,
        "unit": figure.unit,
        "aim": figure.aim_text(),
        "medians": {way: statistics.median(of_rounds) for way, of_rounds in values.items()},
        "judged": spreads,
        "met": {way: figure.is_met(one["median"]) for way, one in spreads.items()},
    }


def add_figures(measured):
    """Puts the figures of each library beside its values."""
    for kept in measured["libraries"].values():
        found = [judged(figure, kept) for figure in figures()]
        kept["figures"] = [one for one in found if one]


# The table.


def digits(value):
    """Three of them, or all of a larger number."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def said(one, is_met):
    words = digits(one["median"])
    if one["rounds"] > 1:
        sure, whole = (
            f"{digits(one[low])} to {digits(one[high])}"
            for low, high in (("low", "high"), ("least", "most"))
        )
        words += f" ({sure}; {whole})"
    return words if is_met else f"**{words}**"


def row_of(figure, others, eyries):
    cell = lambda way: digits(figure["medians"][way]) if way in figure["medians"] else "-"
    row = [", ".join(filter(None, (figure["name"], figure["unit"]))), *map(cell, others)]
    for way in eyries:
        one = figure["judged"].get(way)
        row += [cell(way), said(one, figure["met"][way]) if one else "-"]
    return [*row, figure["aim"]]


def of_library(kept, name):
    """The table of one library; below it the ways, and what could not be measured."""
    others = [way for way in kept["ways"] if way not in kept["eyries"]]
    head = ["figure", *others]
    for way in kept["eyries"]:
        head += [way, f"{way} ÷"]
    rows = [row_of(figure, others, kept["eyries"]) for figure in kept["figures"]]
    lines = [f"**{name}**\n", table([*head, "aim"], rows)]
    cannot = {way: f"cannot be run: {reason}" for way, reason in kept["cannot"].items()}
    ways = [[way, f"`{words}`", cannot.get(way, "")] for way, words in kept["ways"].items()]
    lines.append(table(["way", "in front of -n RANKS PROGRAM", ""], ways))
    wrapped = [bullet(line) for line in failures(kept["failed"])]
    return "\n".join([*lines, *wrapped]) + "\n"


def bullet(text):
    """An item of a list, in lines of 100 columns."""
    return textwrap.fill(f"- {text}", 100, subsequent_indent="  ", break_on_hyphens=False)


def failures(failed):
    """A line for each reason, with the runs and ways that it stopped."""
    by_reason = collections.defaultdict(lambda: collections.defaultdict(list))
    for one in failed:
        by_reason[one["reason"]][one["run"]].append(one["way"])
    for reason, by_run in by_reason.items():
        words = [f"{run} ({', '.join(ways)})" for run, ways in by_run.items()]
        yield f"Not measured: {', '.join(words)}: {reason}"


def text_of(measured):
    """All tables, as Markdown."""
    libraries = measured["libraries"].items()
    parts = [of_library(kept, LIBRARIES[name].name) for name, kept in libraries]
    notes = NOTES.format(rounds=measured["rounds"], machine=measured["machine"])
    if measured["rounds"] < ENOUGH:
        notes += FEW
    return "\n".join(parts) + notes + (QUICK if measured["quick"] else "")


# The charts.


def draw(measured, to):
    """Writes the charts of each library to a directory; returns their files."""
    files = []
    for folder, kept in measured["libraries"].items():
        name = LIBRARIES[folder].name
        for run in ("ping-pong", "alltoall 4", "alltoall 8"):
            path = to / f"{folder}-{run.replace(' ', '-')}.svg"
            title = f"{name}: {run}" + (" ranks" if run[-1].isdecimal() else "")
            if chart(path, title, "bytes", "times its shared memory", sizes_of(run, kept), True):
                files.append(path)
        path = to / f"{folder}-programs.svg"
        names = [way for way in kept["ways"] if way != "shm"]
        columns = list(programs_of(kept, names))
        if dots(path, f"{name}: whole programs", "times its shared memory", names, columns):
            files.append(path)
    return files


def to_shm(kept, run, way, value):
    """The spread of the ratios to shared memory; None where one of them is missing."""
    found = ratios(rounds_of(kept, run, way, value), rounds_of(kept, run, "shm", value))
    return spread(found) if found else None


def sizes_of(run, kept):
    """For each way but shared memory itself a line of its ratios by size."""
    sizes = {int(size) for values in kept["values"].get(run, {}).get("shm", []) for size in values}
    for way in kept["ways"]:
        if way != "shm":
            points = [(size, to_shm(kept, run, way, str(size))) for size in sorted(sizes)]
            yield way, [(size, point) for size, point in points if point]


def programs_of(kept, names):
    """A column for each whole program with its ratio for each way."""
    for program in WHOLE:
        for ranks in (2, 4):
            run = f"{program} {ranks}"
            each = [to_shm(kept, run, way, "s") for way in names]
            if any(each):
                yield run, each
