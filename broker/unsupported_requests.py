"""RocketMQ requests that this broker does not support yet: refused with code 3, and logged.

Clients repeat most of these requests and do not show the refusal to their users. So the log says what the refusal means
for the client: once for each client, group and code, remembered for a limited number of clients and groups.
"""

import logging
import re
from collections.abc import Collection

from skylark.broker.meta.clients import Clients
from skylark.broker.part import Part
from skylark.mqcommon.addresses import split_address
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.server import Handler, not_supported
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.clients import CHALLENGE
from skylark.remoting.protocol.requests.table import BY_NAME

logger = logging.getLogger(__name__)

MAX_CLIENTS = 1_024
MAX_LINES_OF_A_CLIENT = 64
MAX_NAME = 255
# How many bytes of a body are searched for the group's name.
_BODY_BYTES = 4_096
_GROUP = re.compile(rb'"consumerGroup"\s*:\s*"([^"]*)"')

# RocketMQ's names of codes that have no description, since no Skylark daemon handles or sends them. Administrators'
# tools show the answer, so the answer contains the name.
OTHER_CODES = {
    353: "UPDATE_AND_GET_GROUP_FORBIDDEN",
    354: "CHECK_ROCKSDB_CQ_WRITE_PROGRESS",
    355: "EXPORT_ROCKSDB_CONFIG_TO_JSON",
    2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
    2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
    2003: "GET_COLD_DATA_FLOW_CTR_INFO",
    2004: "SET_COMMITLOG_READ_MODE",
}
_NAMES = {
    **{request.code: name for name, request in BY_NAME.items()},
    **OTHER_CODES,
}


class RefusedHandlers(Part):
    """Refuses each code that RocketMQ knows, except the codes ``answered`` and the codes that every server answers."""

    def __init__(self, clients: Clients, answered: Collection[int]) -> None:
        self._clients = clients
        self._answered = {*answered, CHALLENGE.code}
        # The refusals that were logged, by client; the client that was refused first is forgotten first.
        self._logged: dict[str, set[tuple[int, str]]] = {}

    def handlers(self) -> dict[int, Handler]:
        return {code: self.refuse for code in _NAMES if code not in self._answered}

    def refuse(self, channel: Channel, request: Command) -> Command:
        self._log_once(channel, request)
        answer = not_supported(request)
        if name := OTHER_CODES.get(request.code):
            answer.remark = f"{answer.remark}: {name}"
        return answer

    def _log_once(self, channel: Channel, request: Command) -> None:
        # Peers choose codes, groups and client ids, so memory and log lines are bounded here.
        client = (self._clients.client_id(channel) or split_address(channel.remote)[0])[:MAX_NAME]
        logged = self._logged.get(client)
        if logged is None:
            if len(self._logged) >= MAX_CLIENTS:
                del self._logged[next(iter(self._logged))]
            logged = self._logged[client] = set()
        code, group = request.code, _group(request)
        if (code, group) in logged or len(logged) >= MAX_LINES_OF_A_CLIENT:
            return
        logged.add((code, group))
        of_group = f" of group {group!r}" if group else ""
        logger.warning(
            "request %s (%d) of client %r%s refused, this broker does not answer it",
            _NAMES[code],
            code,
            client,
            of_group,
        )


def _group(request: Command) -> str:
    """The group that a request names; "" when it names none."""
    ext = request.ext or {}
    group = ext.get("consumerGroup") or ext.get("group") or ext.get("producerGroup")
    if group is None and (found := _GROUP.search(request.body[:_BODY_BYTES])):
        group = found[1].decode(errors="replace")
    return str(group or "")[:MAX_NAME]
