#!/usr/bin/env bash
# Makes what tests of a job's metrics and traces need besides Prometheus, which
# scripts/monitor-tools.sh gets: build/venv-metrics. Prints its folder.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

exec 9>"$build/.metrics-tools.lock"
flock -w 900 9 || fail "another run has held $build/.metrics-tools.lock for a quarter of an hour"
make_venv "$build/venv-metrics" scripts/requirements-metrics.txt "Grafana's schema, OpenTelemetry"
echo "$build/venv-metrics"
