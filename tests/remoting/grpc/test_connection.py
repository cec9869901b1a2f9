"""What single frames bring about: unusual calls, calls that wait, and a connection's end."""

import struct
import zlib
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.remoting.grpc.call import AT_ONCE_BYTES, WRITE_BYTES, Call, Result, Streaming, Unary
from skylark.remoting.grpc.connection import (
    GO_AWAY_ANSWER_S,
    LINGER_S,
    MAX_QUIET_WAIT_S,
    QUIET_S,
    SETTLE_S,
    GrpcConnection,
)
from skylark.remoting.grpc.limits import GrpcLimits
from skylark.remoting.grpc.messages import framed
from skylark.remoting.grpc.statuses import GrpcError, StatusCode
from skylark.remoting.http2.errors import ErrorCode
from skylark.remoting.http2.limits import Http2Limits
from tests.remoting.grpc.raw_client import WINDOWS, RawClient, begun, raw
from tests.support import http2
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
    call,
    frame,
    headers,
)

ECHO, HELD, TASK, STREAM, SLOW_BEGIN = b"/t.T/Echo", b"/t.T/Held", b"/t.T/Task", b"/t.T/Stream", b"/t.T/SlowBegin"
SEVERAL = b"/t.T/Several"
ACK = 0x1


class Handlers:
    """Methods, and what they have seen."""

    def __init__(self) -> None:
        self.held: list[Call] = []
        self.ended: list[str] = []
        self.may_begin = trio.Event()
        self.read: list[bytes] = []
        self.written = 0
        self.methods: dict[str, Unary | Streaming] = {
            "/t.T/Echo": Unary(lambda call: None, lambda call, request: request),
            "/t.T/Held": Unary(lambda call: None, self.hold, self.unread),
            "/t.T/Task": Unary(lambda call: None, self.task),
            "/t.T/SlowBegin": Unary(self.begin, lambda call, request: request),
            "/t.T/Broken": Unary(lambda call: None, self.broken),
            "/t.T/BrokenBegin": Unary(self.broken_begin, self.broken),
            "/t.T/Stream": Streaming(self.stream),
            "/t.T/EchoAll": Streaming(self.echo_all),
            "/t.T/Forty": Streaming(self.forty),
            "/t.T/Pour": Streaming(self.pour),
            "/t.T/GiveUp": Streaming(self.give_up),
        }

    def hold(self, call: Call, request: bytes) -> None:
        self.held.append(call)
        call.when_ended(lambda: self.ended.append(call.path))

    def unread(self, call: Call, error: GrpcError) -> bytes | None:
        return b"unread: " + error.status.name.encode() if "x-tell" in call.headers else None

    async def task(self, call: Call, request: bytes) -> bytes:
        self.held.append(call)
        call.when_ended(lambda: self.ended.append(call.path))
        await trio.sleep_forever()
        raise AssertionError

    async def begin(self, call: Call) -> None:
        self.held.append(call)
        await self.may_begin.wait()

    def broken(self, call: Call, request: bytes) -> bytes:
        raise KeyError("oops")

    def broken_begin(self, call: Call) -> bytes:
        raise KeyError("oops")

    async def stream(self, call: Call) -> None:
        self.held.append(call)
        await self.may_begin.wait()
        while (message := await call.read()) is not None:
            self.read.append(message)

    async def echo_all(self, call: Call) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)

    async def forty(self, call: Call) -> None:
        for _ in range(40):
            await call.write(bytes(15_000))
            self.written += 1

    async def pour(self, call: Call) -> None:
        while True:
            await call.write(bytes(20_000))
            self.written += 1

    async def give_up(self, call: Call) -> None:
        with trio.move_on_after(5):
            await call.write(bytes(1_000_000))
        raise GrpcError(StatusCode.ABORTED, "the client does not read")


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def data(message: bytes, stream: int = 1, flags: int = END_STREAM) -> bytes:
    return frame(DATA, flags, stream, message)


def window_updates(client: RawClient) -> int:
    """The window that a client got back: of streams."""
    return sum(int.from_bytes(one.payload) for one in client.frames if one.kind == WINDOW_UPDATE and one.stream)


# --- requests


async def test_a_request_may_come_in_pieces(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(ECHO))
        whole = framed(b"a cup of tea")
        for byte in whole:
            assert not client.answer().headers
            await client.send(data(bytes([byte]), flags=0))
        await client.send(data(b""))
        assert client.answer().data == whole
        assert (client.status(), client.answer().has_ended) == ("0", True)


@pytest.mark.parametrize("form", ["no data", "empty data", "cut off", "more than whole"])
async def test_a_call_without_a_whole_request(handlers: Handlers, mock_clock: MockClock, form: str) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect()
        for stream, metadata in ((1, []), (3, [(b"x-tell", b"yes")])):
            if form == "no data":
                await client.send(begun(HELD, *metadata, stream=stream, flags=END_HEADERS | END_STREAM))
            else:
                forms = {"empty data": b"", "cut off": framed(b"tea")[:-1], "more than whole": framed(b"tea") + b"\0"}
                sent = forms[form]
                await client.send(begun(HELD, *metadata, stream=stream), data(sent, stream))
        assert client.status(1) == str(int(StatusCode.INVALID_ARGUMENT))
        assert (client.status(3), client.answer(3).data) == ("0", framed(b"unread: INVALID_ARGUMENT"))


