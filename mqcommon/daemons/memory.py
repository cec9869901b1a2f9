"""How much memory this process may have: the machine's, or less by the limit of its cgroup (a container, systemd).

The kernel kills processes of a cgroup that has no memory left. Pages of files do not count as used here, although the
kernel counts them: it takes them back before it kills.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

MIB = 1024 * 1024
# A daemon needs some 60 MiB, and more for connections and what they send.
LITTLE_BYTES = 128 * MIB
# From which share on memory is short, and below which share it is enough again.
SHORT_PERCENT = 90
ENOUGH_PERCENT = 80
# Names in a cgroup's directory, by the version of cgroups: its limit, and what its processes use. The machine's own
# cgroup has no such files.
_LIMIT = {2: "memory.max", 1: "memory.limit_in_bytes"}
# Rows of memory.stat whose memory the kernel cannot take back. Version 1 sums up the cgroups below in total_...
_KEPT = {2: ("anon", "shmem"), 1: ("total_rss", "total_shmem")}


@lazy_dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The least of the machine's memory and the limits of this process's cgroup and of the cgroups around it."""

    limit_bytes: int
    #: Where the limit stands: "the machine", or the directory of the cgroup.
    source: str
    #: 1 or 2; 0 for the machine.
    version: int = 0

    def __str__(self) -> str:
        """Such as ``512 MiB (/sys/fs/cgroup)``."""
        return f"{self.limit_bytes // MIB:,} MiB ({self.source})"

    def used_bytes(self) -> int | None:
        """Memory that counts against the limit and cannot be taken back; None when it is unknown. Reads a file."""
        if not self.version:
            return None
        try:
            rows = dict(line.split() for line in Path(self.source, "memory.stat").read_text().splitlines())
            return sum(int(rows.get(name, "0")) for name in _KEPT[self.version])
        except (OSError, ValueError):
            return None


class MemoryWatch:
    """Says when memory runs short, and when it no longer does."""

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._is_short = False

    def check(self) -> str:
        """A line for the log when memory has become short, or is enough again; "" else. Reads a file."""
        used = self._limit.used_bytes()
        if used is None:
            return ""
        percent = 100 * used // self._limit.limit_bytes
        if not self._is_short and percent >= SHORT_PERCENT:
            self._is_short = True
            return (
                f"memory is short: {percent} % of {self._limit} are used, and the kernel kills this process when it is"
                " all: raise the limit, or lower maxBufferedBytes and maxConnections"
            )
        if self._is_short and percent < ENOUGH_PERCENT:
            self._is_short = False
            return f"memory is enough again: {percent} % of {self._limit} are used"
        return ""


@cache
def memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """The limit of this process at the first call. ``root`` is where the directories ``proc`` and ``sys`` are."""
    found = [MemoryLimit(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine")]
    for version, directory in _cgroups(root):
        # "max", or a number of 2^63 in version 1, means: no limit.
        with suppress(OSError, ValueError):
            found.append(MemoryLimit(int((directory / _LIMIT[version]).read_text()), str(directory), version))
    return min(found, key=lambda each: each.limit_bytes)


def _cgroups(root: Path) -> Iterator[tuple[int, Path]]:
    """(version, directory) of the memory cgroup of this process, and of the cgroups around it."""
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, mounted = 2, top
        elif "memory" in controllers.split(","):
            version, mounted = 1, top / "memory"
        else:
            continue
        # In a container the path may be the host's, and its directory missing: the mounted one is the container's then.
        inner = mounted / path.lstrip("/")
        yield version, inner
        yield from ((version, each) for each in inner.parents if each == mounted or mounted in each.parents)
