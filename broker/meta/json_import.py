"""Converts RocketMQ's metadata files to records of the journal, and lists what is not imported."""

from collections.abc import Iterator
from dataclasses import replace

from broker.meta import consumer_offsets, delay_offsets, groups, request_modes, topics
from broker.meta.attributes import TOPIC_ATTRIBUTES
from broker.meta.journalled import Change
from broker.meta.json_files import TOPICS, JsonTables, holds_something
from mqcommon.errors import UserError
from mqcommon.files import FileSystem

# File, the member that is not imported, and what it holds.
_NOT_READ = (
    ("consumerOrderInfo.json", "table", "how far a Java broker's pops in order were; their messages come again"),
    ("topicQueueMapping.json", "topicQueueMappingInfoMap", "this version does not support static topics"),
    ("lmqConsumerOffset.json", "offsetTable", "this version does not support offsets of light message queues"),
)


def records(tables: JsonTables) -> Iterator[Change]:
    """The records that make the tables of Skylark equal to ``tables``."""
    for name, topic in tables.topics.topic_config_table.items():
        yield topics.FORMAT.put, replace(topic, topic_name=name).to_wire()
    yield topics.FORMAT.version, tables.topics.data_version.to_wire()
    for name, group in tables.groups.subscription_group_table.items():
        yield groups.FORMAT.put, replace(group, group_name=name).to_wire()
    if tables.groups.forbidden_table:
        yield groups.FORBIDDEN, tables.groups.forbidden_table
    yield groups.FORMAT.version, tables.groups.data_version.to_wire()
    for key, queues in tables.consumer_offsets.offset_table.items():
        # A Java broker stores any offset that clients send, also -1.
        yield consumer_offsets.PUT, {key: {queue_id: offset for queue_id, offset in queues.items() if offset >= 0}}
    yield consumer_offsets.VERSION, tables.consumer_offsets.data_version.to_wire()
    yield delay_offsets.KIND, tables.delay_offsets.to_wire()
    for mode in request_modes.rows_of(tables.request_modes.message_request_mode_map):
        yield request_modes.FORMAT.put, mode.to_wire()


def summary(tables: JsonTables) -> str:
    """The numbers of rows, as text."""
    offsets = sum(map(len, tables.consumer_offsets.offset_table.values()))
    return (
        f"{len(tables.topics.topic_config_table)} topics, {len(tables.groups.subscription_group_table)} groups, "
        f"{offsets} consumer offsets, {len(tables.delay_offsets.offset_table)} delay offsets"
    )


def refuse_rocksdb(fs: FileSystem, directory: str) -> None:
    """UserError if the Java broker kept its metadata in RocksDB, which cannot be read."""
    if fs.is_dir(f"{directory}/topics") and not fs.exists(f"{directory}/{TOPICS}"):
        raise UserError(
            f"{directory} holds metadata in RocksDB (storeType=defaultRocksDB), which cannot be read: "
            "export it there as JSON (mqadmin rocksDBConfigToJson of Apache RocketMQ) and start again"
        )


def warnings(fs: FileSystem, directory: str, tables: JsonTables) -> list[str]:
    """What is not imported, or has no effect here, although a user who moves from a Java broker may expect it."""
    found = [f"{directory}/{name} could not be read, its .bak was used" for name in tables.from_backup]
    for name, member, what in _NOT_READ:
        path = f"{directory}/{name}"
        if holds_something(fs, path, member):
            found.append(f"{path} is not imported: {what}")
    if tables.groups.forbidden_table:
        found.append("the table of groups that may not read a topic is kept but has no effect")
    for name, config in tables.topics.topic_config_table.items():
        for key, value in config.attributes.items():
            known = TOPIC_ATTRIBUTES.get(key.removeprefix("+"), frozenset())
            if known is not None and value not in known:
                found.append(
                    f"topic {name}: {key}={value} is kept but has no effect; the topic is served as a normal one"
                )
    return found
