"""Hosts that are the nodes of a mesh, a torus or a fat tree: a link of the network is a pair of
virtual Ethernet devices, each of which sends so many bits a second and takes packets to different
ranks in turn (HTB), and a message takes the route that `eyrie plan` assumes, through the network
namespaces of the nodes and switches between.

What goes over these links is what ranks send each other, and nothing else. Each rank has a router
of its own in the process of `eyrie run` (`--roles here`), and that router counts as attached to the
node where its rank is: what is sent to it crosses the network to that node, and only there leaves
it for the bridge that all hosts share. What the router delivers, acknowledgements, images and
commands take the bridge, as they take the service network of a large machine. `place` says where
ranks are; routes follow it. With `roles_on_nodes` there is no such service network for messages:
routers are where Eyrie puts them, on nodes, and what goes to them and what they deliver takes the
links.

A host whose processes were killed still forwards, as a node's router does when the node is dead.
"""

import contextlib
import itertools
import json
import os
import pathlib
import statistics
import time

from hosts import CLONE_NEWNET, HERE_NUMBER, PREFIX4, Hosts, HostsJob, batch, libc, new_network
from jobs import check

# The bridge's address of `eyrie run`, where routers listen.
ROUTERS = f"{PREFIX4}{HERE_NUMBER}"
# The store takes the first port, then come the routers, by rank.
FIRST_PORT, LAST_PORT = 20000, 20199
FIRST_TABLE = 1000
FIRST_CLASS = 10
# The table with the ways to all nodes over links.
ALL_NODES = 900
# Any address will do: each link has its other end as a fixed neighbour.
OTHER_END = "169.254.0.1"
# Long queues are no losses: nothing may be sent twice because it waits in one.
RTO_MIN = "10s"
# Of each node and switch. A link with an address of IPv6 says something by itself.
NET = pathlib.Path("/proc/sys/net")
SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv6/conf/all/disable_ipv6": "1",
}


class Cartesian:
    """A mesh, or with `wrap` a torus, with dimension-order routing: the first axis first, on a
    ring the shorter way round, of two equal ways the one to higher coordinates."""

    def __init__(self, dims, wrap=False):
        self.dims, self.wrap = tuple(dims), wrap
        self.nodes = len(list(itertools.product(*map(range, dims))))
        self.vertices = self.nodes
        self.spec = f"{'torus' if wrap else 'mesh'}:{'x'.join(map(str, dims))}"

    def coordinates(self, node):
        found = []
        for extent in reversed(self.dims):
            node, at = divmod(node, extent)
            found.insert(0, at)
        return found

    def node(self, at):
        number = 0
        for extent, one in zip(self.dims, at):
            number = number * extent + one
        return number

    def next(self, vertex, to):
        """The vertex that comes behind `vertex` on the way to a node."""
        at, goal = self.coordinates(vertex), self.coordinates(to)
        axis = next(i for i, (a, b) in enumerate(zip(at, goal)) if a != b)
        extent = self.dims[axis]
        up = goal[axis] > at[axis]
        if self.wrap:
            up = 2 * ((goal[axis] - at[axis]) % extent) <= extent
        at[axis] = (at[axis] + (1 if up else -1)) % extent
        return self.node(at)


class FatTree:
    """Two levels: leaf switches with so many nodes each, which all have a link to each switch of
    the top; the destination chooses which one (D-mod-k)."""

    def __init__(self, nodes_each, leaves, tops):
        self.each, self.leaves, self.tops = nodes_each, leaves, tops
        self.nodes = nodes_each * leaves
        self.vertices = self.nodes + leaves + tops
        self.spec = f"xgft:{nodes_each},{leaves};1,{tops}"

    def leaf(self, node):
        return self.nodes + node // self.each

    def next(self, vertex, to):
        """The vertex that comes behind `vertex` on the way to a node."""
        if vertex < self.nodes:
            return self.leaf(vertex)
        if vertex == self.leaf(to):
            return to
        is_top = vertex >= self.nodes + self.leaves
        return self.leaf(to) if is_top else self.nodes + self.leaves + to % self.tops


def route(network, start, to):
    """The directed links from one node to another."""
    links = []
    while start != to:
        behind = network.next(start, to)
        links.append((start, behind))
        start = behind
    return links


def loads(network, messages):
    """{directed link: how many of these messages it carries}; each is (node, node)."""
    found = {}
    for sender, receiver in messages:
        for link in route(network, sender, receiver):
            found[link] = found.get(link, 0) + 1
    return found


def links_of(network):
    """All links of the network that a route may take, each once: (lower vertex, higher one)."""
    nodes = range(network.nodes)
    pairs = itertools.permutations(nodes, 2)
    return sorted({tuple(sorted(link)) for a, b in pairs for link in route(network, a, b)})


