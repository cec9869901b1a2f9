"""60, 61, 402: what brokers of RocketMQ ask of each other for features that are not here."""

import struct

import pytest

from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import CBOR, JSON
from remoting.protocol.dialect import decode_body
from remoting.protocol.requests.groups import MessageRequestModes
from remoting.protocol.requests.replication import (
    GET_ALL_MESSAGE_REQUEST_MODE,
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
    TimerMetrics,
)
from tests.broker.desk import Desk


async def test_the_timer_checkpoint_says_that_nothing_is_left_to_deliver() -> None:
    desk = Desk()
    desk.clock.advance(1_234)
    answer = await desk.ask(GET_TIMER_CHECK_POINT.code)
    assert answer.code == ResponseCode.SUCCESS
    # As Java's TimerCheckpoint.decode reads it: four longs, then the DataVersion.
    read_ms, log_pos, queue_offset, master_offset, *version = struct.unpack(">7q", answer.body)
    assert read_ms == desk.clock.now_ms() // 1000 * 1000
    assert (log_pos, queue_offset, master_offset, version) == (0, 0, 0, [0, 0, 0])


async def test_timer_metrics_are_empty() -> None:
    answer = await Desk().ask(GET_TIMER_METRICS.code)
    assert answer.body == b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"timingCount":{}}'


async def test_modes_of_consumption_are_empty() -> None:
    answer = await Desk().ask(GET_ALL_MESSAGE_REQUEST_MODE.code)
    assert answer.body == b'{"messageRequestModeMap":{}}'


@pytest.mark.parametrize("codec", [JSON, CBOR])
async def test_both_are_read_again(codec: int) -> None:
    desk = Desk()
    metrics = await desk.ask(GET_TIMER_METRICS.code, codec=codec)
    assert decode_body(TimerMetrics, metrics.body, codec) == TimerMetrics()
    modes = await desk.ask(GET_ALL_MESSAGE_REQUEST_MODE.code, codec=codec)
    assert decode_body(MessageRequestModes, modes.body, codec) == MessageRequestModes()
