"""``broker exportMetadata`` and ``importMetadata``: the metadata of a stopped broker as RocketMQ's files, and back.

An export also hands over popped messages in flight. A Java broker looks for check points among the timed messages, and
does not understand the revive log of this broker. So each open check point is stored once more in RocketMQ's form. A
Java broker has no check points for a queue that is popped in order: the offset of such a queue is set back to the first
message that is not acknowledged. If this broker is started again instead, it ignores these copies and offsets.
A broker without metadata imports the files when it starts. The import command is for a store that has metadata, and
that RocketMQ has used since.
Neighbours: meta/json_files.py (the files' content), delivery/pop/java.py (the form of check points), offline.py.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace

import click

from skylark.broker.broker import store_options
from skylark.broker.commands.offline import absolute, errors_on_one_line, has_metadata, stopped_metadata
from skylark.broker.commands.verify_store import with_sizes_found
from skylark.broker.delivery.pop.inflight import Inflight
from skylark.broker.delivery.pop.java import as_timed, broker_of, messages_of
from skylark.broker.delivery.pop.log import QUEUE_ID, SLICE, SLICE_BYTES
from skylark.broker.delivery.pop.records import Key, PopCheckpoint, decode
from skylark.broker.meta import json_files
from skylark.broker.meta.json_files import POPS_KEY, Offsets, read_tables, to_json_files, write_files
from skylark.broker.meta.metadata import Metadata
from skylark.broker.options import BrokerOptions
from skylark.broker.store.index.index_file import index_file_bytes
from skylark.broker.store.inventory import read_inventory
from skylark.broker.store.reader import GetStatus
from skylark.broker.store.store import MessageStore, StoreOptions
from skylark.mqcommon.clock import Clock, SystemClock
from skylark.mqcommon.disk.files import FileSystem, OsFiles
from skylark.mqcommon.errors import ProtocolError, StoreLocked, UserError
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.ids import encode_host
from skylark.mqcommon.message.properties import find_property
from skylark.mqcommon.message.record import Record, decode_record
from skylark.mqcommon.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from skylark.mqcommon.options.conf_file import load_conf

HOST = encode_host("127.0.0.1", 0)


@click.command("exportMetadata")
@click.argument("store_dir")
@click.option("--to", metavar="DIR", help="where the files go; default: STORE_DIR/config, where a Java broker looks")
@click.option("-c", "--config-file", "conf", metavar="FILE", help="the broker's conf file; for the size of index files")
def export_metadata(store_dir: str, to: str | None, conf: str | None) -> None:
    """Write topics, groups and offsets as RocketMQ's JSON files, and popped messages in flight for a Java broker.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. An existing file is kept as .bak.
    Without --to the check points of popped messages are stored in the log so that a Java broker finds them.
    """
    with errors_on_one_line(store_dir):
        options = load_conf(BrokerOptions, conf, {"store_path_root_dir": absolute(store_dir)})
        for path in export(OsFiles(), SystemClock(), store_dir, to, options, click.echo):
            click.echo(f"export {path} success")


def export(
    fs: FileSystem,
    clock: Clock,
    store_dir: str,
    to: str | None = None,
    options: BrokerOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Write the files; returns their paths. ``say`` gets lines for the user."""
    root = absolute(store_dir)
    target = absolute(to) if to else f"{root}/config"
    instead: Offsets = {}
    if target == f"{root}/config" and has_metadata(fs, root) and has_messages(fs, root):
        options = options or BrokerOptions()
        in_root = replace(store_options(options), directory=root)
        instead = hand_over(fs, clock, in_root, options.timer_precision_ms, say)
    with stopped_metadata(fs, clock, root) as metadata:
        files = to_json_files(
            metadata.topics,
            metadata.groups,
            metadata.consumer_offsets,
            metadata.delay_offsets,
            metadata.request_modes,
            instead,
        )
        if metadata.fresh:
            raise UserError(f"{root} has nothing to export: it holds no topic, group or offset")
        fs.mkdirs(target)
        write_files(fs, target, files)
        if target == f"{root}/config":
            metadata.json_files.remember()
    return [f"{target}/{name}" for name in files]


