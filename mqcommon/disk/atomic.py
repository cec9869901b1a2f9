"""Small files, replaced as a whole: after a crash there is the old content or the new, never a mixture.

This depends on the order of steps: the new bytes are on disk before the name points at them, and the name is on disk
before the caller goes on. At no moment is there no file. With ``keep_backup`` the old content stays as ``<path>.bak``,
as RocketMQ keeps it. A file that is replaced keeps its permissions and its owner; only its owner can read a new one.
Each write has a temporary file of its own, ``<path>.<16 hex digits>.tmp``. The next start removes a temporary file that
a crash left (`remove_leftovers`). A file that several processes change, as the conf file of the instances of one
broker, is read and replaced under `exclusive`: otherwise one process would undo the change of another.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from zlib import crc32

from skylark.mqcommon.disk.files import FileLock, FileSystem, ReadableFiles
from skylark.mqcommon.errors import StoreCorrupt, StoreLocked

# How long to wait for another process that changes the same file: its change takes some fsyncs.
LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.005
# How much of a file is copied at once.
_COPY_BYTES = 4 * 1024 * 1024
# How the name of a temporary file ends.
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp$")


def write_atomic(fs: FileSystem, path: str, data: bytes | Iterable[bytes], *, keep_backup: bool = False) -> None:
    """Replace ``path`` by ``data``, which is bytes or pieces of bytes; blocks until the file survives power loss.

    ``keep_backup``: the old content stays as ``<path>.bak``. After an error in any step but the last the file is as it
    was, and no temporary file is left.
    """
    replaced = next((each for each in (path, path + ".bak") if fs.exists(each)), None)
    # 1. The bytes under another name, synced. 2. The rename, which is atomic. 3. The directory, so that the name is on
    # disk, too: before that a power loss brings the old content back.
    with _temporary(fs, path, (data,) if isinstance(data, bytes) else data, replaced) as new:
        if keep_backup and replaced == path:
            # A copy, as the file itself must stay in its place until the new file replaces it.
            with _temporary(fs, path, (fs.read(path),), path) as backup:
                fs.rename(backup, path + ".bak")
        fs.rename(new, path)
    fs.fsync_dir(os.path.dirname(path))


def unshare(fs: FileSystem, path: str) -> None:
    """Make ``path`` a file of its own if the file has other names: to be called before it is changed in place. Blocks.

    A backup has the same file under another name. Maps that are open still show the other names' file. DiskFull and
    OSError change nothing.
    """
    if fs.link_count(path) > 1:
        size = fs.size(path)
        write_atomic(fs, path, (fs.read_part(path, at, _COPY_BYTES) for at in range(0, size, _COPY_BYTES)))


@contextmanager
def _temporary(fs: FileSystem, path: str, pieces: Iterable[bytes], like: str | None) -> Iterator[str]:
    """A new file beside ``path``, synced, with the permissions of ``like``; removed at the end if it still exists."""
    name = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        file = fs.open_append(name)
        try:
            if like is not None:
                fs.take_mode(name, like)
            for piece in pieces:
                file.write(piece)
            file.sync()
        finally:
            file.close()
        yield name
    finally:
        if fs.exists(name):
            fs.remove(name)


@contextmanager
def exclusive(fs: FileSystem, path: str) -> Iterator[None]:
    """Let no other process or thread change ``path`` meanwhile. Blocks; StoreLocked after `LOCK_TIMEOUT_S`.

    Everyone who changes the file has to use this. The lock is the file ``<path>.lock``.
    """
    lock = _wait_for_lock(fs, path)
    try:
        _remove(fs, _leftovers(fs, path))
        yield
    finally:
        _unlock(fs, path, lock)


def _wait_for_lock(fs: FileSystem, path: str) -> FileLock:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fs.lock(path + ".lock")
        except StoreLocked:
            if time.monotonic() >= deadline:
                raise StoreLocked(
                    f"{path} is not changed: another process has held {path}.lock for {LOCK_TIMEOUT_S:g} s; try again"
                ) from None
        time.sleep(_LOCK_POLL_S)


def _unlock(fs: FileSystem, path: str, lock: FileLock) -> None:
    try:
        fs.remove(path + ".lock")  # before the lock is free: later the file may be another holder's
    finally:
        lock.close()


def remove_leftovers(fs: FileSystem, path: str) -> str:
    """Remove temporary files of ``path``, which several processes may change, unless a process is changing it now.

    Returns "", or why the files stay: they take room, and do no other harm.
    """
    try:
        if not _leftovers(fs, path):
            return ""
        lock = fs.lock(path + ".lock")
        try:
            _remove(fs, _leftovers(fs, path))
        finally:
            _unlock(fs, path, lock)
    except StoreLocked:
        pass  # `exclusive` has removed them
    except OSError as error:
        return f"temporary files of {path} stay: {error}"
    return ""


def remove_all_leftovers(fs: FileSystem, directory: str) -> None:
    """Remove the temporary files of all files in a directory where nobody else writes."""
    _remove(fs, [os.path.join(directory, name) for name in fs.listdir(directory) if _TEMPORARY.search(name)])


def _leftovers(fs: FileSystem, path: str) -> list[str]:
    directory, name = os.path.split(path)
    found = [each for each in fs.listdir(directory or ".") if each.startswith(name + ".")]
    # Older versions wrote to `<path>.tmp`.
    temporary = [each for each in found if _TEMPORARY.fullmatch(each, len(name)) or each == name + ".tmp"]
    return [os.path.join(directory, each) for each in temporary]


def _remove(fs: FileSystem, paths: Iterable[str]) -> None:
    for path in paths:
        fs.remove(path)


def write_with_crc(fs: FileSystem, path: str, data: bytes) -> None:
    """As `write_atomic`, with the CRC of ``data`` before it, in 4 bytes."""
    write_atomic(fs, path, crc32(data).to_bytes(4, "big") + data)


def read_with_crc(fs: ReadableFiles, path: str) -> bytes | None:
    """The data that `write_with_crc` wrote; None when the file is missing or damaged."""
    return without_crc(fs.read(path)) if fs.exists(path) else None


def without_crc(raw: bytes) -> bytes | None:
    """The data of a file with the bytes ``raw`` that `write_with_crc` wrote; None when the file is damaged.

    An empty content counts as damage, too: its CRC is 0, so a file of which a power loss left 4 zeros would fit.
    """
    data = raw[4:]
    return data if data and int.from_bytes(raw[:4], "big") == crc32(data) else None


def has_crc(raw: bytes) -> bool:
    """Whether ``raw`` is the whole content of a file that `write_with_crc` wrote."""
    return without_crc(raw) is not None


def read_or_backup(fs: FileSystem, path: str, check: Callable[[bytes], object] | None = None) -> bytes | None:
    """The content of ``path``, or else of its backup; None when neither exists.

    ``check`` raises ValueError on damaged content, which is then not used; empty content counts as damaged.
    """
    damage = None
    for candidate in (path, path + ".bak"):
        if not fs.exists(candidate):
            continue
        data = fs.read(candidate)
        try:
            if not data:
                raise ValueError("the file is empty")
            if check is not None:
                check(data)
        except ValueError as error:
            damage = damage or StoreCorrupt(candidate, 0, str(error))
        else:
            return data
    if damage is not None:
        raise damage
    return None