async def test_a_request_that_does_not_become_whole_ends_in_time(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(request_timeout_ms=5_000)) as served:
        client = await served.connect(begun(HELD, (b"x-tell", b"yes")), data(framed(b"tea")[:-1], flags=0))
        await client.send(begun(HELD, stream=3))
        await served.wait(4)
        await client.seen()
        assert not client.answer().headers
        await served.wait(4)
        await client.seen()
        assert client.answer().data == framed(b"unread: DEADLINE_EXCEEDED")
        # The client may stop sending the rest.
        assert client.answer().reset == ErrorCode.NO_ERROR
        assert client.status(3) == str(int(StatusCode.DEADLINE_EXCEEDED))


async def test_more_than_one_request_of_a_unary_call_is_an_error(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(ECHO), data(framed(b"tea") + framed(b"milk")))
        assert client.status() == str(int(StatusCode.INTERNAL))


async def test_the_window_is_not_given_back_before_a_call_is_let_in(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(SLOW_BEGIN))
        request = framed(bytes(100_000))
        for at in range(0, 65_535, 10_000):
            await client.send(data(request[at : min(at + 10_000, 65_535)], flags=0))
        assert window_updates(client) == 0
        handlers.may_begin.set()
        await client.seen()
        assert window_updates(client) == 65_535
        for at in range(65_535, len(request), 10_000):
            await client.send(data(request[at : at + 10_000], flags=0))
        await client.send(data(b""), frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 200_000)))
        await client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 200_000)))
        assert client.answer().data == request


async def test_a_request_that_came_before_its_call_was_let_in_is_read(
    handlers: Handlers, mock_clock: MockClock
) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(call(SLOW_BEGIN, b"tea", []))
        assert not client.answer().headers
        handlers.may_begin.set()
        await client.seen()
        assert (client.answer().data, client.status()) == (framed(b"tea"), "0")


async def test_a_stream_gets_its_window_back_as_its_handler_reads(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(STREAM))
        for _ in range(6):
            await client.send(data(framed(bytes(9_995)), flags=0))
        assert window_updates(client) == 0
        handlers.may_begin.set()
        await client.seen()
        assert window_updates(client) == 60_000
        assert list(map(len, handlers.read)) == [9_995] * 6


async def test_a_message_cut_off_ends_its_stream(handlers: Handlers, mock_clock: MockClock) -> None:
    handlers.may_begin.set()
    async with raw(handlers.methods, mock_clock, GrpcLimits(max_message_bytes=10)) as served:
        client = await served.connect(begun(STREAM), data(framed(b"tea") + framed(b"milk")[:-1]))
        assert (handlers.read, client.status()) == ([b"tea"], str(int(StatusCode.INVALID_ARGUMENT)))
        await client.send(begun(STREAM, stream=3), data(framed(bytes(11)), 3))
        assert client.status(3) == str(int(StatusCode.RESOURCE_EXHAUSTED))


async def test_a_broken_message_gives_its_stream_no_more_window(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(STREAM), *[data(b"\2" + bytes(10_000), flags=0)] * 5)
        assert window_updates(client) == 0
        handlers.may_begin.set()
        await client.seen()
        assert client.status() == str(int(StatusCode.INTERNAL))


async def test_a_request_counts_as_memory_until_its_answer(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(HELD), data(framed(bytes(1_000))))
        await client.send(begun(HELD, stream=3), data(framed(bytes(1_000))[:500], 3, flags=0))
        (connection,) = served.server._open
        (header_bytes,) = {one.header_bytes for one in handlers.held}
        assert header_bytes > 6 * 32
        assert connection.buffered_bytes == 1_500 + 2 * header_bytes
        await client.send(data(framed(bytes(1_000))[500:], 3))
        assert connection.buffered_bytes == 2_000 + 2 * header_bytes
        for held in handlers.held:
            held.answer(b"tea")
        await client.seen()
        assert connection.buffered_bytes == 0
        await client.send(begun(STREAM, stream=5), data(framed(bytes(1_000)) * 2 + b"\0", 5, flags=0))
        header_bytes = handlers.held[-1].header_bytes
        assert connection.buffered_bytes == 2_001 + header_bytes
        handlers.may_begin.set()
        await client.seen()
        assert connection.buffered_bytes == 1 + header_bytes
        await client.send(data(b"", 5)[:8])
        assert served.server._buffers.used == 1 + header_bytes + 8


async def test_a_part_of_headers_counts_as_memory(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(frame(HEADERS, 0, 1, bytes(3_000)), frame(http2.CONTINUATION, 0, 1)[:5])
        assert served.server._buffers.used == 3_005
        await client.transport.aclose()
        await wait_all_tasks_blocked()
        assert served.server._buffers.used == 0


@pytest.mark.parametrize("part", [begun(ECHO)[:-1], begun(ECHO, flags=0), begun(ECHO)[:5]])
async def test_a_frame_that_does_not_become_whole_ends_its_connection_in_time(
    handlers: Handlers, mock_clock: MockClock, part: bytes
) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(request_timeout_ms=5_000)) as served:
        client = await served.connect(part)
        await served.wait(4)
        assert not client.is_closed
        await served.wait(2)
        assert client.is_closed
        assert served.server.refusals.counts["slow_frames"] == 1


