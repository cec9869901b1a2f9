"""Any bytes and any request at the port of a proxy: it answers or closes, serves others meanwhile, and stays small."""

import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from scripts.daemons import HOST, Daemon, proxy_daemon, wait_ready
from skylark.mqproxy.service import SERVICE
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.sdk.testing import Cluster
from tests.support import http2
from tests.support.amounts import amount
from tests.support.proxies import call, message, proxy

MIB = 1024 * 1024
GROWTH_BYTES = 64 * MIB
# Of each kind of odd bytes, and of floods.
CONNECTIONS, FLOODS = amount(10, 60), amount(4, 20)
TIMEOUT_S = 30
# What a connection that is not closed is left alone after.
QUIET_S = 0.05
QUICK = (
    "--grpc-client-consumer-min-long-polling-timeout-millis", "0",
    "--grpc-client-consumer-max-long-polling-timeout-millis", "20",
)  # fmt: skip

# Every method, and what it is called with.
METHODS: dict[str, type[Message]] = {
    name.removesuffix("Request"): GetMessageClass(descriptor)
    for name, descriptor in wire.DESCRIPTOR.message_types_by_name.items()
    if name.endswith("Request")
}
METHODS["Telemetry"] = wire.TelemetryCommand


@pytest.fixture(scope="module")
def daemon(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    cluster.create_topic("orders")
    running = proxy_daemon(tmp_path_factory.mktemp("proxy"), "proxy", cluster.nameserver, *QUICK)
    running.start()
    try:
        wait_ready([running])
        yield running
    finally:
        running.kill()


@pytest.fixture
def unharmed(daemon: Daemon) -> Iterator[Callable[[], None]]:
    """Checks that an honest call is answered; at the end, too, that memory is bounded and nothing was unexpected."""
    with grpc.insecure_channel(daemon.addr) as channel:

        def check() -> None:
            request = wire.SendMessageRequest(messages=[message("orders")])
            answer = call(channel, "SendMessage", request, wire.SendMessageResponse)
            assert answer.status.code == wire.OK, answer.status

        check()
        before = daemon.rss_bytes()
        yield check
        check()
        assert daemon.runs, daemon.log_end()
        assert daemon.rss_bytes() - before < GROWTH_BYTES
        assert unexpected(daemon.logged) == []


def unexpected(log: bytes) -> list[bytes]:
    """Lines before a traceback."""
    return [line for line, after in pairwise(log.splitlines()) if after.lstrip().startswith(b"Traceback")]


def throw(port: int, data: bytes) -> bytes:
    """Send over a connection of its own, then nothing more; what comes back in a moment, or until it is closed."""
    answer = b""
    with socket.create_connection((HOST, port), TIMEOUT_S) as connection, suppress(OSError):
        connection.sendall(data)
        connection.settimeout(QUIET_S)
        while piece := connection.recv(65_536):
            answer += piece
    return answer


def raw(random: Random) -> bytes:
    first = random.choice([b"", b"\x16", b"\x16\x03\x01", b"P", b"PRI * HTTP/2.0", b"GET / HTTP/1.1\r\n\r\n"])
    return first + random.randbytes(random.choice([0, 1, 3, 9, 100, 100_000]))


def half_handshake(random: Random) -> bytes:
    """A client hello, cut off or with wrong bytes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="proxy").do_handshake()
    hello = bytearray(sent.read())
    for _ in range(random.choice([0, 1, 5])):
        hello[random.randrange(len(hello))] = random.getrandbits(8)
    return bytes(hello[: random.randrange(len(hello) + 1)])


def odd_call(random: Random) -> bytes:
    """A call with something wrong: its message, the length of it, its metadata, or its end."""
    method, kind = random.choice(list(METHODS.items()))
    path = random.choice([f"/{SERVICE}/{method}", f"/{SERVICE}/{method}", f"/{SERVICE}/Nothing", "/", ""])
    body = random.choice([kind().SerializeToString(), message("orders").SerializeToString(), random.randbytes(50)])
    body = body[: random.randrange(len(body) + 1)]
    odd: http2.Metadata = [
        (b"x-mq-client-id", b"odd"), (b"x-mq-client-id", b"\xff\xfe"), (b"x-mq-client-id", b""),
        (b"x-mq-client-id", b"x" * 5_000), (b"x-bin", b"not base64!"), (b"grpc-timeout", b"1n"),
        (b"grpc-timeout", b"99999999H"), (b"grpc-timeout", b"soon"), (b"grpc-encoding", b"gzip"),
        (b"grpc-encoding", b"nonsense"), (b"authorization", b"MQv2-HMAC-SHA1 Credential="), (b"a\nb", b"c"),
        (b"x-mq-date-time", b"never"), (b"x-large", b"x" * 20_000), (b":path", b"/again"), (b"", b""),
    ]  # fmt: skip
    metadata = random.sample(odd, random.choice([0, 1, 2, 5]))
    length = random.choice([None, None, len(body) + 1, 0, 100 * MIB, 2**31 - 1, 2**32 - 1])
    data = http2.opened(http2.call(path.encode("latin1"), body, metadata, length=length))
    return data if random.random() < 0.7 else data[: random.randrange(len(data))]


def damaged_call(random: Random) -> bytes:
    """A good call with wrong bytes in it, but for its path."""
    body = wire.SendMessageRequest(messages=[message("orders")]).SerializeToString()
    path = f"/{SERVICE}/SendMessage".encode()
    data = bytearray(http2.opened(http2.call(path, body, [(b"x-mq-client-id", b"damaged")])))
    start = data.index(path)
    places = [*range(start), *range(start + len(path), len(data))]
    for place in random.sample(places, random.choice([1, 1, 2, 5])):
        data[place] = random.getrandbits(8)
    return bytes(data)


@pytest.mark.parametrize("make", [raw, half_handshake, http2.broken, odd_call, damaged_call])
def test_odd_bytes_harm_nobody(
    daemon: Daemon, unharmed: Callable[[], None], make: Callable[[Random], bytes], seed: int
) -> None:
    random = Random(seed)
    for number in range(CONNECTIONS):
        throw(daemon.port, make(random))
        if number % 5 == 0:
            unharmed()


def test_a_good_call_of_this_kind_is_answered(daemon: Daemon) -> None:
    body = wire.HeartbeatRequest().SerializeToString()
    good = http2.opened(http2.call(f"/{SERVICE}/Heartbeat".encode(), body, [(b"x-mq-client-id", b"good")]))
    assert b"cannot find client settings" in throw(daemon.port, good)


def test_odd_metadata_of_strangers_does_not_fill_the_log(daemon: Daemon, unharmed: Callable[[], None]) -> None:
    unharmed()
    size = Path(daemon.log).stat().st_size
    for odd in ((b"k", b"\xff" * 3_000), (b"grpc-timeout", b"x" * 3_000), (b":scheme", b"x")):
        calls = [http2.call(f"/{SERVICE}/Heartbeat".encode(), b"", [odd], 2 * number + 1) for number in range(20)]
        throw(daemon.port, http2.opened(*calls))
        unharmed()
    assert Path(daemon.log).stat().st_size - size < 2_000, daemon.log_end()


def test_a_path_that_is_no_text_does_not_end_the_service(cluster: Cluster) -> None:
    """gRPC's server ends by it; the proxy makes another one."""
    bad = http2.opened(http2.call(b"/\xff", b"", []))
    for mode in ("permissive", "disabled"):
        with proxy(cluster.nameserver, tls_server_mode=mode) as running, running.channel() as channel:
            for _ in range(3):
                throw(int(running.address.rpartition(":")[2]), bad)
                heartbeat = channel.unary_unary(f"/{SERVICE}/Heartbeat", bytes, wire.HeartbeatResponse.FromString)
                answer = heartbeat(b"", metadata=[("x-mq-client-id", "x")], timeout=TIMEOUT_S, wait_for_ready=True)
                assert answer.status.code == wire.UNRECOGNIZED_CLIENT_TYPE


def test_floods_harm_nobody(daemon: Daemon, unharmed: Callable[[], None], seed: int) -> None:
    random = Random(seed)
    for _ in range(FLOODS):
        throw(daemon.port, http2.flood(random, 2_000))
        unharmed()


def test_connections_that_wait_for_ever_harm_nobody(daemon: Daemon, unharmed: Callable[[], None]) -> None:
    """Such connections send nothing, or half a message, or claim large sizes, and stay open."""
    claims = http2.opened(http2.call(f"/{SERVICE}/SendMessage".encode(), b"x" * 1_000, [], length=100 * MIB))
    stay = []
    for begun in (b"", b"P", b"\x16", b"\x16\x03\x01\x02\x00", http2.PREFACE[:10], claims[:80], claims):
        for _ in range(amount(10, 50)):
            connection = socket.create_connection((HOST, daemon.port), TIMEOUT_S)
            connection.sendall(begun)
            stay.append(connection)
        unharmed()
    for connection in stay:
        connection.close()


def test_a_peer_that_does_not_read_is_no_burden(daemon: Daemon, unharmed: Callable[[], None]) -> None:
    """The peer sends pings and reads no pongs, until the proxy takes no more."""
    pings = http2.frame(http2.PING, payload=bytes(8)) * 1_000
    with socket.create_connection((HOST, daemon.port), TIMEOUT_S) as connection:
        connection.sendall(http2.opened())
        connection.settimeout(1)
        deadline = time.monotonic() + 3
        with suppress(OSError):
            while time.monotonic() < deadline:
                connection.sendall(pings)
        unharmed()


# --- requests as hypothesis makes them

WORDS = st.one_of(
    st.sampled_from(
        [
            "orders", "billing", "nowhere", "broker-a", "%RETRY%billing", "%DLQ%billing", "rmq_sys_wheel_timer", "*",
            "a || b", "TAGS = 'a'", "TAGS IS", "orders%billing", " ", "0 1000 1000 0 0 broker-a 0 0 0",
            f"0 {2**62} 60000 0 0 broker-a 0 0 0", f"0 {2**62} 60000 9 1 broker-a 7 {2**62} {2**62}",
            f"1 {2**62} 60000 0 2 nobody -1 0 -1", "127.0.0.1", "\0",
        ]
    ),
    st.text(max_size=20),
)  # fmt: skip
_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: WORDS,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=50),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: st.one_of(st.integers(0, 9), st.integers(*_INT32)),
    FieldDescriptor.TYPE_INT64: st.one_of(st.integers(0, 9), st.integers(*_INT64)),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
}


