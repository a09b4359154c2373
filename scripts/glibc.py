#!/usr/bin/env python3
"""Says which version of the C library (glibc) programs and libraries need: the newest that the
loader looks for. A symbol that may be missing ("weak") asks for its version all the same.

Usage: scripts/glibc.py [--at-most 2.28] FILE...
Prints the version, like 2.17; with --at-most, what is newer is named, and the exit code is 1.
"""

import argparse
import re
import subprocess
import sys

# As `objdump -p` lists it: a hash, flags (2: the loader goes on without), a number, the name.
VERSION = re.compile(r"^\s+0x[0-9a-f]+ 0x(?!02)[0-9a-f]{2} \d+ GLIBC_([0-9.]+)$", re.MULTILINE)
# As `objdump -T` lists it.
SYMBOL = re.compile(r"\*UND\*.*GLIBC_([0-9.]+)\)?\s+(\S+)$", re.MULTILINE)


def objdump(what, file):
    ran = subprocess.run(["objdump", what, file], capture_output=True, text=True, check=True)
    return ran.stdout


def numbers(version):
    return tuple(map(int, version.split(".")))


def versions(file):
    """What the loader looks for when it loads the file."""
    return set(map(numbers, VERSION.findall(objdump("-p", file))))


def needed(files):
    """The newest version that any of the files asks for."""
    return max((version for file in files for version in versions(file)), default=(2, 0))[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--at-most", metavar="VERSION")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    print("{}.{}".format(*needed(args.files)))
    if args.at_most is None:
        return 0
    limit = numbers(args.at_most)
    newer = False
    for file in args.files:
        symbols = SYMBOL.findall(objdump("-T", file))
        for version in sorted(v for v in versions(file) if v > limit):
            names = [name for asked, name in symbols if numbers(asked) == version]
            text = ".".join(map(str, version))
            print(f"{file} needs glibc {text} for {', '.join(names)}", file=sys.stderr)
            newer = True
    return 1 if newer else 0


if __name__ == "__main__":
    sys.exit(main())
