"""Calls of grpcio's client: what applications meet."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from skylark.remoting.grpc.call import Call, Streaming, Unary
from skylark.remoting.grpc.limits import GrpcLimits
from skylark.remoting.grpc.statuses import GrpcError, StatusCode
from skylark.remoting.net.tls.server import TlsServer
from skylark.remoting.net.tls.settings import PERMISSIVE, ServerTls
from tests.remoting.grpc.threaded import Threaded, threaded
from tests.support.certificates import Authority
from tests.support.waiting import DEADLINE_S, until_true

MIB = 1024 * 1024
MAX_BYTES = 2 * MIB


class Seen:
    """What the handlers have seen."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.time_left_s: list[float | None] = []
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self.ended = threading.Event()
        self.may_go_on = threading.Event()


def methods(seen: Seen) -> dict[str, Unary | Streaming]:
    def let_in(call: Call) -> None:
        return None

    def echo(call: Call, request: bytes) -> bytes:
        seen.headers.append(dict(call.headers))
        return request

    async def echo_in_task(call: Call, request: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return request

    def echo_later(call: Call, request: bytes) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(call.answer, request)

    async def let_in_later(call: Call) -> None:
        await trio.lowlevel.checkpoint()

    def refuse(call: Call) -> bytes:
        return b"refused"

    def fail(call: Call, request: bytes) -> bytes:
        raise GrpcError(StatusCode.FAILED_PRECONDITION, f"no: {request.decode()}")

    def break_off(call: Call, request: bytes) -> bytes:
        raise KeyError("oops")

    async def wait(call: Call, request: bytes) -> bytes:
        seen.time_left_s.append(call.time_left_s())
        call.when_ended(seen.ended.set)
        seen.begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.cancelled.set()
            raise

    async def echo_all(call: Call) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)

    async def add(call: Call) -> None:
        total = 0
        while (message := await call.read()) is not None:
            total += len(message)
        await call.write(b"%d" % total)

    async def repeat(call: Call) -> None:
        message = await call.read()
        assert message is not None
        for _ in range(int(message)):
            await call.write(bytes(100_000))

    async def fail_after_one(call: Call) -> None:
        await call.write(b"one")
        raise GrpcError(StatusCode.ABORTED, "after one")

    return {
        "/t.T/Echo": Unary(let_in, echo),
        "/t.T/EchoInTask": Unary(let_in_later, echo_in_task),
        "/t.T/EchoLater": Unary(let_in, echo_later),
        "/t.T/Refuse": Unary(refuse, echo),
        "/t.T/Fail": Unary(let_in, fail),
        "/t.T/BreakOff": Unary(let_in, break_off),
        "/t.T/Wait": Unary(let_in, wait),
        "/t.T/EchoAll": Streaming(echo_all),
        "/t.T/Add": Streaming(add),
        "/t.T/Repeat": Streaming(repeat),
        "/t.T/FailAfterOne": Streaming(fail_after_one),
    }


LIMITS = GrpcLimits(max_message_bytes=MAX_BYTES, takes_gzip=True)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def served(seen: Seen) -> Iterator[Threaded]:
    with threaded(methods(seen), LIMITS) as running:
        yield running


@pytest.fixture
def channel(served: Threaded) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.address, [("grpc.max_receive_message_length", -1)]) as opened:
        yield opened


def unary(channel: grpc.Channel, method: str, request: bytes = b"tea", **options: Any) -> Any:
    return channel.unary_unary(f"/t.T/{method}")(request, **{"timeout": DEADLINE_S, **options})


def refused(channel: grpc.Channel, method: str, request: bytes = b"tea", **options: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, method, request, **options)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("method", ["Echo", "EchoInTask", "EchoLater"])
@pytest.mark.parametrize("size", [0, 1, 70_000, MAX_BYTES])
def test_unary_calls_are_answered(channel: grpc.Channel, method: str, size: int) -> None:
    request = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert unary(channel, method, request) == request


