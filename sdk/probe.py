"""Whether a broker that did not answer lately answers again."""

from mqcommon.errors import RemotingError
from mqcommon.names import AUTO_CREATE_TOPIC
from remoting.net.client import RemotingClient
from remoting.protocol.codes import ResponseCode
from remoting.protocol.headers.offsets import GetMaxOffsetRequestHeader
from remoting.protocol.requests.offsets import GET_MAX_OFFSET

PROBE_INTERVAL_S = 0.5
PROBE_TIMEOUT_MS = 500

# Any answer will do, also that there is no such topic; not that of a broker that is stopping.
_PROBE = GetMaxOffsetRequestHeader(AUTO_CREATE_TOPIC, 0)


async def answers(remoting: RemotingClient, addr: str) -> bool:
    """Whether the broker at ``addr`` takes requests now."""
    try:
        answer = await remoting.invoke(addr, GET_MAX_OFFSET.command(_PROBE), PROBE_TIMEOUT_MS)
    except RemotingError:
        return False
    return answer.code != ResponseCode.GO_AWAY
