"""A slave's metadata: topics, groups, consumer offsets, delay offsets and modes of consumption, copied from its master.

They are copied as soon as the master is known, and again after each change: a Skylark master holds the question until
then (watch_metadata.py), a Java master is asked for all tables every INTERVAL_MS, as RocketMQ's slaves do.
Changes are written to the slave's own journal, with the master's versions.
Offsets of delay levels are taken when this slave's log has all that the master's had when it sent them. Otherwise a
promoted slave would lack delivered messages that its offsets say it has.
Invariant: nothing is copied from a master whose log ends before this slave's. It has lost its disk, or belongs to
another set, and its empty tables would make the messages here unreadable.
Neighbours: known_master.py (the address), master_api.py (the requests), meta/ (the tables), handlers/ of the master.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar, cast

import trio

from skylark.broker.meta.metadata import Metadata
from skylark.broker.meta.topics import Drain, Topics
from skylark.broker.replication.copied_deletions import CopiedDeletions
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.master_api import LevelOffsets, MasterClient, Offsets
from skylark.broker.store.store import MessageStore
from skylark.broker.tasks.persist import Persister
from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import (
    BrokerError,
    ProtocolError,
    RemotingError,
    ReplicationRefused,
    RequestTimeout,
    StoreError,
)
from skylark.mqcommon.names import is_light, is_retry_topic
from skylark.mqcommon.polling import poll_until
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.client import OpenClient, RemotingClient, open_client
from skylark.remoting.net.steps import run_slices
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.replication import FIRST_PAGE, MetadataVersions
from skylark.remoting.protocol.requests.topics import TopicConfig

logger = logging.getLogger(__name__)

INTERVAL_MS = 3_000
# Pauses between tries while the master is away: they grow from the first to the second, with jitter.
FIRST_RETRY_S = 0.1
RETRY_S = 3.0
# Pause between two copies from a Skylark master: this, or this many times the duration of the last copy.
PAUSE_S = 0.05
PAUSE_FACTOR = 10
# The factor for consumer offsets. There may be millions of them, and a new topic must not wait for these.
OFFSETS_FACTOR = 10
# Normally only changed consumer offsets are copied; all of them are when this time has passed.
WHOLE_S = 60
# How long to wait for the log after a copy of the delay offsets; then again after the next copy.
LOG_WAIT_S = 0.1

T = TypeVar("T")

_Failures = (RemotingError, BrokerError, ProtocolError, StoreError, ReplicationRefused)


class SlaveSync:
    """Copies the master's tables to this slave: `run` it. ``log_end`` returns the end of this slave's log."""

    def __init__(
        self,
        known: KnownMaster,
        metadata: Metadata,
        persister: Persister,
        log_end: Callable[[], int],
        deletions: CopiedDeletions,
        online: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        open_client: OpenClient = open_client,
        random: Random | None = None,
    ) -> None:
        """``online`` returns when the master's tables may be copied: with acting masters, after it has registered."""
        self._known = known
        self._metadata = metadata
        self._persister = persister
        self._log_end = log_end
        self._deletions = deletions
        self._online = online
        self._open_client = open_client
        self._backoff = Backoff(FIRST_RETRY_S, RETRY_S, random or Random())
        self._moved = Signal()
        self._failures = 0
        # RocketMQ 4 has no modes of consumption, and would log an error for each question.
        self._has_request_modes = True
        self._whole_at = self._offsets_from = -math.inf
        # Copied, but the log is not there yet.
        self._level_offsets: LevelOffsets | None = None
        #: How many copies were completed.
        self.rounds = 0
        if metadata.topics_to.value < 0:
            metadata.topics_to.put(log_end())

    async def run(self) -> None:
        """Copy from the master, and from its new address when it moves."""
        async with self._open_client() as client:
            while True:
                self._moved.clear()
                async with trio.open_nursery() as nursery:
                    if self._known.address is not None:
                        nursery.start_soon(self._follow, client, self._known.address.addr)
                    await self._moved.wait()
                    nursery.cancel_scope.cancel()

    def master_moved(self) -> None:
        """Let `run` go to the master's new address; to be called when ``known`` changes."""
        self._moved.set()

    async def _follow(self, client: RemotingClient, addr: str) -> None:
        master = MasterClient(client, addr)
        copied: MetadataVersions | None = None
        self._deletions.forget()
        self._failures, is_first, self._level_offsets, self._has_request_modes = 0, True, None, True
        while True:
            try:
                await self._online()
                # After each new connection: the master may be another process, on another or an emptied disk.
                if copied is None or not master.is_connected:
                    await self._check_log(master)
                    copied = None
                copied, pause_s = await self._copy(master, copied)
            except Exception as error:
                self._failed(addr, error)
                if isinstance(error, RequestTimeout):  # the connection may be dead without an error
                    client.close_connection(addr, "no answer in time")
                copied, is_first = None, True
                self._known.ask_again()
                await trio.sleep(self._backoff.pause_s(self._failures))
                continue
            self._known.heard(answers=True)
            if is_first:
                logger.info("metadata copied from master %s: %s", addr, self._summary())
            self._failures, is_first = 0, False
            self.rounds += 1
            await trio.sleep(pause_s)

    async def _check_log(self, master: MasterClient) -> None:
        ours = self._log_end()
        end = await master.log_end()
        if end is not None and end < ours:
            raise ReplicationRefused(
                f"its log ends at {end}, but this slave's at {ours}: it is not the log that this slave copied"
            )

    async def _copy(self, master: MasterClient, copied: MetadataVersions | None) -> tuple[MetadataVersions, float]:
        """Copy the tables that have changed; returns the master's versions, and the pause before the next copy."""
        versions = MetadataVersions()
        if master.is_skylark:
            versions = await master.watch(copied or versions, INTERVAL_MS)
            known = copied
            await self._online()  # the master may have gone while it held the question
        else:
            known = None
        started = trio.current_time()
        if known is None or versions.topics != known.topics:
            await self._copy_topics(master)
        await self._deletions.follow_log()
        if known is None or versions.groups != known.groups:
            await self._copy_groups(master)
        if known is None or versions.delay_offsets != known.delay_offsets:
            await self._copy_delay_offsets(master)
        if self._has_request_modes and (known is None or versions.request_modes != known.request_modes):
            await self._copy_request_modes(master)
        if versions.users.counter and (known is None or _auth(versions) != _auth(known)):
            await self._copy_users(master)
        took = trio.current_time() - started
        await self._take_delay_offsets()
        if known is None or versions.consumer_offsets != known.consumer_offsets:
            versions.consumer_offsets = await self._copy_offsets_at_times(master, known) or versions.consumer_offsets
        if master.is_skylark:
            return versions, max(PAUSE_S, PAUSE_FACTOR * took)
        return versions, max(INTERVAL_MS / 1000, PAUSE_FACTOR * (trio.current_time() - started))

    async def _copy_topics(self, master: MasterClient) -> None:
        # The log's end is read before the table is requested: the table has the topics of all messages before this end;
        # topics of later messages may be missing.
        log_end = self._log_end()
        table = await master.topics()
        if master.is_skylark:
            self._deletions.add(table.topic_deletions or {})
        else:
            self._deletions.missing(table.topic_config_table, log_end)
        await run_slices(
            self._metadata.topics.mirror(
                table.topic_config_table,
                table.topic_queue_mapping_detail_map,
                table.data_version,
                Drain(*table.drain) if table.drain else None,
            )
        )
        self._metadata.topics_to.put(log_end)

    async def _copy_groups(self, master: MasterClient) -> None:
        table = await master.groups()
        groups = self._metadata.groups
        await run_slices(groups.mirror(table.subscription_group_table, table.forbidden_table, table.data_version))

    async def _copy_offsets_at_times(self, master: MasterClient, known: MetadataVersions | None) -> DataVersion | None:
        """Like `_copy_consumer_offsets`, but too soon after a long copy it does nothing and returns ``known``."""
        started = trio.current_time()
        if known is not None and started < self._offsets_from:
            return known.consumer_offsets
        version = await self._copy_consumer_offsets(master, None if known is None else known.consumer_offsets)
        now = trio.current_time()
        self._offsets_from = now + OFFSETS_FACTOR * (now - started)
        return version

    async def _copy_consumer_offsets(self, master: MasterClient, known: DataVersion | None) -> DataVersion | None:
        """Copy the changes since ``known``, or all; returns the version of the copy, None from a Java master."""
        if trio.current_time() > self._whole_at + WHOLE_S:  # a client may have committed here
            known = None
        offsets = self._metadata.consumer_offsets
        first = await master.consumer_offsets(known, FIRST_PAGE)
        page: Offsets | None = first
        keys: dict[str, None] = {}
        while page is not None:
            offsets.mirror(page.table.offset_table, is_whole=not page.is_part)
            keys.update(dict.fromkeys(page.table.offset_table))
            # The master makes the next page while this one is written here.
            page = await _both(self._persister.append_offsets, partial(_offsets_after, master, page))
        if not first.is_part:
            await run_slices(offsets.keep_only(keys))
            self._whole_at = trio.current_time()
        # The version of the first page, so that changes made during the copy are copied next time.
        offsets.adopt_version(first.table.data_version)
        return first.version

    async def _copy_delay_offsets(self, master: MasterClient) -> None:
        try:
            self._level_offsets = await master.delay_offsets()
        except BrokerError as error:
            if error.code != ResponseCode.SYSTEM_ERROR or master.is_skylark:
                raise
            # A Java master that never delayed a message has no such file.

    async def _take_delay_offsets(self) -> None:
        copied = self._level_offsets
        if copied is not None and await poll_until(lambda: self._log_end() >= copied.log_end, LOG_WAIT_S):
            self._metadata.delay_offsets.put(copied.table)
            self._level_offsets = None

    async def _copy_request_modes(self, master: MasterClient) -> None:
        try:
            table = await master.request_modes()
        except BrokerError as error:
            if not error.is_unknown_request:
                raise
            self._has_request_modes = False
            return
        await run_slices(self._metadata.request_modes.mirror(table.message_request_mode_map))

    async def _copy_users(self, master: MasterClient) -> None:
        """Users and policies; without the right to them everything else is copied all the same."""
        try:
            tables = await master.auth_tables()
        except BrokerError as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            logger.warning("users and policies not copied from master %s: %s", master.addr, error.remark)
            return
        await run_slices(self._metadata.users.mirror(tables.users, tables.users_version))
        await run_slices(self._metadata.acls.mirror(tables.acls, tables.acls_version))

    def _failed(self, addr: str, error: Exception) -> None:
        """Log a failed copy. Whatever the master answers, only this copy is lost."""
        self._failures += 1
        if isinstance(error, RemotingError):
            self._known.heard(answers=False)
        if self._failures == 1 and not isinstance(error, _Failures):
            logger.error("metadata not copied from master %s, still trying", addr, exc_info=error)
        elif self._failures == 1:
            logger.warning("metadata not copied from master %s, still trying: %s", addr, error)

    def _summary(self) -> str:
        metadata = self._metadata
        return f"{len(metadata.topics.names())} topics, {len(metadata.groups.names())} groups"


