"""A broker's registration with a NameServer (103): the JSON body, and the compressed one.

 compressed = zlib of:
   int n | n bytes DataVersion JSON
   int count | count x (int n | n bytes "name readQueues writeQueues perm filterType {attributes}")
   int n | n bytes JSON list of filter servers
   int count | count x (int n | n bytes TopicQueueMappingInfo JSON)      from version 5.0.0 on
Both are read in steps of some topics each: a generator yields between two steps, and yields functions for a thread to
run. Mappings of static topics are not read, as they are not supported.
The text of a topic has neither ``order`` nor ``topicSysFlag``: brokers that need them do not compress.
"""

import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from struct import Struct, error
from typing import Any, Final

from mqcommon.errors import ProtocolError
from remoting.protocol.bodies.body import Body, member
from remoting.protocol.bodies.data_version import DataVersion
from remoting.protocol.bodies.dialect import Dialect, dumps, loads
from remoting.protocol.bodies.kinds import TEXT, body_of, list_of, map_of
from remoting.protocol.bodies.split import split_objects
from remoting.protocol.bodies.topic import TopicConfig, TopicConfigTable

#: V5_0_0: from here the compressed body ends with mapping infos.
MAPPING_SINCE: Final = 413
#: A body that claims to inflate to more is refused.
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024

#: How many topics are read in one step: some milliseconds.
STEP_TOPICS: Final = 500

#: The limit of a registration without its topics; all of that may be JSON that is not standard.
MAX_REST_BYTES: Final = 128 * 1024
_RELAXED_BYTES: Final = 16 * 1024

_LENGTH: Final = Struct(">i")
_TOPICS: Final = map_of(body_of(TopicConfig))
_WRAPPER, _TABLE = "topicConfigSerializeWrapper", "topicConfigTable"
_UNUSED: Final = ("topicQueueMappingDetailMap", "topicQueueMappingInfoMap")
_SERVERS: Final = list_of(TEXT)
_ATTRIBUTES: Final = map_of(TEXT)


@dataclass(slots=True)
class RegisterBrokerBody(Body):
    """All that a broker registers."""

    topic_config_serialize_wrapper: TopicConfigTable = member(body_of(TopicConfigTable))
    filter_server_list: list[str] = member(list_of(TEXT))
    #: Between Skylark and Skylark, in a part: the topics that were deleted.
    removed_topics: list[str] | None = member(list_of(TEXT), None)


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


Reading = Generator[Callable[[], bytes] | None, Any, RegisterBrokerBody]


def read_registration(wire: Any) -> Reading:
    """The body in the result of ``loads``, which this empties. Raises ProtocolError when it is not such a body."""
    wrapper = wire.get(_WRAPPER) if type(wire) is dict else None
    table = None
    if type(wrapper) is dict:
        table = wrapper.pop(_TABLE, None)
        for name in _UNUSED:
            wrapper.pop(name, None)
    body = RegisterBrokerBody.from_wire(wire)
    if table is None:
        return body
    if type(table) is not dict:
        raise ProtocolError("TopicConfigTable.topicConfigTable: not an object")
    topics = body.topic_config_serialize_wrapper.topic_config_table
    names = iter(list(table))
    while chunk := list(islice(names, STEP_TOPICS)):
        try:
            topics.update(_TOPICS.read({name: table.pop(name) for name in chunk}))
        except ValueError as cause:
            raise ProtocolError(f"TopicConfigTable.topicConfigTable: {cause}") from None
        yield None
    return body


def decode_json(data: bytes) -> Reading:
    """The body in its JSON form. Raises ProtocolError when it is not such a body."""
    topics: dict[str, TopicConfig] = {}
    pieces = split_objects(data, _WRAPPER, (_TABLE, *_UNUSED))
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            rest: bytes = end.value
            break
        if piece is not None and piece.name == _TABLE:
            try:
                topics.update(_TOPICS.read(loads(piece.data, relaxed_bytes=_RELAXED_BYTES)))
            except ValueError as cause:
                raise ProtocolError(f"TopicConfigTable.topicConfigTable: {cause}") from None
        yield None
    if len(rest) > MAX_REST_BYTES:
        raise ProtocolError(f"it has {len(rest)} bytes besides topics, at most {MAX_REST_BYTES} are read")
    body = RegisterBrokerBody.from_wire(loads(rest, relaxed_bytes=_RELAXED_BYTES))
    body.topic_config_serialize_wrapper.topic_config_table.update(topics)
    return body


def decode_compressed(data: bytes, version: int) -> Reading:
    """The body in its compressed form, from a peer of ``version``."""
    reader = _Reader((yield partial(_inflate, data)))
    wrapper = TopicConfigTable(data_version=DataVersion.from_wire(loads(reader.part())))
    try:
        for number in range(1, reader.number() + 1):
            topic = _parse_topic(str(reader.part(), "utf-8"))
            wrapper.topic_config_table[topic.topic_name] = topic
            if number % STEP_TOPICS == 0:
                yield None
        servers = _SERVERS.read(loads(reader.part()))
    except ValueError as cause:
        raise ProtocolError(f"compressed registration is damaged: {cause}") from None
    if version >= MAPPING_SINCE:
        for number in range(1, reader.number() + 1):
            reader.part()
            if number % STEP_TOPICS == 0:
                yield None
    return RegisterBrokerBody(wrapper, servers)


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


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as cause:
        raise ProtocolError(f"compressed registration is damaged: {cause}") from None
    if not inflater.eof:
        raise ProtocolError(f"compressed registration is cut, or inflates to more than {MAX_INFLATED_BYTES} bytes")
    return inflated


class _Reader:
    """Numbers and length-prefixed parts, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        try:
            (number,) = _LENGTH.unpack_from(self._data, self._at)
        except error as cause:
            raise ProtocolError(f"compressed registration is damaged: {cause}") from None
        self._at += _LENGTH.size
        if not 0 <= number <= len(self._data) - self._at:
            raise ProtocolError(f"compressed registration is damaged: a number of {number}")
        return int(number)

    def part(self) -> bytes:
        length = self.number()
        self._at += length
        return self._data[self._at - length : self._at]
