"""One server that requests are sent to, with `skylark.remoting.net.call`, and `ask_all` for several servers at once.

A request whose connection is lost is sent once more. With a broker's name, the request raises WrongBroker when another
broker listens at the address, and has no effect there. Callers choose the server, and the next server after a failure.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import field
from functools import partial
from typing import Generic, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from skylark.mqcommon.errors import BrokerError, ConnectionLost, RemotingError, SkylarkError, WrongBroker
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.remoting.net.channel import Answered
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import BNAME_FIELD, Command
from skylark.remoting.protocol.logical_queues import LOGICAL_PREFIX

DEFAULT_TIMEOUT_MS = 3000


@lazy_dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker or a NameServer at ``addr``, and how long to wait for each of its answers.

    ``broker_name``, unless empty, is the broker that must listen there.
    """

    client: RemotingClient
    addr: str
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    broker_name: str = ""

    async def invoke(self, command: Command, body: Body | bytes | None, wait_ms: float) -> Command:
        """The answer, whatever its code. A body that is not bytes is encoded in the peer's dialect.

        ``wait_ms`` is how long the server may hold the request before it answers; it is added to the timeout.
        """
        if self.broker_name:
            command.ext = {**(command.ext or {}), BNAME_FIELD: self.broker_name}
            check_broker_at(self.client, self.addr, self.broker_name)
        timeout_ms = self.timeout_ms + wait_ms
        deadline = trio.current_time() + timeout_ms / 1000
        ext, raw = command.ext, command.body
        try:
            answer = await self.client.invoke(self.addr, command, timeout_ms, body=body)
        except ConnectionLost:
            # Idle connections are closed by peers, and brokers restart. Every request made through an Endpoint may be
            # repeated.
            check_broker_at(self.client, self.addr, self.broker_name)
            # A new command: the lost one has an opaque number, and an encoded body in the dialect of the lost
            # connection.
            again, left_ms = Command(command.code, ext, raw), (deadline - trio.current_time()) * 1000
            if left_ms <= 0:
                raise
            answer = await self.client.invoke(self.addr, again, left_ms, body=body)
        if answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE and self.broker_name:
            raise WrongBroker(self.addr, self.broker_name, self.client.broker_name_at(self.addr))
        return answer

    def submit(
        self, command: Command, body: Body | None, wait_ms: float, answered: Answered
    ) -> Callable[[], None] | None:
        """Send a request without waiting, and call ``answered`` once, perhaps at once; see `Channel.submit`.

        Returns a function that withdraws the request: ``answered`` is not called after that, and an answer is dropped.
        Returns None, and has not sent the request, when there is no open connection to the right broker, or it takes no
        more requests: `invoke` connects, and raises the errors. ``answered`` gets what `RemotingClient.invoke` would
        return or raise, so a lost connection is not tried again.
        """
        client, addr = self.client, self.addr
        if not client.connected(addr):
            return None
        if self.broker_name:
            command.ext = {**(command.ext or {}), BNAME_FIELD: self.broker_name}
        try:
            check_broker_at(client, addr, self.broker_name)
            client.prepare(addr, command, body)
            channel = client.submit(addr, command, self.timeout_ms + wait_ms, answered)
        except RemotingError:
            return None
        channel.flush_now()
        return partial(client.withdraw, addr, command, channel)


def check_broker_at(client: RemotingClient, addr: str, wanted: str) -> None:
    """Raise WrongBroker when another broker than ``wanted`` is known to listen at ``addr``.

    A logical queue may be at any broker: a broker that does not lead the queue refuses the request.
    """
    found = client.broker_name_at(addr) if wanted else ""
    if found and found != wanted and not wanted.startswith(LOGICAL_PREFIX):
        raise WrongBroker(addr, wanted, found)


T = TypeVar("T")

AT_ONCE = 16


@lazy_dataclass(slots=True)
class Answers(Generic[T]):
    """The answer or the error of each server by address, in the order in which they were given."""

    values: dict[str, T] = field(default_factory=dict)
    errors: dict[str, SkylarkError] = field(default_factory=dict)

    def all(self, *, ignore: Collection[int] = ()) -> list[T]:
        """All values. Raises the first error; those with a code in ``ignore`` only when no server answered."""
        for error in self.errors.values():
            if not (self.values and isinstance(error, BrokerError) and error.code in ignore):
                raise error
        return list(self.values.values())

    def any(self) -> list[T]:
        """The values of the servers that answered; raises the first error when none did."""
        if not self.values:
            for error in self.errors.values():
                raise error
        return list(self.values.values())


async def ask_all(addrs: Iterable[str], call: Callable[[str], Awaitable[T]]) -> Answers[T]:
    """Await ``call`` for each address, at most AT_ONCE at a time."""
    order = list(dict.fromkeys(addrs))
    got: dict[str, T] = {}
    failed: dict[str, SkylarkError] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    @enable_ki_protection
    async def ask_one(addr: str) -> None:
        async with limiter:
            try:
                got[addr] = await call(addr)
            except SkylarkError as error:
                failed[addr] = error

    async with trio.open_nursery() as nursery:
        for addr in order:
            nursery.start_soon(ask_one, addr)
    return Answers(
        {addr: got[addr] for addr in order if addr in got}, {addr: failed[addr] for addr in order if addr in failed}
    )
