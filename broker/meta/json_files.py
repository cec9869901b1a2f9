"""RocketMQ's own metadata files in ``store/config``: read with their backups, written as a Java broker writes them.

topics.json subscriptionGroup.json consumerOffset.json delayOffset.json messageRequestMode.json, of 4.9 and 5.x, in
fastjson's dialect. Only `write_files` changes them. ``JsonFiles`` keeps their sizes and CRCs in the journal, as they
were last read or written here: a file that differs was changed by another program.
Neighbours: json_import.py, json_export.py, metadata.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

from broker.meta.journal import Journal
from broker.meta.table import JournalledValue
from mqcommon.disk.atomic import read_or_backup, write_atomic
from mqcommon.disk.files import FileSystem
from mqcommon.errors import ProtocolError, StoreCorrupt
from remoting.protocol.body import Body
from remoting.protocol.dialect import loads
from remoting.protocol.requests.groups import MessageRequestModes, SubscriptionGroupTable
from remoting.protocol.requests.offsets import ConsumerOffsetTable, DelayOffsetTable
from remoting.protocol.requests.topics import TopicConfigTable

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
CONSUMER_OFFSETS = "consumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
REQUEST_MODES = "messageRequestMode.json"
NAMES = (TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS, REQUEST_MODES)

SEEN = "json-files"

#: Size and crc32.
Look = tuple[int, int]
B = TypeVar("B", bound=Body)


@dataclass
class JsonTables:
    """The contents of the files; ``from_backup``: names of the files whose ``.bak`` was read instead."""

    topics: TopicConfigTable
    groups: SubscriptionGroupTable
    consumer_offsets: ConsumerOffsetTable
    delay_offsets: DelayOffsetTable
    request_modes: MessageRequestModes
    from_backup: list[str] = field(default_factory=list)


def read_tables(fs: FileSystem, directory: str) -> JsonTables | None:
    """All tables; None if there is no such file. StoreCorrupt if neither a file nor its backup can be read."""
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
        from_backup,
    )


def _read_table(fs: FileSystem, path: str, cls: type[B], on_backup: Callable[[], None]) -> B:
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
    """The body in a file; ValueError if it is not one."""
    try:
        return cls.from_wire(loads(data, relaxed_bytes=len(data)))
    except ProtocolError as error:
        raise ValueError(f"it is not what RocketMQ writes ({error})") from None


def holds_something(fs: FileSystem, path: str, member: str) -> bool:
    """Whether ``member`` of another JSON file of RocketMQ's is not empty; True for a file that cannot be read."""
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
        self.seen = JournalledValue[dict[str, Look]](journal, SEEN, {}, dict, _looks)

    def look(self) -> dict[str, Look]:
        """Their present sizes and CRCs."""
        paths = {name: f"{self._directory}/{name}" for name in NAMES}
        contents = {name: self._fs.read(path) for name, path in paths.items() if self._fs.exists(path)}
        return {name: (len(data), crc32(data)) for name, data in contents.items()}

    def changed(self) -> list[str]:
        """Names of files that have changed since they were last read or written here."""
        return [name for name, look in self.look().items() if self.seen.value.get(name) != look]

    def note(self) -> None:
        """Remember their present sizes and CRCs."""
        self.seen.put(self.look())


def _looks(payload: Any) -> dict[str, Look]:
    return {name: (size, crc) for name, (size, crc) in payload.items()}
