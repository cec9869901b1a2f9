"""Lists of NameServers that programs are given: as text, from an address server, and behind names with many addresses.

An address server is an HTTP server whose answer is the current list (``host:port;host:port``). RocketMQ's clients and
brokers ask it every now and then. The list is bounded and checked. The request is HTTP/1.1 without redirects, proxies
or encryption.
Neighbours: sdk/nameservers.py (a client's), broker/registration/namesrv_list.py (a broker's).
"""

import io
from collections.abc import Iterable
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import trio

from skylark.mqcommon.addresses import format_address, is_address, split_address
from skylark.mqcommon.errors import ConnectFailed, InvalidArgument, ProtocolError
from skylark.remoting.net import sockets
from skylark.remoting.net.transport import Connect

# RocketMQ's address servers listen here when the domain has no port.
DOMAIN_PORT = 8080
HTTP_PORT = 80
TIMEOUT_S = 3
# About a thousand addresses.
MAX_ANSWER_BYTES = 64 * 1024
_CHUNK_BYTES = 16 * 1024
# The most characters of an answer's fault that are told.
_MAX_REASON = 200
# The most addresses that are used of one name.
MAX_ADDRESSES = 64


def check_nameservers(addrs: Iterable[str]) -> tuple[str, ...]:
    """``addrs`` as a tuple; InvalidArgument when one of them is not an address."""
    found = tuple(addrs)
    for addr in found:
        if not is_address(addr) or "/" in addr:
            raise InvalidArgument(
                f"NameServer {addr!r} is not of the form host:port (several are separated by ';'), "
                "for example 127.0.0.1:9876"
            )
    return found


def addresses_in(text: str) -> tuple[str, ...]:
    """The addresses in ``host:port;host:port`` (or with commas), each once; InvalidArgument for a wrong address."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    return check_nameservers(dict.fromkeys(part for part in parts if part))


def address_of(url: str) -> tuple[str, int]:
    """Host and port of an address server; ValueError when the URL has none."""
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if not host or port == 0 or "@" in parts.netloc:
        raise ValueError(f"{url!r} has no usable host")
    return host, port or HTTP_PORT


def address_server_url(domain: str, subgroup: str) -> str:
    """The URL of RocketMQ's address server at ``domain``, which may have a port."""
    return f"http://{domain if is_address(domain) else f'{domain}:{DOMAIN_PORT}'}/rocketmq/{subgroup}"


class AddressServer:
    """An address server at ``url``, which lists the addresses of NameServers."""

    def __init__(self, url: str, connect: Connect = sockets.connect) -> None:
        self.url = url
        self._connect = connect

    async def fetch(self) -> tuple[str, ...]:
        """The addresses that the server lists. Raises ConnectFailed or ProtocolError within TIMEOUT_S."""
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


def addresses_in_answer(data: bytes) -> tuple[str, ...]:
    """The addresses in an HTTP answer. ProtocolError when it is not one, is cut short, or does not list addresses."""
    # Imported here, as it imports parsers of e-mail, and few clients have an address server.
    import http.client

    # `HTTPResponse` only asks a socket for its bytes.
    source = SimpleNamespace(makefile=lambda mode: io.BytesIO(data))
    answer = http.client.HTTPResponse(cast(Any, source))
    try:
        answer.begin()
        if answer.status != http.client.OK:
            raise ProtocolError(f"it answered with status {answer.status} {answer.reason}")
        addrs = addresses_in(answer.read().decode("ascii").strip().partition("\n")[0])
    except UnicodeDecodeError as error:
        # The error has the whole answer, such as the page of a console.
        raise ProtocolError(f"its answer is no list of addresses: {error}") from None
    except (http.client.HTTPException, ValueError) as error:  # ValueError: also of text, and InvalidArgument
        reason = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"its answer cannot be used: {reason[:_MAX_REASON]}") from None
    if not addrs:
        raise ProtocolError("its answer is empty")
    return addrs


async def resolved(addr: str, *, keeps_name: bool = True) -> list[str]:
    """All servers behind the name in ``host:port``, as addresses in their order.

    ``keeps_name``: ``[addr]`` when there is only one server. Raises OSError when the name cannot be resolved within
    TIMEOUT_S.
    """
    host, port = split_address(addr)
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        return [addr]
    try:
        with trio.fail_after(TIMEOUT_S):
            ips = await sockets.lookup(host, port)
    except trio.TooSlowError:
        raise OSError(f"the name was not resolved within {TIMEOUT_S} s") from None
    # One server keeps its name, which a certificate may need, and which is looked up anew at each connect.
    if keeps_name and len(ips) <= 1:
        return [addr]
    return [format_address(ip, port) for ip in ips[:MAX_ADDRESSES]]
