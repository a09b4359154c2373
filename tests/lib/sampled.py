"""What tests of the monitor in a job's agents have in common: `eyrie health`, and waiting until all
nodes are sampled at the same moments."""

import json

from jobs import await_condition, check


def health(job):
    """What `eyrie health --json` says of each node, in order."""
    ran = job.eyrie("health", "--json")
    check(ran.returncode == 0, f"eyrie health: {ran.stderr}")
    return json.loads(ran.stdout)["nodes"]


def are_in_step(job, interval_ns):
    """Waits until three moments were seen at which all nodes were sampled by the controller's
    tick. All moments are on one grid."""
    seen = {}

    def common():
        nodes = health(job)
        for node in nodes:
            sampled = node["sampled"]
            if sampled and sampled["in_step"]:
                seen.setdefault(node["node"], set()).add(sampled["moment_ns"])
        return len(seen) == len(nodes) and len(set.intersection(*seen.values())) >= 3

    await_condition(common, lambda: f"the same moments: {seen}")
    moments = sorted(set.union(*seen.values()))
    apart = [(moment - moments[0]) % interval_ns for moment in moments]
    check(not any(apart), f"moments are not on one grid: {moments}")
