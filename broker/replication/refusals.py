"""What a slave refuses: whatever would make its log or its topics other than its master's.

Codes and texts are RocketMQ's; to a send, that of versions before 5 (and of 5 with acting masters), which says why.
Clients try another broker then. Neighbour: wiring.py puts these in place of a master's handlers.
"""

import logging
from typing import NoReturn

from mqcommon.errors import RequestRefused
from mqcommon.names import check_topic, check_topic_is_users
from remoting.net.channel import Channel
from remoting.net.server import Handler
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.topics import TopicRequestHeader

logger = logging.getLogger(__name__)

_MESSAGES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
_TRANSACTIONS = (RequestCode.END_TRANSACTION,)
_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)


def refusals() -> dict[int, Handler]:
    """Handlers by request code."""
    return {
        **dict.fromkeys(_MESSAGES, _refuse_message),
        **dict.fromkeys(_TRANSACTIONS, _refuse_end_transaction),
        **dict.fromkeys(_CHANGES, _refuse_change),
        RequestCode.DELETE_TOPIC_IN_BROKER: _delete_topic,
    }


def _refuse_message(channel: Channel, request: Command) -> NoReturn:
    raise RequestRefused(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now. It may be caused by one of the following reasons: messages are put to the slave",
    )


def _refuse_end_transaction(channel: Channel, request: Command) -> NoReturn:
    raise RequestRefused(
        ResponseCode.SLAVE_NOT_AVAILABLE, "Message store is slave mode, so end transaction is forbidden."
    )


def _refuse_change(channel: Channel, request: Command) -> NoReturn:
    raise RequestRefused(
        ResponseCode.SYSTEM_ERROR,
        "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
    )


def _delete_topic(channel: Channel, request: Command) -> Command:
    """215. mqadmin deletes a topic on masters and slaves, also a group's own ones, and stops where one refuses.

    RocketMQ's slaves delete it. Here that is answered as a success, and nothing is done: the topic goes when the
    master has deleted it.
    """
    topic = TopicRequestHeader.from_ext(request.ext).topic
    check_topic(topic)
    check_topic_is_users(topic)
    logger.info("deletion of topic %s by %s left to the master", topic, channel.remote)
    return request.respond()
