"""A request to each port of `skylark dev`, as clients send them, before it says that it is ready.

What a server does only at its first request (importing, compiling templates) is done by then.
"""

from collections.abc import Callable
from struct import Struct

import trio

from skylark.cli.dev.servers import Addresses
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import BrokerError, RemotingError, SkylarkError
from skylark.remoting.http2 import frames
from skylark.remoting.http2.header_blocks import block
from skylark.remoting.net.sockets import connect

TIMEOUT_S = 30.0
_POLL_S = 0.005
_READ_BYTES = 64 * 1024
_ROUTE_CALL = "/apache.rocketmq.v2.MessagingService/QueryRoute"
# An answer of gRPC ends with a header block that has this field.
_GRPC_ENDS = b"grpc-status"
_MESSAGE_HEAD = Struct(">BI")


async def wait_for_answers(addresses: Addresses) -> None:
    """Return when each server has answered. Raises SkylarkError when one does not within `TIMEOUT_S`."""
    missing = ""
    with trio.move_on_after(TIMEOUT_S):
        missing = f"broker {addresses.broker}"
        await _broker_is_known(addresses)
        if addresses.grpc:
            missing = f"gRPC port {addresses.grpc}"
            await _answer(addresses.grpc, _grpc_call(_ROUTE_CALL), lambda got: _GRPC_ENDS in got)
        if addresses.console:
            missing = f"console {addresses.console}"
            request = f"GET / HTTP/1.1\r\nHost: {addresses.console}\r\nConnection: close\r\n\r\n".encode()
            await _answer(
                addresses.console, request, lambda got: got.startswith(b"HTTP/1.1 200 ") and b"</html>" in got
            )
        return
    raise SkylarkError(f"no answer of the {missing} within {TIMEOUT_S:.0f} s; see the log")


async def _broker_is_known(addresses: Addresses) -> None:
    """Wait until the NameServer knows the broker, and the broker answers."""
    from skylark.sdk.admin.client import Admin

    async with Admin(addresses.namesrv) as admin:
        while True:
            try:
                table = (await admin.cluster_info()).broker_addr_table
                if any(addresses.broker in data.broker_addrs.values() for data in table.values()):
                    await admin.broker_runtime_info(addresses.broker)
                    return
            except (RemotingError, BrokerError):
                pass  # the broker has not registered yet
            await trio.sleep(_POLL_S)


async def _answer(address: str, request: bytes, is_whole: Callable[[bytes], bool]) -> None:
    """Send ``request``, and read until the answer is whole. Raises SkylarkError when the connection ends before."""
    got = b""
    try:
        transport = await connect(*split_address(address))
        try:
            await transport.send_all(request)
            while not is_whole(got):
                read = await transport.receive(_READ_BYTES)
                if not read:
                    break
                got += read
        finally:
            await trio.aclose_forcefully(transport)
    except (OSError, trio.BrokenResourceError) as error:
        raise SkylarkError(f"{address} does not answer: {error}") from error
    if not is_whole(got):
        raise SkylarkError(f"{address} closes the connection after {got[:200]!r}")


def _grpc_call(method: str) -> bytes:
    """A connection of a gRPC client with one call, whose message is empty."""
    head = block(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "skylark"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
    )
    return b"".join(
        (
            frames.PREFACE,
            frames.settings([]),
            frames.frame(frames.HEADERS, frames.END_HEADERS, 1, head),
            frames.frame(frames.DATA, frames.END_STREAM, 1, _MESSAGE_HEAD.pack(0, 0)),
        )
    )