@st.composite
def filled(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
    """A message of this kind with any fields."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        # A topic and a group are in nearly all requests: without them nothing else is looked at.
        if draw(st.integers(0, 9)) < (8 if field.name in ("topic", "group", "name", "messages", "entries") else 5):
            fill(draw, made, field, depth)
    return made


def fill(draw: st.DrawFn, made: Message, field: FieldDescriptor, depth: int) -> None:
    if field.full_name.endswith(".Broker.name"):
        # The proxy asks for the route of an unknown one for 3 s.
        setattr(made, field.name, draw(st.sampled_from(["broker-a", ""])))
    elif field.message_type is None:
        values = (
            st.one_of(st.sampled_from([value.number for value in field.enum_type.values]), st.integers(0, 99))
            if (field.enum_type)
            else SCALARS[field.type]
        )
        if field.is_repeated:
            getattr(made, field.name).extend(draw(st.lists(values, max_size=3)))
        else:
            setattr(made, field.name, draw(values))
    elif field.message_type.GetOptions().map_entry:
        getattr(made, field.name).update(draw(st.dictionaries(WORDS, WORDS, max_size=3)))
    elif depth < 4:
        inner = filled(field.message_type, depth + 1)
        if field.is_repeated:
            getattr(made, field.name).extend(draw(st.lists(inner, max_size=3)))
        else:
            getattr(made, field.name).CopyFrom(draw(inner))


@pytest.fixture(scope="module")
def raw_channel(daemon: Daemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(daemon.addr) as channel:
        yield channel


def answers_of(channel: grpc.Channel, method: str, data: bytes, client_id: str) -> list[bytes]:
    """What a call is answered with. Only gRPC's refusals are as good: of methods that are not there, and of junk."""
    opened = channel.stream_stream(f"/{SERVICE}/{method}", bytes, bytes)
    try:
        return list(opened(iter([data]), metadata=[("x-mq-client-id", client_id)], timeout=TIMEOUT_S))
    except grpc.RpcError as error:
        refusals = (
            grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNAUTHENTICATED,
        )  # fmt: skip
        assert error.code() in refusals, error
        return []


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
def test_any_request_is_answered(daemon: Daemon, raw_channel: grpc.Channel, method: str, data: st.DataObject) -> None:
    request = data.draw(filled(METHODS[method].DESCRIPTOR))
    client_id = data.draw(st.sampled_from(["known", "x"]))
    answers = answers_of(raw_channel, method, request.SerializeToString(), client_id)
    for answer in answers:
        assert b"internal error" not in answer, re.sub(rb"[^ -~]", b".", answer)
    assert daemon.runs


@pytest.mark.parametrize("method", METHODS)
@given(request=st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused(raw_channel: grpc.Channel, method: str, request: bytes) -> None:
    answers_of(raw_channel, method, request, "x")


def test_nothing_was_unexpected(daemon: Daemon, unharmed: Callable[[], None]) -> None:
    """After all that."""
    unharmed()
    assert Path(daemon.log).stat().st_size < 10 * MIB
