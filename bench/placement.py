#!/usr/bin/env python3
"""Table and plot of criterion's results for eyrie-placement: growth of a plan's time, gain of
incremental
re-evaluation and of two threads. Standard library only.  placement.py CRITERION_DIR EYRIE
OUT_DIR"""

import json
import math
import os
import resource
import subprocess
import sys


def estimate(directory):
    """Median seconds and the half-width of its confidence interval."""
    with open(os.path.join(directory, "new", "estimates.json"), encoding="utf-8") as file:
        median = json.load(file)["median"]
    interval = median["confidence_interval"]
    half = (interval["upper_bound"] - interval["lower_bound"]) / 2
    return median["point_estimate"] / 1e9, half / 1e9


def svg(points, path):
    """Nodes against seconds, both logarithmic, with a line of slope one through the first point."""
    width, height, left, bottom = 640, 400, 70, 50
    low_x, high_x, low_y, high_y = 2.7, 5.5, -3, 1.5

    def place(nodes, seconds):
        x = left + (math.log10(nodes) - low_x) / (high_x - low_x) * (width - left - 20)
        y = (
            height
            - bottom
            - (math.log10(seconds) - low_y) / (high_y - low_y) * (height - bottom - 30)
        )
        return x, y

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="DejaVu Sans, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{left}" y="20" font-size="15">eyrie plan, one failure, all methods and search, one core</text>',
    ]
    for power in (3, 4, 5):
        x, y = place(10**power, 10**low_y)
        out.append(
            f'<line x1="{x:.0f}" y1="30" x2="{x:.0f}" y2="{y:.0f}" stroke="#ddd"/><text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="middle">{10**power:,}</text>'
        )
    for power in range(low_y, 2):
        x, y = place(10**low_x, 10**power)
        out.append(
            f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{width - 20}" y2="{y:.0f}" stroke="#ddd"/><text x="{x - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{10.0**power:g} s</text>'
        )
    for nodes, limit in ((10_000, 1), (158_976, 10)):
        x, y = place(nodes, limit)
        out.append(
            f'<path d="M{x - 12:.0f} {y:.0f}h24" stroke="#c00" stroke-width="2"/><text x="{x - 16:.0f}" y="{y + 4:.0f}" text-anchor="end" fill="#c00">limit {limit} s</text>'
        )
    a, b = (
        place(points[0][0], points[0][1]),
        place(points[-1][0], points[0][1] * points[-1][0] / points[0][0]),
    )
    out.append(
        f'<line x1="{a[0]:.0f}" y1="{a[1]:.0f}" x2="{b[0]:.0f}" y2="{b[1]:.0f}" stroke="#999" stroke-dasharray="4 4"/>'
    )
    line = " ".join(f"{x:.0f},{y:.0f}" for x, y in (place(n, s) for n, s, _ in points))
    out.append(f'<polyline points="{line}" fill="none" stroke="#2a6fb0" stroke-width="2"/>')
    out += [
        f'<circle cx="{place(n, s)[0]:.0f}" cy="{place(n, s)[1]:.0f}" r="4" fill="#2a6fb0"/>'
        for n, s, _ in points
    ]
    out.append(
        f'<text x="{width // 2}" y="{height - 10}" text-anchor="middle">nodes (dashed: proportional)</text></svg>'
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


def main():
    criterion, eyrie, out = sys.argv[1:4]
    points = sorted(
        (int(n), *estimate(os.path.join(criterion, "plan", n)))
        for n in os.listdir(os.path.join(criterion, "plan"))
        if n.isdigit()
    )
    print("| nodes | median | ± |\n|---|---|---|")
    for nodes, seconds, half in points:
        print(f"| {nodes:,} | {seconds:.3f} s | {half:.3f} s |")
    evaluate = os.path.join(criterion, "evaluate")
    incremental, _ = estimate(os.path.join(evaluate, "incremental"))
    full, _ = estimate(os.path.join(evaluate, "full"))
    one, _ = estimate(os.path.join(evaluate, "alltoall", "1"))
    two, _ = estimate(os.path.join(evaluate, "alltoall", "2"))
    print(
        f"\nA candidate that moves one rank of 39,304 nodes' job: {incremental * 1e6:.1f} us incrementally, {full * 1e3:.1f} ms by a full count "
        f"({full / incremental:.0f} times as long). A full count of an alltoall on 1,000 nodes by two threads: {one / two:.2f} times as fast as by one."
    )
    subprocess.run(
        [eyrie, "plan", "--network", "tofu:24x23x24x2x3x2", "--failed", "5,5,5"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "RAYON_NUM_THREADS": "1"},
    )
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"\nLargest memory of `eyrie plan` at 158,976 nodes: {memory:.0f} MiB.")
    svg(points, os.path.join(out, "placement-speed.svg"))


if __name__ == "__main__":
    main()
