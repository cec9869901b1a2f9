"""The offsets of a broadcasting consumer, in a file of RocketMQ's form at RocketMQ's place.

Every member reads all messages, so its offsets are its own: ``<local_offsets_dir>/<ip>@<instance_name>/<group>/
offsets.json``. The name of the folder must stay the same when the program starts again, so it is not the client id of
heartbeats, which is unique. A lock keeps a second process from writing the same file.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from mqcommon.disk.atomic import read_or_backup, write_atomic
from mqcommon.disk.files import FileLock, FileSystem
from mqcommon.errors import InvalidArgument, ProtocolError, StoreError, StoreLocked
from mqcommon.message.queue import MessageQueue
from remoting.protocol.body import LONG, Body, map_by_queue, member
from remoting.protocol.dialect import decode_body, encode_body
from sdk.consumer.settings import Settings
from sdk.identity import local_ip

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OffsetsFile(Body):
    """The content of offsets.json."""

    offset_table: dict[MessageQueue, int] = member(map_by_queue(LONG))


def _check(data: bytes) -> None:
    try:
        decode_body(OffsetsFile, data)
    except ProtocolError as error:
        raise ValueError(str(error)) from None


class LocalOffsets:
    """An `OffsetStore` in a file; `open` reads it."""

    def __init__(self, settings: Settings, fs: FileSystem) -> None:
        self._settings = settings
        self._fs = fs
        self._folder = ""
        self._file_lock: FileLock | None = None
        self._offsets: dict[MessageQueue, int] = {}
        self._writing = trio.Lock()

    async def open(self) -> None:
        """Read the file. InvalidArgument when another process uses it, or it cannot be read."""
        await trio.to_thread.run_sync(self._open)

    async def close(self) -> None:
        """Let another process use the file."""
        if self._file_lock is not None:
            self._file_lock.close()

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> int | None:
        return self._offsets.get(mq)

    async def save(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
        async with self._writing:
            if any(self._offsets.get(mq) != offset for mq, offset in offsets.items()):
                self._offsets.update(offsets)
                try:
                    await trio.to_thread.run_sync(self._write, encode_body(OffsetsFile(dict(self._offsets))))
                except OSError as error:
                    logger.error("the offsets are not written to %s: %s", self._folder, error)

    def forget(self, mq: MessageQueue) -> None:
        """Nothing: a queue of a broadcasting consumer is never another member's."""

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, "offsets.json")

    def _open(self) -> None:
        settings = self._settings
        folder = settings.offsets_dir / f"{local_ip()}@{settings.instance_name}" / settings.group
        self._folder = str(folder)
        try:
            self._fs.mkdirs(self._folder)
            self._file_lock = self._fs.lock(os.path.join(self._folder, "lock"))
            found = read_or_backup(self._fs, self._path, _check)
        except StoreLocked:
            raise InvalidArgument(
                f"another consumer keeps its offsets in {self._folder}: give each process its own instance_name"
            ) from None
        except (OSError, StoreError) as error:
            raise InvalidArgument(f"the offsets in {self._folder} cannot be used: {error}") from None
        if found is not None:
            self._offsets = decode_body(OffsetsFile, found).offset_table

    def _write(self, data: bytes) -> None:
        write_atomic(self._fs, self._path, data, keep_backup=True)
