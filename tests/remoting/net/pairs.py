"""Connected pairs of every kind of transport."""

from pathlib import Path

import trio

from skylark.remoting.net.in_process import InProcessListener
from skylark.remoting.net.sockets import connect, listen
from skylark.remoting.net.tls.contexts import client_context, server_context
from skylark.remoting.net.tls.session import TlsTransport
from skylark.remoting.net.tls.settings import PERMISSIVE, ServerTls, Tls
from skylark.remoting.net.transport import Transport
from tests.support.certificates import Authority
from tests.support.memory_transport import memory_pair

Pair = tuple[Transport, Transport]


async def socket_pair(tmp_path: Path) -> Pair:
    (listener,) = await listen("127.0.0.1", 0)
    host, _, port = listener.address.rpartition(":")
    ours = await connect(host, int(port))
    theirs = await listener.accept()
    await listener.aclose()
    return ours, theirs


async def pair_in_memory(tmp_path: Path) -> Pair:
    return memory_pair()


async def pair_in_process(tmp_path: Path) -> Pair:
    listener = InProcessListener("127.0.0.1:10911")
    ours = await listener.shortcut(connect)("127.0.0.1", 10911)
    theirs = await listener.accept()
    await listener.aclose()
    return ours, theirs


async def encrypted(ours: Transport, theirs: Transport, tmp_path: Path) -> Pair:
    authority = Authority(tmp_path)
    client = client_context(Tls(authority.ca_file))
    server = server_context(ServerTls(PERMISSIVE, *authority.sign("server")))
    pair = (
        TlsTransport(ours, client, is_server=False, server_name="127.0.0.1"),
        TlsTransport(theirs, server, is_server=True, server_name=None),
    )
    async with trio.open_nursery() as nursery:
        for each in pair:
            nursery.start_soon(each.shake_hands)
    return pair


async def tls_over_sockets(tmp_path: Path) -> Pair:
    return await encrypted(*await socket_pair(tmp_path), tmp_path)


async def tls_in_memory(tmp_path: Path) -> Pair:
    return await encrypted(*await pair_in_memory(tmp_path), tmp_path)
