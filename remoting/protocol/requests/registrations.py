"""Brokers register with NameServers (103, 104, 322, 904), which ask silent ones (7105); members of a set (901, 905)."""

import re
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Any, Final, NamedTuple

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.protocol.body import FLAG, TEXT, Body, DataVersion, KVTable, body_of, list_of, map_of, member
from skylark.remoting.protocol.dialect import Dialect, dumps, loads
from skylark.remoting.protocol.header import Header, optional, required
from skylark.remoting.protocol.request import NOTHING, Request
from skylark.remoting.protocol.requests.controller import MasterHeader
from skylark.remoting.protocol.requests.routes import (
    BrokerRequestHeader,
    MemberGroupAnswer,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable, TopicQueueMappingInfo
from skylark.remoting.protocol.scalars import read_flag, read_int, read_long, read_text


@lazy_dataclass(slots=True)
class GetBrokerMemberGroupRequestHeader(Header):
    """901: asks for the live members of a set."""

    cluster_name: str = required(read_text)
    broker_name: str = required(read_text)


@lazy_dataclass(slots=True)
class BrokerHeartbeatRequestHeader(Header):
    """904: a broker is alive.

    NameServers need the names and addresses; the fields after ``broker_id`` are for Controllers. ``epoch`` is the epoch
    of the newest stretch of the broker's log, -1 when there is none; ``max_offset`` is the log's end.
    """

    cluster_name: str = required(read_text)
    broker_addr: str = required(read_text)
    broker_name: str = required(read_text)
    broker_id: int | None = optional(read_long)
    epoch: int | None = optional(read_int)
    max_offset: int | None = optional(read_long)
    confirm_offset: int | None = optional(read_long)
    heartbeat_timeout_mills: int | None = optional(read_long)
    election_priority: int | None = optional(read_int)
    # Skylark's own: false when the broker is never to be the master.
    is_electable: bool | None = optional(read_flag, wire="electable")


@lazy_dataclass(slots=True)
class NotifyMinBrokerIdChangeRequestHeader(Header):
    """905: another live member now has the lowest id."""

    min_broker_id: int | None = optional(read_long)
    broker_name: str | None = optional(read_text)
    min_broker_addr: str | None = optional(read_text)
    offline_broker_addr: str | None = optional(read_text)
    ha_broker_addr: str | None = optional(read_text)


#: A piece ends with the member that brings it to this size; decoding it takes some milliseconds.
PIECE_BYTES: Final = 64 * 1024
#: The limit of one member, and of the bytes between two brackets.
MAX_MEMBER_BYTES: Final = 512 * 1024
#: How many brackets are checked in one step: some milliseconds.
STEP_BRACKETS: Final = 4_000

_TO_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+([{}\[\]])', re.DOTALL)
_OPENING: Final = (b"{", b"[")


class Piece(NamedTuple):
    """Some members of the object ``name``, as a JSON object."""

    name: str
    data: bytes


def split_objects(data: bytes, parent: str, names: Collection[str]) -> Generator[Piece | None, None, bytes]:
    """Take the objects ``names`` of the object ``parent`` out of the JSON object ``data``.

    Yields pieces of them, and None where a step ends; returns ``data`` with empty objects in their places.
    Raises ProtocolError when brackets do not match, or a member is too long.
    """
    rest: list[bytes] = []
    kept = 0  # all bytes before it are in ``rest`` or in a piece
    path: list[str] = []
    inside: str | None = None
    for number, (bracket, before, end) in enumerate(_brackets(data), 1):
        if bracket in _OPENING:
            path.append(_key(data[before : end - 1]) if len(path) < 3 else "")
            if inside is None and bracket == b"{" and len(path) == 3 and path[1] == parent and path[2] in names:
                inside = path[2]
                rest.append(data[kept:end])
                kept = end
        else:
            if not path:
                raise ProtocolError(f"body is not JSON: a bracket too many at byte {end - 1}")
            path.pop()
            if inside is not None and len(path) == 2:
                yield Piece(inside, _object(data[kept : end - 1]))
                inside, kept = None, end - 1
            elif inside is not None and len(path) == 3 and end - kept >= PIECE_BYTES:
                yield Piece(inside, _object(data[kept:end]))
                kept = end
        if inside is not None and end - kept > PIECE_BYTES + MAX_MEMBER_BYTES:
            raise ProtocolError(f"a member of {inside} has more than {MAX_MEMBER_BYTES} bytes")
        if number % STEP_BRACKETS == 0:
            yield None
    if path:
        raise ProtocolError("body is not JSON: a bracket is not closed")
    rest.append(data[kept:])
    return b"".join(rest)


def _brackets(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Each bracket outside of strings, where the one before it ended, and where it ends."""
    at = 0
    while found := _TO_BRACKET.match(data, at, at + MAX_MEMBER_BYTES):
        yield found[1], at, found.end()
        at = found.end()
    if len(data) - at > MAX_MEMBER_BYTES:
        raise ProtocolError(f"body is not JSON, or has more than {MAX_MEMBER_BYTES} bytes between two brackets")


def _key(text: bytes) -> str:
    """The key whose value begins after ``text``; empty when there is none."""
    before, colon, after = text.rpartition(b":")
    name = before.rstrip()
    if not colon or after.strip() or not name.endswith(b'"'):
        return ""
    head, _, key = name[:-1].rpartition(b'"')
    # A quote after a backslash is inside the key, and no key that is looked for has one.
    return "" if head.endswith(b"\\") else str(key, "utf-8", "replace")


def _object(members: bytes) -> bytes:
    return b"{" + members.strip().removeprefix(b",") + b"}"


#: V5_0_0: from here the compressed body ends with mapping infos.
MAPPING_SINCE: Final = 413
#: A body that inflates to more is refused.
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
#: The limit of topics, as a NameServer puts all of them into its table in one turn.
MAX_TOPICS: Final = 250_000
#: The limit of logical queues of static topics, and of static topics: each is some 100 bytes of memory.
MAX_MAPPED: Final = 100_000
#: The limit of a topic, and of any other part, in the compressed form.
MAX_PART_BYTES: Final = 128 * 1024

#: How many topics are read in one step: some milliseconds.
STEP_TOPICS: Final = 500
#: How much is inflated in one step.
STEP_BYTES: Final = 256 * 1024
# How much is inflated in one call, and how much is passed to the call: zlib copies the input that it did not use.
_PIECE_BYTES: Final = 64 * 1024
_FED_BYTES: Final = 16 * 1024

#: The limit of a registration without its topics; all of that may be JSON that is not standard.
MAX_REST_BYTES: Final = 128 * 1024
_RELAXED_BYTES: Final = 16 * 1024
# RocketMQ does not quote the ids in mappings. The most is some ten milliseconds of decoding.
_RELAXED_MAPPINGS_BYTES: Final = 2 * PIECE_BYTES

_LENGTH: Final = Struct(">i")
_TOPICS: Final = map_of(body_of(TopicConfig))
_INFOS: Final = map_of(body_of(TopicQueueMappingInfo))
_WRAPPER, _TABLE = "topicConfigSerializeWrapper", "topicConfigTable"
_DETAILS, _MAPPINGS = "topicQueueMappingDetailMap", "topicQueueMappingInfoMap"
_SERVERS: Final = list_of(TEXT)
_ATTRIBUTES: Final = map_of(TEXT)


@lazy_dataclass(slots=True)
class RegisterBrokerBody(Body):
    """All that a broker registers."""

    topic_config_serialize_wrapper: TopicConfigTable = member(body_of(TopicConfigTable))
    filter_server_list: list[str] = member(list_of(TEXT))
    #: Between Skylark and Skylark, in a part: the topics that were deleted.
    removed_topics: list[str] | None = member(list_of(TEXT), None)
    #: Skylark's own: the names of the other brokers of the cluster, as far as this broker knows them.
    known_brokers: list[str] | None = member(list_of(TEXT), None)
    #: Skylark's own: the broker is drained, so nothing is missing when it leaves.
    is_drained: bool | None = member(FLAG, None)


#: The most names of brokers in one cluster.
MAX_KNOWN_BROKERS: Final = 10_000


def names_crc(names: Iterable[str]) -> int:
    """The checksum of broker names, by which brokers and NameServers see whether they know the same."""
    return zlib.crc32(names_text(names).encode()) & 0x7FFF_FFFF


def names_text(names: Iterable[str]) -> str:
    """Broker names as fields carry them. No name has a line break: NameServers refuse it."""
    return "\n".join(sorted(names))


def names_in(text: str | None) -> list[str]:
    """The broker names of such a field."""
    return [name for name in (text or "").split("\n") if name]


def body_crc32(data: bytes) -> int:
    """The checksum of a body as the header's bodyCrc32 carries it: never negative."""
    return zlib.crc32(data) & 0x7FFF_FFFF


def encode_compressed(body: RegisterBrokerBody, version: int, *, attributes: bool = True) -> bytes:
    """The compressed form for a peer of ``version``; peers before 5.0 read no topic with attributes."""
    wrapper = body.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table.values()
    parts = [_part(wrapper.data_version.to_wire()), _LENGTH.pack(len(topics))]
    for topic in topics:
        text = _topic_text(topic, attributes).encode()
        parts += (_LENGTH.pack(len(text)), text)
    parts.append(_part(body.filter_server_list))
    if version >= MAPPING_SINCE:
        infos = wrapper.topic_queue_mapping_info_map.values()
        parts.append(_LENGTH.pack(len(infos)))
        parts += [_part(info.to_wire()) for info in infos]
    return zlib.compress(b"".join(parts))


Reading = Generator[None, None, RegisterBrokerBody]
#: Called with the topics of each step.
OnTopics = Callable[[dict[str, TopicConfig]], None]


def read_registration(wire: Any, on_topics: OnTopics | None = None) -> Reading:
    """The body in the result of ``loads``, which this empties. Raises ProtocolError when it is not such a body.

    ``on_topics`` gets the topics; without ``on_topics`` they are in the body. The other readers do the same.
    """
    wrapper = wire.get(_WRAPPER) if type(wire) is dict else None
    table = None
    mappings = _Mappings()
    if type(wrapper) is dict:
        table = wrapper.pop(_TABLE, None)
        wrapper.pop(_DETAILS, None)
        mappings.add(wrapper.pop(_MAPPINGS, None))
    body = mappings.added_to(RegisterBrokerBody.from_wire(wire))
    if table is None:
        return body
    if type(table) is not dict:
        raise ProtocolError("TopicConfigTable.topicConfigTable: not an object")
    on_topics = _Counted(on_topics or body.topic_config_serialize_wrapper.topic_config_table.update)
    names = iter(list(table))
    while chunk := list(islice(names, STEP_TOPICS)):
        on_topics(_read_topics({name: table.pop(name) for name in chunk}))
        yield None
    return body


def decode_json(data: bytes, on_topics: OnTopics | None = None) -> Reading:
    """The body in its JSON form. Raises ProtocolError when it is not such a body."""
    topics: dict[str, TopicConfig] = {}
    on_topics = _Counted(on_topics or topics.update)
    mappings = _Mappings()
    pieces = split_objects(data, _WRAPPER, (_TABLE, _DETAILS, _MAPPINGS))
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            rest: bytes = end.value
            break
        if piece is not None and piece.name == _TABLE:
            on_topics(_read_topics(loads(piece.data, relaxed_bytes=_RELAXED_BYTES)))
        elif piece is not None and piece.name == _MAPPINGS:
            mappings.add(loads(piece.data, relaxed_bytes=_RELAXED_MAPPINGS_BYTES))
        yield None
    if len(rest) > MAX_REST_BYTES:
        raise ProtocolError(f"it has {len(rest)} bytes besides topics, at most {MAX_REST_BYTES} are read")
    body = RegisterBrokerBody.from_wire(loads(rest, relaxed_bytes=_RELAXED_BYTES))
    body.topic_config_serialize_wrapper.topic_config_table.update(topics)
    return mappings.added_to(body)


def decode_compressed(data: bytes, version: int, on_topics: OnTopics | None = None) -> Reading:
    """The body in its compressed form, from a peer of ``version``. Raises ProtocolError when it is not such a body."""
    parts = _Parts(data)
    wrapper = TopicConfigTable(data_version=DataVersion.from_wire(loads(parts.part())))
    on_topics = on_topics or wrapper.topic_config_table.update
    topics: dict[str, TopicConfig] = {}
    try:
        for number in range(1, parts.count() + 1):
            topic = _parse_topic(str(parts.part(), "utf-8"))
            topics[topic.topic_name] = topic
            if number % STEP_TOPICS == 0 or parts.step_is_over():
                on_topics(topics)
                topics = {}
                yield None
        on_topics(topics)
        servers = _SERVERS.read(loads(parts.part()))
    except ValueError as cause:
        raise ProtocolError(f"compressed registration is damaged: {cause}") from None
    mappings = _Mappings()
    if version >= MAPPING_SINCE:
        for number in range(1, parts.count() + 1):
            info = loads(parts.part())
            mappings.add({info.get("topic"): info} if type(info) is dict else info)
            if number % STEP_TOPICS == 0 or parts.step_is_over():
                yield None
    while parts.skip():
        yield None
    return mappings.added_to(RegisterBrokerBody(wrapper, servers))


class _Mappings:
    """The broker's parts in static topics, up to MAX_MAPPED of their queues."""

    def __init__(self) -> None:
        self._found: dict[str, TopicQueueMappingInfo] = {}
        self._count = 0

    def add(self, wire: Any) -> None:
        if wire is None:
            return
        try:
            found: dict[str, TopicQueueMappingInfo] = _INFOS.read(wire)
        except ValueError as cause:
            raise ProtocolError(f"TopicConfigTable.{_MAPPINGS}: {cause}") from None
        self._count += sum(1 + len(info.curr_id_map) for info in found.values())
        if self._count > MAX_MAPPED:
            raise ProtocolError(f"{self._count} static topics and queues of these, at most {MAX_MAPPED} are taken")
        self._found.update(found)

    def added_to(self, body: RegisterBrokerBody) -> RegisterBrokerBody:
        """``body`` with these parts."""
        body.topic_config_serialize_wrapper.topic_queue_mapping_info_map = self._found
        return body


class _Counted:
    """``on_topics``, up to MAX_TOPICS topics. The compressed form says how many there are before they are read."""

    def __init__(self, on_topics: OnTopics) -> None:
        self._on_topics = on_topics
        self._count = 0

    def __call__(self, topics: dict[str, TopicConfig]) -> None:
        self._count += len(topics)
        _check_count(self._count)
        self._on_topics(topics)


def _check_count(count: int) -> None:
    if count > MAX_TOPICS:
        raise ProtocolError(f"{count} topics in one registration, at most {MAX_TOPICS} are taken")


def _read_topics(wire: Any) -> dict[str, TopicConfig]:
    try:
        topics: dict[str, TopicConfig] = _TOPICS.read(wire)
    except ValueError as cause:
        raise ProtocolError(f"TopicConfigTable.topicConfigTable: {cause}") from None
    return topics


def _part(obj: Any) -> bytes:
    text = dumps(obj, Dialect.FASTJSON)
    return _LENGTH.pack(len(text)) + text


def _topic_text(topic: TopicConfig, attributes: bool) -> str:
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    text = f"{topic.topic_name} {numbers} {topic.topic_filter_type}"
    return f"{text} {str(dumps(topic.attributes), 'utf-8')}" if attributes else text


def _parse_topic(text: str) -> TopicConfig:
    words = text.split(" ", 5)
    if len(words) < 5:
        raise ValueError(f"topic {text[:100]!r} has less than five words")
    keys = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
    topic = TopicConfig.from_wire(dict(zip(keys, words, strict=False)))
    if len(words) == 6 and words[5]:
        topic.attributes = _ATTRIBUTES.read(loads(words[5].encode()))
    return topic


class _Parts:
    """Numbers and length-prefixed parts, one after the other, inflated as far as they are read."""

    def __init__(self, data: bytes) -> None:
        self._inflater = zlib.decompressobj()
        self._left = memoryview(data)
        self._inflated_bytes = 0
        self._step_from = 0
        # The inflated bytes, and how many of them were read.
        self._data = b""
        self._at = 0

    def count(self) -> int:
        """How many parts follow."""
        count = self._number()
        if count < 0:
            raise ProtocolError(f"compressed registration is damaged: a number of {count}")
        _check_count(count)
        return count

    def part(self) -> bytes:
        """The next part."""
        length = self._number()
        if not 0 <= length <= MAX_PART_BYTES:
            text = f"a part of {length} bytes, at most {MAX_PART_BYTES} are read"
            raise ProtocolError(f"compressed registration is damaged: {text}")
        self._have(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def step_is_over(self) -> bool:
        """Whether enough was inflated for a step, so that other work should run."""
        if self._inflated_bytes - self._step_from < STEP_BYTES:
            return False
        self._step_from = self._inflated_bytes
        return True

    def skip(self) -> bool:
        """Inflate the next piece and drop it; False at the end. Raises ProtocolError when the end is missing."""
        return bool(self._inflate())

    def _number(self) -> int:
        self._have(_LENGTH.size)
        (number,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += _LENGTH.size
        return int(number)

    def _have(self, size: int) -> None:
        """Inflate until ``size`` bytes can be read."""
        missing = size - (len(self._data) - self._at)
        if missing <= 0:
            return
        pieces = [self._data[self._at :]]
        while missing > 0:
            piece = self._inflate()
            if not piece:
                raise ProtocolError(f"compressed registration is damaged: {missing} bytes are missing at its end")
            pieces.append(piece)
            missing -= len(piece)
        self._data, self._at = b"".join(pieces), 0

    def _inflate(self) -> bytes:
        """The next bytes; none at the end."""
        inflater = self._inflater
        while not inflater.eof:
            fed: bytes | memoryview = inflater.unconsumed_tail
            if not fed:
                fed, self._left = self._left[:_FED_BYTES], self._left[_FED_BYTES:]
            try:
                piece = inflater.decompress(fed, _PIECE_BYTES)
            except zlib.error as cause:
                raise ProtocolError(f"compressed registration is damaged: {cause}") from None
            if piece:
                self._inflated_bytes += len(piece)
                if self._inflated_bytes > MAX_INFLATED_BYTES:
                    raise ProtocolError(f"compressed registration inflates to more than {MAX_INFLATED_BYTES} bytes")
                return piece
            if not fed and not inflater.eof:
                raise ProtocolError("compressed registration is cut")
        return b""


# The body may be encoded already: compressed, or in the JSON of old NameServers. The answer may have no body.
REGISTER_BROKER: Request[
    RegisterBrokerRequestHeader, RegisterBrokerBody | bytes, RegisterBrokerResponseHeader, KVTable
] = Request(
    103,
    RegisterBrokerRequestHeader,
    RegisterBrokerBody,
    RegisterBrokerResponseHeader,
    KVTable,
    may_be_oneway=True,
)
UNREGISTER_BROKER = Request(104, BrokerRequestHeader, NOTHING, NOTHING, NOTHING)
# An answer without a body means that the NameServer does not know the broker.
QUERY_DATA_VERSION = Request(322, BrokerRequestHeader, DataVersion, QueryDataVersionResponseHeader, DataVersion)
# Skylark's Controllers name the master in the answer. NameServers say nothing, and RocketMQ's brokers want no answer.
#: A NameServer asks a silent broker whether it lives. Skylark's own; whatever code the answer has, the broker lives.
PROBE_BROKER = Request(7105, NOTHING, NOTHING, NOTHING, NOTHING)
BROKER_HEARTBEAT = Request(
    904,
    BrokerHeartbeatRequestHeader,
    NOTHING,
    MasterHeader,
    NOTHING,
    may_be_oneway=True,
)
GET_BROKER_MEMBER_GROUP = Request(901, GetBrokerMemberGroupRequestHeader, NOTHING, NOTHING, MemberGroupAnswer)
NOTIFY_MIN_BROKER_ID_CHANGE = Request(
    905,
    NotifyMinBrokerIdChangeRequestHeader,
    NOTHING,
    NOTHING,
    NOTHING,
    may_be_oneway=True,
)
