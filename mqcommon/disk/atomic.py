"""Small files, replaced as a whole: after a crash there is the old content or the new, never a mixture.

This depends on the order of steps: the new bytes are on disk before the name points at them, and the name is on disk
before the caller goes on. With ``keep_backup`` the old content stays as ``<path>.bak``, as RocketMQ keeps it.
A file that is replaced keeps its permissions and its owner; only its owner can read a new one.
"""

import os
from collections.abc import Callable, Iterable
from zlib import crc32

from mqcommon.disk.files import FileSystem, ReadableFiles
from mqcommon.errors import StoreCorrupt


def write_atomic(fs: FileSystem, path: str, data: bytes | Iterable[bytes], *, keep_backup: bool = False) -> None:
    """Replace ``path`` by ``data``, whole or in pieces; blocks until it survives power loss."""
    tmp = path + ".tmp"
    if fs.exists(tmp):  # left by a write that a crash interrupted
        fs.remove(tmp)
    # 1. The bytes under another name, synced. 2. The rename, which is atomic. 3. The directory, so that the name is on
    # disk, too: before that a power loss brings the old content back.
    file = fs.open_append(tmp)
    try:
        replaced = next((each for each in (path, path + ".bak") if fs.exists(each)), None)
        if replaced is not None:
            fs.take_mode(tmp, replaced)
        for piece in (data,) if isinstance(data, bytes) else data:
            file.write(piece)
        file.sync()
    finally:
        file.close()
    if keep_backup and fs.exists(path):
        fs.rename(path, path + ".bak")  # a crash here leaves only the backup, which read_or_backup reads
    fs.rename(tmp, path)
    fs.fsync_dir(os.path.dirname(path))


def write_with_crc(fs: FileSystem, path: str, data: bytes) -> None:
    """As `write_atomic`, with the CRC of ``data`` before it, in 4 bytes."""
    write_atomic(fs, path, crc32(data).to_bytes(4, "big") + data)


def read_with_crc(fs: ReadableFiles, path: str) -> bytes | None:
    """What `write_with_crc` wrote; None when the file is missing or damaged."""
    raw = fs.read(path) if fs.exists(path) else b""
    data = raw[4:]
    return data if len(raw) >= 4 and int.from_bytes(raw[:4], "big") == crc32(data) else None


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
