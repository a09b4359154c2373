"""A Python program that is captured by signals while it computes and writes a file."""

import ctypes
import hashlib
import os
import signal
import sys

directory, library = sys.argv[1:]
capture = ctypes.CDLL(library).eyrie_ctypes_capture
capture.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_uint64]
written = 0


def show(text):
    global written
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    written += os.write(1, text.encode())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGUSR2})


def on_signal(number, _frame):
    out = os.open(directory + "/image", os.O_WRONLY)
    outcome = capture(out, int(number == signal.SIGUSR2), written)
    if outcome == 1:
        os.write(2, b"restored\n")
    else:
        os.close(out)
        os.write(2, b"captured\n" if outcome == 0 else b"refused\n")


signal.signal(signal.SIGUSR1, on_signal)
signal.signal(signal.SIGUSR2, on_signal)

table = {}
digest = hashlib.sha256()
with open(directory + "/lines", "w") as lines:
    for step in range(60_000):
        table[step * 7919 % 10007] = [step] * (step % 17)
        digest.update(repr(table.get(step % 10007)).encode())
        if step % 1000 == 0:
            lines.write(f"{step} {digest.hexdigest()}\n")
            show(f"{step} {digest.hexdigest()[:8]} {sum(map(len, table.values()))}\n")
show(f"done {digest.hexdigest()}\n")
