"""The NameServers that a client knows, and the choice of the one to ask.

Every NameServer knows all brokers, so one answer is enough. A client starts with a random one, stays with the one that
answered last, and goes on to the next when it fails. Each try gets a share of the timeout, so that a frozen NameServer
does not use up all of it.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from random import Random
from typing import TypeVar

import trio

from mqcommon.addresses import is_address
from mqcommon.arguments import wrong_type
from mqcommon.errors import BrokerError, InvalidArgument, RemotingError, UserError
from remoting.net.client import RemotingClient
from sdk.endpoint import Endpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")

NAMESRV_ADDR = "NAMESRV_ADDR"
# The smallest share of the timeout: a healthy NameServer answers within it.
MIN_TRY_MS = 250


def parse_nameservers(text: str | None, *, required: bool = True) -> tuple[str, ...]:
    """The addresses in ``host:port;host:port`` (or with commas); those in $NAMESRV_ADDR when ``text`` is empty.

    Raises InvalidArgument when one is not an address, UserError when there is none and one is ``required``.
    """
    if text is not None and not isinstance(text, str):
        raise wrong_type("nameserver", "a str like 'host:port;host:port'", text)
    given = text or os.environ.get(NAMESRV_ADDR) or ""
    addrs = list(dict.fromkeys(part.strip() for part in given.replace(",", ";").split(";") if part.strip()))
    if not addrs and required:
        raise none_given()
    return check_nameservers(addrs)


def check_nameservers(addrs: Iterable[str]) -> tuple[str, ...]:
    """``addrs`` as a tuple; InvalidArgument when one of them is not an address."""
    found = tuple(addrs)
    for addr in found:
        if not is_address(addr):
            raise InvalidArgument(
                f"NameServer {addr!r} is not of the form host:port (several are separated by ';'), "
                "for example 127.0.0.1:9876"
            )
    return found


def none_given() -> UserError:
    """The error of a client that needs a NameServer and knows none."""
    return UserError(f"no NameServer is given: pass host:port, or set {NAMESRV_ADDR}=host:port;host:port")


class NameServers:
    """A list of NameServers. It may be empty: `ask` then raises UserError."""

    def __init__(self, client: RemotingClient, addrs: tuple[str, ...], random: Random) -> None:
        self._client = client
        self._addrs = addrs
        self._good = random.randrange(len(addrs)) if addrs else 0

    @property
    def text(self) -> str:
        """All addresses, separated by ``;``."""
        return ";".join(self._addrs)

    @property
    def addrs(self) -> tuple[str, ...]:
        """All addresses; UserError when there is none."""
        if not self._addrs:
            raise none_given()
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

        When a NameServer does not answer, or answers with a code in ``not_known`` (it may just have started), the next
        one is asked. When all fail, the last BrokerError with such a code is raised, else the last failure.
        """
        deadline = trio.current_time() + timeout_ms / 1000
        first = self._good
        failure: RemotingError | None = None
        unknown: BrokerError | None = None
        for number in range(len(self.addrs)):
            position = (first + number) % len(self.addrs)
            left_ms = (deadline - trio.current_time()) * 1000
            if number and left_ms <= 0:
                break
            try_ms = max(left_ms / (len(self.addrs) - number), MIN_TRY_MS)
            try:
                answer = await call(self.at(self.addrs[position], try_ms))
            except RemotingError as error:
                logger.info("NameServer failed, trying the next: %s", error)
                failure = error
            except BrokerError as error:
                if error.code not in not_known:
                    self._good = position
                    raise
                unknown = error
            else:
                self._good = position
                return answer
        last = unknown or failure
        assert last is not None
        raise last
