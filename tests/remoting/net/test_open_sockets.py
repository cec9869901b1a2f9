"""Sockets that are cut as the end of a process would cut them, and ports that stay with their server."""

import errno
import os

import pytest
import trio
import trio.testing

from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import UserError
from skylark.remoting.net.sockets import HeldPort, OpenSockets, connect, listen

HOST = "127.0.0.1"


async def test_peers_see_the_end_and_this_side_sees_nothing() -> None:
    opened = OpenSockets()
    (listener,) = await listen(HOST, 0)
    address = split_address(listener.address)
    received: list[bytes] = []

    async def receive() -> None:
        received.append(await server.receive(100))

    async with trio.open_nursery() as nursery:
        # The peer is in another loop, as clients of a killed process are elsewhere.
        client = await trio.open_tcp_stream(*address)
        server = await listener.accept()
        nursery.start_soon(receive)
        nursery.start_soon(listener.accept)
        await trio.testing.wait_all_tasks_blocked()
        opened.cut()
        assert await client.receive_some() == b""
        with pytest.raises(OSError, match="all attempts to connect"):
            await connect(*address)
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await client.send_all(b"x" * 65536)
        await trio.testing.wait_all_tasks_blocked()
        assert received == []
        assert server.try_send([b"into the void"]) == 13
        nursery.cancel_scope.cancel()
    await server.aclose()
    await listener.aclose()
    opened.cut()
    opened.close()
    OpenSockets().close()


async def test_a_held_port_is_free_for_its_server_only() -> None:
    held = HeldPort(HOST)
    with pytest.raises(OSError, match="all attempts to connect"):
        await connect(HOST, held.port)
    for _ in range(2):
        (listener,) = await listen(HOST, held.port)
        await (await connect(HOST, held.port)).aclose()
        await listener.aclose()
    held.release()


async def test_a_shared_port_is_served_by_several_listeners_and_by_no_other_server() -> None:
    held = HeldPort(HOST)
    held.share()
    listeners = [(await listen(HOST, held.port, is_shared=True))[0] for _ in range(2)]
    in_use = rf"port {HOST}:{held.port} is in use; .* another grpcServerPort"
    with pytest.raises(UserError, match=in_use):
        HeldPort(HOST, held.port, "grpcServerPort")
    with pytest.raises(UserError, match=in_use):
        await listen(HOST, held.port, "grpcServerPort")
    # When one of the listeners has closed, the other gets all connections.
    await listeners[0].aclose()
    for _ in range(5):
        client = await connect(HOST, held.port)
        assert (await listeners[1].accept()).remote == client.local
    await listeners[1].aclose()
    held.release()


async def test_a_port_of_v6_can_be_held() -> None:
    try:
        held = HeldPort("::1")
    except (OSError, UserError):
        pytest.skip("this machine has no IPv6")
    (listener,) = await listen("::1", held.port)
    with pytest.raises(UserError, match="in use"):
        HeldPort("::1", held.port)
    assert (await connect("::1", held.port)).remote == listener.address == f"[::1]:{held.port}"
    await listener.aclose()
    held.release()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_an_address_of_another_machine_is_refused_with_a_remedy(is_shared: bool) -> None:
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1:0: .*; check bindAddress and listenPort"):
        await listen("192.0.2.1", 0, is_shared=is_shared)


async def test_a_port_that_the_user_may_not_have_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(port: int, *, host: str | None) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(trio, "open_tcp_listeners", refuse)
    with pytest.raises(
        UserError, match=r"port 127\.0\.0\.1:80 may not be opened by this user; choose a healthPort above"
    ):
        await listen(HOST, 80, "healthPort")
