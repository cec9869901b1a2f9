"""Refuses a request that names another broker: its client has an old address, which this broker has now.

Java's clients and ours name the broker that they mean: in ``n`` of a send, in ``bname`` of requests for a queue.
Nothing is done for such a request, and the answer makes the client ask for the route. Clients that name none are
served.
"""

from typing import Any

from broker.part import Hook, Part
from mqcommon.errors import RequestRefused
from remoting.net.channel import Channel
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command

BNAME = "bname"
# Requests for a queue. Sends also look at the field that is for them.
NAME_THE_BROKER = (
    RequestCode.SEND_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
# What RocketMQ's clients call the broker of a logical queue, which may be anywhere.
_MOCK_PREFIX = "__syslo__"


class BrokerNames(Part):
    """Looks at requests for queues, whoever handles them."""

    def __init__(self, own: str) -> None:
        self._own = own

    def hook(self, code: int) -> Hook | None:
        return self._check if code in NAME_THE_BROKER else None

    def _check(self, channel: Channel, request: Command) -> None:
        ext = request.ext
        if ext is not None:
            told = ext.get(BNAME)
            if told is not None and told != self._own:
                check_broker_name(told, self._own)


def check_broker_name(told: Any, own: str) -> None:
    """RequestRefused when a request that is meant for the broker ``told`` reached ``own``."""
    name = str(told)
    if name not in ("", own) and not name.startswith(_MOCK_PREFIX):
        raise RequestRefused(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            f"the request is for broker {name[:255]}, and this is broker {own}: ask a NameServer for the route",
        )
