"""RocketMQ's own metadata files in ``store/config``: read with their backups, written as a Java broker writes them.

topics.json subscriptionGroup.json consumerOffset.json delayOffset.json messageRequestMode.json topicQueueMapping.json,
of 4.9 and 5.x, in fastjson's dialect. `journal_records` imports them as records of the journal, and `warnings` lists
everything that is left out.
`to_json_files` exports the tables in the form of 5.x, which 4.9 can read, too. Only `write_files` changes the files.
``JsonFiles`` keeps their sizes and CRCs in the journal, as they were last read or written here: a file that differs was
changed by another program.
Neighbours: metadata.py (imports), commands/json_metadata.py.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeVar
from zlib import crc32

from skylark.broker.meta import consumer_offsets, delay_offsets, groups, request_modes, static_topics, topics
from skylark.broker.meta.consumer_offsets import ConsumerOffsets
from skylark.broker.meta.delay_offsets import DelayOffsets
from skylark.broker.meta.groups import Groups
from skylark.broker.meta.journal import Journal
from skylark.broker.meta.request_modes import RequestModes
from skylark.broker.meta.table import Change, JournalledValue
from skylark.broker.meta.topics import TOPIC_ATTRIBUTES, Topics
from skylark.mqcommon.disk.atomic import read_or_backup, write_atomic
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.errors import ProtocolError, StoreCorrupt, UserError
from skylark.mqcommon.fastjson import pretty
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.mqcommon.names import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.dialect import loads
from skylark.remoting.protocol.requests.groups import MessageRequestModes, SubscriptionGroupTable
from skylark.remoting.protocol.requests.offsets import ConsumerOffsetTable, DelayOffsetTable
from skylark.remoting.protocol.requests.topics import StaticTopicTable, TopicConfigTable

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
CONSUMER_OFFSETS = "consumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
REQUEST_MODES = "messageRequestMode.json"
STATIC_TOPICS = "topicQueueMapping.json"
NAMES = (TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS, REQUEST_MODES, STATIC_TOPICS)

SEEN = "json-files"

#: Size and crc32.
Fingerprint = tuple[int, int]
B = TypeVar("B", bound=Body)


@lazy_dataclass
class JsonTables:
    """The contents of the files; ``from_backup``: names of the files whose ``.bak`` was read instead."""

    topics: TopicConfigTable
    groups: SubscriptionGroupTable
    consumer_offsets: ConsumerOffsetTable
    delay_offsets: DelayOffsetTable
    request_modes: MessageRequestModes
    static_topics: StaticTopicTable
    from_backup: list[str] = field(default_factory=list)


def read_tables(fs: FileSystem, directory: str) -> JsonTables | None:
    """The tables in the files of ``directory``; a missing file is an empty table. None if all files are missing.

    StoreCorrupt if neither a file nor its backup can be read.
    """
    # One file is enough: a broker writes some of the files only with their first row.
    if not any(fs.exists(f"{directory}/{name}{end}") for name in NAMES for end in ("", ".bak")):
        return None
    from_backup: list[str] = []

    def table(cls: type[B], name: str) -> B:
        return _read_table(fs, f"{directory}/{name}", cls, lambda: from_backup.append(name))

    return JsonTables(
        table(TopicConfigTable, TOPICS),
        table(SubscriptionGroupTable, GROUPS),
        table(ConsumerOffsetTable, CONSUMER_OFFSETS),
        table(DelayOffsetTable, DELAY_OFFSETS),
        table(MessageRequestModes, REQUEST_MODES),
        table(StaticTopicTable, STATIC_TOPICS),
        from_backup,
    )


def _read_table(fs: FileSystem, path: str, cls: type[B], on_backup: Callable[[], None]) -> B:
    # The check parses a file, and its result is kept: a table may have hundreds of thousands of rows.
    found: list[B] = []

    def check(data: bytes) -> None:
        found[:] = [parse(cls, data)]

    try:
        data = read_or_backup(fs, path, check)
    except StoreCorrupt as error:
        reason = f"{error.reason}; replace it by a good copy, or remove it and its .bak to start without it"
        raise StoreCorrupt(error.file, error.offset, reason) from None
    if data is None:
        return cls()
    if not fs.exists(path) or fs.read(path) != data:
        on_backup()
    return found[0]


def parse(cls: type[B], data: bytes) -> B:
    """The body in a file; ValueError if ``data`` is not such a body."""
    try:
        return cls.from_wire(loads(data, relaxed_bytes=len(data)))
    except ProtocolError as error:
        raise ValueError(f"it is not what RocketMQ writes ({error})") from None


def holds_something(fs: FileSystem, path: str, member: str) -> bool:
    """Whether ``member`` of the JSON file at ``path`` is not empty; True for a file that cannot be read."""
    if not fs.exists(path):
        return False
    data = fs.read(path)
    try:
        found = loads(data, relaxed_bytes=len(data)) if data else {}
    except ProtocolError:
        return True
    return not isinstance(found, dict) or bool(found.get(member))


def write_files(fs: FileSystem, directory: str, files: Mapping[str, bytes]) -> None:
    """Replace the files one by one, each atomically; the old file is kept as ``.bak``."""
    for name, data in files.items():
        write_atomic(fs, f"{directory}/{name}", data, keep_backup=True)


class JsonFiles:
    """Sizes and CRCs of the files of one directory, as they were last read or written here."""

    def __init__(self, fs: FileSystem, directory: str, journal: Journal) -> None:
        self._fs = fs
        self._directory = directory
        #: Size and CRC of each file by name.
        self.seen = JournalledValue[dict[str, Fingerprint]](journal, SEEN, {}, dict, _fingerprints)

    def fingerprints(self) -> dict[str, Fingerprint]:
        """The present sizes and CRCs of the files."""
        paths = {name: f"{self._directory}/{name}" for name in NAMES}
        contents = {name: self._fs.read(path) for name, path in paths.items() if self._fs.exists(path)}
        return {name: (len(data), crc32(data)) for name, data in contents.items()}

    def changed(self) -> list[str]:
        """Names of files that have changed since they were last read or written here."""
        return [name for name, fingerprint in self.fingerprints().items() if self.seen.value.get(name) != fingerprint]

    def remember(self) -> None:
        """Store the present sizes and CRCs of the files in the journal."""
        self.seen.put(self.fingerprints())


def _fingerprints(payload: Any) -> dict[str, Fingerprint]:
    return {name: (size, crc) for name, (size, crc) in payload.items()}


#: Key of the offset up to which Java's pop records were read from the timer's queue. RocketMQ has no such offset.
POPS_KEY = f"{TIMER_TOPIC}@{REVIVE_GROUP}"

# Files that are not imported: name, JSON member, and a description of its contents.
_NOT_READ = (
    ("consumerOrderInfo.json", "table", "how far a Java broker's pops in order were; their messages come again"),
    ("lmqConsumerOffset.json", "offsetTable", "this version does not support offsets of light message queues"),
)


def journal_records(tables: JsonTables) -> Iterator[Change]:
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
        # A Java broker stores any offset that clients send, even -1.
        more = 1 if is_of_revive_log(key) else 0
        yield (
            consumer_offsets.PUT,
            {key: {queue_id: offset + more for queue_id, offset in queues.items() if offset >= 0}},
        )
    # This offset, even 0, says that there may be pops of a Java broker among the timed messages:
    # delivery/pop/java_takeover.py reads them.
    if any(name.startswith(REVIVE_TOPIC_PREFIX) for name in tables.topics.topic_config_table):
        before = tables.consumer_offsets.offset_table.get(POPS_KEY, {}).get(0, 0)
        yield consumer_offsets.PUT, {POPS_KEY: {0: max(before, 0)}}
    yield consumer_offsets.VERSION, tables.consumer_offsets.data_version.to_wire()
    yield delay_offsets.KIND, tables.delay_offsets.to_wire()
    for mode in request_modes.rows_of(tables.request_modes.message_request_mode_map):
        yield request_modes.FORMAT.put, mode.to_wire()
    for name, row in tables.static_topics.topic_queue_mapping_info_map.items():
        yield static_topics.FORMAT.put, replace(row, topic=name).to_wire()


def is_of_revive_log(key: str) -> bool:
    """Whether ``key`` is of a revive log: RocketMQ stores the last processed record's offset, Skylark the next one."""
    return key.startswith(REVIVE_TOPIC_PREFIX) and key.endswith(f"@{REVIVE_GROUP}")


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
    """Warnings, for a user of RocketMQ, about tables that are not imported and values that have no effect here."""
    found = [f"{directory}/{name} could not be read, its .bak was used" for name in tables.from_backup]
    for name, member, what in _NOT_READ:
        path = f"{directory}/{name}"
        if holds_something(fs, path, member):
            found.append(f"{path} is not imported: {what}")
    pops = f"{directory.rpartition('/')[0]}/kvStore"
    if fs.is_dir(pops) and fs.listdir(pops):
        found.append(
            f"{pops} is not read: what was popped with popConsumerKVServiceEnable=true does not come back. To have it, "
            "start the Java broker again, let it write these pops to its log (exportPopRecord of RocketMQ's mqadmin), "
            "and import then"
        )
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


