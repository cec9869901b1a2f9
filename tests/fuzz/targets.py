"""What is decoded. A target reads bytes in all ways that its family has, and raises only what is not expected."""

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from skylark.broker.delivery.pop.records import BATCH_ACK, CHECKPOINT
from skylark.broker.delivery.pop.records import decode as decode_pop
from skylark.broker.delivery.timed_delivery import TimerCheckpoint
from skylark.broker.meta.json_files import parse as parse_table
from skylark.broker.meta.topics import parse_attribute_changes
from skylark.broker.replication.frames import FrameReader, ReportReader
from skylark.broker.replication.hello import Challenge, Hello, HelloReader, LogClaim, Welcome
from skylark.broker.replication.hello import decode as decode_hello
from skylark.broker.replication.hello import encode as encode_hello
from skylark.broker.security.accounts.account_file import parse_file
from skylark.broker.security.users.policies import parse_resource, parse_source
from skylark.mqcommon.acl_accounts import parse_accounts
from skylark.mqcommon.errors import ConfigError, ProtocolError, RequestRefused, UserError
from skylark.mqcommon.message.batch import decode_batch, decode_offsets
from skylark.mqcommon.message.columns import record_starts
from skylark.mqcommon.message.ids import RecallHandle, parse_offset_msg_id
from skylark.mqcommon.message.inner import inner_records
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.properties import decode_properties
from skylark.mqcommon.message.record import decode_record
from skylark.mqcommon.options.conf_file import entries, read_update
from skylark.mqcommon.sql.parser import parse as parse_sql
from skylark.mqcommon.yaml_documents import parse_yaml
from skylark.remoting.http2.connection import ServerConnection
from skylark.remoting.http2.events import RequestReceived
from skylark.remoting.http2.header_blocks import HeaderDecoder, block
from skylark.remoting.http2.limits import Http2Limits
from skylark.remoting.net.tls.settings import parse_properties
from skylark.remoting.protocol.command import CBOR, JSON
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.pop_info import parse_handle, parse_offset_info
from skylark.remoting.protocol.request import NOTHING
from skylark.remoting.protocol.requests.registrations import decode_compressed, decode_json
from skylark.remoting.protocol.requests.table import BY_CODE
from skylark.sdk.admin.order_records import parse_order_conf
from skylark.sdk.config_text import decode_config
from skylark.sdk.traces.records import decode_records
from tests import golden
from tests.remoting.protocol.golden import recorded
from tests.support.http2 import call, opened
from tests.support.inner import inner_batch, rows_of

ROOT = Path(__file__).parents[2]
WIRE = ("java_json", "java_rocketmq", "java_5.3.3", "admin_5.3.3", "broker_namesrv", "cpp")
BODIES = sorted(
    {
        kind
        for each in BY_CODE.values()
        for kind in (each.body_type, each.answer_body_type)
        if hasattr(kind, "from_wire")
    },
    key=lambda kind: str(kind.__name__),
)


@dataclass(frozen=True)
class Target:
    """``read`` may raise nothing; ``corpus`` gives good input."""

    read: Callable[[bytes], None]
    corpus: Callable[[], list[bytes]]


def _attempt(read: Callable[[], object], *expected: type[Exception]) -> None:
    with suppress(*expected):
        read()


# --- from the network


def _read_frames(data: bytes) -> None:
    try:
        commands = Connection().receive_data(data)
    except ProtocolError:
        return
    for command in commands:
        described = BY_CODE.get(command.code)
        if described is not None:
            if described.header_type is not NOTHING:
                _attempt(partial(described.header, command), RequestRefused)
            if hasattr(described.body_type, "from_wire"):
                _attempt(partial(described.body, command), RequestRefused)


def _frames() -> list[bytes]:
    return [one.frame for one in recorded(*WIRE)]


def _read_bodies(data: bytes) -> None:
    if len(data) < 2:
        return
    kind: Any = BODIES[data[0] % len(BODIES)]
    _attempt(lambda: decode_body(kind, data[2:], CBOR if data[1] & 1 else JSON), ProtocolError)


