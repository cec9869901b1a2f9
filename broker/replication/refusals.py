"""Requests that a slave refuses: those that would make its log or its topics differ from its master's.

Codes and texts are RocketMQ's; clients then try another broker. The Writer refuses sends with `NO_MESSAGES`, whose text
is that of versions before 5 (and of 5 with acting masters), since it says why.
"""

import logging

from broker.part import Hook, Part
from broker.replication.role import RoleMachine
from mqcommon.errors import RequestRefused
from mqcommon.names import check_topic, check_topic_is_users
from remoting.net.channel import Channel
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER

logger = logging.getLogger(__name__)

#: The code and the reason for a message that is put to a slave.
NO_MESSAGES = (
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "service not available now. It may be caused by one of the following reasons: messages are put to the slave",
)
_NO_END_OF_TRANSACTION = (
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "Message store is slave mode, so end transaction is forbidden.",
)
_NO_CHANGE = (
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
)
_NO_RESET = (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
_NO_CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
)
_AUTH_CHANGES = (
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
)
_REFUSALS = dict(
    [
        (RequestCode.CONSUMER_SEND_MSG_BACK, NO_MESSAGES),
        (RequestCode.END_TRANSACTION, _NO_END_OF_TRANSACTION),
        (RequestCode.RESUME_CHECK_HALF_MESSAGE, NO_MESSAGES),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, _NO_RESET),
        (RequestCode.CLONE_GROUP_OFFSET, _NO_RESET),
        *[(code, _NO_CHANGE) for code in _NO_CHANGES],
    ]
)


class SlaveRefusals(Part):
    """Refuses these requests while this broker is not the master."""

    def __init__(self, role: RoleMachine) -> None:
        self._role = role

    def hook(self, code: int) -> Hook | None:
        if code in _AUTH_CHANGES:
            return self._leave_users
        return self._check if code in _REFUSALS or code == RequestCode.DELETE_TOPIC_IN_BROKER else None

    def _check(self, channel: Channel, request: Command) -> Command | None:
        if self._role.now.is_master:
            return None
        if request.code == RequestCode.DELETE_TOPIC_IN_BROKER:
            return _leave_topic(channel, request)
        raise RequestRefused(*_REFUSALS[request.code])

    def _leave_users(self, channel: Channel, request: Command) -> Command | None:
        """Changes of users and policies: answered as a success without doing anything, as the master's are copied.

        RocketMQ's mqadmin sends them to masters and slaves, and stops at the first refusal.
        """
        if self._role.now.is_master:
            return None
        logger.info("change %d of users by %s left to the master", request.code, channel.remote)
        return request.respond(remark="nothing changed here: this broker is a slave, and copies its master's users")


def _leave_topic(channel: Channel, request: Command) -> Command:
    """215: answered as a success without doing anything; the topic goes when the master has deleted it.

    mqadmin deletes a topic on masters and slaves, also a group's retry topic, and stops at the first refusal.
    RocketMQ's slaves delete it themselves.
    """
    topic = DELETE_TOPIC_IN_BROKER.header(request).topic
    check_topic(topic)
    check_topic_is_users(topic)
    logger.info("deletion of topic %s by %s left to the master", topic, channel.remote)
    return request.respond()