async def test_a_client_may_always_be_within_a_frame(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(request_timeout_ms=5_000)) as served:
        sent = b"".join(call(ECHO, b"tea", [], stream=stream) for stream in range(1, 21, 2))
        client = await served.connect()
        step = len(sent) // 10
        for at in range(0, len(sent), step):
            await client.send(sent[at + 3 : at + step + 3] if at else sent[: step + 3])
            await served.wait(4)
        assert not client.is_closed
        assert client.status(19) == "0"


async def test_a_whole_request_may_wait_longer_than_one_that_is_not(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(request_timeout_ms=5_000)) as served:
        client = await served.connect(call(HELD, b"", []), begun(SLOW_BEGIN, stream=3))
        await served.wait(20)
        # The second one has not been let in.
        assert not any(one.is_over for one in handlers.held)
        handlers.may_begin.set()
        await served.wait(4)
        await client.seen()
        assert client.status(3) is None
        await served.wait(4)
        await client.seen()
        assert client.status(3) == str(int(StatusCode.DEADLINE_EXCEEDED))


# --- heads


@pytest.mark.parametrize(
    ("changed", "status"),
    [((b":method", b"GET"), "405"), ((b"content-type", b"application/json"), "415")],
)
async def test_a_request_that_is_not_grpc(
    handlers: Handlers, mock_clock: MockClock, changed: tuple[bytes, bytes], status: str
) -> None:
    fields = {b":method": b"POST", b":scheme": b"http", b":path": ECHO, b"content-type": b"application/grpc"}
    fields[changed[0]] = changed[1]
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(frame(HEADERS, END_HEADERS | END_STREAM, 1, headers(list(fields.items()))))
        assert (client.answer().headers[":status"], client.answer().has_ended) == (status, True)
        await client.send(call(ECHO, b"tea", [], stream=3))
        assert client.status(3) == "0"


async def test_a_broken_timeout_is_an_error(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(call(ECHO, b"tea", [(b"grpc-timeout", b"soon")]))
        assert client.status() == str(int(StatusCode.INTERNAL))


@pytest.mark.parametrize("accepted", [b"identity,deflate,gzip", b"identity"])
async def test_an_answer_is_compressed_as_its_request_if_the_client_reads_such(
    handlers: Handlers, mock_clock: MockClock, accepted: bytes
) -> None:
    metadata = ((b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", accepted))
    async with raw(handlers.methods, mock_clock, GrpcLimits(takes_gzip=True)) as served:
        client = await served.connect(begun(ECHO, *metadata), data(framed(bytes(1_000), gzip=True)))
        answer = client.answer()
        assert answer.headers.get("grpc-encoding") == ("gzip" if b"gzip" in accepted else None)
        if b"gzip" in accepted:
            assert answer.data[0] == 1 and zlib.decompress(answer.data[5:], wbits=31) == bytes(1_000)
        else:
            assert answer.data == framed(bytes(1_000))


# --- ends of calls


async def test_a_reset_ends_a_call_whatever_it_waits_for(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(
            call(HELD, b"", []), call(TASK, b"", [], stream=3), begun(SLOW_BEGIN, stream=5), begun(STREAM, stream=7)
        )
        assert len(handlers.held) == 4
        for stream in (1, 3, 5, 7):
            await client.send(frame(RST_STREAM, 0, stream, bytes(4)))
        assert sorted(handlers.ended) == ["/t.T/Held", "/t.T/Task"]
        assert all(one.is_over for one in handlers.held)
        handlers.held[0].answer(b"late")
        handlers.held[1].fail(StatusCode.INTERNAL, "late")
        await client.send(call(ECHO, b"tea", [], stream=9))
        assert client.status(9) == "0"
        assert not any(client.answer(stream).headers for stream in (1, 3, 5, 7))


async def test_a_callback_of_a_call_that_has_ended_is_called_at_once(
    handlers: Handlers, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(call(HELD, b"", []))
        (held,) = handlers.held

        def broken() -> None:
            raise KeyError("oops")

        held.when_ended(broken)
        held.when_ended(lambda: handlers.ended.append("the last"))
        held.answer(b"tea")
        assert handlers.ended == ["/t.T/Held", "the last"]
        assert "a callback at the end of call /t.T/Held failed" in caplog.text
        held.when_ended(lambda: handlers.ended.append("at once"))
        assert handlers.ended[-1] == "at once"
        await client.seen()
        assert client.answer().data == framed(b"tea")


async def test_deadlines_end_calls_that_wait(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        timeout = (b"grpc-timeout", b"5S")
        client = await served.connect(call(HELD, b"", [timeout]), call(TASK, b"", [timeout], stream=3))
        await client.send(begun(SLOW_BEGIN, timeout, stream=5), begun(STREAM, timeout, stream=7))
        assert [one.time_left_s() for one in handlers.held] == [5] * 4
        await served.wait(4.5)
        await client.seen()
        assert not any(client.answer(stream).headers for stream in (1, 3, 5, 7))
        await served.wait(1.5)
        await client.seen()
        assert [client.status(stream) for stream in (1, 3, 5, 7)] == ["4"] * 4
        assert all(one.is_over for one in handlers.held)
        assert handlers.held[0].time_left_s() == 0


@pytest.mark.parametrize("path", [b"/t.T/Broken", b"/t.T/BrokenBegin"])
async def test_an_error_in_a_handler_ends_its_call_only(
    handlers: Handlers, mock_clock: MockClock, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(
            call(HELD, b"", []), call(path, b"", [], stream=3), call(ECHO, b"tea", [], stream=5)
        )
        assert client.status(3) == str(int(StatusCode.INTERNAL))
        assert client.answer(5).data == framed(b"tea")
        assert not handlers.held[0].is_over
        (record,) = caplog.records
        assert record.exc_info is not None and "oops" in caplog.text


async def test_a_task_that_is_not_the_calls_own_learns_of_its_end(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        client = await served.connect(begun(STREAM))
        ended: list[str] = []

        async def use(work: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(GrpcError) as caught:
                await work()
            ended.append(caught.value.text)

        (held,) = handlers.held
        nursery.start_soon(use, lambda: held.write(bytes(1_000_000)))
        nursery.start_soon(use, held.read)
        await wait_all_tasks_blocked()
        await client.send(frame(RST_STREAM, 0, 1, bytes(4)))
        nursery.start_soon(use, lambda: held.write(b"tea"))
        await wait_all_tasks_blocked()
        assert ended == ["the call has ended"] * 3


async def test_an_error_from_the_nursery_of_a_handler_has_its_status(mock_clock: MockClock) -> None:
    async def fail() -> None:
        raise GrpcError(StatusCode.ABORTED, "from a task")

    async def handle(call: Call) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)

    async with raw({"/t.T/Fail": Streaming(handle)}, mock_clock) as served:
        client = await served.connect(begun(b"/t.T/Fail"))
        assert client.answer().headers["grpc-message"] == "from a task"


# --- answers that the client does not take


async def test_a_handler_waits_while_its_client_gives_no_window(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(b"/t.T/Pour"))
        sent = len(client.answer().data)
        assert sent == 65_535
        written = handlers.written
        assert (written + 1) * 20_005 - sent <= WRITE_BYTES + 20_005
        await client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 50_000)))
        await client.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 50_000)))
        assert len(client.answer().data) == sent + 50_000
        # It goes on only when all that waited has gone out.
        assert handlers.written == written
        for stream in (0, 1):
            await client.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 100_000)))
        assert handlers.written > written


