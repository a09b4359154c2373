"""A real Slurm whose nodes are the hosts of hosts.py: slurmctld and munged on the machine itself, a
slurmd on each host. It lies in the network and the directory of the test, and ends with it; it
never touches a Slurm that the machine may have.
"""

import os
import signal
import socket
import subprocess

import jobs
from hosts import Hosts, HostsJob, program, tool
from jobs import PATIENCE_S, ROOT, Skipped, await_condition, check, kill, workshop

# Slurm calls a node DOWN after so many seconds without an answer.
NODE_TIMEOUT_S = 10
# A job that a job of the partition `urgent` preempts gets a SIGTERM, and is ended so long after.
GRACE_S = 40
CONFIG = """
ClusterName=eyrie
SlurmctldHost={here}(10.77.0.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
SlurmctldPort=6817
SlurmdPort=6818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout={timeout}
SlurmctldTimeout=10
KillWait=5
InactiveLimit=0
SlurmdParameters=config_overrides
TreeWidth=65533
NodeName=h[0-{last}] CPUs={cpus} RealMemory=1000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


class Slurm:
    """`with Slurm(4) as slurm:` starts 4 hosts, `slurm.hosts`, under Slurm, each with `cpus`
    processors. `topology`: the text of a topology.conf with switches."""

    def __init__(self, number, cpus=2, topology=None):
        self.hosts = Hosts(number)
        self.cpus = cpus
        self.topology = topology
        self._daemons = []

    def __enter__(self):
        ran = subprocess.run([ROOT / "scripts/slurm.sh"], capture_output=True, text=True)
        if ran.returncode != 0:
            raise Skipped(ran.stderr.strip())
        self.hosts.__enter__()
        try:
            self._start()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    def _start(self):
        self.home = workshop() / "slurm"
        jobs.remove(self.home)
        (self.home / "state").mkdir(parents=True)
        for name in self.hosts.names:
            (self.home / f"spool-{name}").mkdir()
        self.config = self.home / "slurm.conf"
        here, last = socket.gethostname(), len(self.hosts.names) - 1
        self.config.write_text(
            CONFIG.format(
                here=here,
                home=self.home,
                last=last,
                cpus=self.cpus,
                timeout=NODE_TIMEOUT_S,
                grace=GRACE_S,
            )
        )
        if self.topology is not None:
            (self.home / "topology.conf").write_text(self.topology)
            with open(self.config, "a") as config:
                config.write("TopologyPlugin=topology/tree\n")
        # Where nothing answers on D-Bus, slurmd makes its control groups by itself.
        (self.home / "cgroup.conf").write_text("IgnoreSystemd=yes\n")
        self._start_munged()
        self._daemon("slurmctld", "-D", "-f", self.config)
        self.hosts.services.add("slurmd")
        self.hosts.sockets |= {"tcp port 6817", "tcp port 6818"}
        for number in range(len(self.hosts.names)):
            self.start_node(number)
        for name in self.hosts.names:
            self.await_node(name, "idle")

    def _start_munged(self):
        key, socket_path = self.home / "munge.key", self.home / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        places = [f"--{name}-file={self.home}/munge.{name}" for name in ("pid", "log", "seed")]
        options = ["--foreground", "--force", f"--socket={socket_path}", f"--key-file={key}"]
        self._daemon("munged", *options, *places)
        await_condition(socket_path.exists, "munged's socket", 30)
        self.hosts.sockets.add(f"Unix socket {socket_path}")

    def _daemon(self, name, *argv):
        with open(self.home / f"{name}.out", "wb") as out:
            daemon = subprocess.Popen(
                [tool(name), *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        self._daemons.append(daemon)
        jobs.SET_APART.add(daemon.pid)

    def start_node(self, number):
        """Starts slurmd on a host: one that was powered on again has none."""
        ran = self.hosts.run(number, [tool("slurmd"), "-f", self.config])
        check(ran.returncode == 0, f"slurmd on h{number}: {ran.stderr}")

    def down(self):
        """Ends everything, the hosts too."""
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait(PATIENCE_S)
            jobs.SET_APART.discard(daemon.pid)
        self._daemons = []
        self.hosts.close()

    def kill_node(self, number):
        """slurmd, its slurmstepd and the tasks die at once; the host itself goes on. (When
        `hosts.power_off` takes the host, no packet leaves it.)"""
        pids = [pid for pid in self.hosts.hosts[number].pids() if program(pid) != "sshd"]
        for pid in pids:
            kill(pid, signal.SIGSTOP)  # so that none sees another one die
        for pid in pids:
            kill(pid, signal.SIGKILL)

    # Using it.

    def environment(self):
        return {**self.hosts.environment(), "SLURM_CONF": str(self.config)}

    def run(self, *command, **options):
        """Runs a command of Slurm; returns the finished process with its output as text."""
        return subprocess.run(
            list(map(str, command)),
            env={**os.environ, **self.environment()},
            **{
                "cwd": workshop(),
                "stdin": subprocess.DEVNULL,
                "capture_output": True,
                "text": True,
                "timeout": 2 * PATIENCE_S,
                **options,
            },
        )

    def srun(self, *argv, **options):
        return self.run("srun", "--mpi=none", *argv, **options)

    def salloc(self, *argv, **options):
        """Runs a command in an allocation that survives the loss of a node."""
        return self.run("salloc", "--no-kill", *argv, **options)

    def sbatch(self, script, *options):
        """Submits a script that begins in the directory of the test; returns the job's number."""
        ran = self.run("sbatch", "--parsable", *options, input=script, stdin=None)
        check(ran.returncode == 0, f"sbatch: {ran.stderr}")
        return int(ran.stdout)

    def job_state(self, job):
        """PENDING, RUNNING, COMPLETED ..."""
        ran = self.run("scontrol", "--oneliner", "show", "job", job)
        fields = dict(word.split("=", 1) for word in ran.stdout.split() if "=" in word)
        return fields.get("JobState")

    def await_job(self, job, state="COMPLETED"):
        await_condition(
            lambda: self.job_state(job) == state,
            lambda: f"job {job} to be {state}; it is {self.job_state(job)}",
        )

    def node_state(self, name):
        """idle, alloc, down ...; with * when it does not answer."""
        return self.run("sinfo", "-h", "-N", "-n", name, "-o", "%t").stdout.strip()

    def await_node(self, name, state):
        await_condition(
            lambda: self.node_state(name).startswith(state),
            lambda: f"node {name} to be {state}; it is {self.node_state(name)}",
        )


class SlurmJob(HostsJob):
    """A running `eyrie run` in an allocation of Slurm, for which `allocation` are the options; it
    runs on the machine itself, as salloc has it."""

    def __init__(self, slurm, program, *options, allocation=(), env=None, **rest):
        self.allocation = list(map(str, allocation))
        env = {**slurm.environment(), **(env or {})}
        super().__init__(slurm.hosts, program, *options, env=env, **rest)

    def launched(self, command):
        if command[1] != "run":  # status and the like need no allocation
            return command
        return ["salloc", "--quiet", "--no-kill", *self.allocation, *command]

    def launcher(self):
        return next(iter(jobs.children(self.process.pid)), self.process.pid)
