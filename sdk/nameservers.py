"""The NameServers that a client knows, and which of them to ask.

NameServers do not know each other and each knows all brokers, so any answer will do: a client starts at one chosen at
random, stays with the one that answered last, and goes on to the next on failure. Each try has its share of the time,
so that a frozen NameServer costs part of it and not all.
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
# A share of the time that is too short for a healthy NameServer would only make more requests.
MIN_TRY_MS = 250


def parse_nameservers(text: str | None, *, required: bool = True) -> tuple[str, ...]:
    """The addresses in ``host:port;host:port`` (commas do too); those of $NAMESRV_ADDR when there is no text.

    InvalidArgument when one is no address; UserError when there are none and one is ``required``.
    """
    if text is not None and not isinstance(text, str):
        raise wrong_type("nameserver", "a str like 'host:port;host:port'", text)
    given = text or os.environ.get(NAMESRV_ADDR) or ""
    addrs = list(dict.fromkeys(part.strip() for part in given.replace(",", ";").split(";") if part.strip()))
    if not addrs and required:
        raise none_given()
    return check_nameservers(addrs)


def check_nameservers(addrs: Iterable[str]) -> tuple[str, ...]:
    """``addrs``, or InvalidArgument when one is no address."""
    found = tuple(addrs)
    for addr in found:
        if not is_address(addr):
            raise InvalidArgument(
                f"NameServer {addr!r} is not of the form host:port (several are separated by ';'), "
                "for example 127.0.0.1:9876"
            )
    return found


def none_given() -> UserError:
    """The error of a client that has to ask a NameServer and knows none."""
    return UserError(f"no NameServer is given: pass host:port, or set {NAMESRV_ADDR}=host:port;host:port")


class NameServers:
    """A list of NameServers behind one `ask`. It may be empty: UserError when it is needed."""

    def __init__(self, client: RemotingClient, addrs: tuple[str, ...], random: Random) -> None:
        self._client = client
        self._addrs = addrs
        self._good = random.randrange(len(addrs)) if addrs else 0

    @property
    def text(self) -> str:
        """All of them, as users write them."""
        return ";".join(self._addrs)

    @property
    def addrs(self) -> tuple[str, ...]:
        """All of them; UserError when there is none."""
        if not self._addrs:
            raise none_given()
        return self._addrs

    def at(self, addr: str, timeout_ms: float) -> Endpoint:
        """One of them."""
        return Endpoint(self._client, addr, timeout_ms)

    async def ask(
        self,
        call: Callable[[Endpoint], Awaitable[T]],
        timeout_ms: float,
        *,
        not_known: Collection[int] = (),
    ) -> T:
        """What the first NameServer says that answers ``call`` before ``timeout_ms`` is over.

        A NameServer that does not answer, or answers with a code of ``not_known`` (it may just have started), is
        passed over; when all are, the last such code counts, else the last failure.
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
                logger.info("NameServer passed over: %s", error)
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