@pytest.mark.parametrize("end", ["the client takes all", "reset", "lost"])
async def test_messages_are_drained_once_the_client_has_given_window_for_them(
    handlers: Handlers, mock_clock: MockClock, end: str
) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        client = await served.connect(begun(STREAM))
        (held,) = handlers.held
        steps: list[str] = []

        async def write() -> None:
            await held.drained()
            # Less than a write waits for.
            await held.write(bytes(65_535), b"the last")
            steps.append("written")
            try:
                await held.drained()
            except GrpcError as error:
                steps.append(error.status.name)
            else:
                steps.append("drained")

        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        assert steps == ["written"]
        for stream in (0, 1):
            await client.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 17)))
        assert steps == ["written"]
        if end == "reset":
            await client.send(frame(RST_STREAM, 0, 1, bytes(4)))
        elif end == "lost":
            client.transport.cut()
            await wait_all_tasks_blocked()
        else:
            for stream in (0, 1):
                await client.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1)))
        assert steps == ["written", "drained" if end == "the client takes all" else "CANCELLED"]


async def test_a_method_with_many_answers_gives_them_together_or_one_after_another(mock_clock: MockClock) -> None:
    async def written(call: Call) -> tuple[bytes, ...]:
        await call.write(b"a cup")
        return b"of", b"tea"

    def run(call: Call, request: bytes) -> Result:
        if request == b"task":
            return written(call)
        if request == b"later":
            call.start(written(call))
            return None
        return b"a cup", b"of", b"tea"

    def begin(call: Call) -> Result:
        return (b"no", b"tea") if "x-refused" in call.headers else None

    methods = {"/t.T/Several": Unary(begin, run, has_many_answers=True)}
    async with raw(methods, mock_clock) as served:
        client = await served.connect()
        for stream, how in ((1, b"at once"), (3, b"task"), (5, b"later")):
            await client.send(begun(SEVERAL, stream=stream), data(framed(how), stream))
            answer = client.answer(stream)
            assert answer.data == framed(b"a cup") + framed(b"of") + framed(b"tea")
            assert (client.status(stream), answer.has_ended) == ("0", True)
        await client.send(begun(SEVERAL, (b"x-refused", b"yes"), stream=7))
        assert (client.answer(7).data, client.status(7)) == (framed(b"no") + framed(b"tea"), "0")


