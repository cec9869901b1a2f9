"""Requests are timed by turns."""

import pytest

from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.metrics.metric import Histogram
from skylark.remoting.metrics.rpc import RpcTimes
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import RunInTask
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import FLAG_ONEWAY, Command
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE_V2
from tests.support.memory_transport import memory_pair

SEND, PULL = SEND_MESSAGE_V2.code, PULL_MESSAGE.code


class Times:
    """A clock, and the times that were counted by request and answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rpc = RpcTimes(lambda: self.now)
        self.channel = Channel(memory_pair()[0], max_frame_bytes=1 << 20)

    def counted(self) -> dict[tuple[str, str], tuple[int, float]]:
        found = self.rpc.column()
        return {
            (labels[1], labels[2]): (sum(times.counts), times.total)
            for labels, times in zip(found.labels, found.values, strict=True)
            if isinstance(times, Histogram)
        }


async def test_all_requests_of_a_turn_take_until_its_end() -> None:
    times = Times()

    def handle(channel: Channel, request: Command) -> Command:
        times.now += 0.002
        return request.respond(request.ext["code"] if request.ext else 0)

    handler = times.rpc.measured({SEND: handle})[SEND]
    handler(times.channel, Command(SEND))
    handler(times.channel, Command(SEND))
    handler(times.channel, Command(SEND, {"code": ResponseCode.SYSTEM_BUSY}))
    assert times.counted() == {}
    times.rpc.end_turn()
    times.rpc.end_turn()
    assert times.counted() == {
        ("send_message_v2", "success"): (2, pytest.approx(12.0)),
        ("send_message_v2", "system_busy"): (1, pytest.approx(6.0)),
    }


async def test_refusals_and_failures_count_with_their_codes_and_waits_do_not() -> None:
    times = Times()
    errors: list[Exception] = [
        RequestRefused(ResponseCode.NO_PERMISSION, "no"), RequestRefused(9_999, "?"), ValueError("a bug"),
        RunInTask(lambda channel, request: never()),
    ]  # fmt: skip

    async def never() -> None:
        raise AssertionError

    def handle(channel: Channel, request: Command) -> Command | None:
        if errors:
            raise errors.pop(0)
        return None

    handler = times.rpc.measured({PULL: handle})[PULL]
    for expected in list(errors):
        with pytest.raises(type(expected)):
            handler(times.channel, Command(PULL))
    assert handler(times.channel, Command(PULL)) is None
    times.rpc.end_turn()
    assert {key: count for key, (count, _) in times.counted().items()} == {
        ("pull_message", "no_permission"): 1, ("pull_message", "other"): 1, ("pull_message", "system_error"): 1,
    }  # fmt: skip


async def test_slow_requests_are_measured_one_by_one() -> None:
    times = Times()

    async def handle(channel: Channel, request: Command) -> Command | None:
        times.now += 0.5
        if request.is_oneway:
            return None
        if request.ext:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "no")
        return request.respond()

    handler = times.rpc.measured_slow({PULL: handle})[PULL]
    await handler(times.channel, Command(PULL))
    assert await handler(times.channel, Command(PULL, flag=FLAG_ONEWAY)) is None
    with pytest.raises(RequestRefused):
        await handler(times.channel, Command(PULL, {"a": "b"}))
    assert times.counted() == {
        ("pull_message", "success"): (1, 500.0), ("pull_message", "no_permission"): (1, 500.0),
    }  # fmt: skip
