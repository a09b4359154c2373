"""Several sites on one machine, each with a private network of its own: hosts as in hosts.py, the
first of a site with a second cable to the wide area, by which the sites reach each other. No host
has a way to one of another site but from gateway to gateway; what is tried all the same goes into a
cable that leads nowhere, and is counted. The lines between sites break, flap, are slow and far as
a test wants it.
"""

import json
import pathlib
import signal
import subprocess
import sys

import jobs
from hosts import Hosts, HostsJob, batch, mac
from jobs import PATIENCE_S, await_condition, check, command_line, kill

# A site's hosts are 10.77.SITE.N, gateways are 10.78.0.SITE.
PRIVATE, WIDE = "10.77", "10.78.0"
GATEWAY_PORT = 7411
# How many other routers a site has, unless a test asks for more.
HOME_ROUTERS = 2
NOWHERE = "nowhere"
# Events of a job to which nothing happens.
QUIET = {
    "checkpoint_started",
    "checkpoint",
    "checkpoint_failed",
    "connected",
    "library",
    "protected",
    "rank_finished",
    "domain_finished",
    "job_ended",
}


class Site:
    """A site: its number, and its hosts by their numbers among all. The first one is its gateway
    and login node, and has no ranks."""

    def __init__(self, number, name, hosts, spares):
        self.number, self.name, self.hosts, self.spares = number, name, hosts, spares
        self.gateway = hosts[0]
        self.compute = hosts[1:]
        self.address = f"{WIDE}.{number + 1}"
        self.port = f"wide{number}"
        # How its gateway is called by other sites' ssh.
        self.login = f"login-{name}"


