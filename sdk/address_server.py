"""The address server: an HTTP server whose answer is the current list of NameServers (``host:port;host:port``).

RocketMQ's clients ask it every two minutes. The list is bounded and checked, and a bad or missing answer changes
nothing: the last known addresses stay in use. The request is HTTP/1.1 without redirects, proxies or encryption.
"""

import http.client
import io
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import trio
from trio.lowlevel import enable_ki_protection

from mqcommon.backoff import Backoff
from mqcommon.errors import ConnectFailed, ProtocolError, SkylarkError
from remoting.net import sockets
from remoting.net.transport import Connect
from sdk.nameserver_source import address_of, addresses_in
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
