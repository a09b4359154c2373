"""`eyrie monitor` under test: start it, wait for its samples, ask it. What is here waits for
conditions and never for a time; figures (how late, how costly) are for the benchmarks and are not
judged by tests."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

from jobs import EYRIE, PATIENCE_S, ROOT, Skipped, await_condition, check, workshop

ENVIRONMENT = dict(os.environ)


def isolate():
    """Monitors of this test keep their sockets in its own folder."""
    runtime = workshop() / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    ENVIRONMENT["XDG_RUNTIME_DIR"] = str(runtime)


def monitor(*args, patience_s=PATIENCE_S, prefix=(), program=EYRIE):
    """Runs `eyrie monitor ARGS` to its end."""
    isolate()
    command = [*prefix, str(program), "monitor", *map(str, args)]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience_s,
        cwd=workshop(),
        env=ENVIRONMENT,
    )


def samples_of(text):
    return [json.loads(line) for line in text.splitlines()]


def free_port():
    """A port of loopback that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Running:
    """`eyrie monitor ARGS` in the background; ended with its block."""

    count = 0

    def __init__(self, *args, prefix=(), ready="processes every", stdin=subprocess.DEVNULL):
        isolate()
        Running.count += 1
        self.out = workshop() / f"monitor-{Running.count}.out"
        self.err = workshop() / f"monitor-{Running.count}.err"
        command = [*prefix, str(EYRIE), "monitor", *map(str, args)]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command, stdin=stdin, stdout=out, stderr=err, cwd=workshop(), env=ENVIRONMENT
            )
        try:
            await_condition(
                lambda: ready in self.stderr() or self.process.poll() is not None,
                f"{ready!r} of {command}",
            )
            check(self.process.poll() is None, f"{command} ended: {self.stderr()}")
        except BaseException:
            self.end(signal.SIGKILL)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def stderr(self):
        return self.err.read_text()

    def stdout(self):
        return self.out.read_text()

    def samples(self):
        """The whole lines of JSON that are there."""
        text = self.stdout()
        return samples_of(text[: text.rfind("\n") + 1])

    def await_samples(self, count):
        return await_condition(lambda: (s := self.samples())[count - 1 :] and s, f"{count} samples")

    def end(self, number=signal.SIGTERM):
        """Ends it; its exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def get(port, path, host="127.0.0.1", timeout_s=PATIENCE_S):
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=timeout_s) as answer:
        return answer.read().decode()


LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{%s(?:,%s)*\})?) (\S+)" % (LABEL, LABEL))
ABOUT = re.compile(r"# (HELP|TYPE|UNIT) [a-zA-Z_:][a-zA-Z0-9_:]* .+")


def metrics(port):
    """Of the endpoint: {name with labels: value}. Each line is valid OpenMetrics."""
    text = get(port, "/metrics")
    check(text.endswith("\n# EOF\n"), "OpenMetrics ends with EOF")
    values = {}
    # Only this ends a line, whatever names hold.
    for line in text.removesuffix("# EOF\n").split("\n")[:-1]:
        if line.startswith("#"):
            check(ABOUT.fullmatch(line), f"{line!r} is no line of OpenMetrics")
            continue
        series = SERIES.fullmatch(line)
        check(series, f"{line!r} is no line of OpenMetrics")
        check(series[1] not in values, f"{series[1]} comes twice")
        check(line.isprintable(), f"{line!r} may disturb a terminal")
        values[series[1]] = float(series[2])
    return values


# What any user may call a process.
ODD_NAMES = [
    b"a) R 1 (b",
    b"new\nline",
    b"\xff\xfe bytes",
    b'quo"te\\',
    b"  lead",
    b"({[<>]})",
    b"",
    b"# HELP x",
    b"tab\there",
    b"\x1b[31mred",
    b'le="1"}',
    "\U0001f600\U0001f600\U0001f600".encode() + b"\xf0\x9f",
    b"kworker/0:1",
    b"NaN",
    b"{{.Comm}}",
    b"other",
]


@contextlib.contextmanager
def odd_processes():
    """A sleeping process of each odd name; gives their numbers."""
    program = (
        "import ctypes, os, sys, signal\n"
        "name = os.fsencode(sys.argv[1])\n"
        "ctypes.CDLL(None).prctl(15, name, 0, 0, 0)\n"
        "print(flush=True)\n"
        "signal.pause()\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE)
        for name in ODD_NAMES
    ]
    try:
        for process in processes:
            check(process.stdout.readline() == b"\n", "an odd name cannot be taken")
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def valid(value, schema, where="sample", root=None):
    """Checks a value against the part of JSON Schema that docs/monitor-schema.json uses."""
    root = root or schema
    if "$ref" in schema:
        return valid(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], where, root)
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    allowed = schema.get("type", [])
    allowed = [allowed] if isinstance(allowed, str) else allowed
    fits = any(
        isinstance(value, kinds[k]) and not (isinstance(value, bool) and k in ("integer", "number"))
        for k in allowed
    )
    check(fits or not allowed, f"{where} is {value!r}, not {allowed}")
    if "enum" in schema:
        check(value in schema["enum"], f"{where} is {value!r}, not one of {schema['enum']}")
    if "minimum" in schema and value is not None:
        check(value >= schema["minimum"], f"{where} is {value!r}")
    if isinstance(value, dict):
        for key in schema.get("required", []):
            check(key in value, f"{where} lacks {key}")
        for key, inner in value.items():
            check(
                key in schema["properties"] or schema.get("additionalProperties", False),
                f"{where} has {key}, unknown to the schema",
            )
            if key in schema["properties"]:
                valid(inner, schema["properties"][key], f"{where}.{key}", root)
    if isinstance(value, list) and "items" in schema:
        for at, inner in enumerate(value):
            valid(inner, schema["items"], f"{where}[{at}]", root)
    return True


def needs_open_proc():
    """Other users see this user's processes: where /proc hides them, there is nothing to show."""
    mounts = [line.split() for line in open("/proc/self/mountinfo")]
    options = next(m[-1] for m in reversed(mounts) if m[4] == "/proc").split(",")
    shows = ("hidepid=0", "hidepid=off")
    hides = [o for o in options if o.startswith("hidepid=") and o not in shows]
    if hides:
        raise Skipped(f"/proc is mounted with {hides[0]}: it hides processes from other users")


def needs_root():
    if os.geteuid() != 0:
        raise Skipped("needs root")


def tools():
    """The folder with Debian's Prometheus; fetched if need be."""
    done = subprocess.run(
        [ROOT / "scripts/monitor-tools.sh"], capture_output=True, text=True, timeout=280
    )
    if done.returncode != 0:
        raise Skipped(done.stderr.strip())
    return done.stdout.strip()
