"""libeyrie-ulfm for mpi4py programs: the functions of eyrie_ulfm.h, with errors as exceptions.

    with eyrie_ulfm.Job(MPI.COMM_WORLD, job="2x2", spares="1") as job:
        if job.comm is None:            # a spare that was not needed
            return
        field = numpy.zeros(...)
        job.register("field", field)

        def body(job, version):         # the recovery point: again after each failure
            if version == 0:
                ...                     # nothing was committed: begin from the start
            ...
            job.commit()

        job.run(body)

Failures are raised as mpi4py's own MPI.Exception, by communication and by this module; `run`
recovers from them. Data is any object with a writable contiguous buffer (numpy arrays); it is
restored in place. The library is looked for at $EYRIE_ULFM_LIBRARY, then beside the installed
module, then by the system's loader.
"""

import ctypes
import json
import os
import pathlib

from mpi4py import MPI

__all__ = ["Job", "Error", "LostError", "SparesError", "Piece"]


class _Settings(ctypes.Structure):
    _fields_ = [
        ("network", ctypes.c_char_p),
        ("job", ctypes.c_char_p),
        ("spares", ctypes.c_char_p),
        ("traffic", ctypes.c_char_p),
        ("message_bytes", ctypes.c_int64),
        ("method", ctypes.c_char_p),
        ("copies", ctypes.c_char_p),
        ("no_spare", ctypes.c_char_p),
        ("node", ctypes.c_int),
        ("wait_s", ctypes.c_double),
        ("quiet", ctypes.c_int),
    ]


# MPI_Count of Open MPI and MPICH has 64 bits.
class _Piece(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("into", ctypes.c_void_p),
    ]


class _Cost(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_int64),
        ("bytes_sent", ctypes.c_int64),
        ("ms", ctypes.c_double),
        ("agree_ms", ctypes.c_double),
    ]


class Piece:
    """`count` elements from element `first` of what rank `rank` committed, into `into` (a writable
    contiguous buffer)."""

    def __init__(self, rank, first, count, into):
        self.rank, self.first, self.count, self.into = rank, first, count, into


class Error(MPI.Exception):
    """An error of the library: an MPI error class, and its description in `text`."""

    def __new__(cls, code, text):
        self = super().__new__(cls, code)
        self.text = text
        return self

    def __init__(self, code, text):
        super().__init__(code)

    def __str__(self):
        return self.text or super().__str__()


class LostError(Error):
    """The copies do not cover the failures; the text says exactly what is lost."""


class SparesError(Error):
    """No spare is left for a failed rank."""