def has_messages(fs: FileSystem, root: str) -> bool:
    """Whether the store has a log, which may contain pops. After a kill, only the log shows whether there are pops."""
    return bool(fs.listdir(f"{root}/commitlog"))


def hand_over(
    fs: FileSystem, clock: Clock, options: StoreOptions, precision_ms: int, say: Callable[[str], None]
) -> Offsets:
    """Store the check points of pops for a Java broker; returns the offsets for it that differ from this broker's.

    ``precision_ms``: the distance between two slots of the timer. ``say`` gets lines for the user.
    """
    found = with_sizes_found(fs, options)
    store = MessageStore(fs, replace(found, index_enabled=_has_index_of(fs, found)), clock, HOST)
    try:
        report = store.open(say)
    except StoreLocked:
        raise UserError(f"{options.directory} is open in a broker: stop it first") from None
    try:
        if report.unwritten:
            raise UserError(f"queue entries cannot be written: {report.unwritten}; make room and run this again")
        metadata = Metadata(fs, f"{options.directory}/config", clock, BrokerOptions())
        metadata.recover(must_exist=read_inventory(fs, options.directory).has_metadata)
        offsets: dict[str, dict[int, int]] = {}
        topics = sorted({queue.topic for queue in store.queues if queue.topic.startswith(REVIVE_TOPIC_PREFIX)})
        for topic in topics:
            _Handover(store, metadata, clock, topic, precision_ms, offsets).run(say)
        metadata.consumer_offsets.append_changed(metadata.consumer_offsets.pop_changed())
        metadata.journal.close()
    finally:
        store.close()
    return offsets


class _Handover:
    """Hands over the pops of one cluster: a broker that changed its cluster's name has two revive logs."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        clock: Clock,
        topic: str,
        precision_ms: int,
        offsets: dict[str, dict[int, int]],
    ) -> None:
        self._store = store
        self._own = metadata.consumer_offsets
        self._is_deleted = metadata.topics.deletions.covers
        self._clock = clock
        self._topic = topic
        self._precision_ms = precision_ms
        #: The offsets for a Java broker that differ from this broker's.
        self._offsets = offsets
        self._inflight = Inflight()
        self._brokers: dict[Key, str] = {}
        self._last_physical = -1

    def run(self, say: Callable[[str], None]) -> None:
        topic, store = self._topic, self._store
        start = max(self._own.query(REVIVE_GROUP, topic, QUEUE_ID), 0)
        for record in _records(store, topic, QUEUE_ID, start):
            self._apply_record(record)
        wheel_end = store.max_offset(TIMER_TOPIC, 0)
        first = self._first_after()
        for (group, name, queue_id), position in self._inflight.positions.items():
            # The committed offset is higher when the group skipped messages after its last check point.
            self._java(f"{name}@{group}")[queue_id] = max(position, self._own.query(group, name, queue_id))
        # Store the check points before the offsets that make a Java broker read them.
        stored = self._store_checkpoints(first)
        revive = f"{topic}@{REVIVE_GROUP}"
        taken_to = self._own.query(REVIVE_GROUP, TIMER_TOPIC, 0)
        # A Java broker's offset names the last record that it has processed.
        if end := store.max_offset(topic, QUEUE_ID):
            self._java(revive)[QUEUE_ID] = end - 1
        if taken_to < 0:
            for queue in store.queues:
                if queue.topic == topic and queue.queue_id != QUEUE_ID and queue.next_offset:
                    self._java(revive)[queue.queue_id] = queue.next_offset - 1
                    if stored:
                        self._own.commit(REVIVE_GROUP, topic, queue.queue_id, queue.next_offset)
        if stored and (taken_to < 0 or taken_to >= first):
            # The check points stored here are for a Java broker: this broker must skip them.
            self._java(POPS_KEY)[0] = first
            self._own.commit(REVIVE_GROUP, TIMER_TOPIC, 0, max(store.max_offset(TIMER_TOPIC, 0), wheel_end))
        if stored:
            say(f"{messages_of(stored)} popped messages in flight are handed over by {len(stored)} check points")

    def _java(self, key: str) -> dict[int, int]:
        return self._offsets.setdefault(key, {})

    def _apply_record(self, stored: Record) -> None:
        self._last_physical = stored.physical_offset
        try:
            record = decode(find_property(stored.properties, b"TAGS") or b"", stored.body)
            if isinstance(record, PopCheckpoint):
                self._brokers[record.key] = broker_of(stored.body)
        except ProtocolError:
            return  # the broker says so when it starts
        if self._is_deleted(record.key.queue.topic, stored.physical_offset):
            return
        self._inflight.apply(record, stored.queue_offset)

    def _first_after(self) -> int:
        """The first timed message that was stored after the revive log's last record: an earlier export stored it."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return 0
        waiting = range(queue.min_offset, queue.next_offset)
        return queue.min_offset + bisect_right(waiting, self._last_physical, key=lambda at: queue.entry(at)[0])

    def _store_checkpoints(self, first: int) -> list[PopCheckpoint]:
        # An interrupted export may have stored some of the check points. If a check point were stored twice, its
        # messages would be delivered again twice.
        before = {record.body for record in _records(self._store, TIMER_TOPIC, 0, first)}
        stored: list[PopCheckpoint] = []
        for lease in self._inflight.oldest():
            old = lease.checkpoint
            group, name, queue_id = old.key.queue
            if old.is_ordered:
                self._java(f"{name}@{group}")[queue_id] = lease.left[0]
                continue
            acked = ((1 << len(old.offsets)) - 1) & ~lease.unacked
            checkpoint = PopCheckpoint(old.key, old.invisible_ms, old.offsets, None, acked)
            stored.append(checkpoint)
            body, properties = as_timed(checkpoint, self._brokers[old.key], self._topic, self._precision_ms)
            if body not in before:
                self._store.put(TIMER_TOPIC, 0, body, properties, born_timestamp=self._clock.now_ms(), born_host=HOST)
        return stored


