"""Whether a broker that did not answer lately answers again."""

from typing import Any

from mqcommon.errors import RemotingError
from mqcommon.names import AUTO_CREATE_TOPIC
from remoting.net.client import RemotingClient
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command

PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_MS = 500

# Any answer will do, also that there is no such topic; not that of a broker that is stopping.
_PROBE: dict[str, Any] = {"topic": AUTO_CREATE_TOPIC, "queueId": 0}


async def answers(remoting: RemotingClient, addr: str) -> bool:
    """Whether the broker at ``addr`` takes requests now."""
    try:
        answer = await remoting.invoke(addr, Command(RequestCode.GET_MAX_OFFSET, dict(_PROBE)), PROBE_TIMEOUT_MS)
    except RemotingError:
        return False
    return answer.code != ResponseCode.GO_AWAY