def _bodies() -> list[bytes]:
    found = []
    for one in recorded(*WIRE):
        described = BY_CODE.get(one.request_code)
        if described is not None:
            kind = described.body_type if one.is_request else described.answer_body_type
            if kind in BODIES and (body := one.command.body):
                found.append(bytes((BODIES.index(kind), 0)) + body)
    return found


def _read_http2(data: bytes) -> None:
    connection = ServerConnection(Http2Limits())
    head = block([(":status", "200")])

    def serve() -> None:
        for event in connection.receive(data, 0.0):
            if isinstance(event, RequestReceived):
                connection.respond(event.stream_id, head, data[:100], head)

    _attempt(serve, ProtocolError)
    connection.take()


def _http2() -> list[bytes]:
    path = b"/apache.rocketmq.v2.MessagingService/SendMessage"
    metadata = [(b"x-mq-client-id", b"client"), (b"grpc-timeout", b"3S")]
    calls = [opened(*(call(path, b"body", metadata, stream) for stream in range(1, most, 2))) for most in (2, 6)]
    return calls


def _read_header_blocks(data: bytes) -> None:
    decoder = HeaderDecoder(4_096, 16_384)
    half = len(data) // 2
    _attempt(lambda: [decoder.decode(each) for each in (data, data[:half], data[half:], data)], ProtocolError)


def _header_blocks() -> list[bytes]:
    path = Path(golden.__file__).parent / "http2" / "grpcio-1.85.3.jsonl"
    return [bytes.fromhex(json.loads(line)["hex"]) for line in path.read_text(encoding="utf-8").splitlines()]


def _read_registrations(data: bytes) -> None:
    _attempt(lambda: _run(decode_json(data)), ProtocolError)
    _attempt(lambda: _run(decode_compressed(data, 401)), ProtocolError)


def _run(reading: Generator[Any, Any, object]) -> None:
    answer = None
    while True:
        try:
            work = reading.send(answer)
        except StopIteration:
            return
        answer = None if work is None else work()


def _registrations() -> list[bytes]:
    return [body for one in recorded(*WIRE) if one.request_code == 103 and (body := one.command.body)]


def _read_hellos(data: bytes) -> None:
    def hello() -> None:
        body = HelloReader().receive(data)
        for kind in (Hello, Challenge, LogClaim, Welcome):
            _attempt(partial(decode_hello, kind, body), ProtocolError)

    _attempt(hello, ProtocolError)
    ReportReader().receive(data)
    _attempt(lambda: FrameReader().receive(data), ProtocolError)


def _hellos() -> list[bytes]:
    made: list[Hello | Challenge | LogClaim | Welcome] = [
        Hello(1, "c", "b", 1, "127.0.0.1:1", b"n" * 16), Challenge(1, b"n" * 16, b"p" * 32), Welcome(7, "")
    ]  # fmt: skip
    path = Path(golden.__file__).parent / "ha" / "rocketmq-4.9.8.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    return [encode_hello(each) for each in made] + [bytes.fromhex(json.loads(line)["hex"]) for line in lines]


# --- messages


def _read_messages(data: bytes) -> None:
    _attempt(lambda: decode_record(data), ProtocolError)
    _attempt(lambda: decode_record(data, check_crc=False), ProtocolError)
    _attempt(lambda: record_starts(data), ProtocolError)
    _attempt(lambda: [str(one) for one in decode_messages(data)], ProtocolError)
    _attempt(lambda: decode_batch(data), ProtocolError)
    _attempt(lambda: inner_records(decode_record(data, check_crc=False)), ProtocolError)
    _attempt(lambda: decode_offsets(data), ProtocolError)


def _messages() -> list[bytes]:
    pulled = [one.command.body for one in recorded(*WIRE) if one.request_code in (11, 12, 33) and not one.is_request]
    batches = [one.command.body for one in recorded(*WIRE) if one.request_code == 320 and one.is_request]
    inner = [inner_batch(rows_of(3), compression=each) for each in (None, "zlib")]
    return [body for body in (*pulled, *batches, *inner) if body]


