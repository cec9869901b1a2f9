"""A broker that stops: what is in flight is answered, what comes now is refused, and nothing is stored any more."""

import threading

import pytest
import trio

from broker.broker import Broker
from broker.options import BrokerOptions
from remoting.net.client import open_client
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from tests.broker.running import SMALL, pull_request, running, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until


async def test_a_broker_that_stops_refuses_sends_and_answers_those_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.writing.send_handlers.STOP_TIMEOUT_S", 60)
    fs = MemoryFiles()
    broker = Broker(BrokerOptions(**SMALL, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000), fs=fs)
    fsync_begins, fsync_may_end = threading.Event(), threading.Event()
    in_flight: list[Command] = []

    def hold_up(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path:
            fsync_begins.set()
            assert fsync_may_end.wait(60)

    async with trio.open_nursery() as nursery, open_client() as client:
        addr = await nursery.start(broker.run)
        await client.invoke(addr, send_request("t", b"before"))
        released = trio.Event()

        async def wait_for_a_message() -> None:
            await client.invoke(addr, pull_request("t", 0, queue_id=1, wait_ms=60_000), 120_000)
            released.set()

        async def send() -> None:
            in_flight.append(await client.invoke(addr, send_request("t", b"in flight"), 120_000))

        fs.before_call = hold_up
        async with trio.open_nursery() as requests:
            requests.start_soon(wait_for_a_message)
            requests.start_soon(send)
            await until(fsync_begins.is_set, "the send in flight")
            broker.stop()
            # Held pulls are released after the server began to refuse.
            await released.wait()
            for _ in range(2):
                answer = await client.invoke(addr, send_request("t", b"too late"), 60_000)
                assert answer.code in (ResponseCode.GO_AWAY, ResponseCode.SERVICE_NOT_AVAILABLE)
            assert in_flight == []
            fsync_may_end.set()
    assert [answer.code for answer in in_flight] == [ResponseCode.SUCCESS]
    async with running(fs) as (client, addr):
        sent = await client.invoke(addr, send_request("t", b"after"))
        assert sent.ext is not None and sent.ext["queueOffset"] == "2"
