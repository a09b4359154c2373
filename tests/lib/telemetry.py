"""What a job tells Prometheus and OpenTelemetry, under test: a Prometheus that scrapes it, and a
collector that reads what arrives."""

import contextlib
import glob
import http.server
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

from jobs import PATIENCE_S, ROOT, Skipped, await_condition, check, workshop
from monitor import free_port, metrics, tools

PHASES = ("detected", "placed", "fetched", "restored", "replayed")


def series(port, name, **labels):
    """The sum of all series of this name with these labels, of a job that answers at this port."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = [
        value
        for key, value in metrics(port).items()
        if key.split("{")[0] == name and all(label in key for label in wanted)
    ]
    check(found, f"no series {name} with {labels}")
    return sum(found)


def answers(port):
    """Whether something answers at this port."""
    try:
        return bool(metrics(port))
    except OSError:
        return False


@contextlib.contextmanager
def prometheus(targets):
    """Debian's Prometheus scrapes these ports; gives the function that asks it for an expression:
    the values, or None where it is not ready yet."""
    place, web = tools() + "/usr/bin", free_port()
    config = workshop() / "prometheus.yml"
    addresses = ", ".join(f'"127.0.0.1:{port}"' for port in targets)
    config.write_text(f"""
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs:
  - job_name: eyrie
    static_configs: [{{targets: [{addresses}]}}]
""")
    command = [
        f"{place}/prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={workshop()}/tsdb",
        f"--web.listen-address=127.0.0.1:{web}",
    ]
    with open(workshop() / "prometheus.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield lambda expression: ask(web, expression)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def ask(port, expression):
    """The values that Prometheus answers with."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as e:
        if e.code == 503:
            return []  # it is not ready yet
        raise AssertionError(f"{expression}: {e.read().decode()}") from None
    except OSError:
        return []
    check(found["status"] == "success", found)
    return [float(entry["value"][1]) for entry in found["data"]["result"]]


def promtool(text):
    """What promtool finds about metrics. It reads the older format, which calls a counter in the
    lines about it as in its series."""
    counters = {
        line.split()[2]
        for line in text.splitlines()
        if line.startswith("# TYPE ") and line.endswith(" counter")
    }
    lines = []
    for line in text.splitlines():
        words = line.split(" ", 3)
        if words[:2] in (["#", "HELP"], ["#", "TYPE"]) and words[2] in counters:
            words[2] += "_total"
        if not line.startswith(("# EOF", "# UNIT")):
            lines.append(" ".join(words))
    ran = subprocess.run(
        [tools() + "/usr/bin/promtool", "check", "metrics"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ran.returncode, ran.stdout + ran.stderr


def expressions(dashboard):
    """The expressions of a dashboard, for all that it can choose."""
    panels = json.loads((ROOT / "docs" / dashboard).read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    check(len(found) >= 8, "a dashboard of at least eight curves")
    variables = {"$__rate_interval": "30s", "$node": ".*", "$job": ".*", "$instance": ".*"}
    for name, value in variables.items():
        found = [expression.replace(name, value) for expression in found]
    return found


def wheels():
    """Makes the modules of build/venv-metrics importable."""
    made = subprocess.run(
        [ROOT / "scripts/metrics-tools.sh"], capture_output=True, text=True, timeout=600
    )
    if made.returncode != 0:
        raise Skipped(made.stderr.strip())
    sys.path += glob.glob(made.stdout.strip() + "/lib/python3*/site-packages")


class Collector:
    """A collector of OpenTelemetry: the spans that arrive, each as a dict."""

    def __init__(self, status=200):
        wheels()
        self.status = status
        self.spans = []
        self.requests = 0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                collector.take(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
            ExportTraceServiceResponse,
        )

        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests += 1
        if self.status == 200:
            check(request.path == "/v1/traces", request.path)
            check(request.headers["Content-Type"] == "application/x-protobuf", request.headers)
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = attributes(of_resource.resource)
                for of_scope in of_resource.scope_spans:
                    self.spans += [span_of(span, resource) for span in of_scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        request.send_response(self.status)
        request.send_header("Content-Type", "application/x-protobuf")
        request.send_header("Content-Length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def traces(self, name):
        """The traces of this name: each its first span, with its other ones as `spans`."""
        spans = list(self.spans)
        of = lambda root: [s for s in spans if s["parent"] == root["id"]]
        return [{**s, "spans": of(s)} for s in spans if s["name"] == name and not s["parent"]]

    def await_traces(self, name, count):
        return await_condition(
            lambda: (found := self.traces(name))[count - 1 :] and found,
            lambda: f"{count} traces {name}, of {[s['name'] for s in self.spans]}",
        )


def attributes(of):
    def value(any):
        return getattr(any, any.WhichOneof("value"))

    return {a.key: value(a.value) for a in of.attributes}


def span_of(span, resource):
    return {
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "start": span.start_time_unix_nano / 1e9,
        "took": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        "end": span.end_time_unix_nano / 1e9,
        "attributes": attributes(span),
        "events": [event.name for event in span.events],
        "error": span.status.message if span.status.code == 2 else None,
        "resource": resource,
    }
