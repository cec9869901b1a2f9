"""What a slave does not serve: the descriptions of requests (remoting/protocol/requests) say what it answers instead.

Such a request would make the slave's log or its topics differ from its master's. Clients then try another broker.
"""

import logging

from broker.part import Hook, Part
from broker.replication.role import RoleMachine
from mqcommon.errors import RequestRefused
from mqcommon.names import check_topic, check_topic_is_users
from remoting.net.channel import Channel
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.request import SlaveAnswer
from remoting.protocol.requests.table import BY_CODE
from remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER

logger = logging.getLogger(__name__)


class SlaveRefusals(Part):
    """Refuses these requests while this broker is not the master."""

    def __init__(self, role: RoleMachine) -> None:
        self._role = role

    def hook(self, code: int) -> Hook | None:
        described = BY_CODE.get(code)
        answer = described.on_slave if described else None
        if answer is None:
            return None
        return lambda channel, request: None if self._role.now.is_master else _refuse(answer, channel, request)


def _refuse(answer: SlaveAnswer, channel: Channel, request: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefused(answer.code, answer.remark)
    if request.code == DELETE_TOPIC_IN_BROKER.code:
        # The deletion of a topic that could not be deleted on the master, either, is refused here as there.
        topic = DELETE_TOPIC_IN_BROKER.header(request).topic
        check_topic(topic)
        check_topic_is_users(topic)
    logger.info("request %d by %s left to the master", request.code, channel.remote)
    return request.respond(remark=answer.remark or None)
