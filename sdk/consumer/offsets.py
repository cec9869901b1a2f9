"""Offsets of a group in its queues: where they are kept, and how they are committed.

`OffsetStore` is where a push consumer keeps its offsets: `GroupOffsets`, which the members of a group share at the
brokers, or `LocalOffsets`, the file of a broadcasting consumer.

`Commits` sends offsets to the masters, as only a master accepts them; while the master is unreachable its offsets are
kept here. The newest offset of each queue is committed when the master is back, or when the consumer closes. If the
process ends before that, the group reads some messages again, but never skips one. A consumer that closes waits
CLOSING_S for a broker and no longer: a broker that does not answer, as a frozen machine, must not hold up the end of a
program. Commits of one queue are sent one after another: two on their way could arrive in the wrong order. When a queue
becomes another member's, its kept offset is dropped (`forget`), since that member has committed later offsets
meanwhile. A queue that leaves the route may come back as another queue: its topic was made again, or its broker was
replaced by an empty broker of the same name. So a commit has the creation stamp of its topic, and the broker refuses
the commit if its topic has another stamp. An offset without a stamp, as with RocketMQ's brokers, is dropped when its
broker leaves the route.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Protocol

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.disk.atomic import read_or_backup, remove_all_leftovers, write_atomic
from skylark.mqcommon.disk.files import FileLock, FileSystem
from skylark.mqcommon.errors import (
    BrokerError,
    InvalidArgument,
    ProtocolError,
    RemotingError,
    RouteNotFound,
    SkylarkError,
    StoreError,
    StoreLocked,
)
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.body import LONG, Body, map_by_queue, member
from skylark.remoting.protocol.dialect import decode_body, encode_body
from skylark.sdk import broker_api
from skylark.sdk.client import ClientHandle
from skylark.sdk.consumer.replicas import Replicas
from skylark.sdk.consumer.settings import PushSettings
from skylark.sdk.position import Position
from skylark.sdk.retry import is_transient
from skylark.sdk.runtime import local_ip, survived

logger = logging.getLogger(__name__)


RETRY_S = 1.0
CLOSING_S = 0.5


class Commits:
    """The offsets that one group commits to the masters."""

    def __init__(
        self,
        client: ClientHandle,
        replicas: Replicas,
        group: str,
        report: Callable[[Exception | None], None] = lambda error: None,
    ) -> None:
        # Called with the error that keeps offsets here, and with None when they are committed.
        self._report = report
        self._client = client
        self._replicas = replicas
        self._group = group
        # (position, whether it may not go back).
        self._kept: dict[MessageQueue, tuple[Position, bool]] = {}
        # For each queue: the lock of its commit in flight; how often the queue was forgotten.
        self._locks: dict[MessageQueue, trio.Lock] = {}
        self._forgotten: dict[MessageQueue, int] = {}
        # (topic, broker name) of broker sets that were in a route once. A set whose brokers are all down leaves the
        # route, but offsets for the set are still kept.
        self._sets: dict[tuple[str, str], None] = {}
        self._is_retrying = False
        self._is_closing = False
        # Brokers that have not answered since the close began.
        self._unanswering: set[str] = set()

    def kept(self, mq: MessageQueue) -> Position | None:
        """The kept position of the queue, which the master has not accepted yet."""
        self._drop_if_gone(mq)
        kept = self._kept.get(mq)
        return None if kept is None else kept[0]

    async def commit(self, mq: MessageQueue, position: Position, *, forward_only: bool = False) -> None:
        """Commit the offset, or keep it for later. RouteNotFound for an unknown broker set; BrokerError on a refusal.

        ``forward_only``: a Skylark broker ignores an offset before the group's committed offset.
        """
        if not self._is_closing:
            await self._commit(mq, position, forward_only)
        elif mq.broker_name not in self._unanswering:
            # The lock may be held for a commit that waits for the same broker.
            with trio.move_on_after(CLOSING_S) as scope:
                await self._commit(mq, position, forward_only)
            if scope.cancelled_caught and mq.broker_name not in self._unanswering:
                self._unanswering.add(mq.broker_name)
                logger.warning(
                    "broker %s did not answer within %g s: its offsets are not committed, and the group %s reads some"
                    " messages again",
                    mq.broker_name,
                    CLOSING_S,
                    self._group,
                )

    async def _commit(self, mq: MessageQueue, position: Position, forward_only: bool) -> None:
        # The queue may become another member's while the commit is in flight. Then the offset must not be kept:
        # committed later, it would undo that member's commits.
        forgotten = self._forgotten.get(mq, 0)
        async with self._lock(mq):
            route = await self._client.instance.route(mq.topic)
            if route.has_queue_of(mq):
                self._sets[mq.topic, mq.broker_name] = None
            try:
                await self._send(mq, position, forward_only)
            except (RemotingError, RouteNotFound) as error:
                # A broker that was never in a route is a mistake of the caller, not an outage.
                if (mq.topic, mq.broker_name) not in self._sets:
                    raise
                if self._forgotten.get(mq, 0) == forgotten:
                    self._keep(mq, position, forward_only, error)
            else:
                # Drop the kept offset only now: when this commit is cancelled or refused, the kept offset must not be
                # lost.
                self._kept.pop(mq, None)

    def forget(self, mq: MessageQueue) -> None:
        """Drop the kept offset of a queue that is another member's now, and do not keep that of a commit in flight."""
        self._kept.pop(mq, None)
        self._forgotten[mq] = self._forgotten.get(mq, 0) + 1

    def _lock(self, mq: MessageQueue) -> trio.Lock:
        return self._locks.setdefault(mq, trio.Lock())

    def begin_close(self) -> None:
        """Let each commit wait for CLOSING_S only, from now on."""
        self._is_closing = True

    async def close(self) -> None:
        """Try once more to commit the kept offsets."""
        with trio.move_on_after(CLOSING_S):
            for mq in list(self._kept):
                if mq.broker_name not in self._unanswering:
                    await self._retry(mq)
        if self._kept:
            logger.warning(
                "offsets of %d queues could not be committed: the group %s reads some messages again",
                len(self._kept),
                self._group,
            )

    def _keep(self, mq: MessageQueue, position: Position, forward_only: bool, error: SkylarkError) -> None:
        was_empty = not self._kept
        self._kept[mq] = position, forward_only
        self._drop_if_gone(mq)
        if mq not in self._kept:
            return
        if was_empty:
            logger.warning("keeping offsets until the master of broker %s is back: %s", mq.broker_name, error)
        self._report(error)
        if not self._is_retrying:
            self._is_retrying = True
            self._client.nursery.start_soon(self._retry_often)

    def _drop_if_gone(self, mq: MessageQueue) -> None:
        """Drop the kept offset of a queue that is in no route, or that was replaced by a new queue of the same name."""
        kept, route = self._kept.get(mq), self._client.instance.routes.get(mq.topic)
        if kept is None or route is None:
            return
        offset, created_ms = kept[0]
        if created_ms is None and not route.has_queue_of(mq):
            why = "its broker has left the route and may come back as a new, empty broker; some messages come again"
        elif created_ms is not None and route.stamps.get(mq.broker_name, 0) > created_ms:  # a route may be older
            why = "the topic was deleted and made again"
        else:
            return
        del self._kept[mq]
        logger.warning("offset %d of %s is not committed for group %s: %s", offset, mq, self._group, why)

    @enable_ki_protection
    async def _retry_often(self) -> None:
        while self._kept:
            await trio.sleep(RETRY_S)
            with survived("committing offsets"):
                for mq in list(self._kept):
                    await self._retry(mq)
        self._is_retrying = False
        self._report(None)

    async def _retry(self, mq: MessageQueue) -> None:
        async with self._lock(mq):
            self._drop_if_gone(mq)
            kept = self._kept.get(mq)
            if kept is None:
                return
            position, forward_only = kept
            try:
                await self._send(mq, position, forward_only)
            except (RemotingError, RouteNotFound):
                return
            except BrokerError as error:
                if is_transient(error):
                    return
                logger.warning("offset %d of %s is not committed: %s", position.offset, mq, error)
            self._kept.pop(mq, None)

    async def _send(self, mq: MessageQueue, position: Position, forward_only: bool) -> None:
        await self._replicas.ask_master(
            mq,
            lambda at: broker_api.commit_offset(
                at,
                self._group,
                mq.topic,
                mq.queue_id,
                position.offset,
                forward_only=forward_only,
                created_ms=position.created_ms,
            ),
        )


