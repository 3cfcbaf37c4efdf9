"""Whether idle cores may sleep while something is measured."""

import contextlib
import os
import pathlib
import struct

# The process that holds it open says how many microseconds a core may take to wake up, to all of the system.
LATENCY_MAX = pathlib.Path("/dev/cpu_dma_latency")


def can_stay_awake():
    return os.access(LATENCY_MAX, os.W_OK)


@contextlib.contextmanager
def awake():
    """Has idle cores stay awake meanwhile, where the system lets us."""
    if not can_stay_awake():
        yield
        return
    with LATENCY_MAX.open("wb", buffering=0) as request:
        request.write(struct.pack("i", 0))
        yield
