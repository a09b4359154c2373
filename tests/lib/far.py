"""Files on a server, as hosts of hosts.py see them over NFS: each host keeps what it writes in a
page cache of its own, and what it has not written back when its power is cut is lost.

It is a FUSE server without any library, a process for each host, over one directory of this
machine: the server's disk. There are two kinds, by what writes back:

- as over NFS (`by_close`): fsync, sync_file_range and syncfs (which does not wait with FUSE), the
  closing of the file, also in a child that was forked, and half a minute. The cache is the
  kernel's. NFS does not write back when the file is closed by a process that could only read it;
  FUSE does.
- as with Lustre: fsync, fdatasync and syncfs (which waits). The cache is in the process that
  serves, which the kernel does not tell of sync_file_range. Hosts do not see what others hold.

A file's state is read anew when it is opened: close-to-open, as NFS has it. Three things are worse
than NFS. A process that has a file open does not see that others change it. Hosts that write one
file at a time must not write to the same page (with the second kind they may). Locks hold within a
host only. Attributes of users (xattr) are missing, as in NFS 3.

A process that serves must never touch what it serves: it would wait for itself.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import uuid

import jobs
from jobs import CLONE_NEWNS, PATIENCE_S, Skipped, check, kill, workshop

PR_SET_PDEATHSIG = 1
MS_NOSUID, MS_NODEV = 2, 4
FUSE, LOOP_CONTROL = "/dev/fuse", "/dev/loop-control"
BOOT_ID = "/proc/sys/kernel/random/boot_id"

# From linux/fuse.h. This server uses this version, also when the kernel has a newer one.
MAJOR, MINOR = 7, 31
ASYNC_READ, BIG_WRITES, WRITEBACK_CACHE, MAX_PAGES = 1 << 0, 1 << 5, 1 << 16, 1 << 22
FEATURES = ASYNC_READ | BIG_WRITES | WRITEBACK_CACHE | MAX_PAGES
ROOT_NUMBER, PAGE, MOST_WRITTEN = 1, 4096, 1 << 20
KEEP_CACHE = 1 << 1
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME = (1 << bit for bit in range(6))
SET_ATIME_NOW, SET_MTIME_NOW = 1 << 7, 1 << 8
FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42
WRITE_BACK = signal.SIGUSR1  # asks a process that serves to write back all

# Its structures, without the fields that are not needed here. Times for which names and attributes
# are valid are all zero.
IN_HEADER = struct.Struct("<IIQQII8x")  # length, operation, request, node, user, group
OUT_HEADER = struct.Struct("<IiQ")
INIT_IN, INIT_OUT = struct.Struct("<4I"), struct.Struct("<4I2H2I2H32x")
ATTRIBUTES, BEFORE_ATTRIBUTES = struct.Struct("<6Q10I"), bytes(16)
ENTRY = struct.Struct("<2Q24x")
SETATTR_IN = struct.Struct("<I12xQ8x3Q4I4x2I4x")
MKNOD_IN = CREATE_IN = struct.Struct("<2I8x")
MKDIR_IN = struct.Struct("<I4x")
RENAME_IN, RENAME2_IN = struct.Struct("<Q"), struct.Struct("<QI4x")
NUMBER = struct.Struct("<Q")  # of a node or an open file, where no more is needed
OPEN_IN, OPEN_OUT = struct.Struct("<I4x"), struct.Struct("<QI4x")
READ_IN = WRITE_IN = struct.Struct("<2QI20x")
WRITE_OUT = struct.Struct("<I4x")
STATFS_OUT = struct.Struct("<5Q3I28x")
DIRENT = struct.Struct("<2Q2I")
FORGET_ONE, FORGET_COUNT = struct.Struct("<2Q"), struct.Struct("<I4x")

# Of linux/loop.h; of the configuration only the descriptor and the flags.
LOOP_FREE, LOOP_CONFIGURE, LOOP_AUTOCLEAR = 0x4C82, 0x4C0A, 4
LOOP_CONFIG = struct.Struct("<I56xI240x")  # flags are at 52 of what begins at 8

libc = ctypes.CDLL(None, use_errno=True)


class Node:
    """A file of the server as the kernel of a host knows it. `fd` (O_PATH) keeps it, whatever
    becomes of its name."""

    def __init__(self, number, key, fd):
        self.number, self.key, self.fd = number, key, fd
        self.lookups = self.writers = 0
        self.seen = self.state()
        self.changed_by_others = False
        self.held = []  # what is not written back, where that is not the kernel's: (offset, bytes)
        self.held_end = self.held_ns = 0  # where that ends, and when it was written

    def state(self):
        """What differs after another process has changed it."""
        now = os.fstat(self.fd)
        return now.st_mtime_ns, now.st_ctime_ns, now.st_size

    def is_as_seen(self):
        return not self.changed_by_others and self.state() == self.seen

    def path(self):
        return f"/proc/self/fd/{self.fd}"

    def hold(self, offset, data):
        self.held.append((offset, bytes(data)))
        self.held_end, self.held_ns = max(self.held_end, offset + len(data)), time.time_ns()

    def write_back(self):
        held, self.held, self.held_end = self.held, [], 0
        if held:
            fd = os.open(self.path(), os.O_WRONLY)
            with self.changed_by_us():
                for offset, data in held:
                    os.pwrite(fd, data, offset)
            os.close(fd)

    def with_held(self, data, offset, size):
        """What is to be read there; `data` is what the disk has."""
        here = bytearray(data)
        here += bytes(max(0, min(size, self.held_end - offset) - len(here)))
        for at, held in self.held:
            begin, end = max(at, offset), min(at + len(held), offset + size)
            if begin < end:
                here[begin - offset : end - offset] = held[begin - at : end - at]
        return here

    @contextlib.contextmanager
    def changed_by_us(self):
        self.changed_by_others = not self.is_as_seen()
        try:
            yield
        finally:
            self.seen = self.state()


class Server:
    """Serves one directory to one kernel, through a descriptor of /dev/fuse."""

    def __init__(self, device, directory, by_close):
        self.device, self.by_close = device, by_close
        self.root = Node(ROOT_NUMBER, None, os.open(directory, os.O_PATH | os.O_DIRECTORY))
        self.nodes = {ROOT_NUMBER: self.root}
        self.newest = {}  # {(device, inode): the node that its names lead to}
        self.last_number = ROOT_NUMBER
        self.open = {}  # {descriptor: (node, whether it writes)}
        self.listings = {}  # {number of an open directory: its entries}

    def serve(self):
        """Until it is unmounted."""
        room = bytearray(MOST_WRITTEN + PAGE)
        while True:
            try:
                length = os.readv(self.device, [room])
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue  # the request was taken back
                raise
            self.answer(memoryview(room)[:length])

    def write_back(self):
        for node in list(self.nodes.values()):
            node.write_back()

    def answer(self, request):
        _, operation, unique, number, user, group = IN_HEADER.unpack_from(request)
        body = request[IN_HEADER.size :]
        if operation in (FORGET, BATCH_FORGET):
            return self.forget(operation, number, body)
        if operation == INTERRUPT:
            return None  # what it is about has been answered: requests are, one after the other
        self.user = user, group
        failure, parts = 0, ()
        try:
            if operation not in OPERATIONS:
                raise OSError(errno.ENOSYS, "")
            parts = OPERATIONS[operation](self, self.nodes.get(number), body) or ()
        except OSError as error:
            failure = error.errno
        length = OUT_HEADER.size + sum(map(len, parts))
        try:
            os.writev(self.device, [OUT_HEADER.pack(length, -failure, unique), *parts])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise  # the request was interrupted: no process waits for the answer

    # Names.

    def find(self, parent, name):
        """The node of a name. A file that others have changed becomes another node, unless this
        host writes to it: the kernel trusts its own size of a file that it knows."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent.fd)
        now = os.fstat(fd)
        key = now.st_dev, now.st_ino
        node = self.newest.get(key)
        writes = node and (node.writers or node.held)
        others_may = node and stat.S_ISREG(now.st_mode) and not writes
        if node is None or (others_may and not node.is_as_seen()):
            self.last_number += 1
            node = Node(self.last_number, key, fd)
            self.newest[key] = self.nodes[node.number] = node
        else:
            os.close(fd)
        node.lookups += 1
        return node

    def entry(self, parent, name):
        node = self.find(parent, name)
        return [ENTRY.pack(node.number, 0), attributes(node)]

    def forget(self, operation, number, body):
        gone = [(number, *NUMBER.unpack_from(body))]
        if operation == BATCH_FORGET:
            there = body[FORGET_COUNT.size :]
            count = FORGET_COUNT.unpack_from(body)[0] * FORGET_ONE.size
            gone = FORGET_ONE.iter_unpack(there[:count])
        for number, lookups in gone:
            node = self.nodes[number]
            node.lookups -= lookups
            if node.lookups <= 0 and node is not self.root:
                node.write_back()
                del self.nodes[number]
                if self.newest.get(node.key) is node:
                    del self.newest[node.key]
                os.close(node.fd)

    def lookup(self, parent, body):
        return self.entry(parent, names(body)[0])

    def made(self, parent, name):
        """The entry of something new, which belongs to the user that asked for it."""
        os.chown(name, *self.user, dir_fd=parent.fd, follow_symlinks=False)
        return self.entry(parent, name)

    def mknod(self, parent, body):
        mode, device = MKNOD_IN.unpack_from(body)
        name = names(body[MKNOD_IN.size :])[0]
        os.mknod(name, mode, device, dir_fd=parent.fd)
        return self.made(parent, name)

    def mkdir(self, parent, body):
        name = names(body[MKDIR_IN.size :])[0]
        os.mkdir(name, *MKDIR_IN.unpack_from(body), dir_fd=parent.fd)
        return self.made(parent, name)

    def symlink(self, parent, body):
        name, target = names(body)
        os.symlink(target, name, dir_fd=parent.fd)
        return self.made(parent, name)

    def link(self, parent, body):
        name = names(body[NUMBER.size :])[0]
        node = self.nodes[NUMBER.unpack_from(body)[0]]
        with node.changed_by_us():
            os.link(node.path(), name, dst_dir_fd=parent.fd, follow_symlinks=True)
        return self.entry(parent, name)

    def unlink(self, parent, body):
        os.unlink(names(body)[0], dir_fd=parent.fd)

    def rmdir(self, parent, body):
        os.rmdir(names(body)[0], dir_fd=parent.fd)

    def rename(self, parent, body):
        return self.move(parent, *RENAME_IN.unpack_from(body), 0, body[RENAME_IN.size :])

    def rename2(self, parent, body):
        return self.move(parent, *RENAME2_IN.unpack_from(body), body[RENAME2_IN.size :])

    def move(self, parent, to, flags, rest):
        old, new = names(rest)
        if libc.renameat2(parent.fd, old, self.nodes[to].fd, new, flags) != 0:
            raise OSError(ctypes.get_errno(), "")

    def readlink(self, node, _):
        return [os.readlink(b"", dir_fd=node.fd)]

    # Attributes.

    def getattr(self, node, _):
        return [BEFORE_ATTRIBUTES, attributes(node)]

    def setattr(self, node, body):
        fields = SETATTR_IN.unpack_from(body)
        wanted, size, atime, mtime, _, atime_ns, mtime_ns, _, mode, uid, gid = fields
        if wanted & (SET_SIZE | SET_MTIME):
            node.write_back()
        with node.changed_by_us():
            if wanted & SET_MODE:
                os.chmod(node.path(), stat.S_IMODE(mode))
            if wanted & (SET_UID | SET_GID):
                owner = (uid if wanted & SET_UID else -1, gid if wanted & SET_GID else -1)
                os.chown(node.path(), *owner)
            if wanted & SET_SIZE:
                os.truncate(node.path(), size)
            if wanted & (SET_ATIME | SET_MTIME):
                now, before = time.time_ns(), os.fstat(node.fd)
                times = [before.st_atime_ns, before.st_mtime_ns]
                if wanted & SET_ATIME:
                    times[0] = now if wanted & SET_ATIME_NOW else atime * 10**9 + atime_ns
                if wanted & SET_MTIME:
                    times[1] = now if wanted & SET_MTIME_NOW else mtime * 10**9 + mtime_ns
                os.utime(node.path(), ns=tuple(times))
        return [BEFORE_ATTRIBUTES, attributes(node)]

    def statfs(self, *_):
        of = os.fstatvfs(self.root.fd)
        counts = of.f_blocks, of.f_bfree, of.f_bavail, of.f_files, of.f_ffree
        return [STATFS_OUT.pack(*counts, of.f_bsize, of.f_namemax, of.f_frsize)]

    # Open files.

    def opened(self, node, fd, flags):
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        keep = KEEP_CACHE if node.is_as_seen() else 0
        node.writers += writes
        self.open[fd] = node, writes
        return OPEN_OUT.pack(fd, keep)

    def open_file(self, node, body):
        flags = OPEN_IN.unpack_from(body)[0]
        return [self.opened(node, os.open(node.path(), flags_of_server(flags)), flags)]

    def create(self, parent, body):
        flags, mode = CREATE_IN.unpack_from(body)
        name = names(body[CREATE_IN.size :])[0]
        wanted = flags_of_server(flags) | flags & (os.O_EXCL | os.O_TRUNC) | os.O_CREAT
        fd = os.open(name, wanted | os.O_NOFOLLOW, mode, dir_fd=parent.fd)
        os.fchown(fd, *self.user)
        node = self.find(parent, name)
        return [ENTRY.pack(node.number, 0), attributes(node), self.opened(node, fd, flags)]

    def read(self, node, body):
        fd, offset, size = READ_IN.unpack_from(body)
        return [node.with_held(os.pread(fd, size, offset), offset, size)]

    def write(self, node, body):
        fd, offset, size = WRITE_IN.unpack_from(body)
        data = body[WRITE_IN.size :][:size]
        if not self.by_close:
            node.hold(offset, data)
            return [WRITE_OUT.pack(size)]
        with node.changed_by_us():
            return [WRITE_OUT.pack(os.pwrite(fd, data, offset))]

    def fsync(self, node, _):
        """The kernel has written back what it had. This server's power is not cut."""
        node.write_back()

    def syncfs(self, *_):
        self.write_back()

    def release(self, _, body):
        fd = NUMBER.unpack_from(body)[0]
        node, writes = self.open.pop(fd)
        node.writers -= writes
        os.close(fd)

    def nothing(self, *_):
        """Nothing to do: the kernel writes back before it asks."""

    # Directories.

    def opendir(self, *_):
        number = max(self.listings, default=0) + 1
        self.listings[number] = []
        return [OPEN_OUT.pack(number, 0)]

    def readdir(self, node, body):
        number, offset, size = READ_IN.unpack_from(body)
        if offset == 0:
            self.listings[number] = listing(node)
        parts, room = [], size
        for place, (name, inode, of) in enumerate(self.listings[number][offset:], offset + 1):
            part = DIRENT.pack(inode, place, len(name), of) + name
            part += bytes(-len(part) % 8)
            room -= len(part)
            if room < 0:
                break
            parts.append(part)
        return parts

    def releasedir(self, _, body):
        del self.listings[NUMBER.unpack_from(body)[0]]


