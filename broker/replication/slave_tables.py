"""Tables that slaves and masters ask for besides topics, groups and offsets: 60, 61, 402.

A Skylark slave has all about timers in the log. Without an answer, a RocketMQ slave logs an error every few seconds,
and a master with acting masters does not come online. Messages are not counted by topic (61).
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from broker.meta.request_modes import RequestModes
from broker.part import Part
from mqcommon.clock import Clock
from remoting.net.answers import answer_steps, answer_with
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.net.steps import StepHandler, Steps
from remoting.protocol.command import Command
from remoting.protocol.requests.groups import MessageRequestModes
from remoting.protocol.requests.replication import (
    GET_ALL_MESSAGE_REQUEST_MODE,
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
    TimerMetrics,
)

SECOND_MS = 1_000
# lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset; DataVersion: state, time, counter.
_TIMER_CHECKPOINT = struct.Struct(">7q")


class TimerState(NamedTuple):
    """How late timed messages are, and how far their queue was read."""

    behind_ms: int
    read_to: int


class SlaveTableHandlers(Part):
    """See the module."""

    def __init__(self, clock: Clock, modes: RequestModes, timers: Callable[[], TimerState]) -> None:
        self._timers = timers
        self._clock = clock
        self._modes = modes

    def handlers(self) -> dict[int, Handler]:
        return {
            GET_TIMER_CHECK_POINT.code: self.timer_checkpoint,
            GET_TIMER_METRICS.code: self.timer_metrics,
        }

    def step_handlers(self) -> dict[int, StepHandler]:
        return {GET_ALL_MESSAGE_REQUEST_MODE.code: self.request_modes}

    def timer_checkpoint(self, channel: Channel, request: Command) -> Command:
        """60: up to when messages are delivered: an acting slave processes each second since then.

        The version is older than any other, so that a master keeps its own.
        """
        timers = self._timers()
        read_ms = (self._clock.now_ms() - timers.behind_ms) // SECOND_MS * SECOND_MS
        return request.respond(body=_TIMER_CHECKPOINT.pack(read_ms, 0, timers.read_to, timers.read_to, 0, 0, 0))

    def timer_metrics(self, channel: Channel, request: Command) -> Command:
        """61."""
        return answer_with(GET_TIMER_METRICS, request, TimerMetrics())

    def request_modes(self, channel: Channel, request: Command) -> Steps[Command]:
        """402."""
        modes = MessageRequestModes(self._modes.by_topic())
        return (
            yield from answer_steps(
                GET_ALL_MESSAGE_REQUEST_MODE, request, modes, channel.max_frame_bytes, remedy="raise frameMaxLength"
            )
        )