async def test_answers_that_are_given_together_between_turns_are_sent_together(
    handlers: Handlers, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    flush = GrpcConnection.flush_now

    def counted(connection: GrpcConnection) -> bool:
        nonlocal flushes
        flushes += 1
        return flush(connection)

    monkeypatch.setattr(GrpcConnection, "flush_now", counted)
    handlers.methods["/t.T/Several"] = Unary(lambda call: None, handlers.hold, has_many_answers=True)
    async with raw(handlers.methods, mock_clock) as served:
        receives = [
            frames for stream in (1, 3, 5) for frames in (begun(SEVERAL, stream=stream), data(framed(b""), stream))
        ]
        client = await served.connect(*receives, begun(HELD, stream=7), data(framed(b""), 7), begun(STREAM, stream=9))
        first, second, third, one_answer, _ = handlers.held
        flushes = 0
        one_answer.answer(b"sent")
        assert flushes == 1, "receives that wait delay no other answer"
        for receive in (first, second):
            receive.answer(b"a cup", b"of tea")
        assert flushes == 1, "others may join them"
        third.answer(b"a cup", b"of tea")
        assert flushes == 2, "none can join the last one"
        await client.seen()
        for stream in (1, 3, 5):
            assert client.answer(stream).data == framed(b"a cup") + framed(b"of tea")


async def test_an_answer_has_room_as_far_as_the_windows_of_its_client_go(
    handlers: Handlers, mock_clock: MockClock
) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(HELD), data(framed(b"")), begun(HELD, stream=3), data(framed(b""), 3))
        first, second = handlers.held
        assert first.has_room(65_535) and not first.has_room(65_536)
        second.answer(bytes(40_000))
        assert first.has_room(65_535 - 40_005) and not first.has_room(65_535 - 40_004), "both share one window"
        await client.send(WINDOWS)
        assert first.has_room(AT_ONCE_BYTES) and not first.has_room(AT_ONCE_BYTES + 1), "larger answers go in parts"
        await client.send(frame(RST_STREAM, 0, 1, bytes(4)))
        assert not first.has_room(1), "it has ended"
        late = Nothing()
        first.start(late.work())
        await client.seen()
        assert not late.has_run


class Nothing:
    """Work that must not run."""

    has_run = False

    async def work(self) -> None:
        self.has_run = True


async def test_a_failure_overtakes_what_was_not_drained(mock_clock: MockClock) -> None:
    async def give_up(call: Call) -> None:
        await call.write(bytes(70_000))
        with trio.move_on_after(5):
            await call.drained()
        raise GrpcError(StatusCode.ABORTED, "the client does not read")

    async with raw({"/t.T/GiveUp": Streaming(give_up)}, mock_clock) as served:
        client = await served.connect(begun(b"/t.T/GiveUp"))
        await served.wait(6)
        await client.seen()
        assert (len(client.answer().data), client.status()) == (65_535, str(int(StatusCode.ABORTED)))


async def test_a_write_of_more_than_may_wait_ends_its_call(mock_clock: MockClock) -> None:
    errors: list[str] = []

    async def pour(call: Call) -> None:
        call.when_ended(lambda: errors.append("ended"))
        try:
            await call.write(bytes(200_000))
        except GrpcError as error:
            errors.append(error.status.name)
            raise

    limits = GrpcLimits(http2=Http2Limits(max_unsent_bytes=100_000))
    async with raw({"/t.T/Pour": Streaming(pour)}, mock_clock, limits) as served:
        client = await served.connect(begun(b"/t.T/Pour"))
        assert errors == ["ended", "RESOURCE_EXHAUSTED"]
        assert client.answer().reset == ErrorCode.ENHANCE_YOUR_CALM
        assert served.server._calls.used == 0


async def test_a_failure_overtakes_what_a_client_does_not_read(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(begun(b"/t.T/GiveUp"))
        assert len(client.answer().data) == 65_535
        await served.wait(6)
        await client.seen()
        assert (client.status(), client.answer().has_ended) == (str(int(StatusCode.ABORTED)), True)


async def test_an_answer_that_a_client_does_not_take_is_dropped_in_time(
    handlers: Handlers, mock_clock: MockClock
) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(write_timeout_ms=5_000)) as served:
        client = await served.connect(call(HELD, b"", []), call(HELD, b"", [], stream=3))
        for held in handlers.held:
            held.answer(bytes(60_000))
        await client.seen()
        assert (client.status(1), client.status(3)) == ("0", None)
        await served.wait(1)
        assert 50_000 < served.server._buffers.used < 60_000
        await served.wait(6)
        await client.seen()
        assert client.answer(3).reset == ErrorCode.CANCEL
        await client.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000)), call(ECHO, b"tea", [], stream=5))
        assert client.status(5) == "0"


async def test_a_client_that_reads_nothing_is_cut_off(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(write_timeout_ms=5_000), capacity=1_000) as served:
        client = await served.connect(call(HELD, b"", []))
        handlers.held[0].answer(bytes(60_000))
        await wait_all_tasks_blocked()
        await served.wait(7)
        assert client.is_closed
        assert served.server.refusals.counts["slow_readers"] == 1
        assert len(served.server) == 0


