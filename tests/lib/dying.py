"""What tests of hosts that die, or seem to, have in common: waiting until a host is declared dead
and its ranks compute again, until all is whole again, and until nothing of a job is left on a
host."""

import time

from jobs import (
    PATIENCE_S,
    await_condition,
    check,
    command_line,
    descendants,
    slow_heat2d,
)

# Long enough for two hosts to die one after the other, however fast the machine is.
LONG = slow_heat2d(2000, 40)
# The heartbeat timeout, unless a test is about that.
TIMEOUT_S = 4
OFTEN = ("--heartbeat-timeout", f"{TIMEOUT_S}s", "--checkpoint-every", "200ms")


def running(job):
    """For use while something is awaited: fails when the job has ended."""
    check(job.process.poll() is None, f"the job has ended: {job.stderr()[-500:]}")


def lose(job, node, happening, at_once=False):
    """Lets something happen for which a host is declared dead (`at_once`: because its connection
    ends, not because it does not answer), and waits until its ranks compute again. Returns seconds
    until it was known, and until they did."""
    before = len(job.events("recovered"))
    begin = time.monotonic()
    happening()
    lost = job.await_event("node_lost", node=node)
    known = time.monotonic() - begin
    if at_once:
        check(lost["cause"] == "its agent is gone", f"node {node} is lost: {lost['cause']}")

    def again():
        found = {e["rank"] for e in job.events("recovered")[before:]}
        if found >= set(lost["ranks"]):
            return True
        running(job)
        return False

    await_condition(again, f"ranks {lost['ranks']} to recover")
    return known, time.monotonic() - begin


def await_whole(job):
    """Waits until `eyrie status` shows that all ranks run and are protected, and each has had an
    image since it came back."""

    def imaged(rank):
        kinds = [e["event"] for e in job.events() if e.get("rank") == rank]
        begin = max((i for i, kind in enumerate(kinds) if kind == "recovered"), default=0)
        return "checkpoint" in kinds[begin:]

    def whole():
        running(job)
        status = job.status()
        ranks = status["ranks"] if status else []
        if not ranks or status["unprotected"]:
            return False
        return all(r["state"] == "running" and imaged(r["rank"]) for r in ranks)

    await_condition(whole, "all ranks to run and to have images")


def whole_again(job):
    """As `await_whole`; returns False when the job ends before."""
    try:
        await_whole(job)
    except AssertionError:
        if not job.has_ended():
            raise
        return False
    return True


def process_of_role(job, role):
    """The process of a role by its name, such as `router 1`."""
    kind, number = role.split()
    for pid in descendants(job.process.pid):
        words = command_line(pid)
        if words[:2] == ["eyrie", kind] and words[words.index("--id") + 1] == number:
            return pid
    raise AssertionError(f"no {role} among the processes of the job")


def await_nothing(hosts, number, within_s=PATIENCE_S):
    """Waits until neither a process nor anything else of a job is on a host, though the job may go
    on. Returns after how many seconds."""
    begin = time.monotonic()

    def left():
        return hosts.processes(number) + hosts.leftovers(number)

    await_condition(lambda: not left(), lambda: f"h{number} to be empty: {left()}", within_s)
    return time.monotonic() - begin
