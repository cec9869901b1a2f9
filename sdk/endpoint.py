"""One server to ask, with `remoting.net.call`.

An answer that breaks off is asked for once more. With a broker's name given, an address where another broker listens by
now is a WrongBroker, and nothing is done there. Neither says anything about other servers: which one to ask, and whom
to ask next, is decided elsewhere.
"""

from dataclasses import dataclass

import trio

from mqcommon.errors import ConnectionLost, WrongBroker
from remoting.net.client import RemotingClient
from remoting.protocol.bodies import Body
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import BNAME_FIELD, Command

DEFAULT_TIMEOUT_MS = 3000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker or a NameServer at ``addr``, and how long to wait for each answer of it.

    ``broker_name`` is that of the broker which is meant, where it matters.
    """

    client: RemotingClient
    addr: str
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    broker_name: str = ""

    async def invoke(self, command: Command, body: Body | bytes | None, wait_ms: float) -> Command:
        """The answer, whatever its code. A body that is not bytes is written in the peer's dialect.

        ``wait_ms`` is what the server may hold the request on purpose, on top of the timeout.
        """
        if self.broker_name:
            command.ext = {**(command.ext or {}), BNAME_FIELD: self.broker_name}
            self._check_name()
        timeout_ms = self.timeout_ms + wait_ms
        deadline = trio.current_time() + timeout_ms / 1000
        ext, raw = command.ext, command.body
        try:
            answer = await self.client.invoke(self.addr, command, timeout_ms, body=body)
        except ConnectionLost:
            # Idle connections get closed, and brokers restart: all that is asked here may be asked twice.
            self._check_name()
            again, left_ms = Command(command.code, ext, raw), (deadline - trio.current_time()) * 1000
            answer = await self.client.invoke(self.addr, again, left_ms, body=body)
        if answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE and self.broker_name:
            raise WrongBroker(self.addr, self.broker_name, self.client.broker_name_at(self.addr))
        return answer

    def _check_name(self) -> None:
        """WrongBroker when it is known that another broker than the one that is meant listens here."""
        found = self.client.broker_name_at(self.addr) if self.broker_name else ""
        if found and found != self.broker_name:
            raise WrongBroker(self.addr, self.broker_name, found)