# --- texts


def _read_texts(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    _attempt(lambda: parse_sql(text), UserError, ValueError)
    _attempt(lambda: parse_handle(text), ValueError)
    _attempt(lambda: parse_offset_info(text), ValueError)
    _attempt(lambda: RecallHandle.decode(text), ValueError)
    _attempt(lambda: parse_offset_msg_id(text), ValueError)
    _attempt(lambda: parse_attribute_changes(text), RequestRefused, ValueError)
    _attempt(lambda: parse_resource(text), ValueError)
    _attempt(lambda: parse_source(text), ValueError)
    decode_properties(text)
    decode_records(text)
    decode_config(data)
    parse_order_conf(text)


def _texts() -> list[bytes]:
    return [
        b"a BETWEEN 1 AND 2.5 OR b IN ('x', 'y''z') AND NOT (c IS NULL) OR d LIKE 'p%'", b"TRUE AND a <> 0x1f",
        b"0 1700000000000 60000 0 0 broker-a 1 17", b"0 0 5;0 1 7;1 2 9", b"v1 t b 1700000000000 K",
        b"7F00000100002A9F0000000000000000", b"+message.type=NORMAL,-cleanup.policy", b"Topic:orders*", b"Group:*",
        b"192.168.0.0/16", b"::1", b"TAGS\x01a\x02UNIQ_KEY\x01K\x02", b"broker-a:4;broker-b:8",
        b"Pub\x011700000000000\x01region\x01g\x01t\x01ID\x01tag\x01key\x01127.0.0.1:1\x015\x013\x010\x01OFF\x01true\x02",
    ]  # fmt: skip


# --- files


def _read_conf_files(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    _attempt(lambda: parse_accounts(parse_yaml(text, "f"), "f"), ConfigError)
    _attempt(lambda: parse_file(parse_yaml(text, "f"), "f"), ConfigError)
    _attempt(lambda: parse_properties({key: value for _, key, value in entries(text, "f")}, "f"), ConfigError)
    _attempt(lambda: read_update(data), ConfigError)


def _conf_files() -> list[bytes]:
    conf = ROOT / "conf"
    names = ("plain_acl.yml", "tls.properties", "broker.conf", "namesrv.conf")
    return [(conf / name).read_bytes() for name in names] + [b"a:\n- &x {b: [1, *x]}\n"]


def _read_tables(data: bytes) -> None:
    for kind in BODIES:
        if kind.__name__.endswith(("Wrapper", "Table")):
            _attempt(partial(parse_table, kind, data), ValueError)
    _attempt(lambda: decode_pop(CHECKPOINT, data), ProtocolError)
    _attempt(lambda: decode_pop(BATCH_ACK, data), ProtocolError)
    _attempt(lambda: TimerCheckpoint.decode(data), ProtocolError)
    _attempt(lambda: TimerCheckpoint.of_rocketmq(data), ProtocolError)


def _tables() -> list[bytes]:
    table = {"topicConfigTable": {"t": {"topicName": "t", "order": False, "perm": 6}}, "dataVersion": {"counter": 1}}
    pop = {"so": 1, "pt": 2, "c": "g", "t": "t", "q": 0, "bn": "b", "it": 60_000, "n": 3, "bm": 0, "d": [0, 1, 4]}
    return [
        json.dumps(table).encode(), json.dumps(pop).encode(), json.dumps({**pop, "aol": [1, 2]}).encode(),
        b"1 2 3 4 5", bytes(32),
    ]  # fmt: skip


TARGETS = {
    "frames": Target(_read_frames, _frames),
    "bodies": Target(_read_bodies, _bodies),
    "http2": Target(_read_http2, _http2),
    "header_blocks": Target(_read_header_blocks, _header_blocks),
    "registrations": Target(_read_registrations, _registrations),
    "hellos": Target(_read_hellos, _hellos),
    "messages": Target(_read_messages, _messages),
    "texts": Target(_read_texts, _texts),
    "conf_files": Target(_read_conf_files, _conf_files),
    "tables": Target(_read_tables, _tables),
}
