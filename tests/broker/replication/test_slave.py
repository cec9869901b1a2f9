"""A slave's shell against a master that is a few lines of a test, and against a broker without a hello."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
import trio
import trio.testing

from skylark.broker.replication.copying import CopiedLog
from skylark.broker.replication.frames import ReportReader, encode_header
from skylark.broker.replication.hello import VERSION, Hello, LinkTerms
from skylark.broker.replication.plain_dialogue import PlainDialogue
from skylark.broker.replication.replica import BadRecord, Replica
from skylark.broker.replication.session import MasterTarget
from skylark.broker.replication.slave import FIRST_PAUSE_S, LOG_S, MAX_PAUSE_S, HaClient, MasterAccess
from skylark.broker.replication.stats import SlaveProgress
from skylark.broker.store.store import MessageStore
from skylark.remoting.net import sockets
from skylark.remoting.net.transport import Connect, Transport
from tests.broker.replication.sets import broker
from tests.broker.replication.test_following import bodies
from tests.broker.replication.test_replica import assert_same, entries, log_bytes, master
from tests.broker.store.support import SMALL, open_store, put
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles
from tests.support.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.waiting import DEADLINE_S, until

# As in sets.py.
SMALL_FILES = replace(SMALL, commitlog_segment_bytes=16 * 1024)
RECEIVE_BYTES = 4096
Conversation = Callable[[Transport], Awaitable[None]]


@pytest.fixture
async def network() -> MemoryNetwork:
    return MemoryNetwork()


@asynccontextmanager
async def listening(network: MemoryNetwork, converse: Conversation) -> AsyncIterator[MasterTarget]:
    """A master that says what ``converse`` says."""
    listener = network.listen()
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, converse, [listener])
        yield MasterTarget(listener.address, hello=False)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def following(
    store: MessageStore,
    target: MasterTarget | Callable[[], Awaitable[MasterTarget]],
    connect: Connect,
    *,
    sync_flush: bool = False,
    last_file: bool = False,
    random: Random | None = None,
) -> AsyncIterator[HaClient]:
    """A slave that follows ``target``, or what that finds, until the end of the block."""

    async def find() -> MasterTarget:
        return target if isinstance(target, MasterTarget) else await target()

    async def flush() -> None:
        await trio.to_thread.run_sync(store.flush)

    replica, guard = Replica(store), trio.Lock()
    dialogue = PlainDialogue(
        replica, LinkTerms(), Hello(VERSION, "c", "b", 1, "127.0.0.1:1", b""), guard, sync_flush=sync_flush,
        last_file=last_file,
    )  # fmt: skip
    slave = HaClient(
        CopiedLog(replica, lambda: None, guard, flush if sync_flush else None),
        MasterAccess(find, dialogue, lambda: None, connect), SlaveProgress(), ManualClock(), random=random,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.run)
        yield slave
        nursery.cancel_scope.cancel()
    await slave.finish()


async def next_reports(stream: Transport, reader: ReportReader) -> list[int]:
    """Some that come; none when the slave is gone."""
    while data := await stream.receive(RECEIVE_BYTES):
        if found := reader.receive(data):
            return found
    return []


def frame(store: MessageStore, start: int, end: int) -> bytes:
    return encode_header(start, end - start) + log_bytes(store, start, end)


@pytest.mark.parametrize("seed", range(5))
async def test_what_a_slave_with_sync_flush_reports_survives_power_loss(network: MemoryNetwork, seed: int) -> None:
    random = Random(seed)
    its_master = master(random, 40)
    whole = sorted({sum(entry[:2]) for queue in entries(its_master).values() for entry in queue})
    fs = MemoryFiles()
    store = open_store(fs)
    reported: list[int] = []

    async def converse(stream: Transport) -> None:
        reader = ReportReader()
        assert await next_reports(stream, reader) == [0]
        at = 0
        while at < its_master.log.end:
            end = min(at + random.randrange(1, 2500), its_master.log.end)
            await stream.send_all(frame(its_master, at, end))
            at = end
            while not reported or reported[-1] < max([end for end in whole if end <= at], default=0):
                reported.extend(await next_reports(stream, reader))
                left = open_store(fs.crash(random))
                assert left.log.end >= max([end for end in whole if end <= reported[-1]], default=0)
        await trio.sleep_forever()  # at the end of the connection the slave would come again, with all of the log

    async with listening(network, converse) as target, following(store, target, network.connect, sync_flush=True):
        await until(lambda: bool(reported) and reported[-1] == its_master.log.end, "the last report")
    assert_same(store, its_master)


async def test_a_slave_with_sync_flush_reports_nothing_before_its_fsync(network: MemoryNetwork) -> None:
    its_master = master(Random(4), 30)
    first, second, third = sorted(sum(entry[:2]) for queue in entries(its_master).values() for entry in queue)[5:8]
    fs = MemoryFiles()
    store = open_store(fs)
    begun = [threading.Event(), threading.Event()]
    may_go_on = [threading.Event(), threading.Event()]
    told = trio.Event()

    def hold_up(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path and (number := sum(one.is_set() for one in begun)) < 2:
            begun[number].set()
            assert may_go_on[number].wait(DEADLINE_S)

    async def converse(stream: Transport) -> None:
        assert isinstance(stream, MemoryTransport)
        reader = ReportReader()
        assert await next_reports(stream, reader) == [0]
        await stream.send_all(frame(its_master, 0, first))
        assert await next_reports(stream, reader) == [first]
        fs.before_call = hold_up
        await stream.send_all(frame(its_master, first, second))
        await until(begun[0].is_set, "an fsync begins")
        await stream.send_all(frame(its_master, second, third))
        await until(lambda: store.log.raw_end == third, "more comes meanwhile")
        assert stream.take() == b"", "it reports what is not on disk"
        may_go_on[0].set()
        assert await next_reports(stream, reader) == [second]
        await until(begun[1].is_set, "the next fsync begins")
        assert stream.take() == b"", "it reports what is not on disk"
        may_go_on[1].set()
        assert await next_reports(stream, reader) == [third]
        told.set()

    async with listening(network, converse) as target, following(store, target, network.connect, sync_flush=True):
        with trio.fail_after(DEADLINE_S):
            await told.wait()


async def test_a_slave_goes_on_where_its_disk_was_full(network: MemoryNetwork) -> None:
    its_master = master(Random(1))
    fs = MemoryFiles()
    store = open_store(fs)
    meta, fs.capacity = fs.capacity, fs.used() + 3 * SMALL.commitlog_segment_bytes
    starts: list[int] = []

    async def converse(stream: Transport) -> None:
        reader = ReportReader()
        (at,) = await next_reports(stream, reader)
        starts.append(at)
        if at:
            fs.capacity = meta
        await stream.send_all(frame(its_master, at, its_master.log.end))
        while await next_reports(stream, reader):
            pass

    async with listening(network, converse) as target, following(store, target, network.connect):
        await until(lambda: store.log.end == its_master.log.end, "the end of the log")
    assert starts[0] == 0 < starts[1]
    assert_same(store, its_master)


async def test_a_gap_or_garbage_costs_a_connection_and_no_byte(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    its_master = master(Random(2), 30)
    store = open_store(MemoryFiles())
    middle = its_master.log.end // 2
    wrongs: list[Callable[[int], bytes]] = [
        lambda at: frame(its_master, at, middle) + frame(its_master, middle + 1, its_master.log.end),
        lambda at: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda at: encode_header(at, -1),
        lambda at: frame(its_master, at, its_master.log.end),
    ]

    async def converse(stream: Transport) -> None:
        reader = ReportReader()
        (at,) = await next_reports(stream, reader)
        await stream.send_all(wrongs.pop(0)(at))
        while await next_reports(stream, reader):
            pass

    async with listening(network, converse) as target, following(store, target, network.connect):
        await until(lambda: store.log.end == its_master.log.end, "the end of the log")
    assert_same(store, its_master)
    assert "the master goes on at" in caplog.text


async def test_bytes_that_are_no_log_are_shown_to_no_reader(
    network: MemoryNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    its_master = open_store(MemoryFiles())
    put(its_master, "A", 0, b"one")
    store = open_store(MemoryFiles())

    async def converse(stream: Transport) -> None:
        reader = ReportReader()
        await next_reports(stream, reader)
        end = its_master.log.end
        await stream.send_all(frame(its_master, 0, end) + encode_header(end, 100) + bytes(99) + b"x")
        while await next_reports(stream, reader):
            pass

    async with listening(network, converse) as target:
        # Nor is it finished, so it does not lead.
        with pytest.raises(BadRecord, match="not a record of the master's log"):
            async with following(store, target, network.connect) as slave:
                await until(lambda: bool(slave.problem), "the slave's word")
                assert "not a record of the master's log" in slave.problem
    assert store.max_offset("A", 0) == 1
    assert sum("cannot become the master" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("last_file", [True, False])
async def test_an_empty_slave_of_a_plain_master_copies_all_that_it_has(last_file: bool) -> None:
    async with broker() as its_master:
        await its_master.send("T", *bodies(100))
        store = open_store(MemoryFiles(), options=SMALL_FILES)
        target = MasterTarget(its_master.broker.ha_addr, hello=False, begin=0)
        async with following(store, target, sockets.connect, last_file=last_file):
            await until(lambda: store.log.end == its_master.log_end, "the end of the log")
        assert (store.log.start == 0) is not last_file
        if not last_file:
            assert store.max_offset("T", 0) == 100 and store.min_offset("T", 0) == 0
        assert its_master.log().endswith(store_bytes(store))


def store_bytes(store: MessageStore) -> bytes:
    fs = store._fs
    return b"".join(fs.read(segment.path) for segment in store.log.chain.segments).rstrip(b"\0")


async def test_a_master_that_does_not_answer_is_logged_each_minute(
    network: MemoryNetwork, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def find() -> MasterTarget:
        raise OSError("the master at 10.0.0.1:10911 does not answer")

    async with following(open_store(MemoryFiles()), find, network.connect):
        await trio.sleep(3.5 * LOG_S)
    lines = [line for line in caplog.messages if "the master at 10.0.0.1:10911 does not answer" in line]
    assert 3 <= len(lines) <= 4


@pytest.mark.parametrize("seed", range(3))
async def test_a_master_that_is_away_is_tried_after_longer_and_longer_pauses(
    network: MemoryNetwork, autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    tries: list[float] = []
    enough = trio.Event()

    async def find() -> MasterTarget:
        tries.append(trio.current_time())
        if len(tries) == 12:
            enough.set()
        raise OSError("nobody listens there")

    async with following(open_store(MemoryFiles()), find, network.connect, random=Random(seed)):
        await enough.wait()
    pauses = [after - before for before, after in pairwise(tries)]
    fulls = [min(FIRST_PAUSE_S * 2**number, MAX_PAUSE_S) for number in range(len(pauses))]
    assert all(full / 2 <= round(pause, 6) <= full for pause, full in zip(pauses, fulls, strict=True)), pauses
    assert len({round(pause / full, 6) for pause, full in zip(pauses, fulls, strict=True)}) > 1, "no jitter"