async def test_a_client_that_reads_slowly_gets_all(handlers: Handlers, mock_clock: MockClock) -> None:
    answer = bytes(2_000_000)
    async with raw(handlers.methods, mock_clock, GrpcLimits(write_timeout_ms=5_000), capacity=300_000) as served:
        client = await served.connect(WINDOWS, call(HELD, b"", []))
        handlers.held[0].answer(answer)
        for _ in range(8):
            await wait_all_tasks_blocked()
            await served.wait(3)
            await client.seen()
        assert (len(client.answer().data), client.status()) == (len(answer) + 5, "0")
        await served.wait(10)
        assert not client.is_closed


async def test_a_connection_whose_answer_waits_is_not_idle(handlers: Handlers, mock_clock: MockClock) -> None:
    limits = GrpcLimits(idle_timeout_ms=5_000, write_timeout_ms=60_000)
    async with raw(handlers.methods, mock_clock, limits) as served:
        client = await served.connect(call(HELD, b"", []))
        handlers.held[0].answer(bytes(100_000))
        await served.wait(20)
        await client.seen()
        assert not client.goaways()


async def test_a_write_learns_that_its_connection_is_lost(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, capacity=1_000) as served, trio.open_nursery() as nursery:
        client = await served.connect(WINDOWS)
        await client.transport.send_all(begun(STREAM))
        await wait_all_tasks_blocked()
        ended: list[str] = []

        async def write() -> None:
            with pytest.raises(GrpcError) as caught:
                while True:
                    await handlers.held[0].write(bytes(200_000))
            ended.append(caught.value.text)

        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        client.transport.cut()
        await wait_all_tasks_blocked()
        assert ended == ["the call has ended"]


async def test_a_write_that_waits_for_room_learns_of_the_end(handlers: Handlers, mock_clock: MockClock) -> None:
    limits = GrpcLimits(max_answer_bytes=100_000)
    async with raw(handlers.methods, mock_clock, limits, capacity=1_000) as served, trio.open_nursery() as nursery:
        client = await served.connect(WINDOWS)
        await client.transport.send_all(begun(STREAM))
        await wait_all_tasks_blocked()
        (held,) = handlers.held
        ended: list[str] = []

        async def write() -> None:
            try:
                await held.write(bytes(300_000))
            except GrpcError as error:
                ended.append(error.text)

        nursery.start_soon(write)
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        # The first one filled the room, and the connection with it.
        assert (ended, client.is_closed) == (["the call has ended"], True)


async def test_answers_above_the_limit_cut_their_client_off(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(max_answer_bytes=100_000), capacity=1_000) as served:
        client = await served.connect(WINDOWS)
        await client.transport.send_all(call(HELD, b"", []) + call(HELD, b"", [], stream=3))
        await wait_all_tasks_blocked()
        for held in handlers.held:
            held.answer(bytes(60_000))
        await wait_all_tasks_blocked()
        assert client.is_closed
        assert served.server.refusals.counts["answer_bytes"] == 1


# --- a connection's life


@pytest.mark.parametrize("first", [b"", http2.PREFACE[:10], http2.PREFACE])
async def test_a_connection_that_does_not_begin_is_closed(
    handlers: Handlers, mock_clock: MockClock, first: bytes
) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(first_bytes_timeout_ms=5_000)) as served:
        client = await served.connect(first, begins=False)
        await served.wait(4)
        assert len(served.server) == 1
        await served.wait(3)
        assert client.is_closed and len(served.server) == 0
        assert served.server.refusals.counts["silent"] == 1


