"""Request 370: a producer takes back a timed message that waits.

A message with TIMER_DEL_UNIQKEY is stored in the slot of the message that it recalls. So the recall is as durable as
that message, reaches slaves in the same way, and both are found when the slot is due. Checks, codes and texts are
RocketMQ's.
Neighbours: writing/deferred.py, timed_delivery.py.
"""

import trio

from skylark.broker.meta.topics import Topics
from skylark.broker.options import BrokerOptions
from skylark.broker.part import Part
from skylark.broker.writing.writer import Writer
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.clock import Clock
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.ids import RecallHandle, encode_host
from skylark.mqcommon.message.properties import encode_properties
from skylark.mqcommon.names import PERM_WRITE
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.sends import (
    RECALL_MESSAGE,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)

_BODY, _TAG = b"0", "_RECALL_TAG_"


class Recall(Part):
    """Handles recalls (370) of timed messages."""

    def __init__(
        self,
        writer: Writer,
        topics: Topics,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._durability = writer.durability
        self._topics = topics
        self._options = options
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        return {RECALL_MESSAGE.code: self.recall}

    def recall(self, channel: Channel, request: Command) -> Command | None:
        """370: take a timed message back before it is delivered."""
        header = RECALL_MESSAGE.header(request)
        handle = self._checked(header)
        properties = {
            "TAGS": _TAG,
            "TIMER_DEL_UNIQKEY": f"{handle.topic}+{handle.unique_key}",
            "TIMER_DELIVER_MS": str(handle.slot_ms),
            "PGROUP": header.producer_group or "",
            "UNIQ_KEY": handle.unique_key,
        }
        raw = encode_properties({name: value for name, value in properties.items() if value}).encode()
        born_host = encode_host(*split_address(channel.remote))
        put = self._writer.put(handle.topic, 0, _BODY, raw, 0, 0, self._clock.now_ms(), born_host)
        response = request.respond(ext=RecallMessageResponseHeader(handle.unique_key).to_ext())
        return self._durability.answer_when_safe(
            channel, request, response, put.end, trio.current_time(), _explain_if_unsafe
        )

    def _checked(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """The handle of a message that may still be recalled; RequestRefused otherwise."""
        options = self._options
        if not options.recall_message_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if self._writer.admission.takes_none:
            raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available")
        if not options.broker_permission & PERM_WRITE:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self._topics.get(header.topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ValueError as error:
            raise _illegal(str(error)) from None
        if handle.topic != header.topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != options.broker_name:
            raise _illegal("recall failed, broker service not available")
        # In its last second the message may already be on its way, and a recall could silently come too late.
        left_ms = handle.slot_ms - self._clock.now_ms()
        if not 0 < left_ms < options.timer_max_delay_sec * 1_000:
            raise _illegal("recall failed, timestamp invalid: the message is delivered, or will be within its second")
        return handle


def _explain_if_unsafe(response: Command) -> None:
    if response.code != ResponseCode.SUCCESS:
        response.remark = f"the recall was stored, but not safely in time: code {response.code}"
        response.code = ResponseCode.SYSTEM_ERROR


def _illegal(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.ILLEGAL_OPERATION, reason)
