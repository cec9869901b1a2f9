"""A machine that tests make worse: fewer descriptors, a slow disk, a clock that is set, less memory, a full /tmp."""

import os
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.daemons import Daemon

SOURCE = Path(__file__).with_suffix(".c")
_LAYOUT = struct.Struct("=qqq")


def with_open_files(daemon: Daemon, limit: int) -> Daemon:
    """The daemon with this hard limit of open files."""
    return replace(daemon, command=["prlimit", f"--nofile={limit}:{limit}", "--", *daemon.command])


class BadMachine:
    """The disk and the clock of daemons, by a library that is loaded before the C library. Skips without a compiler."""

    def __init__(self, home: Path) -> None:
        if not (compiler := shutil.which("cc")):
            pytest.skip("needs a C compiler (cc)")
        self._library = home / "bad_machine.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(self._library), str(SOURCE)]
        subprocess.run([*command, "-ldl"], check=True, timeout=60)
        self._control = home / "bad_machine"
        self._control.write_bytes(_LAYOUT.pack(0, 0, 0))

    def set(self, *, sync_s: float = 0, clock_s: float = 0, full: bool = False) -> None:
        """Each fsync takes ``sync_s`` longer from now on, and the wall clock is ``clock_s`` ahead.

        ``full``: files get no room any more, neither by appends nor by allocations.
        """
        # In place: the daemons have mapped the file.
        with self._control.open("r+b") as file:
            file.write(_LAYOUT.pack(round(sync_s * 1e6), round(clock_s * 1e9), full))

    def holding(self, daemon: Daemon) -> Daemon:
        """The daemon on this machine."""
        given = [f"LD_PRELOAD={self._library}", f"BAD_MACHINE={self._control}"]
        return replace(daemon, command=["env", *given, *daemon.command])


def in_mounts(daemon: Daemon, script: str) -> Daemon:
    """The daemon in a mount namespace of its own, which ``script`` (sh) changes first. Skips where that is refused."""
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, timeout=30, check=False)
    if os.geteuid() or probe.returncode:
        pytest.skip(f"needs mount namespaces: {probe.stderr.strip() or 'not root'}")
    return replace(daemon, command=["unshare", "-m", "sh", "-ec", f'{script}; exec "$@"', "sh", *daemon.command])


def with_memory(daemon: Daemon, groups: Path, limit_bytes: int) -> Daemon:
    """The daemon with a cgroup of version 2 that has this limit, as far as it can read; see `use_memory`."""
    groups.mkdir()
    (groups / "memory.max").write_text(f"{limit_bytes}\n")
    use_memory(groups, 0)
    own = groups / "own"
    own.write_text("0::/\n")
    # /proc/self is the daemon's own only once the shell has become the daemon: the name of the file stays.
    return in_mounts(daemon, f"mount --bind {groups} /sys/fs/cgroup; mount --bind {own} /proc/$$/cgroup")


def use_memory(groups: Path, used_bytes: int) -> None:
    """Let the cgroup use so much."""
    (groups / "memory.stat").write_text(f"anon {used_bytes}\nfile 1000000000\nshmem 0\n")


def with_full_tmp(daemon: Daemon) -> Daemon:
    """The daemon with a /tmp that has no room; the rest of the test's files must be elsewhere."""
    fill = "head -c 1M /dev/zero > /tmp/full 2> /dev/null || true"
    return in_mounts(daemon, f"mount -t tmpfs -o size=16k,nr_inodes=2 full /tmp; {fill}")
