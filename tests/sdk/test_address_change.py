"""Clients whose NameServers are listed by an address server, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from skylark import Admin, Client, Producer, PullConsumer
from skylark.mqcommon.errors import NoNameServer, SkylarkError
from skylark.sdk import nameservers
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving
from tests.support.waiting import DEADLINE_S


@asynccontextmanager
async def web(listed: list[str]) -> AsyncIterator[str]:
    """The URL of a server that answers with ``listed``."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):  # a client that was closed
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n" + ";".join(listed).encode())

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/rocketmq/nsaddr"
        nursery.cancel_scope.cancel()


async def test_changed_addresses_take_effect_in_running_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameservers, "REFRESH_S", 0.01)
    async with serving(FakeNamesrv()) as old, serving(FakeNamesrv()) as new, serving(FakeBroker()) as broker:
        assert isinstance(old, FakeNamesrv) and isinstance(new, FakeNamesrv) and isinstance(broker, FakeBroker)
        old.add("t", broker)
        new.add("u", broker)
        listed = [old.addr]
        async with (
            web(listed) as url,
            Client(url) as client,
            Producer(client) as producer,
            PullConsumer(url) as consumer,
            Admin(url) as admin,
        ):
            assert await producer.queues("t") and await consumer.message_queues("t") and await admin.topic_route("t")
            listed[:] = ["nonsense"]
            assert await admin.topic_route("t")
            listed[:] = [new.addr]
            old.stop()
            with trio.fail_after(DEADLINE_S):
                assert await until_known(producer)
            assert await producer.queues("t"), "known routes stay"


async def until_known(producer: Producer) -> bool:
    """Whether topic u has a route; only the new NameServer knows it."""
    while True:
        try:
            return bool(await producer.queues("u"))
        except SkylarkError:
            await trio.sleep(0.01)


async def test_before_the_first_list_requests_wait_and_then_name_the_server() -> None:
    listed: list[str] = []
    async with web(listed) as url, Admin(url, timeout_ms=200) as admin:
        with pytest.raises(NoNameServer, match=url):
            await admin.topic_route("t")
        with pytest.raises(NoNameServer, match=url):
            await admin.put_kv("n", "k", "v")