def _auth(versions: MetadataVersions) -> tuple[DataVersion, DataVersion]:
    return versions.users, versions.acls


async def _offsets_after(master: MasterClient, page: Offsets) -> Offsets | None:
    """The page after ``page``, None when that was the last."""
    return None if page.next_page is None else await master.consumer_offsets(None, page.next_page)


async def _both(first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[T]]) -> T:
    """Run both at the same time; returns the result of the second. Raises the error of the job that failed first."""
    results: list[T] = []
    errors: list[Exception] = []

    async def run(job: Callable[[], Awaitable[T | None]], nursery: trio.Nursery) -> None:
        try:
            result = await job()
        except Exception as error:
            errors.append(error)
            nursery.cancel_scope.cancel()
        else:
            if job is second:
                results.append(cast(T, result))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, first, nursery)
        nursery.start_soon(run, second, nursery)
    if errors:
        raise errors[0]
    return results[0]


# As many as RocketMQ's clients ask for, when a send makes a topic.
QUEUES = 4


def adopt_topics(store: MessageStore, topics: Topics, since: int) -> None:
    """Add the topics of queues that began at or after ``since`` in the log. Call it when this broker is the master.

    This broker copied the messages of these topics before it could copy the table of topics. A topic that a send makes
    is in the master's table before its first message is stored. So a slave's table has the topics of all messages that
    its log had when it last asked for the table, except deleted topics. A queue that began later, and whose topic is
    unknown, belongs to a new topic: without the topic nobody could read its messages. The journal has the log's end at
    the last question (`Metadata.topics_to`), so that this also holds when all brokers of the set die at once.
    """
    found: dict[str, int] = {}
    for queue in store.queues:
        name = queue.topic
        if topics.get(name) is not None or queue.is_empty or is_light(name):
            continue
        mark = topics.deletions.all().get(name)
        if queue.bounds_search().find_end(since if mark is None else max(since, mark.log_end)) <= queue.min_offset:
            found[name] = max(found.get(name, 1 if is_retry_topic(name) else QUEUES), queue.queue_id + 1)
    for name, queues in found.items():
        # Without a creation stamp: the former master had one, and consumers that have seen it would start again.
        topics.put_as_is(TopicConfig(name, queues, queues))
        logger.warning("topic %s came from the former master with its messages only: made with %d queues", name, queues)
