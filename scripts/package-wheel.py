#!/usr/bin/env python3
"""Makes a wheel for pip of what was built: OUT/eyrie_mpi-VERSION-py3-none-PLATFORM.whl. It has no
Python code: pip puts the command into bin/, its libraries into lib/eyrie/, where the command looks
for them, and manual pages and completions into share/. PLATFORM says which C library it needs,
which is what the files ask for (for older ones, see scripts/portable.sh).

Usage: [BINARIES=target/release] [OUT=build] scripts/package-wheel.py
The name is eyrie-mpi because another project has `eyrie` on PyPI.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile

import glibc

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "eyrie-mpi"
# Times of files are none of the contents: equal files make an equal wheel.
MOMENT = (1980, 1, 1, 0, 0, 0)

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: Keeps MPI jobs running when ranks and nodes die
License: Apache-2.0
Platform: linux
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Distributed Computing
Requires-Python: >=3.8
Provides-Extra: mpich
Requires-Dist: mpich>=4.3; extra == "mpich"
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: eyrie
Root-Is-Purelib: false
Tag: {tag}
"""


def installed(folder):
    """Has everything installed below the folder, as `make install` does."""
    environment = {**os.environ, "DESTDIR": folder, "PREFIX": "/", "ULFM": "no"}
    subprocess.run([ROOT / "scripts/install.sh"], env=environment, check=True, stderr=sys.stderr)


def contents(tree, stem):
    """(name in the wheel, bytes, whether it can be executed) of what is installed."""
    for file in sorted(path for path in tree.rglob("*") if path.is_file()):
        place = file.relative_to(tree)
        if place.parts[0] == "bin":
            yield f"{stem}.data/scripts/{place.name}", file.read_bytes(), True
        elif place.parts[:2] != ("share", "doc"):
            yield f"{stem}.data/data/{place}", file.read_bytes(), False


def write(path, files, record):
    """The wheel, with the list of its files last."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        lines = []

        def add(name, data, executable=False):
            info = zipfile.ZipInfo(name, MOMENT)
            info.external_attr = (0o100755 if executable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(info, data)

        for name, data, executable in files:
            add(name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        add(record, "".join([*lines, f"{record},,\n"]))


def main():
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    stem = f"{NAME.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        installed(folder)
        binaries = [tree / "bin/eyrie", *sorted((tree / "lib/eyrie").glob("*.so"))]
        major, minor = glibc.needed(binaries)
        # manylinux_2_17 is the oldest that there is for every architecture.
        tag = f"py3-none-manylinux_{major}_{max(minor, 17)}_{platform.machine()}"
        # Links to other files lead nowhere on PyPI.
        readme = re.sub(
            r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", (ROOT / "README.md").read_text()
        )
        licences = subprocess.run(
            [ROOT / "scripts/licences.py"], capture_output=True, check=True
        ).stdout
        about = {
            "METADATA": METADATA.format(name=NAME, version=version, readme=readme).encode(),
            "WHEEL": WHEEL.format(tag=tag).encode(),
            "licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
            "licenses/licences-of-crates": licences,
        }
        files = [*contents(tree, stem), *((f"{info}/{n}", d, False) for n, d in about.items())]
    path = pathlib.Path(os.environ.get("OUT") or ROOT / "build").resolve() / f"{stem}-{tag}.whl"
    partial = path.with_suffix(".partial")
    write(partial, files, f"{info}/RECORD")
    partial.rename(path)
    print(f"made {path}", file=sys.stderr)


main()
