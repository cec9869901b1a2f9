"""One server to ask: send a request, wait, check the code, read fields of the answer.

A code outside ``accept`` is a BrokerError; an answer that lacks what the protocol promises is a ProtocolError. With a
broker's name given, an address where another broker listens by now is a WrongBroker, and nothing is done there.
Neither says anything about other servers: which one to ask, and whom to ask next, is decided elsewhere.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import trio

from mqcommon.errors import BrokerError, ConnectionLost, ProtocolError, WrongBroker
from remoting.net.client import RemotingClient
from remoting.protocol.bodies import Body
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command

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

    async def ask(
        self,
        code: int,
        ext: Mapping[str, Any] | None = None,
        body: Body | bytes | None = None,
        *,
        accept: Collection[int] = (0,),
        wait_ms: float = 0,
    ) -> Command:
        """The answer; BrokerError when its code is not one of ``accept``.

        A body that is not bytes is written in the peer's dialect. ``wait_ms`` is what the server may hold the request
        on purpose, on top of the timeout.
        """
        if self.broker_name:
            ext = {**(ext or {}), "bname": self.broker_name}
        deadline = trio.current_time() + (self.timeout_ms + wait_ms) / 1000
        try:
            answer = await self._invoke(code, ext, body, self.timeout_ms + wait_ms)
        except ConnectionLost:
            # Idle connections get closed, and brokers restart: all that is asked here may be asked twice.
            answer = await self._invoke(code, ext, body, (deadline - trio.current_time()) * 1000)
        if answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE and self.broker_name:
            raise WrongBroker(self.addr, self.broker_name, self.client.broker_name_at(self.addr))
        if answer.code not in accept:
            raise BrokerError(answer.code, answer.remark, self.addr)
        return answer

    async def _invoke(
        self, code: int, ext: Mapping[str, Any] | None, body: Body | bytes | None, timeout_ms: float
    ) -> Command:
        found = self.client.broker_name_at(self.addr) if self.broker_name else ""
        if found and found != self.broker_name:
            raise WrongBroker(self.addr, self.broker_name, found)
        command = Command(code, dict(ext) if ext is not None else None)
        if isinstance(body, bytes):
            command.body, body = body, None
        return await self.client.invoke(self.addr, command, timeout_ms, body=body)


def int_field(answer: Command, name: str) -> int:
    """A number that the answer's ext fields must hold."""
    value = (answer.ext or {}).get(name)
    try:
        return int(value)  # type: ignore[arg-type]  # None and bad text are what the except is for
    except (TypeError, ValueError):
        raise ProtocolError(f"the answer's field {name} is {value!r}, not a number") from None


def int_field_or(answer: Command, name: str, default: int) -> int:
    """A number that some servers leave out."""
    return int_field(answer, name) if name in (answer.ext or {}) else default