class Sites(Hosts):
    """`with Sites(2, 3) as sites:` starts two sites, the first with two hosts besides its gateway,
    the second with three."""

    NAMES = ("north", "east", "south")

    def __init__(self, *sizes, spares=0, names=NAMES, **options):
        super().__init__(sum(sizes) + len(sizes), **options)
        self.sites, first = [], 0
        for number, size in enumerate(sizes):
            hosts = list(range(first, first + size + 1))
            self.sites.append(Site(number, names[number], hosts, spares))
            first = hosts[-1] + 1
        for site in self.sites:
            for place, number in enumerate(site.hosts):
                host = self.hosts[number]
                host.address = f"{PRIVATE}.{site.number + 1}.{place + 1}"
                host.links = [(host.port, "eth0", mac(number), f"site{site.number}")]
                if number == site.gateway:
                    wide = f"02:65:79:01:00:{site.number + 1:02x}"
                    host.links.append((site.port, "wide", wide, "wide"))
        # (from, to) by numbers of sites: what does not arrive, and where no connection can be made.
        self.broken, self.uncalled = set(), set()
        # What delays packets between sites; None while they come at once.
        self._delay_line = None

    def close(self):
        self.near_lines()
        super().close()

    def site_of(self, number):
        return next(site for site in self.sites if number in site.hosts)

    # Their networks.

    def _prepare_network(self):
        # The test's own network has no address: it is the wires only.
        for name in ("all", "default"):
            path = pathlib.Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
            if path.exists():
                path.write_text("1")
        batch("ip", ["link set lo up"])
        for bridge in ["wide", *(f"site{site.number}" for site in self.sites)]:
            lines = [
                f"link add {bridge} type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
                f"link set {bridge} up",
            ]
            batch("ip", lines)

    def _names(self):
        names = [(host.name, host.address) for host in self.hosts]
        return names + [(site.login, site.address) for site in self.sites], []

    def _network_lines(self, host):
        site = self.site_of(host.number)
        lines = [
            "link set lo up",
            f"addr add {host.address}/24 dev eth0",
            "link set eth0 up",
            # It leads nowhere. Without an address of the link it says nothing by itself.
            f"link add {NOWHERE} type veth peer name {NOWHERE}-end",
            f"link set {NOWHERE} addrgenmode none arp off",
            f"link set {NOWHERE}-end addrgenmode none arp off up",
            f"link set {NOWHERE} up",
            f"route add {PRIVATE}.0.0/16 dev {NOWHERE} src {host.address}",
        ]
        if host.number == site.gateway:
            return [*lines, f"addr add {site.address}/24 dev wide", "link set wide up"]
        return [*lines, f"route add {WIDE}.0/24 dev {NOWHERE} src {host.address}"]

    def _await_sshd(self, hosts):
        super()._await_sshd(hosts)
        for host in hosts:
            told = self.run(host.number, ["sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"])
            check(told.returncode == 0, f"{host.name}: {told.stderr}")

    def astray(self, number):
        """How many packets a host has sent to hosts that it must not reach."""
        pid = self.hosts[number].init()
        for line in pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, counts = line.partition(":")
            if name.strip() == NOWHERE:
                return int(counts.split()[9])
        raise AssertionError(f"h{number} has no cable to nowhere")

    def nothing_astray(self):
        """No host has tried to reach one of another site past the gateways."""
        tried = {f"h{number}": self.astray(number) for number in self.living()}
        check(not any(tried.values()), f"packets to hosts of other sites: {tried}")

    # Failures of the lines between sites.

    def break_line(self, first, second, both=True):
        """Nothing arrives any more from site `first` at `second` or, with `both`, the other way
        either; connections do not notice."""
        self.broken |= {(first, second), *([(second, first)] if both else [])}
        self._filter_lines()

    def mend_line(self, first, second):
        self.broken -= {(first, second), (second, first)}
        self._filter_lines()

    def refuse_calls(self, first, second):
        """From now on no host of site `first` can make a connection to the gateway of `second`, as
        behind a firewall: the other way they can be made, and used both ways. Ssh is let through.
        """
        self.uncalled |= {(first, second)}
        self._filter_lines()

    def allow_calls(self):
        self.uncalled = set()
        self._filter_lines()

    def _filter_lines(self):
        lines = []
        for site in self.sites:
            unheard = sorted(other + 1 for other, to in self.broken if to == site.number)
            uncalled = sorted(other + 1 for other, to in self.uncalled if to == site.number)
            drop, accept = "6 0 0 2", "6 0 0 0"
            # Of TCP (23) to the gateway's port (36) what begins a connection: SYN, without ACK
            # (47).
            port = ["40 0 0 36", f"21 0 3 {GATEWAY_PORT}"]
            call = ["48 0 0 23", "21 0 5 6", *port, "48 0 0 47", "84 0 0 18", "21 1 0 2"]
            end = [*call, accept, drop]
            # The last byte of the sender's address: a hit jumps to the end, or to the look at
            # calls.
            rest = len(unheard) + len(uncalled)
            known = [f"21 {rest - i + len(end) - 1} 0 {n}" for i, n in enumerate(unheard)]
            rest = len(uncalled)
            known += [f"21 {rest - i} 0 {n}" for i, n in enumerate(uncalled)]
            program = ["48 0 0 11", *known, accept, *end]
            text = f"{len(program)}," + ",".join(program)
            lines.append(
                f"filter replace dev {site.port} egress pref 1 handle 1 bpf da bytecode '{text}'"
            )
        batch("tc", lines)

    def slow_lines(self, mbit):
        """From now on each site receives so many Mbit/s from the others; None ends it."""
        for site in self.sites:
            if mbit is None:
                batch("tc", [f"qdisc del dev {site.port} root"])
                continue
            lines = [
                f"qdisc replace dev {site.port} root handle 1: htb default 1",
                f"class replace dev {site.port} parent 1: classid 1:1 htb rate {mbit}mbit",
            ]
            batch("tc", lines)

    def far_lines(self, milliseconds):
        """From now on a packet from one site to another takes so much longer."""
        self.near_lines()
        program = jobs.workshop() / "delay_line"
        if not program.exists():
            made = jobs.run(
                ["cc", "-O2", "-o", program, pathlib.Path(__file__).with_name("delay_line.c")]
            )
            check(made.returncode == 0, made.stderr)
        ports = [site.port for site in self.sites]
        batch("ip", [f"link set {port} nomaster" for port in ports])
        self._delay_line = subprocess.Popen(
            [program, str(int(1000 * milliseconds)), *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        jobs.SET_APART.add(self._delay_line.pid)
        said = self._delay_line.stdout.readline()
        check(said == b"ready\n", f"the delay line says {said!r}")

    def round_trip_ms(self, first, second):
        """How long the gateway of a site takes to find out that nothing listens at another's."""
        probe = (
            "import socket, sys, time\n"
            "begin = time.monotonic()\n"
            "socket.socket().connect_ex((sys.argv[1], 9))\n"
            "print(1000 * (time.monotonic() - begin))\n"
        )
        argv = [sys.executable, "-c", probe, self.sites[second].address]
        ran = self.run(self.sites[first].gateway, argv)
        check(ran.returncode == 0, ran.stderr)
        return float(ran.stdout)

    def near_lines(self):
        """Packets come at once again."""
        if self._delay_line is None:
            return
        line, self._delay_line = self._delay_line, None
        # It ends with its standard input.
        line.communicate(timeout=PATIENCE_S)
        jobs.SET_APART.discard(line.pid)
        batch("ip", [f"link set {site.port} master wide" for site in self.sites])

    # A job over them.

    def file(self, slots=2, ranks=None, numbers=None):
        """The file of domains with which a job runs over all sites, or over those of these numbers.
        `ranks`: those of each."""
        text = ""
        for site in [site for site in self.sites if numbers is None or site.number in numbers]:
            hosts = ",".join(f"h{number}:{slots}" for number in site.compute)
            via = "here" if site.number == 0 else site.login
            text += (
                f'[domain.{site.name}]\nhosts = "{hosts}"\nspares = {site.spares}\nvia = "{via}"\n'
                f'gateway = {{ host = "h{site.gateway}", '
                f'address = "{site.address}:{GATEWAY_PORT}" }}\n'
            )
            if ranks:
                text += f'ranks = "{ranks[site.number]}"\n'
        return text


class SitesJob(HostsJob):
    """A running `eyrie run --domains` on the login node of the first site."""

    def __init__(self, sites, program, *options, slots=2, ranks=None, file=None, **rest):
        """`file`: the text of the file of domains, else one for all sites."""
        self.sites = sites
        path = jobs.workshop() / "sites.toml"
        path.write_text(sites.file(slots, ranks) if file is None else file)
        at = sites.sites[0].gateway
        self._resuming = []
        super().__init__(sites, program, "--domains", str(path), *options, at=at, **rest)

    def events_of(self, site, kind=None, **fields):
        """The events so far of a site's part of the job."""
        if site == 0:
            return self.events(kind, **fields)
        path = self.event_file.with_name(f"events.{self.sites.sites[site].name}")
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        wanted = {**fields, **({"event": kind} if kind else {})}
        return [e for e in map(json.loads, lines) if all(e.get(k) == v for k, v in wanted.items())]

    def await_event_of(self, site, kind, times=1, patience_s=PATIENCE_S, **fields):
        """The `times`-th event of this kind with these fields at a site."""

        def look():
            running = self.process.poll() is None
            found = self.events_of(site, kind, **fields)
            name = self.sites.sites[site].name
            check(
                running or len(found) >= times, f"the job ended without {kind} {fields} at {name}"
            )
            return found[times - 1 : times]

        what = f"event {kind} {fields} number {times} at site {site}"
        return await_condition(look, what, patience_s)[0]

    def quiet(self, sites, since, but=()):
        """Nothing has happened at these sites but what does without any failure, and `but`.
        `since`: how many events each had, as `so_far` has said."""
        for site in sites:
            loud = [
                e for e in self.events_of(site)[since[site] :] if e["event"] not in {*QUIET, *but}
            ]
            check(not loud, f"{self.sites.sites[site].name} has heard of it: {loud}")

    def so_far(self):
        """How many events each site has had."""
        return [len(self.events_of(site.number)) for site in self.sites.sites]

    def site_of_rank(self, rank):
        """The number of the site that a rank runs at; None when it runs nowhere."""
        host = self.host_of_rank(rank)
        return None if host is None else self.sites.site_of(host).number

    def agent(self, number):
        """The process of the agent on a host; None when there is none."""
        for pid in self.sites.pids(number):
            if command_line(pid)[1:3] == ["agent", "--node"]:
                return pid
        return None

    def controller(self, site):
        """The process of a site's controller; None when there is none."""
        for pid in self.sites.pids(self.sites.sites[site].gateway):
            if command_line(pid)[1:2] in (["run"], ["resume"]):
                return pid
        return None

    def resume_at(self, site):
        """A user goes on with a site's part of the job at that site."""
        resumed = len(self.events_of(site, "resumed"))
        command = [jobs.EYRIE, "resume", "--dir", self.base, self.name]
        resuming = subprocess.Popen(
            self.sites.command(self.sites.sites[site].gateway, command, cwd=self.cwd),
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )
        # It ends with the job.
        self._resuming.append(resuming)
        self.await_event_of(site, "resumed", resumed + 1)

    def nothing_left(self):
        for resuming in self._resuming:
            resuming.wait(PATIENCE_S)
        super().nothing_left()
        self.sites.nothing_astray()

    def roles(self, kind, site):
        """{number: pid} of the living routers or stores of a site. The gateway is the router with
        the highest number."""
        found = {}
        for host in self.sites.sites[site].hosts:
            for pid in self.sites.pids(host):
                words = command_line(pid)
                if words[1:2] == [kind]:
                    found[int(words[words.index("--id") + 1])] = pid
        return found

    def gateway(self, site):
        """(number, pid) of a site's gateway; None while there is none."""
        # Home routers come first: there are two of them at least.
        number, pid = max(self.roles("router", site).items(), default=(0, None))
        return (number, pid) if number >= HOME_ROUTERS else None

    def replace_gateway(self, site):
        """Kills it, and waits until another one is there."""
        number, pid = self.gateway(site)
        check(kill(pid, signal.SIGKILL), f"no gateway at site {site}")

        def another():
            check(not self.has_ended(), f"the job has ended: {self.stderr()[-1500:]}")
            found = self.gateway(site)
            return found and found[0] == number and found[1] != pid

        await_condition(another, f"another gateway at site {site}")

    def ranks_at(self, site):
        """The ranks of a site, by what it has started."""
        return sorted({e["rank"] for e in self.events_of(site, "rank_started")})
