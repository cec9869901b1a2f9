"""What malloc does with blocks of some MiB once the process keeps freed memory.

Not in test_runtime.py: each case needs a process of its own, and `scripts/test --fast` leaves such files out.
"""

import platform
import subprocess
import sys

import pytest

# Prints how many blocks malloc has mapped on their own for one of 4 MiB.
MAPPED = """
import ctypes

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", *"abcdef")]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo
before = mallinfo().hblks
block = bytes(4 << 20)
print(mallinfo().hblks - before)
"""
KEEPING = "from skylark.sdk.runtime import keep_freed_memory\nkeep_freed_memory()\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc does so")
@pytest.mark.parametrize(("program", "mapped"), [(MAPPED, 1), (KEEPING + MAPPED, 0)], ids=["not asked", "asked"])
def test_a_block_of_4_mib_is_taken_from_memory_that_is_kept(program: str, mapped: int) -> None:
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(found.stdout) == mapped
