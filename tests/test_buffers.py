"""The memory of what is read and written does not come from the kernel anew each time."""

import ctypes
import subprocess
import sys

import pytest

from tests.support.running import BOUND

ROUNDS = 50
COUNT = """
from resource import RUSAGE_SELF, getrusage
from sandboxagent.server.main import keep_buffers

def count_faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range({rounds}):
        # As much as the event loop reads at a time, some of it in several places.
        [bytearray(256_000) for _ in range(8)]
    return getrusage(RUSAGE_SELF).ru_minflt - before

keep_buffers()
print(count_faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no such options")
def test_buffers_are_used_again() -> None:
    code = COUNT.format(rounds=ROUNDS)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=BOUND, text=True)
    # Once is enough; all of them anew would be fifty times as many.
    assert int(told.stdout) < 4 * 8 * 256_000 // 4096