def names(body):
    """The names that end with a zero byte each."""
    return bytes(body).split(b"\0")[:-1]


def attributes(node):
    of = os.fstat(node.fd)
    size, newest = max(of.st_size, node.held_end), node.held_ns if node.held else 0
    times = of.st_atime_ns, max(of.st_mtime_ns, newest), max(of.st_ctime_ns, newest)
    return ATTRIBUTES.pack(
        *(of.st_ino, size, of.st_blocks),
        *(ns // 10**9 for ns in times),
        *(ns % 10**9 for ns in times),
        *(of.st_mode, of.st_nlink, of.st_uid, of.st_gid, of.st_rdev, of.st_blksize, 0),
    )


def flags_of_server(flags):
    """How the server opens a file: the kernel sees to appending, and reads pages of files that are
    opened only to be written."""
    writes = flags & os.O_ACCMODE != os.O_RDONLY
    return os.O_RDWR if writes else os.O_RDONLY


def listing(node):
    """(name, inode, kind) of all that is in a directory. The parent's number does not matter
    here."""
    own = os.fstat(node.fd).st_ino
    found = [(name, own, stat.S_IFDIR >> 12) for name in (b".", b"..")]
    with os.scandir(node.path()) as entries:
        return found + [(os.fsencode(e.name), e.inode(), kind(e)) for e in entries]


def kind(entry):
    """As it stands in a directory; others may have removed it already."""
    if entry.is_symlink():
        return stat.S_IFLNK >> 12
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR >> 12
    return stat.S_IFREG >> 12 if entry.is_file(follow_symlinks=False) else 0  # 0: unknown


def greet(server, _, body):
    """The first request: both sides say what they can."""
    major, _, readahead, offered = INIT_IN.unpack_from(body)
    check(major == MAJOR and offered & WRITEBACK_CACHE, "this kernel's FUSE cannot write back")
    features = FEATURES if server.by_close else FEATURES & ~WRITEBACK_CACHE
    sizes = 16, 12, MOST_WRITTEN, 1, MOST_WRITTEN // PAGE, 0
    return [INIT_OUT.pack(MAJOR, MINOR, readahead, offered & features, *sizes)]


OPERATIONS = {
    1: Server.lookup,
    3: Server.getattr,
    4: Server.setattr,
    5: Server.readlink,
    6: Server.symlink,
    8: Server.mknod,
    9: Server.mkdir,
    10: Server.unlink,
    11: Server.rmdir,
    12: Server.rename,
    13: Server.link,
    14: Server.open_file,
    15: Server.read,
    16: Server.write,
    17: Server.statfs,
    18: Server.release,
    20: Server.fsync,
    25: Server.nothing,  # flush
    26: greet,
    27: Server.opendir,
    28: Server.readdir,
    29: Server.releasedir,
    30: Server.nothing,  # fsync of a directory
    35: Server.create,
    38: Server.nothing,  # destroy
    45: Server.rename2,
    50: Server.syncfs,
}


@contextlib.contextmanager
def block_device():
    """The path of a block device. It has one use: with a device, the kernel sends syncfs to the
    server. It is gone when it is not mounted any more."""
    with open(LOOP_CONTROL) as control, tempfile.TemporaryFile(dir="/dev/shm") as content:
        content.truncate(1 << 20)
        wanted = LOOP_CONFIG.pack(content.fileno(), LOOP_AUTOCLEAR)
        while True:
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_FREE)}"
            with open(path, "r+b", buffering=0) as device:
                try:
                    fcntl.ioctl(device, LOOP_CONFIGURE, wanted)
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    continue  # another process has taken it meanwhile
                yield path
                return