def _records(store: MessageStore, topic: str, queue_id: int, start: int) -> Iterator[Record]:
    offset, end = start, store.max_offset(topic, queue_id)
    while offset < end:
        found = store.get(topic, queue_id, offset, SLICE, SLICE_BYTES)
        if found.status is GetStatus.FOUND:
            for at in record_starts(found.records):
                yield decode_record(found.records, at)
        elif found.next_offset <= offset:
            return
        offset = found.next_offset


def _has_index_of(fs: FileSystem, options: StoreOptions) -> bool:
    """Whether the index has the size that the options say. Without the conf file the size is a guess.

    The store removes an index of another size when it is opened.
    """
    root, size = f"{options.directory}/index", index_file_bytes(options.index_slots, options.index_capacity)
    return all(fs.size(f"{root}/{name}") == size for name in fs.listdir(root) if name.isdigit())


@click.command("importMetadata")
@click.argument("store_dir")
def import_metadata(store_dir: str) -> None:
    """Replace topics, groups and offsets by those in RocketMQ's JSON files.

    STORE_DIR is the broker's storePathRootDir; the broker must be stopped. The files are read from STORE_DIR/config.
    """
    with errors_on_one_line(store_dir):
        summary, warnings = import_files(OsFiles(), SystemClock(), store_dir)
        click.echo(f"import {summary}")
        for warning in warnings:
            click.echo(f"broker: {warning}", err=True)


def import_files(fs: FileSystem, clock: Clock, store_dir: str) -> tuple[str, list[str]]:
    """Replace the metadata atomically; returns a summary of the import, and a warning for each thing left out."""
    root = absolute(store_dir)
    directory = f"{root}/config"
    with stopped_metadata(fs, clock, root) as before:
        tables = read_tables(fs, directory)
        if tables is None:
            raise UserError(f"{directory} holds none of RocketMQ's files: there is nothing to import")
        after = Metadata(fs, directory, clock, BrokerOptions())
        after.take_over(tables)
        before.journal.replace(after.state())
    return json_files.summary(tables), json_files.warnings(fs, directory, tables)
