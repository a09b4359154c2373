#!/usr/bin/env python3
"""Prints what each recovery of a job took, by phase, from the event file of `eyrie run --events
FILE`.

Fails when there was none: a demonstration of recovery that recovered nothing must not look like a
success.
"""

import json
import sys

# The phases in their order; an event of that name with a rank ends the phase.
PHASES = ("detected", "placed", "fetched", "restored", "replayed")


def recoveries(lines):
    """[(rank, incarnation, {phase: ms})] of the `recovered` events, in the order in which they
    ended."""
    found = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError as error:
            sys.exit(f"recoveries: line {number} is not JSON: {error}")
        if event.get("event") == "recovered":
            milliseconds = {phase: 1000 * seconds for phase, seconds in event["phases"].items()}
            found.append((event["rank"], event["incarnation"], milliseconds))
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: recoveries.py EVENTS.jsonl")
    with open(sys.argv[1], encoding="utf-8") as lines:
        found = recoveries(lines)
    if not found:
        sys.exit(f"recoveries: no rank was recovered in {sys.argv[1]}")
    print(
        "\nrecovery of             "
        + "".join(f"{phase:>10}" for phase in PHASES)
        + "     in all, ms"
    )
    for rank, incarnation, phases in found:
        times = [phases.get(phase, 0.0) for phase in PHASES]
        print(
            f"rank {rank} (incarnation {incarnation})  "
            + "".join(f"{time:10.1f}" for time in times)
            + f"{sum(times):15.1f}"
        )


if __name__ == "__main__":
    main()
