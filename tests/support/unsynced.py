"""Real daemons on disks that lose power: what they did not sync is lost in part, page by page, and so are names.

A daemon that starts with `LosingDisks.environment` notes in a shadow directory what a disk would have: the bytes of a
file when it is synced, the names of a directory when that is synced (`install`). Nothing is really synced.
`LosingDisks` stands in the process of the tests: after the daemons were killed, `lose_power` replaces their directories
by what a machine would find that lost its power. Each page that was written since the last sync is there or not, and
so is each name; a rename is done or not.
Daemons that see the boot id of before are on a machine that went on, with its disk mounted anew.
"""

import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from skylark.broker.replication.dledger.log_disk import LogDisk
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.disk import files
from skylark.mqcommon.disk.files import OsFiles
from tests.support.memory_disk import Node
from tests.support.warm_daemons import DISK

SHADOW = "TEST_SHADOW"
BOOT = "TEST_BOOT"


class Shadow:
    """The contents of the disks, in files of ``directory``; used by daemons and by tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.contents = directory / "contents"
        self._names = directory / "names"
        self.removed = directory / "removed"
        self._flushes = directory / "flushes"

    def begin(self, roots: list[Path]) -> None:
        """All that is in these directories is on disk."""
        shutil.rmtree(self.directory, ignore_errors=True)
        for each in (self.contents, self._names, self.removed, self._flushes):
            each.mkdir(parents=True)
        for root in roots:
            self.put_all(root)

    def put_all(self, root: str | Path) -> None:
        """All that is in this directory is synced."""
        for directory, _, names in os.walk(root):
            for name in names:
                with open(os.path.join(directory, name), "rb") as file:
                    self.put_content(file.fileno())
            self.put_names(directory)

    def put_content(self, fd: int) -> None:
        """The file is synced. A kill meanwhile leaves a part of the new bytes: they were on their way."""
        status = os.fstat(fd)
        copy = os.open(self.contents / str(status.st_ino), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(copy, os.pread(fd, status.st_size, 0), 0)
            os.ftruncate(copy, status.st_size)
        finally:
            os.close(copy)

    def put_names(self, directory: str) -> None:
        """The directory is synced."""
        path = self._names / quote(directory, safe="")
        half = path.with_name(f"{path.name}.{time.monotonic_ns()}")
        half.write_text(json.dumps(numbers_in(directory)), encoding="utf-8")
        half.rename(path)

    def names_of(self, directory: str) -> dict[str, int]:
        """The names that it has on disk, with the numbers of their files."""
        path = self._names / quote(directory, safe="")
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def keep(self, path: str) -> None:
        """The name ``path`` goes. The number of its file must not be used again while the disk may have the file."""
        if os.path.exists(path):
            with_number = self.removed / str(os.stat(path).st_ino)
            if not with_number.exists():
                os.link(path, with_number)

    def put_flush(self, started: float) -> None:
        """A flush of what was acknowledged, which began at this time (`time.monotonic`), is done."""
        path = self._flushes / str(os.getpid())
        half = path.with_suffix(".half")
        half.write_text(repr(started), encoding="ascii")
        half.rename(path)

    def flushed_since(self, pid: int) -> float:
        """When the last flush began that the daemon has done; 0 if it has done none."""
        path = self._flushes / str(pid)
        return float(path.read_text(encoding="ascii")) if path.exists() else 0.0


def numbers_in(directory: str) -> dict[str, int]:
    """Name of each file -> number of the file."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.is_file(follow_symlinks=False)}


