"""Send a request that remoting/protocol/requests describes, wait for its answer and check the answer's code.

A code that the request does not accept is a BrokerError; a RemotingError means no answer. The header and the body of
the answer are decoded when the caller reads them; ProtocolError when they cannot be decoded.
"""

from typing import Any, Protocol, overload

from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.request import AB, AH, Answer, B, H, Request
from skylark.remoting.protocol.requests.replication import PageRequestHeader


class Server(Protocol):
    """A server to which requests can be sent."""

    @property
    def addr(self) -> str: ...

    async def invoke(self, command: Command, body: Body | bytes | None, wait_ms: float) -> Command:
        """The answer, whatever its code. ``body``: as `RemotingClient.invoke` takes it.

        ``wait_ms``: how long the server may hold the request on purpose.
        """


@lazy_dataclass(frozen=True, slots=True)
class Remote:
    """The server at ``addr``, and how long to wait for each of its answers."""

    client: RemotingClient
    addr: str
    timeout_ms: float

    async def invoke(self, command: Command, body: Body | bytes | None, wait_ms: float) -> Command:
        return await self.client.invoke(self.addr, command, self.timeout_ms + wait_ms, body=body)


@overload
async def call(
    at: Server, what: Request[None, None, AH, AB], *, wait_ms: float = 0, page: PageRequestHeader | None = None
) -> Answer[AH, AB]: ...


@overload
async def call(
    at: Server,
    what: Request[H, None, AH, AB],
    header: H,
    *,
    wait_ms: float = 0,
    page: PageRequestHeader | None = None,
) -> Answer[AH, AB]: ...


@overload
async def call(
    at: Server,
    what: Request[H, B, AH, AB],
    header: H,
    body: B,
    *,
    wait_ms: float = 0,
    page: PageRequestHeader | None = None,
) -> Answer[AH, AB]: ...


async def call(
    at: Server,
    what: Request[Any, Any, AH, AB],
    header: Any = None,
    body: Any = None,
    *,
    wait_ms: float = 0,
    page: PageRequestHeader | None = None,
) -> Answer[AH, AB]:
    """The answer of ``at``. Raises BrokerError when the answer has a code that ``what`` does not accept.

    ``wait_ms``: how long the server may hold the request on purpose. ``page``: which part of a table to ask a Skylark
    for.
    """
    command = what.command(header)
    if page is not None:
        command.ext = {**(command.ext or {}), **page.to_ext()}
    if what.body_type is bytes:
        command.body, body = body, None
    answer = await at.invoke(command, body, wait_ms)
    if answer.code != ResponseCode.SUCCESS and answer.code not in what.accepts:
        raise BrokerError(answer.code, answer.remark, at.addr)
    return Answer(what, answer)