def star(grid, one_way=False):
    """(sender, receiver) of each message of a step of a star stencil, ranks numbered over a grid
    with the last axis fastest. `one_way`: up the first axis only."""
    ranks = {at: rank for rank, at in enumerate(itertools.product(*map(range, grid)))}
    found = []
    for at, axis in itertools.product(ranks, range(1 if one_way else len(grid))):
        up = (*at[:axis], at[axis] + 1, *at[axis + 1 :])
        if up in ranks:
            found.append((ranks[at], ranks[up]))
            found += [] if one_way else [(ranks[up], ranks[at])]
    return found


class NetworkHosts(Hosts):
    """`with NetworkHosts(Cartesian((5, 4)), kbit=256, mtu=576, ranks=16) as hosts:` host hN is node
    N of the network. Its links carry packets of `mtu` bytes at most, since what is forwarded waits
    for the last byte of a packet at each hop."""

    def __init__(self, network, kbit, mtu, ranks, roles_on_nodes=False, **options):
        super().__init__(network.nodes, **options)
        self.roles_on_nodes = roles_on_nodes
        self.network, self.kbit, self.mtu, self.ranks = network, kbit, mtu, ranks
        self.switches = []
        self.at = [None] * ranks

    def __enter__(self):
        super().__enter__()
        try:
            self._lay_links()
        except BaseException:
            self.close()
            raise
        return self

    def close(self):
        super().close()
        for namespace in self.switches:
            os.close(namespace)
        self.switches = []

    def _network_lines(self, host):
        # A host that is started again still has its network.
        return [
            "link set lo up",
            f"addr replace {host.address}/24 dev eth0",
            "link set eth0 up",
        ]

    def start_again(self, number):
        """New processes on a host whose processes were killed."""
        host = self.hosts[number]
        self._end(host)
        self._start_processes(host)
        self._await_sshd([host])

    # The links.

    def namespace(self, vertex):
        nodes = self.network.nodes
        return self.hosts[vertex].network if vertex < nodes else self.switches[vertex - nodes]

    def _lay_links(self):
        self.switches = [new_network() for _ in range(self.network.vertices - self.network.nodes)]
        place = lambda vertex: f"netns /proc/{os.getpid()}/fd/{self.namespace(vertex)}"
        ends = {vertex: [] for vertex in range(self.network.vertices)}
        made = []
        for low, high in links_of(self.network):
            here, there = f"name to{high} {place(low)}", f"name to{low} {place(high)}"
            made.append(f"link add {here} type veth peer {there}")
            ends[low].append(high)
            ends[high].append(low)
        batch("ip", made)
        for vertex, others in ends.items():
            self._set_up(vertex, others)

    def _set_up(self, vertex, others):
        """The ends of links at a vertex, and which table of routes messages to a router take."""
        ip, tc = ["link set lo up"], []
        for other in others:
            device = f"to{other}"
            # Packets go one by one, as over a wire.
            ip += [
                f"link set {device} address {mac(vertex, other)} mtu {self.mtu} arp off "
                "gso_max_segs 1",
                f"link set {device} up",
                f"neigh replace {OTHER_END} lladdr {mac(other, vertex)} dev {device} nud permanent",
            ]
            tc += self._shaping(device)
        ip += self._rules(vertex)
        with self.inside(vertex):
            for path, value in SETTINGS.items():
                if (NET / path).exists():
                    (NET / path).write_text(value)
            batch("ip", ip)
            batch("tc", tc)

    def _shaping(self, device):
        """A link is shared as by a router that takes packets to each receiver in turn."""
        bits, burst = 1000 * self.kbit, f"burst {2 * self.mtu} cburst {2 * self.mtu}"
        if self.roles_on_nodes:
            known = [f"ip dst {host.address}/32" for host in self.hosts]
        else:
            known = [f"ip dport {FIRST_PORT + 1 + rank} 0xffff" for rank in range(self.ranks)]
        share = f"rate {bits // len(known)}bit ceil {bits}bit {burst} quantum {2 * self.mtu}"
        lines = [
            f"qdisc add dev {device} root handle 1: htb default {FIRST_CLASS}",
            f"class add dev {device} parent 1: classid 1:1 htb rate {bits}bit {burst}",
        ]
        for number, match in enumerate(known, FIRST_CLASS):
            lines += [
                f"class add dev {device} parent 1:1 classid 1:{number} htb {share}",
                f"qdisc add dev {device} parent 1:{number} pfifo limit 10000",
                f"filter add dev {device} parent 1: protocol ip pref 1 u32 match {match} "
                f"flowid 1:{number}",
            ]
        return lines

    def _rules(self, vertex):
        """Which table messages take; and the one of those that go to any node."""
        if not self.roles_on_nodes:
            ports = (FIRST_PORT + 1 + rank for rank in range(self.ranks))
            tables = itertools.count(FIRST_TABLE)
            return [f"rule add dport {port} lookup {table}" for port, table in zip(ports, tables)]
        ports = f"{FIRST_PORT}-{LAST_PORT}"
        rules = [f"rule add {side} {ports} lookup {ALL_NODES}" for side in ("dport", "sport")]
        others = [host for host in self.hosts if host.number != vertex]
        way = lambda host: self._over_link(vertex, host.number)
        return rules + [
            f"route replace {host.address}/32 {way(host)} table {ALL_NODES}" for host in others
        ]

    def _over_link(self, vertex, to):
        """The words of a route from a vertex to a node."""
        device = f"to{self.network.next(vertex, to)}"
        return f"via {OTHER_END} dev {device} onlink {self._by(vertex)} rto_min {RTO_MIN}"

    def _by(self, vertex):
        """The address that a node sends from."""
        return f"src {self.hosts[vertex].address}" if vertex < self.network.nodes else ""

    @contextlib.contextmanager
    def inside(self, vertex):
        """This process is in the network of a node or switch meanwhile."""
        here = os.open("/proc/self/ns/net", os.O_RDONLY)
        check(libc.setns(self.namespace(vertex), CLONE_NEWNET) == 0, "cannot enter a network")
        try:
            yield
        finally:
            libc.setns(here, CLONE_NEWNET)
            os.close(here)

    def place(self, at):
        """Ranks are on these nodes from now on: what is sent to them goes there."""
        changed = [rank for rank in range(self.ranks) if at[rank] != self.at[rank]]
        self.at = list(at)
        for vertex in range(self.network.vertices):
            lines = [self._route_line(vertex, rank) for rank in changed]
            if lines:
                with self.inside(vertex):
                    batch("ip", lines)

    def _route_line(self, vertex, rank):
        """The way to the router of a rank."""
        to = self.at[rank]
        way = f"dev eth0 {self._by(vertex)}" if vertex == to else self._over_link(vertex, to)
        return f"route replace {ROUTERS}/32 {way} table {FIRST_TABLE + rank}"

    def sent(self):
        """{directed link: bytes that it has carried}."""
        found = {}
        for vertex in range(self.network.vertices):
            with self.inside(vertex):
                lines = pathlib.Path("/proc/self/net/dev").read_text().splitlines()
            for line in lines:
                name, _, counts = line.partition(":")
                if name.strip().startswith("to"):
                    found[vertex, int(name.strip()[2:])] = int(counts.split()[8])
        return found