def serve(directory, at, pid, boot_id, by_close):
    """A process that mounts a directory where another process sees it, says so, and serves it."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.umask(0)
    device = os.open(FUSE, os.O_RDWR)
    server = Server(device, directory, by_close == "True")
    here, there = (os.open(f"/proc/{who}/ns/mnt", os.O_RDONLY) for who in ("self", pid))
    check(libc.setns(there, CLONE_NEWNS) == 0, f"cannot enter the mounts of process {pid}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"
    if server.by_close:
        jobs.mount("far", at, "fuse.far", MS_NOSUID | MS_NODEV, options)
    else:
        with block_device() as source:
            jobs.mount(source, at, "fuseblk.far", MS_NOSUID | MS_NODEV, options)
    jobs.mount(boot_id, BOOT_ID, None, jobs.MS_BIND)
    # This process must not keep the mounts of a host that has ended.
    check(libc.setns(here, CLONE_NEWNS) == 0, "cannot leave the mounts of a host")
    os.close(here)
    os.close(there)
    signal.signal(WRITE_BACK, lambda *_: print(server.write_back() or "written back", flush=True))
    print("mounted", flush=True)
    server.serve()
    server.write_back()


class FarFiles:
    """`with FarFiles(hosts) as far:` mounts them on each host at `far.path`; the server has them in
    `far.server`. A host that loses its power loses what it has not written back. Once it is on
    again `far.mount(number)` mounts them there."""

    def __init__(self, hosts, by_close=True):
        for path in [FUSE] if by_close else [FUSE, LOOP_CONTROL]:
            if not os.path.exists(path):
                raise Skipped(f"{path} missing: this kernel does not have what is needed")
        self.hosts, self.by_close, self.serving = hosts, by_close, {}
        self.path, self.server = (
            pathlib.Path(tempfile.mkdtemp(prefix=name, dir=workshop()))
            for name in ("far", "server")
        )

    def __enter__(self):
        self.hosts.when_power_goes.append(self.lose)
        try:
            for host in self.hosts.hosts:
                self.mount(host.number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.hosts.when_power_goes.remove(self.lose)
        for number in list(self.serving):
            self.lose(number)
            if self.hosts.hosts[number].init() is not None:
                self.hosts.run(number, ["umount", "--lazy", self.path, BOOT_ID])

    def mount(self, number):
        """Mounts them on a host. The process that serves is none of the host's: what ends those
        ends no kernel. The host has a boot of its own from now on: the device of these files has
        another number on each, which says nothing where it was not the same kernel."""
        self.lose(number)
        boot_id = workshop() / f"boot-{number}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        there = self.hosts.hosts[number].init()
        words = [__file__, self.server, self.path, there, boot_id, self.by_close]
        process = subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        jobs.SET_APART.add(process.pid)
        self.serving[number] = process
        check(process.stdout.readline() == "mounted\n", f"no far files on h{number}")

    def write_back(self):
        """All hosts that are on write back what they hold though it is closed."""
        for process in self.serving.values():
            if process.poll() is None:
                process.send_signal(WRITE_BACK)
                check(process.stdout.readline() == "written back\n", "it is not written back")

    def lose(self, number):
        """From now on a host writes nothing back: the process that serves its kernel is gone."""
        process = self.serving.pop(number, None)
        if process is not None:
            kill(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
            process.stdout.close()
            jobs.SET_APART.discard(process.pid)


if __name__ == "__main__":
    serve(*sys.argv[1:])
