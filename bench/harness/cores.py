"""Whether idle cores may sleep while something is measured."""

import contextlib
import pathlib
import struct

# Whoever holds it open says how many microseconds a core may take to wake up, to all of the system.
LATENCY_MAX = pathlib.Path("/dev/cpu_dma_latency")


@contextlib.contextmanager
def awake():
    """Has idle cores stay awake meanwhile; says whether the system lets us."""
    try:
        request = LATENCY_MAX.open("wb", buffering=0)
    except OSError:
        yield False
        return
    with request:
        request.write(struct.pack("i", 0))
        yield True
