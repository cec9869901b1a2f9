"""What RocketMQ's slaves and masters ask each other for besides topics and offsets: 60, 61, 402.

A slave logs an error each few seconds without an answer, and a master with acting masters does not come online. This
broker has no timers and no modes of consumption, so its tables are empty.
"""

import struct

from broker.part import Part
from broker.request_bodies import answer_with
from mqcommon.clock import Clock
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.bodies.slave_tables import MessageRequestModes, TimerMetrics
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command

SECOND_MS = 1_000
# lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset; DataVersion: state, time, counter.
_TIMER_CHECKPOINT = struct.Struct(">7q")


class SlaveTableHandlers(Part):
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            RequestCode.GET_TIMER_METRICS: self.timer_metrics,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
        }

    def timer_checkpoint(self, channel: Channel, request: Command) -> Command:
        """60: all that was due until now is delivered.

        The version is older than any other, so that a master keeps its own. The time must be now: a slave that acts
        goes through each second since then.
        """
        now_ms = self._clock.now_ms() // SECOND_MS * SECOND_MS
        return request.respond(body=_TIMER_CHECKPOINT.pack(now_ms, 0, 0, 0, 0, 0, 0))

    def timer_metrics(self, channel: Channel, request: Command) -> Command:
        """61."""
        return answer_with(request, TimerMetrics())

    def request_modes(self, channel: Channel, request: Command) -> Command:
        """402."""
        return answer_with(request, MessageRequestModes())