class OffsetStore(Protocol):
    """The offsets of one group."""

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> Position | None:
        """The position in the queue, None when there is none.

        ``zero_if_new``: return 0 instead of None when the queue still has its first message in memory.
        """

    async def save(self, positions: Mapping[MessageQueue, Position], *, is_reset: bool = False) -> None:
        """Keep these positions; a position that cannot be kept now is logged.

        An offset before the group's committed offset is ignored unless ``is_reset``: a former owner of the queue, which
        learns late of the change, may send such an offset.
        """

    def forget(self, mq: MessageQueue) -> None:
        """Drop what is kept for a queue that is another member's now."""


class GroupOffsets:
    """Offsets at the brokers."""

    def __init__(
        self,
        replicas: Replicas,
        commits: Commits,
        group: str,
        report: Callable[[Exception | None], None] = lambda error: None,
    ) -> None:
        self._replicas = replicas
        # Called with the error when offsets are refused, and with None when they are accepted.
        self._report = report
        self._commits = commits
        self._group = group

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> Position | None:
        kept = self._commits.kept(mq)
        if kept is not None:
            return kept
        return await self._replicas.ask(
            mq, lambda at: broker_api.committed_offset(at, self._group, mq.topic, mq.queue_id, zero_if_new=zero_if_new)
        )

    async def save(self, positions: Mapping[MessageQueue, Position], *, is_reset: bool = False) -> None:
        """Commit to different brokers side by side, so that a broker that does not answer delays no other broker."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for mq in positions:
            by_broker.setdefault(mq.broker_name, []).append(mq)
        async with trio.open_nursery() as nursery:
            for queues in by_broker.values():
                nursery.start_soon(self._save, {mq: positions[mq] for mq in queues}, is_reset)

    def forget(self, mq: MessageQueue) -> None:
        self._commits.forget(mq)

    @enable_ki_protection
    async def _save(self, positions: Mapping[MessageQueue, Position], is_reset: bool) -> None:
        for mq, position in positions.items():
            try:
                await self._commits.commit(mq, position, forward_only=not is_reset)
            except SkylarkError as error:
                logger.warning("offset %d of %s is not committed: %s", position.offset, mq, error)
                # The queue was replaced by a new queue. The next pull finds that and begins the new queue: no lasting
                # problem.
                if not broker_api.is_of_another_queue(error):
                    self._report(error)
            else:
                self._report(None)


@lazy_dataclass(slots=True)
class OffsetsFile(Body):
    """The content of offsets.json. ``created_table``, Skylark's own: the creation stamps of the queues' topics."""

    offset_table: dict[MessageQueue, int] = member(map_by_queue(LONG))
    created_table: dict[MessageQueue, int] | None = member(map_by_queue(LONG), None)


def _check(data: bytes) -> None:
    try:
        table = decode_body(OffsetsFile, data).offset_table
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    # The file is first written when there is an offset to keep. Treating an empty file as a new consumer's would skip
    # messages.
    if not table:
        raise ValueError("it has no offsets")


class LocalOffsets:
    """An `OffsetStore` in a file; `open` reads it."""

    def __init__(self, settings: PushSettings, fs: FileSystem) -> None:
        self._settings = settings
        self._fs = fs
        self._folder = ""
        self._file_lock: FileLock | None = None
        self._positions: dict[MessageQueue, Position] = {}
        # The positions in the file. They differ from the kept positions after a failed write, which the next `save`
        # repeats.
        self._written: dict[MessageQueue, Position] = {}
        self._is_failing = False
        self._writing = trio.Lock()

    async def open(self) -> None:
        """Read the file. InvalidArgument when another process uses it, or it cannot be read."""
        await trio.to_thread.run_sync(self._open)

    async def close(self) -> None:
        """Let another process use the file."""
        if self._file_lock is not None:
            self._file_lock.close()

    async def read(self, mq: MessageQueue, *, zero_if_new: bool) -> Position | None:
        return self._positions.get(mq)

    async def save(self, positions: Mapping[MessageQueue, Position], *, is_reset: bool = False) -> None:
        async with self._writing:
            self._positions.update(positions)
            if self._positions == self._written:
                return
            now = dict(self._positions)
            try:
                await trio.to_thread.run_sync(self._write, encode_body(_file_of(now)))
            except OSError as error:
                if not self._is_failing:
                    logger.error("the offsets are not written to %s, still trying: %s", self._folder, error)
                self._is_failing = True
            else:
                self._written, self._is_failing = now, False

    def forget(self, mq: MessageQueue) -> None:
        """Do nothing: a queue of a broadcasting consumer is never another member's."""

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
            remove_all_leftovers(self._fs, self._folder)
            found = read_or_backup(self._fs, self._path, _check)
        except StoreLocked:
            raise InvalidArgument(
                f"another consumer keeps its offsets in {self._folder}: give each process its own instance_name"
            ) from None
        except (OSError, StoreError) as error:
            raise InvalidArgument(
                f"the offsets in {self._folder} cannot be used: {error}. Put back a copy of offsets.json, or remove it "
                "and offsets.json.bak: the consumer then begins as a new one, where consume_from says"
            ) from None
        if found is not None:
            self._positions = _positions_in(decode_body(OffsetsFile, found))
            self._written = dict(self._positions)

    def _write(self, data: bytes) -> None:
        write_atomic(self._fs, self._path, data, keep_backup=True)


def _file_of(positions: Mapping[MessageQueue, Position]) -> OffsetsFile:
    created = {mq: at.created_ms for mq, at in positions.items() if at.created_ms is not None}
    return OffsetsFile({mq: at.offset for mq, at in positions.items()}, created or None)


def _positions_in(file: OffsetsFile) -> dict[MessageQueue, Position]:
    created = file.created_table or {}
    return {mq: Position(offset, created.get(mq)) for mq, offset in file.offset_table.items()}
