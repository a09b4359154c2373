"""What the commands that fill a page of docs/reproduction/ with measurements share: a table between
the marks that name its command, its figure beside the page. The text around the marks is written by
people and is never touched."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def insert(path, kind, text):
    """Puts a text between the marks of `kind` on the page."""
    # Read only now: one may write at the page while it is measured.
    page = path.read_text(encoding="utf-8")
    marks = re.compile(rf"(<!-- begin {kind}[^\n]*-->\n).*?(<!-- end {kind} -->)", re.DOTALL)
    if len(marks.findall(page)) != 1:
        sys.exit(
            f"{path} must have the marks <!-- begin {kind} --> and <!-- end {kind} --> once each"
        )
    path.write_text(
        marks.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page), encoding="utf-8"
    )


def table(head, rows):
    return (
        "\n".join(
            "| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]
        )
        + "\n"
    )


def machine():
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in open("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    kernel = platform.release().split("-")[0]
    return f"{cpu}, {os.cpu_count()} cores, Linux {kernel}; load average {os.getloadavg()[0]:.2f} before, {{after:.2f}} after {{seconds:.0f}} s."


class Page:
    """docs/reproduction/NAME.md. `fill` measures with `eyrie-bench COMMAND KIND` (COMMAND: no
    word, or several), KIND one of `kinds`, of which `figures` also draw one."""

    def __init__(self, name, command="", kinds=(), figures=()):
        self.path = ROOT / "docs" / "reproduction" / f"{name}.md"
        self.name, self.command, self.kinds, self.figures = name, command, kinds, figures

    def chosen(self, usage, options):
        """The options and the kinds that the command line asks for; `options`: a pattern of those
        that there are."""
        given = [argument for argument in sys.argv[1:] if argument.startswith("-")]
        kinds = [
            argument for argument in sys.argv[1:] if not argument.startswith("-")
        ] or self.kinds
        if not set(kinds) <= set(self.kinds) or not all(
            re.fullmatch(options, option) for option in given
        ):
            sys.exit(usage)
        return given, kinds

    def fill(self, kind, options):
        """Measures, and puts what is printed into the page."""
        self.insert(kind, self._measure(kind, options))

    def insert(self, kind, text):
        """Puts a text between the marks of `kind`."""
        insert(self.path, kind, text)

    def _measure(self, kind, options):
        command = [ROOT / "target/release/eyrie-bench", *self.command.split(), kind, *options]
        if kind in self.figures:
            command += ["--plot", self.path.with_name(f"{self.name}-{kind}.svg")]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(
                f"{self.name}: {' '.join(map(str, command[1:]))} failed with code {done.returncode}"
            )
        return done.stdout