Offsets = Mapping[str, Mapping[int, int]]


def to_json_files(
    topics: Topics,
    groups: Groups,
    consumer_offsets: ConsumerOffsets,
    delay_offsets: DelayOffsets,
    request_modes: RequestModes,
    instead: Offsets | None = None,
) -> dict[str, bytes]:
    """Each file's name and content; ``instead``: offsets for a Java broker that replace offsets of the table."""
    offsets = _offsets(consumer_offsets.table(), instead or {})
    topics_of: dict[str, dict[str, None]] = {}
    for key in offsets:
        topic, _, group = key.partition("@")
        topics_of.setdefault(group, {})[topic] = None
    tables: dict[str, dict[str, Any]] = {
        TOPICS: {
            "dataVersion": topics.data_version.to_wire(),
            "topicConfigTable": {config.topic_name: config.to_wire() for config in topics.persistent()},
        },
        GROUPS: {
            "dataVersion": groups.data_version.to_wire(),
            "forbiddenTable": groups.forbidden,
            "subscriptionGroupTable": {config.group_name: config.to_wire() for config in groups.persistent()},
        },
        CONSUMER_OFFSETS: {
            "dataVersion": consumer_offsets.data_version.to_wire(),
            "groupTopicMap": {group: names.keys() for group, names in topics_of.items()},
            "offsetTable": offsets,
        },
        DELAY_OFFSETS: delay_offsets.table.to_wire(),
    }
    if request_modes.all():  # as a Java broker, which makes the file with the first mode
        tables[REQUEST_MODES] = MessageRequestModes(request_modes.by_topic()).to_wire()
    if topics.static.all():  # as a Java broker, which makes the file with the first static topic
        tables[STATIC_TOPICS] = StaticTopicTable(topics.data_version, topics.static.all()).to_wire()
    return {name: pretty(table).encode() for name, table in tables.items()}


def _offsets(table: Offsets, instead: Offsets) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for key, queues in table.items():
        if is_of_revive_log(key):
            found[key] = {queue_id: offset - 1 for queue_id, offset in queues.items() if offset}
        elif key != POPS_KEY or any(queues.values()):
            found[key] = dict(queues)
    for key, queues in instead.items():
        found[key] = {**found.get(key, {}), **queues}
    return found
