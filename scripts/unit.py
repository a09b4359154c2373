#!/usr/bin/env python3
"""Compiles all unit tests and runs two of their programs at a time, because each waits for a part
of its time; then the examples in the documentation. What a program prints is shown when it
has ended. Fails when one of them does. It must compile the workspace as `cargo build` does, so that
nothing is compiled twice."""

import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

CARGO = ("cargo", "test", "--release", "--workspace")
AT_A_TIME = 2


def programs():
    """(program, folder of its crate) of all tests, in the order in which cargo names them."""
    format = "--message-format=json-render-diagnostics"
    ran = subprocess.run([*CARGO, "--no-run", format], stdout=subprocess.PIPE, check=False)
    if ran.returncode != 0:
        sys.exit(ran.returncode)
    for line in ran.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            yield message["executable"], pathlib.Path(message["manifest_path"]).parent


def run(program, folder):
    """As cargo runs it. Returns whether it passed, and prints what it has printed."""
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(folder)}
    ran = subprocess.run(
        [program],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    said = ran.stdout.decode(errors="replace")
    print(f"     Running {program}\n{said}exit code {ran.returncode}\n", end="", flush=True)
    return ran.returncode == 0


def main():
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        passed = list(pool.map(lambda test: run(*test), programs()))
    documented = subprocess.run([*CARGO, "--doc"], check=False).returncode == 0
    if not (all(passed) and documented):
        sys.exit(1)


if __name__ == "__main__":
    main()
