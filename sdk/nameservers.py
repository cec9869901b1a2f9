"""The NameServers that a client knows, and the choice of the one to ask.

Every NameServer knows all brokers, so one answer is enough. A client starts with a random one, stays with the one that
answered last, and goes on to the next when it fails. Each try gets a share of the timeout, so that a frozen NameServer
does not use up all of it. An address server (address_server.py) may replace the list at any time.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from random import Random
from typing import TypeVar

import trio

from mqcommon.errors import BrokerError, NoNameServer, NotNameServer, RemotingError
from remoting.net.client import RemotingClient
from sdk.endpoint import Endpoint
from sdk.nameserver_source import Known, none_given

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The smallest share of the timeout: a healthy NameServer answers within it.
MIN_TRY_MS = 250


class NameServers:
    """The NameServers of one client: ``known`` addresses, or those that an address server will list.

    There may be none: `ask` then raises UserError, or NoNameServer while an address server has not answered.
    """

    def __init__(self, client: RemotingClient, known: Known, random: Random) -> None:
        self._client = client
        self._url = known.url
        self._random = random
        self._addrs: tuple[str, ...] = ()
        # The address of the one that answered last.
        self._good = ""
        self._arrived = trio.Event()
        self.replace(known.addrs)

    @property
    def text(self) -> str:
        """All addresses, separated by ``;``."""
        return ";".join(self._addrs) or self._url

    @property
    def addrs(self) -> tuple[str, ...]:
        """All addresses that are known now."""
        return self._addrs

    def replace(self, addrs: tuple[str, ...]) -> bool:
        """Use these from now on; requests in progress go on. Returns whether the list has changed."""
        if addrs == self._addrs:
            return False
        self._addrs = addrs
        if self._good not in addrs:
            self._good = addrs[self._random.randrange(len(addrs))]
        self._arrived.set()
        return True

    async def wait_known(self, timeout_ms: float) -> tuple[str, ...]:
        """All addresses. Waits until an address server has listed them; UserError when there is no such server."""
        if not self._addrs:
            if not self._url:
                raise none_given()
            with trio.move_on_after(timeout_ms / 1000):
                await self._arrived.wait()
            if not self._addrs:
                raise NoNameServer(self._url, "the address server has not listed any yet")
        return self._addrs

    def at(self, addr: str, timeout_ms: float) -> Endpoint:
        """One NameServer."""
        return Endpoint(self._client, addr, timeout_ms)

    async def ask(
        self,
        call: Callable[[Endpoint], Awaitable[T]],
        timeout_ms: float,
        *,
        not_known: Collection[int] = (),
    ) -> T:
        """The first answer of a NameServer to ``call`` within ``timeout_ms``.

        When a NameServer does not answer, or answers with a code in ``not_known`` (it may just have started), or is
        another kind of server, the next one is asked. When all fail, the last BrokerError with such a code is raised,
        else the last failure to answer, else NotNameServer.
        """
        deadline = trio.current_time() + timeout_ms / 1000
        addrs = self._addrs or await self.wait_known(timeout_ms)
        first = addrs.index(self._good)
        failure: RemotingError | None = None
        unknown: BrokerError | None = None
        stranger: NotNameServer | None = None
        for number in range(len(addrs)):
            addr = addrs[(first + number) % len(addrs)]
            left_ms = (deadline - trio.current_time()) * 1000
            if number and left_ms <= 0:
                break
            try_ms = max(left_ms / (len(addrs) - number), MIN_TRY_MS)
            try:
                answer = await call(self.at(addr, try_ms))
            except RemotingError as error:
                logger.info("NameServer failed, trying the next: %s", error)
                failure = error
            except NotNameServer as error:
                stranger = error
                if len(addrs) > 1:  # else it is raised
                    logger.warning("%s", error)
            except BrokerError as error:
                if error.code not in not_known:
                    self._answers(addr)
                    raise
                unknown = error
            else:
                self._answers(addr)
                return answer
        last = unknown or failure or stranger
        assert last is not None
        raise last

    def _answers(self, addr: str) -> None:
        """``addr`` has answered: it is asked first, unless it is not in the list any more."""
        if addr in self._addrs:
            self._good = addr