async def test_another_protocol_is_told_and_closed(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(b"GET / HTTP/1.1\r\n\r\n", begins=False)
        assert client.goaways() == [(0, ErrorCode.PROTOCOL_ERROR, b"the peer does not speak HTTP/2")]
        await client.transport.aclose()
        await wait_all_tasks_blocked()
        assert len(served.server) == 0
        assert served.server.refusals.counts["bad_frames"] == 1


async def test_a_peer_that_stays_after_an_error_is_cut_off(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served:
        client = await served.connect(call(TASK, b"", []))
        await client.send(frame(DATA, 0, 0, b"x"))
        assert [code for _, code, _ in client.goaways()] == [ErrorCode.PROTOCOL_ERROR]
        assert handlers.ended == ["/t.T/Task"]
        await client.send(b"more" * 1_000)
        await served.wait(2)
        assert client.is_closed and len(served.server) == 0


async def test_a_silent_client_is_pinged_and_then_cut_off(handlers: Handlers, mock_clock: MockClock) -> None:
    limits = GrpcLimits(ping_interval_ms=10_000, ping_timeout_ms=5_000)
    async with raw(handlers.methods, mock_clock, limits) as served:
        client = await served.connect(call(TASK, b"", []))
        await served.wait(12)
        (ping,) = [one for one in await client.seen() if one.kind == PING]
        await client.send(frame(PING, ACK, 0, ping.payload))
        await served.wait(8)
        assert [one for one in await client.seen() if one.kind == PING] == []
        await served.wait(4)
        assert [one.kind for one in await client.seen()] == [PING]
        assert not client.is_closed
        await served.wait(7)
        assert client.is_closed and handlers.ended == ["/t.T/Task"]
        assert served.server.refusals.counts["silent"] == 1


async def test_a_client_that_reads_slowly_is_not_silent(mock_clock: MockClock) -> None:
    answer = bytes(2_000_000)
    methods = {"/t.T/Large": Unary(lambda call: None, lambda call, request: answer)}
    limits = GrpcLimits(ping_interval_ms=10_000, ping_timeout_ms=5_000)
    async with raw(methods, mock_clock, limits, capacity=300_000) as served:
        client = await served.connect(WINDOWS)
        await client.transport.send_all(call(b"/t.T/Large", b"", []))
        started = trio.current_time()
        while not client.answer().has_ended:
            await wait_all_tasks_blocked()
            await served.wait(4)
            await client.seen()
            assert not client.is_closed
        assert trio.current_time() - started > 20
        assert (len(client.answer().data), client.status()) == (len(answer) + 5, "0")
        # The last part was taken up to 4 s ago.
        await served.wait(4)
        await client.seen()
        assert not [one for one in client.frames if one.kind == PING]
        await served.wait(8)
        assert [one.kind for one in await client.seen()] == [PING]
        await served.wait(7)
        assert client.is_closed


async def test_an_idle_client_is_asked_to_leave(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(idle_timeout_ms=10_000)) as served:
        client = await served.connect(call(HELD, b"", []))
        await served.wait(15)
        assert client.goaways() == []
        handlers.held[0].answer(b"tea")
        await served.wait(9)
        assert client.goaways() == []
        await served.wait(3)
        await client.seen()
        assert client.goaways()[0] == (2**31 - 1, ErrorCode.NO_ERROR, b"")
        await client.transport.aclose()
        await wait_all_tasks_blocked()
        assert len(served.server) == 0


async def test_a_client_that_pings_too_often_is_told_so_and_closed(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(min_ping_interval_ms=5_000)) as served:
        client = await served.connect(call(ECHO, b"tea", []))
        for number in range(3):
            await client.send(frame(PING, 0, 0, struct.pack(">Q", number)))
            await served.wait(1)
        assert client.goaways() == []
        await client.send(frame(PING, 0, 0, bytes(8)))
        assert client.goaways() == [(1, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")]
        await client.transport.aclose()
        await wait_all_tasks_blocked()
        assert served.server.refusals.counts["pings"] == 1


async def test_a_client_without_a_call_may_have_to_ping_less_often(handlers: Handlers, mock_clock: MockClock) -> None:
    limits = GrpcLimits(min_ping_interval_ms=0, min_idle_ping_interval_ms=60_000)
    async with raw(handlers.methods, mock_clock, limits) as served:
        client = await served.connect(call(HELD, b"", []))
        for number in range(10):
            await client.send(frame(PING, 0, 0, struct.pack(">Q", number)))
            await served.wait(1)
        assert not client.goaways()
        handlers.held[0].answer(b"tea")
        for number in range(4):
            await client.send(frame(PING, 0, 0, struct.pack(">Q", number)))
            await served.wait(1)
        assert [code for _, code, _ in client.goaways()] == [ErrorCode.ENHANCE_YOUR_CALM]


@pytest.mark.parametrize("why", ["answers between", "messages between", "time between"])
async def test_honest_pings_are_answered(handlers: Handlers, mock_clock: MockClock, why: str) -> None:
    async with raw(handlers.methods, mock_clock, GrpcLimits(min_ping_interval_ms=5_000)) as served:
        client = await served.connect()
        if why == "messages between":
            await client.send(begun(b"/t.T/EchoAll"))
        for number in range(20):
            await client.send(frame(PING, 0, 0, struct.pack(">Q", number)))
            if why == "messages between":
                await client.send(data(framed(b"tea"), flags=0))
            elif why == "answers between":
                await client.send(call(ECHO, b"tea", [], stream=2 * number + 1))
            else:
                await served.wait(6)
        answered = [one.payload for one in client.frames if one.kind == PING and one.flags & ACK]
        assert answered == [struct.pack(">Q", number) for number in range(20)]
        assert not client.goaways()


# --- a graceful stop


async def test_a_leaving_server_answers_all_that_was_opened_before(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        client = await served.connect(call(HELD, b"", []))
        left: list[bool] = []

        async def leave() -> None:
            served.server.stop_accepting()
            left.append(await served.server.leave(60))

        nursery.start_soon(leave)
        await client.seen()
        # A client's threads that get no answers begin no calls.
        handlers.held[0].answer(b"tea")
        await client.seen()
        assert (client.goaways(), client.answer().headers) == ([], {})
        await served.wait(2 * QUIET_S)
        await served.wait(2 * QUIET_S)
        await client.seen()
        assert client.answer().headers == {}
        assert client.goaways() == [(2**31 - 1, ErrorCode.NO_ERROR, b"")]
        (ping,) = [one for one in client.frames if one.kind == PING]
        # It was on its way when the client read the first GOAWAY.
        await client.send(call(HELD, b"", [], stream=3))
        await client.send(frame(PING, ACK, 0, ping.payload))
        await served.wait(SETTLE_S)
        await client.seen()
        assert (client.status(), client.answer().data) == ("0", framed(b"tea"))
        assert client.goaways()[1:] == [(3, ErrorCode.NO_ERROR, b"")]
        await client.send(call(HELD, b"", [], stream=5))
        assert client.answer(5).reset == ErrorCode.REFUSED_STREAM
        assert len(handlers.held) == 2
        await served.wait(LINGER_S + 5)
        assert not client.is_closed
        handlers.held[1].answer(bytes(100_000))
        await client.seen()
        assert (client.status(1), client.status(3)) == ("0", None)
        await served.wait(LINGER_S + 5)
        assert not client.is_closed
        for stream in (0, 3):
            await client.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 100_000)))
        assert client.status(3) == "0"
        assert left == []
        await client.transport.aclose()
        await served.wait(2)
        assert left == [True]


async def test_a_client_that_does_not_leave_is_cut_off(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        stays = await served.connect(call(TASK, b"", []))
        has_no_call = await served.connect()
        has_not_begun = await served.connect(b"", begins=False)
        left: list[bool] = []

        async def leave() -> None:
            left.append(await served.server.leave(20))

        nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        assert not has_not_begun.is_closed
        await served.wait(MAX_QUIET_WAIT_S)
        assert has_not_begun.is_closed
        await served.wait(GO_AWAY_ANSWER_S + LINGER_S + 2)
        await has_no_call.seen()
        assert [last for last, _, _ in has_no_call.goaways()] == [2**31 - 1, 0]
        assert has_no_call.is_closed and not stays.is_closed
        await served.wait(20)
        assert (left, stays.is_closed, handlers.ended) == ([False], True, ["/t.T/Task"])


@pytest.mark.parametrize("arrives", ["before", "after"])
async def test_a_connection_that_arrives_while_its_server_begins_to_leave_is_served(
    handlers: Handlers, mock_clock: MockClock, arrives: str
) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        left: list[bool] = []

        async def leave() -> None:
            left.append(await served.server.leave(60))

        if arrives == "after":
            nursery.start_soon(leave)
            staying = await served.connect()
            await wait_all_tasks_blocked()
        client = RawClient(await served.network.connect("127.0.0.1", 10911))
        if arrives == "before":
            # The task of the connection has not run yet.
            assert len(served.server) == 0
            nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        assert (len(served.server) > 0, left) == (True, [])
        await client.send(http2.opened(call(ECHO, b"tea", [])))
        await served.wait(MAX_QUIET_WAIT_S)
        await served.wait(GO_AWAY_ANSWER_S + SETTLE_S)
        await client.seen()
        assert (client.status(), client.answer().data) == ("0", framed(b"tea"))
        assert [last for last, _, _ in client.goaways()] == [2**31 - 1, 1]
        await served.wait(LINGER_S + 1)
        assert client.is_closed
        if arrives == "after":
            assert staying.is_closed
        assert left == [True]


async def test_a_client_that_gives_up_its_last_call_has_left(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        client = await served.connect(call(TASK, b"", []))
        nursery.start_soon(served.server.leave, 60)
        await served.wait(5)
        await client.send(frame(RST_STREAM, 0, 1, bytes(4)))
        assert not client.is_closed
        await served.wait(LINGER_S + 1)
        assert client.is_closed


async def test_a_client_that_reads_slowly_has_left_with_its_last_answer(
    handlers: Handlers, mock_clock: MockClock
) -> None:
    async with raw(handlers.methods, mock_clock, capacity=1_000) as served, trio.open_nursery() as nursery:
        client = await served.connect(WINDOWS, call(HELD, b"", []))
        nursery.start_soon(served.server.leave, 60)
        await served.wait(GO_AWAY_ANSWER_S + 1)
        handlers.held[0].answer(bytes(60_000))
        while not client.answer().has_ended:
            await client.seen()
        assert not client.is_closed
        await served.wait(LINGER_S + 1)
        assert client.is_closed
        nursery.cancel_scope.cancel()


async def test_streams_go_on_when_a_server_has_begun_to_leave(handlers: Handlers, mock_clock: MockClock) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        client = await served.connect(WINDOWS)
        nursery.start_soon(served.server.leave, 60)
        await wait_all_tasks_blocked()
        await client.send(begun(b"/t.T/Forty"))
        assert client.answer().data == b""
        # The handler waits: what is held back is bounded.
        assert handlers.written < 30
        await served.wait(GO_AWAY_ANSWER_S + 1)
        await client.seen()
        assert (len(client.answer().data), client.status()) == (40 * 15_005, "0")
        nursery.cancel_scope.cancel()


async def test_a_client_that_breaks_a_rule_while_it_is_asked_to_leave_is_told(
    handlers: Handlers, mock_clock: MockClock
) -> None:
    async with raw(handlers.methods, mock_clock) as served, trio.open_nursery() as nursery:
        client = await served.connect()
        nursery.start_soon(served.server.leave, 60)
        await wait_all_tasks_blocked()
        await client.send(frame(DATA, 0, 0, b"x"))
        assert [code for _, code, _ in client.goaways()] == [ErrorCode.PROTOCOL_ERROR]
        nursery.cancel_scope.cancel()