def test_many_calls_at_once_are_answered(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/t.T/EchoInTask")
    futures = [(b"%d" % number, call.future(b"%d" % number, timeout=DEADLINE_S)) for number in range(500)]
    assert [future.result() for _, future in futures] == [request for request, _ in futures]


def test_metadata_is_among_the_headers(channel: grpc.Channel, seen: Seen) -> None:
    unary(channel, "Echo", metadata=[("x-mq-client-id", "ada"), ("x-mq-id", "1"), ("x-mq-id", "2")])
    (found,) = seen.headers
    assert {name: found[name] for name in found if name.startswith("x-")} == {"x-mq-client-id": "ada", "x-mq-id": "1,2"}


def test_too_much_metadata_ends_its_own_call(channel: grpc.Channel, seen: Seen) -> None:
    waiting = channel.unary_unary("/t.T/Wait").future(b"", timeout=DEADLINE_S)
    assert seen.begun.wait(DEADLINE_S)
    for size in (20_000, 50_000):
        code, _ = refused(channel, "Echo", metadata=[("x-large", "v" * size)])
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert unary(channel, "Echo") == b"tea" and not waiting.done()
    waiting.cancel()


def test_a_call_may_be_refused_before_its_request_is_read(channel: grpc.Channel) -> None:
    is_over = threading.Event()

    def requests() -> Iterator[bytes]:
        is_over.wait(DEADLINE_S)
        yield b"late"

    answer = channel.stream_unary("/t.T/Refuse")(requests(), timeout=DEADLINE_S)
    assert answer == b"refused"
    is_over.set()
    assert unary(channel, "Refuse", bytes(MAX_BYTES)) == b"refused"


def test_errors_have_their_status_and_text(channel: grpc.Channel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "skylark.remoting.grpc")
    tea = "50% thé\n日本"
    assert refused(channel, "Fail", tea.encode()) == (grpc.StatusCode.FAILED_PRECONDITION, f"no: {tea}")
    assert refused(channel, "Missing") == (grpc.StatusCode.UNIMPLEMENTED, "unknown service or method")
    code, text = refused(channel, "Echo", bytes(MAX_BYTES + 1))
    assert (code, "larger than max" in text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    assert caplog.records == []
    assert refused(channel, "BreakOff") == (grpc.StatusCode.INTERNAL, "internal error: KeyError")
    assert "call /t.T/BreakOff of 127.0.0.1" in caplog.text and "oops" in caplog.text
    assert unary(channel, "Echo") == b"tea"


def test_streams_both_ways(channel: grpc.Channel) -> None:
    sent = [b"", b"tea", bytes(300_000), b"milk"]
    assert list(channel.stream_stream("/t.T/EchoAll")(iter(sent), timeout=DEADLINE_S)) == sent
    assert list(channel.stream_stream("/t.T/EchoAll")(iter([]), timeout=DEADLINE_S)) == []
    assert channel.stream_unary("/t.T/Add")(iter([bytes(100_000)] * 50), timeout=DEADLINE_S) == b"5000000"
    assert list(map(len, channel.unary_stream("/t.T/Repeat")(b"50", timeout=DEADLINE_S))) == [100_000] * 50


def test_a_stream_may_fail_after_messages(channel: grpc.Channel) -> None:
    stream = channel.stream_stream("/t.T/FailAfterOne")(iter([]), timeout=DEADLINE_S)
    assert next(stream) == b"one"
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "after one")


@pytest.mark.parametrize("request_bytes", [0, 70_000])
def test_compressed_calls(channel: grpc.Channel, request_bytes: int) -> None:
    request = bytes(request_bytes)
    assert unary(channel, "Echo", request, compression=grpc.Compression.Gzip) == request
    stream = channel.stream_stream("/t.T/EchoAll")
    assert list(stream(iter([request] * 3), compression=grpc.Compression.Gzip, timeout=DEADLINE_S)) == [request] * 3
    assert refused(channel, "Echo", request, compression=grpc.Compression.Deflate)[0] == grpc.StatusCode.UNIMPLEMENTED


def test_compressed_calls_are_refused_unless_they_are_allowed(seen: Seen) -> None:
    with threaded(methods(seen)) as running, grpc.insecure_channel(running.address) as channel:
        code, text = refused(channel, "Echo", bytes(1_000), compression=grpc.Compression.Gzip)
        assert (code, text) == (grpc.StatusCode.UNIMPLEMENTED, "grpc-encoding gzip is not supported")
        assert unary(channel, "Echo") == b"tea"


def test_a_deadline_ends_the_handler(channel: grpc.Channel, seen: Seen) -> None:
    # The first call connects, which the deadline of the second would include. grpcio rounds a timeout up.
    assert unary(channel, "Echo") == b"tea"
    assert refused(channel, "Wait", timeout=1.0)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    assert seen.cancelled.wait(DEADLINE_S) and seen.ended.wait(DEADLINE_S)
    (time_left_s,) = seen.time_left_s
    assert time_left_s is not None and 0 < time_left_s <= 1.1


def test_a_cancelled_call_ends_the_handler(channel: grpc.Channel, seen: Seen) -> None:
    future = channel.unary_unary("/t.T/Wait").future(b"")
    assert seen.begun.wait(DEADLINE_S)
    future.cancel()
    assert seen.cancelled.wait(DEADLINE_S) and seen.ended.wait(DEADLINE_S)
    assert seen.time_left_s == [None]
    assert unary(channel, "Echo") == b"tea"


def test_a_client_that_closes_ends_its_handlers(served: Threaded, seen: Seen) -> None:
    with grpc.insecure_channel(served.address) as channel:
        future = channel.unary_unary("/t.T/Wait").future(b"")
        assert seen.begun.wait(DEADLINE_S)
    assert future.code() == grpc.StatusCode.CANCELLED
    assert seen.cancelled.wait(DEADLINE_S) and seen.ended.wait(DEADLINE_S)
    assert until_true(lambda: len(served.server) == 0, "the connection has ended")


def test_a_client_with_keepalive_is_served(seen: Seen) -> None:
    pings = [
        ("grpc.keepalive_time_ms", 50),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    limits = GrpcLimits(min_ping_interval_ms=0, min_idle_ping_interval_ms=0, ping_interval_ms=100)
    with threaded(methods(seen), limits) as running, grpc.insecure_channel(running.address, pings) as channel:
        waiting = channel.unary_unary("/t.T/Wait").future(b"", timeout=DEADLINE_S)
        assert seen.begun.wait(DEADLINE_S)
        (connection,) = running.server._open
        assert until_true(lambda: connection._last_ping > -inf and connection._pinged_at, "both sides have pinged")
        assert not waiting.done()
        waiting.cancel()
        assert unary(channel, "Echo") == b"tea"
        assert len(running.server) == 1
        assert running.server.refusals.counts["pings"] == 0


# Connections of its own.
LONELY = [("grpc.use_local_subchannel_pool", 1)]


def tls_of(directory: Path, authority: Authority, name: str) -> ServerTls:
    for made, file in zip(authority.sign(name), ("cert.pem", "key.pem"), strict=True):
        shutil.copy(made, directory / file)
    return ServerTls(PERMISSIVE, str(directory / "cert.pem"), str(directory / "key.pem"))


def secure_channel(address: str, authority: Authority, options: Sequence[tuple[str, Any]] = ()) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(Path(authority.ca_file).read_bytes())
    return grpc.secure_channel(address, credentials, [*LONELY, *options])


def test_one_port_serves_clients_with_and_without_tls(seen: Seen, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = TlsServer(tls_of(tmp_path, authority, "server"), alpn=("h2",))
    with threaded(methods(seen), LIMITS, tls) as running:
        with secure_channel(running.address, authority) as secure, grpc.insecure_channel(running.address) as plain:
            for channel in (secure, plain):
                assert unary(channel, "Echo", bytes(MAX_BYTES)) == bytes(MAX_BYTES)
                sent = [b"tea", bytes(300_000)]
                assert list(channel.stream_stream("/t.T/EchoAll")(iter(sent), timeout=DEADLINE_S)) == sent
        assert tls.handshakes == 1


def test_a_new_certificate_is_used_for_new_connections(seen: Seen, tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    tls = TlsServer(tls_of(tmp_path, first, "server"), alpn=("h2",), interval_s=0.01)
    with threaded(methods(seen), LIMITS, tls) as running, secure_channel(running.address, first) as before:
        assert unary(before, "Echo") == b"tea"
        old = tls.context
        tls_of(tmp_path, second, "next")
        assert until_true(lambda: tls.context is not old, "the new certificate is in use")
        with secure_channel(running.address, second) as after:
            assert unary(after, "Echo") == b"tea"
        assert unary(before, "Echo") == b"tea"


Load = Callable[[grpc.Channel, int], Any]


def one_call(channel: grpc.Channel, number: int) -> None:
    request = b"%d" % number
    assert unary(channel, "EchoInTask" if number % 2 else "Echo", request) == request


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
def test_no_call_fails_while_a_server_stops(seen: Seen, tmp_path: Path, is_secure: bool) -> None:
    """Clients without retries call one of two servers, which then stops."""
    authority = Authority(tmp_path)
    tls = TlsServer(tls_of(tmp_path, authority, "server"), alpn=("h2",)) if is_secure else None
    options = [*LONELY, ("grpc.enable_retries", 0), ("grpc.ssl_target_name_override", "127.0.0.1")]
    is_over = threading.Event()
    clients = 8
    answered = [0] * clients

    def work(target: str, client: int) -> None:
        opened = secure_channel(target, authority, options) if is_secure else grpc.insecure_channel(target, options)
        with opened as channel:
            for number in count():
                if is_over.is_set():
                    return
                one_call(channel, number)
                answered[client] += 1

    def all_go_on(futures: Sequence[Any]) -> None:
        before = list(answered)

        def done() -> bool:
            for future in futures:
                if future.done():
                    future.result()
            return all(now > then + 20 for now, then in zip(answered, before, strict=True))

        assert until_true(done, "all clients get answers")

    with threaded(methods(seen), LIMITS, tls) as second, ThreadPoolExecutor(clients) as pool:
        try:
            with threaded(methods(seen), LIMITS, tls) as first:
                target = f"ipv4:{first.address},{second.address}"
                futures = [pool.submit(work, target, client) for client in range(clients)]
                all_go_on(futures)
                assert first.stop()
                all_go_on(futures)
        finally:
            is_over.set()
        for future in futures:
            future.result()