def _load():
    here = pathlib.Path(__file__).resolve().parent
    named = os.environ.get("EYRIE_ULFM_LIBRARY")
    beside = here.parent / "libeyrie_ulfm.so.0"
    library = ctypes.CDLL(named or (str(beside) if beside.exists() else "libeyrie_ulfm.so.0"))
    handle = (
        ctypes.c_void_p if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_void_p) else ctypes.c_int
    )
    pointer = ctypes.c_void_p
    signatures = {
        "settings_init": (None, [ctypes.POINTER(_Settings)]),
        "init": (ctypes.c_int, [handle, ctypes.POINTER(_Settings), ctypes.POINTER(pointer)]),
        "comm": (handle, [pointer]),
        "shape": (ctypes.c_int, [pointer, ctypes.POINTER(ctypes.c_int), ctypes.c_int]),
        "committed_shape": (ctypes.c_int, [pointer, ctypes.POINTER(ctypes.c_int), ctypes.c_int]),
        "committed_ranks": (ctypes.c_int, [pointer]),
        "committed_bytes": (ctypes.c_int64, [pointer, ctypes.c_char_p]),
        "squeezed": (ctypes.c_int, [pointer]),
        "derived": (ctypes.c_int, [pointer, handle]),
        "register": (ctypes.c_int, [pointer, ctypes.c_char_p, pointer, ctypes.c_int64, handle]),
        "commit": (ctypes.c_int, [pointer, ctypes.POINTER(ctypes.c_int64)]),
        "recover": (ctypes.c_int, [pointer, ctypes.POINTER(ctypes.c_int64)]),
        "repair": (ctypes.c_int, [pointer]),
        "restore": (ctypes.c_int, [pointer, ctypes.POINTER(ctypes.c_int64)]),
        "fetch": (ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(_Piece)]),
        "finish": (ctypes.c_int, [pointer]),
        "free": (ctypes.c_int, [ctypes.POINTER(pointer)]),
        "is_failure": (ctypes.c_int, [ctypes.c_int]),
        "explain": (ctypes.c_char_p, [pointer]),
        "report_json": (ctypes.c_char_p, [pointer]),
        "last_commit": (None, [pointer, ctypes.POINTER(_Cost)]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, "eyrie_ulfm_" + name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


def _call(name, *arguments):
    return getattr(_library, "eyrie_ulfm_" + name)(*arguments)


def is_failure(error):
    """Whether this exception (or error code) says that a process failed, so that the program must
    call `recover`."""
    code = error.Get_error_code() if isinstance(error, MPI.Exception) else error
    return bool(_call("is_failure", code))


def _address(buffer, writable=True):
    """Address and bytes of a contiguous buffer."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError("data must be contiguous")
    if writable and view.readonly:
        raise ValueError("data must be writable: it is restored in place")
    if view.nbytes == 0:
        return ctypes.cast(ctypes.pointer(ctypes.c_char()), ctypes.c_void_p).value, 0
    return MPI.Get_address(buffer), view.nbytes


class Job:
    """A process's part of a job. Spares wait in the constructor. Keywords are the settings of
    eyrie_ulfm.h: network, job, spares, traffic, message_bytes, method, copies, no_spare, node,
    wait_s, quiet; the environment wins over them."""

    def __init__(self, comm=MPI.COMM_WORLD, **settings):
        words = _Settings()
        _call("settings_init", ctypes.byref(words))
        names = {name for name, _ in _Settings._fields_}
        for name, value in settings.items():
            if name not in names:
                raise TypeError(f"no setting `{name}`: one of {', '.join(sorted(names))}")
            if value is not None:
                setattr(
                    words,
                    name,
                    str(value).encode()
                    if isinstance(getattr(words, name), (bytes, type(None)))
                    else value,
                )
        self._job = ctypes.c_void_p()
        self._held = {}
        self._comm = None
        code = _call("init", comm.handle, ctypes.byref(words), ctypes.byref(self._job))
        if code != MPI.SUCCESS:
            raise Error(code, "the job cannot begin: see the message of process 0")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.free()

    def _check(self, code):
        if code == MPI.SUCCESS:
            return
        text = _call("explain", self._job).decode(errors="replace")
        name = MPI.Get_error_string(code)
        if is_failure(code):
            raise MPI.Exception(code)
        raise (LostError if "ERR_LOST" in name else SparesError if "ERR_SPARES" in name else Error)(
            code, text
        )

    @property
    def comm(self):
        """The working communicator, which is another one after each recovery. None when this
        process is no rank and the job has ended."""
        handle = _call("comm", self._job) or 0
        if self._comm is None or self._comm.handle != handle:
            comm = MPI.Comm.fromhandle(handle)
            self._comm = None if comm == MPI.COMM_NULL else comm
        return self._comm

    def _shape(self, name):
        extents = (ctypes.c_int * 16)()
        return tuple(extents[: _call(name, self._job, extents, 16)])

    @property
    def shape(self):
        """Extents of the grid of ranks."""
        return self._shape("shape")

    @property
    def committed_shape(self):
        """Extents of the grid of ranks of the last committed version."""
        return self._shape("committed_shape")

    @property
    def committed_ranks(self):
        return _call("committed_ranks", self._job)

    def committed_bytes(self, name):
        """Bytes of committed data `name` of this rank, -1 when there is none."""
        return _call("committed_bytes", self._job, name.encode())

    @property
    def squeezed(self):
        """Whether the last committed data belongs to another decomposition: `fetch` it."""
        return bool(_call("squeezed", self._job))

    def derived(self, comm):
        """Declares that `comm` was made from the working communicator, so that a recovery
        interrupts waits on it too."""
        self._check(_call("derived", self._job, comm.handle))

    def register(self, name, data):
        """Registers a writable contiguous buffer; None removes the name. Elements are the buffer's
        items."""
        if data is None:
            self._held.pop(name, None)
            self._check(_call("register", self._job, name.encode(), None, 0, MPI.BYTE.handle))
            return
        address, size = _address(data)
        item = memoryview(data).itemsize
        datatype = MPI.BYTE.Create_contiguous(item)
        try:
            self._check(
                _call("register", self._job, name.encode(), address, size // item, datatype.handle)
            )
        finally:
            datatype.Free()
        self._held[name] = data  # lives as long as it is registered

    def commit(self):
        """Commits the registered data of all ranks; returns the version."""
        version = ctypes.c_int64()
        self._check(_call("commit", self._job, ctypes.byref(version)))
        return version.value

    def recover(self):
        """The recovery point; returns the version in place, 0 when nothing was committed."""
        version = ctypes.c_int64()
        self._check(_call("recover", self._job, ctypes.byref(version)))
        return version.value

    def repair(self):
        """First half of `recover`: repairs the communicator."""
        self._check(_call("repair", self._job))

    def restore(self):
        """Second half of `recover`: puts the data in place."""
        version = ctypes.c_int64()
        self._check(_call("restore", self._job, ctypes.byref(version)))
        return version.value

    def fetch(self, name, pieces):
        """Reads pieces (a list of Piece) of committed data (collective)."""
        rooms = (_Piece * max(len(pieces), 1))()
        for room, piece in zip(rooms, pieces):
            room.rank, room.first, room.count, room.into = (
                piece.rank,
                piece.first,
                piece.count,
                _address(piece.into)[0],
            )
        self._check(_call("fetch", self._job, name.encode(), len(pieces), rooms))

    def finish(self):
        """Ends the job when all ranks have called it."""
        self._check(_call("finish", self._job))

    def run(self, body):
        """Calls body(job, version) at the recovery point, again after each failure, until it has
        returned on all ranks; returns what it returned, or None on a process that is no rank any
        more."""
        while True:
            try:
                version = self.recover()
                if self.comm is None:
                    return None
                result = body(self, version)
                self.finish()
                return result
            except MPI.Exception as error:
                if not is_failure(error):
                    raise

    @property
    def report(self):
        """The last repair: a dictionary (recovery, failed, moved, method, busiest_before, ...,
        phases in ms)."""
        return json.loads(_call("report_json", self._job))

    @property
    def last_commit(self):
        """What the last commit cost this process: bytes, bytes_sent, ms, agree_ms."""
        cost = _Cost()
        _call("last_commit", self._job, ctypes.byref(cost))
        return {name: getattr(cost, name) for name, _ in _Cost._fields_}

    def free(self):
        """Frees everything."""
        if self._job:
            _call("free", ctypes.byref(self._job))
        self._held.clear()
