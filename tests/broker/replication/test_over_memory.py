"""Master and slave over a network in memory: connections that break, and peers that read slowly."""

import errno
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
import trio
import trio.testing

from skylark.broker.replication.frames import encode_report
from skylark.broker.replication.hello import MAGIC, MAX_HELLO_BYTES, LinkTerms
from skylark.broker.replication.master import PEER_CLOSED, HaServer
from skylark.broker.replication.plain_dialogue import compare_logs, plain_sessions
from skylark.broker.replication.session import MasterTarget
from skylark.broker.store.store import MessageStore
from skylark.broker.writing.waits import AckLedger
from skylark.remoting.net.transport import Transport
from tests.broker.replication.test_replica import assert_same, log_bytes, master, restart
from tests.broker.replication.test_slave import following
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles
from tests.support.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.waiting import until


class Set:
    """A master on a network, and how the connections to it are made."""

    def __init__(self, store: MessageStore, *, capacity: int = 1 << 20, rate: int = 0) -> None:
        self.store = store
        self.acks = AckLedger(1 << 20)
        sessions = plain_sessions(store.log, self.acks, LinkTerms("c", "b"))
        self.master = HaServer(store.log, sessions, compare_logs(store.log), lambda: rate)
        self.network = MemoryNetwork(capacity=capacity)
        self.listener = self.network.listen("127.0.0.1:10912")
        self.target = MasterTarget(self.listener.address, hello=True)
        self.connections: list[MemoryTransport] = []

    async def connect(self, host: str, port: int) -> Transport:
        self.connections.append(await self.network.connect(host, port))
        return self.connections[-1]

    def put(self, body: bytes) -> None:
        put(self.store, "A", 0, body)
        self.master.wake()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.master.serve_on, [self.listener])
            yield
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["in memory", "on disk"])
@pytest.mark.parametrize("capacity", [100, 1 << 20])
async def test_a_slave_gets_what_was_there_and_what_comes(how: str, capacity: int) -> None:
    random = Random(capacity)
    its_master = master(random)
    its_set = Set(its_master if how == "in memory" else restart(its_master, "clean", random), capacity=capacity)
    store = open_store(MemoryFiles())
    async with its_set.serving():
        async with following(store, its_set.target, its_set.connect):
            await until(lambda: store.log.end == its_set.store.log.end, "what was there")
            for number in range(100):
                its_set.put(b"%d" % number + bytes(random.randrange(300)))
                if number % 10 == 0:
                    await trio.testing.wait_all_tasks_blocked()
            await until(lambda: store.log.end == its_set.store.log.end, "what came")
        await until(lambda: not its_set.acks.slaves(), "the end of the connection", timeout_s=10)
    assert_same(store, its_set.store)
    assert len(its_set.connections) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_a_connection_that_breaks_anywhere_costs_no_byte(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.replication.slave.FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("skylark.broker.replication.slave.MAX_PAUSE_S", 0.01)
    random = Random(seed)
    its_set, store = Set(master(random), capacity=700), open_store(MemoryFiles())
    async with its_set.serving(), following(store, its_set.target, its_set.connect, random=random):
        for number in range(6):
            await until(lambda n=number: len(its_set.connections) > n, "a connection")  # type: ignore[misc]
            for _ in range(random.randrange(30)):
                await trio.lowlevel.checkpoint()
            its_set.connections[-1].cut()
            its_set.put(b"%d" % number)
        await until(lambda: store.log.end == its_set.store.log.end, "the end of the log")
    assert_same(store, its_set.store)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("operation", ["read", "open"])
async def test_a_read_error_of_the_master_costs_a_connection_only(
    operation: str, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.broker.replication.slave.FIRST_PAUSE_S", 0.001)
    fs, store = MemoryFiles(), open_store(MemoryFiles())
    before = Set(open_store(fs))
    for number in range(40):
        before.put(b"%d" % number + bytes(300))
    if operation == "read":
        # A slave that has something is compared.
        async with before.serving(), following(store, before.target, before.connect):
            await until(lambda: store.log.end == before.store.log.end, "what was there")
    before.store.close()
    its_set = Set(open_store(fs))
    its_set.put(b"last")
    if operation == "read":
        read, errors = its_set.store.log.blocks.read, [OSError(code, "injected")]

        def fail_once(start: int, size: int) -> bytes:
            if errors:
                raise errors.pop()
            return read(start, size)

        monkeypatch.setattr(its_set.store.log.blocks, "read", fail_once)
    else:
        fs.faults.fail(operation, code=code, path_part="/commitlog/")
    async with its_set.serving(), following(store, its_set.target, its_set.connect):
        await until(lambda: store.log.end == its_set.store.log.end, "the end of the log")
    assert_same(store, its_set.store)
    assert len(its_set.connections) == 2
    assert "the log cannot be read" in caplog.text


async def test_frames_go_on_where_a_full_connection_stopped_them() -> None:
    """A connection takes only a part of the bytes that are sent without waiting."""
    its_set = Set(open_store(MemoryFiles()), capacity=50)
    async with its_set.serving():
        stream = await its_set.connect("127.0.0.1", 10912)
        its_set.put(b"first")
        await stream.send_all(encode_report(0))
        await trio.testing.wait_all_tasks_blocked()
        sent = [await stream.receive(30)]
        for number in range(5):
            its_set.put(bytes([number]) * 100)
        log, frames = its_set.store.log, b""
        while len(frames) < log.end:
            frames = b""
            sent.append(await stream.receive(30))
            data = b"".join(sent)
            while len(data) >= 12 + (size := int.from_bytes(data[8:12], "big")):
                assert int.from_bytes(data[:8], "big") == len(frames)
                frames, data = frames + data[12 : 12 + size], data[12 + size :]
        assert frames == log_bytes(its_set.store, 0, log.end)


async def test_a_slave_that_leaves_is_no_slave_any_more(caplog: pytest.LogCaptureFixture) -> None:
    its_set = Set(open_store(MemoryFiles()))
    its_set.put(b"first")
    with caplog.at_level("INFO"):
        async with its_set.serving():
            stream = await its_set.connect("127.0.0.1", 10912)
            await stream.send_all(encode_report(its_set.store.log.end))
            await until(lambda: len(its_set.acks.slaves()) == 1, "the slave")
            await stream.aclose()
            await until(lambda: not its_set.acks.slaves(), "its end")
    assert f"ended: {PEER_CLOSED}" in caplog.text


async def test_a_silent_slave_is_given_up_and_a_living_one_gets_heartbeats(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    its_set = Set(open_store(MemoryFiles()))
    async with its_set.serving(), trio.open_nursery() as nursery:
        silent, lively = [await its_set.connect("127.0.0.1", 10912) for _ in range(2)]
        beats: list[bytes] = []

        async def read() -> None:
            while data := await lively.receive(100):
                beats.append(data)

        nursery.start_soon(read)
        await silent.send_all(encode_report(0))
        for _ in range(12):
            await lively.send_all(encode_report(0))
            await trio.sleep(5)
        assert len(beats) >= 10 and set(beats) == {bytes(12)}
        assert silent.remote == lively.remote
        assert [slave.addr for slave in its_set.acks.slaves()] == [lively.local]
        nursery.cancel_scope.cancel()
    assert f"connection of slave {silent.local} ended" in caplog.text


async def test_a_stranger_that_says_nothing_or_trickles_is_given_up(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    its_set = Set(open_store(MemoryFiles()))
    hello = MAGIC + struct.pack(">I", MAX_HELLO_BYTES) + bytes(MAX_HELLO_BYTES)
    async with its_set.serving(), trio.open_nursery() as nursery:
        silent, half, trickling = [await its_set.connect("127.0.0.1", 10912) for _ in range(3)]
        await half.send_all(b"\0\0\0")

        async def trickle() -> None:
            with suppress(trio.BrokenResourceError):
                for byte in hello:
                    await trickling.send_all(bytes([byte]))
                    await trio.sleep(1)

        nursery.start_soon(trickle)
        with trio.fail_after(2 * LinkTerms().hello_s):
            for stream in (silent, half, trickling):
                assert await stream.receive(100) == b""
    assert caplog.text.count("did not become a slave") == 1
