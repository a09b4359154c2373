#!/usr/bin/env python3
"""Runs the Spare and Sliding papers' placement experiments with `eyrie plan sweep` and writes placement.md.
Standard library only.  placement.py EYRIE OUT_DIR [MANY]  (MANY placements for the larger runs, default 1000)"""
import csv
import os
import shutil
import subprocess
import sys
import tempfile

SIZES = {4: ("torus:5x5x4", "tofu:3x2x2x2x3x2", "fattree:18^2", "dragonfly:9x8x4"),
         5: ("torus:6x6x5", "tofu:3x2x3x2x3x2", "fattree:18^2", "dragonfly:9x8x4"),
         7: ("torus:8x8x7", "tofu:4x3x4x2x3x2", "fattree:22^2", "dragonfly:9x8x8")}
TRAFFIC = [("stencil7", "4MiB"), ("barrier", "0"), ("allreduce", "64KiB")]
FAILURES = 6


def sweep(eyrie, args, keep=None):
    with tempfile.TemporaryDirectory() as directory:
        run = subprocess.run([eyrie, "plan", "sweep", *args, "--out", directory], capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"eyrie plan sweep {' '.join(args)}: {run.stderr}")
        if keep:
            name = next(n for n in os.listdir(directory) if n.endswith(".svg"))
            shutil.copy(os.path.join(directory, name), keep)
        with open(os.path.join(directory, "sweep.csv"), encoding="utf-8") as file:
            return list(csv.DictReader(file))


def spare(eyrie, out):
    print("## Spare, figures 6 to 11: every failed x spare pair\n")
    print("4 MiB a message, `--machine k` (four DMA engines start half a message apart, and a crowded link loses 9 % a message "
          "beyond the second: both calibrated on these figures). Theirs: one direction at most 2 messages, 2.0x; four directions at most 5 messages, "
          "2.3x to 2.5x at worst; time grows with the messages on the busiest link (figure 11).\n")
    print("| job | traffic | " + " | ".join(f"{n} shared" for n in range(1, 6)) + " | worst | theirs |\n|---|---|" + "---|" * 7)
    for job, network, spares in (("6x12", "tofu:1x1x6x2x3x2:shape=12x6", "contiguous:6"), ("12x12", "tofu:2x1x6x2x3x2:shape=12x12", "contiguous:12")):
        for traffic in ("direction:+x", "direction:-x", "direction:+y", "direction:-y", "stencil5"):
            keep = os.path.join(out, f"spare-{job}.svg") if traffic == "stencil5" else None
            rows = sweep(eyrie, ["--network", network, "--spares", spares, "--traffic", traffic, "--bytes", "4MiB", "--machine", "k"], keep)
            cells = []
            for shared in range(1, 6):
                ratios = sorted(float(r["slowdown"]) for r in rows if int(r["busiest_link"]) == shared)
                cells.append(f"{ratios[0]:.2f} to {ratios[-1]:.2f} ({len(ratios)})" if ratios else "-")
            worst = max(float(r["slowdown"]) for r in rows)
            theirs = "2.0" if traffic.startswith("d") else "2.3 to 2.5"
            print(f"| {job} | {traffic} | " + " | ".join(cells) + f" | {worst:.2f} | {theirs} |", flush=True)
    print("\nCells: least to largest slowdown (number of pairs). Plots: [6x12](spare-6x12.svg), [12x12](spare-12x12.svg).\n")


def worst_table(eyrie, count, methods, sizes, traffics, out, networks=range(5)):
    print("| job | network | traffic | method | " + " | ".join(str(k) for k in range(1, FAILURES + 1)) + " |\n|---|---|---|---|" + "---|" * FAILURES)
    for edge in sizes:
        torus, tofu, tree, fly = SIZES[edge]
        job = f"{edge}x{edge}x{edge}"
        kinds = [("torus", torus, "contiguous"), ("Tofu", tofu, "contiguous"), ("fat tree, contiguous", tree, "contiguous"),
                 ("fat tree, separate", tree, "separate"), ("dragonfly", fly, "contiguous")]
        for name, network, arrangement in (kinds[i] for i in networks):
            for traffic, size in traffics:
                args = ["--network", network, "--job", job, "--spares", "3d(2,1)", "--arrangement", arrangement, "--traffic", traffic,
                        "--bytes", size, "--sequences", str(count), "--failures", str(FAILURES), "--method", methods]
                keep = os.path.join(out, f"sliding-{edge}-{name.split(',')[0].replace(' ', '-').lower()}.svg") \
                    if traffic == "stencil7" and count == 20 and edge == 5 and arrangement == "contiguous" else None
                rows = sweep(eyrie, args, keep)
                for method in methods.split(","):
                    cells = []
                    for k in range(1, FAILURES + 1):
                        ratios = [float(r["slowdown"]) for r in rows if r["method"] == method and int(r["failures"]) == k]
                        stuck = count - len(ratios)
                        cells.append((f"{max(ratios):.2f}" if ratios else "-") + (f" ({stuck} stuck)" if stuck else ""))
                    print(f"| {edge}³ | {name} | {traffic} | {method} | " + " | ".join(cells) + " |", flush=True)
    print()


def main():
    eyrie, out = sys.argv[1:3]
    many = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    print("# Placement: the papers' experiments\n")
    print("Made by `docs/reproduction/placement.sh`; every figure is the planner's, theirs are named. Slowdown is communication time of one "
          "step over the same before any failure.\n")
    spare(eyrie, out)
    print("## Sliding, figures 2 to 6: worst slowdown by number of failures\n")
    print("Jobs of 4³, 5³ and 7³ with spares 3D(2,1); each failure strikes the node that hosts a random rank at that moment. Theirs: fat tree at "
          "most about 1.2x for any method and any spare position; K up to 4.1x for the stencil, hybrid clearly better at few failures; "
          "dragonfly left open. Time model `hpc`: without K's staggered engines, whose four (here six) directions take 2.5x as long "
          "before the failure already, the torus ratios are up to twice K's.\n")
    print("### Worst of 20 placements\n")
    worst_table(eyrie, 20, "0d,hybrid,search", (4, 5, 7), TRAFFIC, out)
    print(f"### Worst of {many} placements, stencil\n")
    worst_table(eyrie, many, "0d,hybrid", (4, 5, 7), TRAFFIC[:1], out)
    print(f"### Worst of {many} placements with the search, 4³, stencil\n")
    worst_table(eyrie, many, "0d,hybrid,search", (4,), TRAFFIC[:1], out, (0, 2, 4))
    print("Plots of the worst of 20, stencil, 5³: [torus](sliding-5-torus.svg), [Tofu](sliding-5-tofu.svg), "
          "[fat tree](sliding-5-fat-tree.svg), [dragonfly](sliding-5-dragonfly.svg).")


if __name__ == "__main__":
    main()