class NetworkJob(HostsJob):
    """A running `eyrie run` with a rank on each of the first nodes of the network; all others are
    spares."""

    def __init__(self, hosts, program, *options, **rest):
        hosts.place(list(range(program.ranks)))
        names = ",".join(f"{name}:1" for name in hosts.names)
        spares = hosts.network.nodes - program.ranks
        where = ["--hosts", names, "--spares", spares, "--network", hosts.network.spec]
        beside = [] if hosts.roles_on_nodes else ["--roles", "here", "--routers", program.ranks]
        beside += ["--port-range", f"{FIRST_PORT}-{LAST_PORT}"]
        super().__init__(hosts, program, *where, *beside, *options, **rest)

    def placed(self):
        """Where ranks are, when all of them run and none moves; routes lead there. Else None."""
        status = self.status()
        if status is None or status["moves"]:
            return None
        ranks = sorted(status["ranks"], key=lambda rank: rank["rank"])
        at = [rank["node"] for rank in ranks]
        self.hosts.place(at)
        return at if all(rank["state"] == "running" for rank in ranks) else None

    def carried(self, pairs, size, seconds):
        """Within so many seconds: the steps a second, where each of these pairs of ranks sends a
        message of `size` bytes in a step, and the bytes a second on each link."""
        before, began = self.hosts.sent(), time.monotonic()
        ran = self.eyrie("traffic", "--json", "--window", f"{seconds:.0f}s")
        after, took = self.hosts.sent(), time.monotonic() - began
        check(ran.returncode == 0, f"eyrie traffic: {ran.stderr}")
        window = json.loads(ran.stdout)
        sent = {(sender, receiver): count for sender, receiver, _, count in window["pairs"]}
        steps = statistics.mean(sent.get(pair, 0) / size for pair in pairs)
        rates = {link: (after[link] - before[link]) / took for link in after}
        return steps / window["seconds"], rates


def mac(vertex, other):
    return f"02:65:{vertex >> 8:02x}:{vertex & 255:02x}:{other >> 8:02x}:{other & 255:02x}"
