"""Memory that is free goes back to the kernel."""

import ctypes
from pathlib import Path

import pytest

from skylark.mqcommon.daemons.malloc import give_back_freed_memory, keep_freed_memory

PIECE = 100_000  # smaller than what the C library takes from the kernel by itself
COUNT = 1_000


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def test_free_pages_between_used_blocks_are_given_back() -> None:
    blocks = [bytearray(b"x" * PIECE) for _ in range(COUNT)]
    kept = blocks[::10]
    full = resident_pages()
    del blocks
    give_back_freed_memory()
    assert full - resident_pages() > COUNT * PIECE // 2 // 4096
    assert len(kept) == COUNT // 10


def test_a_c_library_other_than_glibc_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    keep_freed_memory()
    give_back_freed_memory()
