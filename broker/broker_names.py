"""Refuses a request that names another broker: its client uses an outdated address, which now belongs to this broker.

Java's and Skylark's clients name the broker that they mean: in ``n`` of a send, in ``bname`` of requests for a queue.
The refusal makes the client fetch the route again. Requests without a broker name are served.
"""

from typing import Any

from skylark.broker.part import Hook, Part
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import BNAME_FIELD, Command
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.offsets import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
)
from skylark.remoting.protocol.requests.pulls import LITE_PULL_MESSAGE, PULL_MESSAGE
from skylark.remoting.protocol.requests.sends import SEND_MESSAGE

# Requests for a queue. send.py also checks the field of sends.
NAME_THE_BROKER = (
    SEND_MESSAGE.code,
    PULL_MESSAGE.code,
    LITE_PULL_MESSAGE.code,
    QUERY_CONSUMER_OFFSET.code,
    UPDATE_CONSUMER_OFFSET.code,
    SEARCH_OFFSET_BY_TIMESTAMP.code,
    GET_MAX_OFFSET.code,
    GET_MIN_OFFSET.code,
    GET_EARLIEST_MSG_STORETIME.code,
    CONSUMER_SEND_MSG_BACK.code,
)
# RocketMQ's clients use this name for the broker of a logical queue, which may be on any broker.
_MOCK_PREFIX = "__syslo__"


class BrokerNames(Part):
    """Checks the broker name in requests for queues, whichever part handles them."""

    def __init__(self, own: str) -> None:
        self._own = own

    def hook(self, code: int) -> Hook | None:
        return self._check if code in NAME_THE_BROKER else None

    def _check(self, channel: Channel, request: Command) -> None:
        ext = request.ext
        if ext is not None:
            # Nearly all requests name this broker, or no broker: for these there is one comparison and no call.
            meant = ext.get(BNAME_FIELD)
            if meant is not None and meant != self._own:
                check_broker_name(meant, self._own)


def check_broker_name(meant: Any, own: str) -> None:
    """RequestRefused when a request for the broker ``meant`` reached ``own``."""
    name = str(meant)
    if name not in ("", own) and not name.startswith(_MOCK_PREFIX):
        raise RequestRefused(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            f"the request is for broker {name[:255]}, and this is broker {own}: ask a NameServer for the route",
        )
