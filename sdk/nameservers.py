"""The NameServers that a client knows, and the choice of the one to ask.

Every NameServer knows all brokers, so one answer is enough. A client starts with a random one, stays with the one that
answered last, and goes on to the next when it fails. Each try gets a share of the timeout, so that a frozen NameServer
does not use up all of it. An address server may replace the list at any time: an HTTP server whose answer is the
current list (``host:port;host:port``). RocketMQ's clients ask it every two minutes. The list is bounded and checked,
and a bad or missing answer changes nothing: the last known addresses stay in use. The request is HTTP/1.1 without
redirects, proxies or encryption.
"""

import http.client
import io
import logging
from collections.abc import Awaitable, Callable, Collection
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.backoff import Backoff
from mqcommon.errors import (
    BrokerError,
    ConnectFailed,
    NoNameServer,
    NotNameServer,
    ProtocolError,
    RemotingError,
    SkylarkError,
)
from remoting.net import sockets
from remoting.net.client import RemotingClient
from remoting.net.transport import Connect
from sdk.endpoint import Endpoint
from sdk.nameserver_source import Known, address_of, addresses_in, none_given
from sdk.runtime import survived

logger = logging.getLogger(__name__)


REFRESH_S = 120
TIMEOUT_S = 3
# About a thousand addresses.
MAX_ANSWER_BYTES = 64 * 1024
_CHUNK_BYTES = 16 * 1024


class AddressServer:
    """The server at ``url``."""

    def __init__(self, url: str, connect: Connect = sockets.connect) -> None:
        self.url = url
        self._connect = connect

    async def fetch(self) -> tuple[str, ...]:
        """The addresses that it lists. Raises ConnectFailed or ProtocolError within TIMEOUT_S."""
        try:
            with trio.fail_after(TIMEOUT_S):
                return addresses_in_answer(await self._answer())
        except trio.TooSlowError:
            raise ConnectFailed(self.url, f"no answer within {TIMEOUT_S} s") from None
        except (OSError, trio.BrokenResourceError) as error:
            raise ConnectFailed(self.url, sockets.connect_reason(error)) from None

    async def _answer(self) -> bytes:
        _, host, path, query, _ = urlsplit(self.url)
        target = (path or "/") + (f"?{query}" if query else "")
        request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        answer = bytearray()
        async with await self._connect(*address_of(self.url)) as transport:
            await transport.send_all(request.encode("ascii"))
            while piece := await transport.receive(_CHUNK_BYTES):
                answer += piece
                if len(answer) > MAX_ANSWER_BYTES:
                    raise ProtocolError(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
        return bytes(answer)

    @enable_ki_protection
    async def follow(self, found: Callable[[tuple[str, ...]], bool], backoff: Backoff) -> None:
        """Call ``found`` with the list, now and every REFRESH_S; it returns whether the list has changed.

        Until the first answer the server is asked again after short pauses.
        """
        failures, is_known = 0, False
        while True:
            with survived("asking the address server"):
                try:
                    addrs = await self.fetch()
                except SkylarkError as error:
                    failures += 1
                    if failures == 1:
                        kept = "keeping the last known ones" if is_known else "asking again"
                        logger.warning("the address server %s did not list NameServers, %s: %s", self.url, kept, error)
                else:
                    failures, is_known = 0, True
                    if found(addrs):
                        logger.info("the address server %s lists the NameServers %s", self.url, ";".join(addrs))
            await trio.sleep(REFRESH_S if is_known else backoff.pause_s(max(failures, 1)))


def addresses_in_answer(data: bytes) -> tuple[str, ...]:
    """The addresses in an HTTP answer. ProtocolError when it is not one, is cut short, or does not list addresses."""
    # It only asks a socket for its bytes.
    source = SimpleNamespace(makefile=lambda mode: io.BytesIO(data))
    answer = http.client.HTTPResponse(cast(Any, source))
    try:
        answer.begin()
        if answer.status != http.client.OK:
            raise ProtocolError(f"it answered with status {answer.status} {answer.reason}")
        addrs = addresses_in(answer.read().decode("ascii").strip().partition("\n")[0])
    except (http.client.HTTPException, ValueError) as error:  # ValueError: also of text, and InvalidArgument
        raise ProtocolError(f"its answer cannot be used: {error!r}") from None
    if not addrs:
        raise ProtocolError("its answer is empty")
    return addrs


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