def install(environment: Mapping[str, str]) -> None:
    """Make this process a daemon whose disk can lose power."""
    shadow, boot = Shadow(Path(environment[SHADOW])), environment[BOOT]
    remove, rename, flush = OsFiles.remove, OsFiles.rename, MessageStore.flush
    become_member, sync_entries = LogDisk.__init__, LogDisk._sync

    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            shadow.put_names(os.readlink(f"/proc/self/fd/{fd}"))
        else:
            shadow.put_content(fd)

    def sync_all(fd: int) -> None:
        shadow.put_all(os.readlink(f"/proc/self/fd/{fd}"))

    def keep_and_remove(self: OsFiles, path: str) -> None:
        shadow.keep(path)
        remove(self, path)

    def keep_and_rename(self: OsFiles, old: str, new: str) -> None:
        shadow.keep(new)
        rename(self, old, new)

    members: list[LogDisk] = []

    def noted_flush(self: MessageStore) -> int:
        started = time.monotonic()
        reached = flush(self)
        if not members:
            shadow.put_flush(started)
        return reached

    def noted_member(self: LogDisk, *args: Any) -> None:
        members.append(self)
        become_member(self, *args)

    async def noted_sync(self: LogDisk, *, with_mark: bool) -> None:
        # A member of a DLedger group starts without messages whose entries are not on disk.
        started = time.monotonic()
        await sync_entries(self, with_mark=with_mark)
        shadow.put_flush(started)

    replaced: list[tuple[Any, str, Any]] = [
        (os, "fdatasync", sync),
        (os, "fsync", sync),
        (files, "syncfs", sync_all),
        (OsFiles, "remove", keep_and_remove),
        (OsFiles, "rename", keep_and_rename),
        (OsFiles, "boot_id", lambda self: boot),
        (MessageStore, "flush", noted_flush),
        (LogDisk, "__init__", noted_member),
        (LogDisk, "_sync", noted_sync),
    ]
    for owner, name, value in replaced:
        setattr(owner, name, value)


class LosingDisks:
    """The directories ``roots`` of daemons that are started with `environment`."""

    def __init__(self, shadow: Path, roots: list[Path], random: Random) -> None:
        self.shadow = Shadow(shadow)
        self._roots = roots
        self._random = random
        self._boots = 1
        self.shadow.begin(roots)

    def environment(self) -> dict[str, str]:
        """The environment for daemons that start now."""
        return {DISK: __name__, SHADOW: str(self.shadow.directory), BOOT: f"boot-{self._boots}"}

    def lose_power(self, *, new_boot: bool) -> None:
        """Replace the directories of daemons, which were killed, by what their disks have."""
        self._boots += new_boot
        for root in self._roots:
            after = root.with_name(f"{root.name}.after")
            for directory, _, _ in os.walk(root):
                self._survive(Path(directory), after / Path(directory).relative_to(root))
            if after.exists():
                shutil.rmtree(root)
                after.rename(root)
        self.shadow.begin(self._roots)

    def _survive(self, directory: Path, after: Path) -> None:
        after.mkdir(parents=True, exist_ok=True)
        durable, live = self.shadow.names_of(str(directory)), numbers_in(str(directory))
        names = {**durable, **live}
        for group in _changed_together(durable, live):
            survives = live if self._random.random() < 0.5 else durable
            for name in group:
                names.pop(name, None)
                if name in survives:
                    names[name] = survives[name]
        live_paths = {number: directory / name for name, number in live.items()}
        for name in sorted(names):
            number = names[name]
            (after / name).write_bytes(self._content(number, live_paths.get(number)))

    def _content(self, number: int, live: Path | None) -> bytes:
        on_disk = self.shadow.contents / str(number)
        path = live if live is not None else self.shadow.removed / str(number)
        node = Node(on_disk.read_bytes() if on_disk.exists() else b"")
        if path.exists():
            node.data = bytearray(path.read_bytes())
        return node.survivor(self._random)


def _changed_together(durable: dict[str, int], live: dict[str, int]) -> Iterator[list[str]]:
    """Names whose changes may be lost, in groups: of a rename both names change, or neither."""
    left = [name for name in sorted({*durable, *live}) if durable.get(name) != live.get(name)]
    while left:
        group = [left.pop(0)]
        for name in group:  # grows
            numbers = {durable.get(name), live.get(name)} - {None}
            more = [other for other in left if {durable.get(other), live.get(other)} & numbers]
            group += more
            left = [other for other in left if other not in more]
        yield group
