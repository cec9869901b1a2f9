"""Requests that wait for the disk: the loop goes on, nobody is starved, and a stop, a loss or a removal is survived.

Queries of a whole broker for what is on disk only wait in the same way.
"""

import errno
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from skylark.broker import cold_reads as cold_module
from skylark.broker.cold_reads import BUCKET_THREADS, BUCKET_TIMEOUT_S, THREADS, ColdReads, from_disk, reading
from skylark.broker.store.log.residency import Damaged, NotResident, Span, ask, bytes_got, check_resident
from skylark.broker.store.reader import GetStatus, read_queue
from skylark.broker.store.recovery import RecoveryReport
from skylark.broker.store.store import MessageStore
from skylark.broker.store.sums.block_sums import Block
from skylark.mqcommon.disk.files import MappedFile
from skylark.mqcommon.errors import OutOfDescriptors, RequestRefused
from skylark.remoting.net.steps import Stepper
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, FLAG_RESPONSE, Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG, VIEW_BROKER_STATS_DATA, BrokerStatsData
from skylark.remoting.protocol.requests.offsets import SEARCH_OFFSET_BY_TIMESTAMP
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from tests.broker.delivery.gates import Gate, Turnstile
from tests.broker.running import pull_request, running, send_request
from tests.broker.store.support import open_store, put
from tests.broker.test_send_pull import messages
from tests.support.caller import Caller
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import DEADLINE_S, until

LOG = "/store/commitlog/00000000000000000000"


class Disk:
    """Cold bytes, and requests for them: each reads ten bytes of its own."""

    def __init__(self, reads: ColdReads) -> None:
        self.fs = MemoryFiles()
        self.fs.mkdirs("/d")
        self.file, self.other = self._cold("/d/f"), self._cold("/d/other")
        self.reads = reads
        self.served: list[int] = []

    def _cold(self, path: str) -> MappedFile:
        file = self.fs.open_map(path, 10_000, create=True)
        self.fs.cold.mark(path)
        return file

    def ask(self, peer: Caller, number: int, far: int = 0, file: MappedFile | None = None) -> Command | None:
        request = Command(1, opaque=number)
        file = file or self.file

        def attempt(waited: bool) -> Command:
            check_resident(file, number * 10, 10)
            check_resident(file, number * 10 + far, 10)
            self.served.append(number)
            return request.respond(remark=str(waited))

        return self.reads.handle(peer.channel, request, partial(attempt, False), partial(attempt, True))


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Disk]:
    reads = ColdReads(**options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.run)
        yield Disk(reads)
        nursery.cancel_scope.cancel()


def fill(fs: MemoryFiles, bodies: list[bytes]) -> None:
    """A store that another process has written, all of it on disk only."""
    store = open_store(fs)
    for body in bodies:
        put(store, "t", 0, body, b"KEYS\x01k\x02")
    store.build_index(100)
    store.close()
    for path in fs.paths():
        fs.cold.mark(path)


async def test_a_connection_that_closed_is_gone_without_a_garbage_collection() -> None:
    async with serving() as disk:
        peer = Caller()
        gone = weakref.ref(peer.channel)
        gc.disable()
        try:
            for number in (1, 50):
                assert disk.ask(peer, number, far=100) is None  # takes two attempts
            await until(lambda: len(disk.served) == 2, "answers")
            del peer
            await trio.testing.wait_all_tasks_blocked()
            assert gone() is None
        finally:
            gc.enable()


async def test_tasks_whose_bucket_hangs_take_no_threads_from_the_disk_or_from_others() -> None:
    bucket, file = SlowBucket(), Disk(ColdReads()).file
    common = trio.to_thread.current_default_thread_limiter()

    def read() -> bytes:
        check_resident(file, 0, 10)
        return (bytes_got() or {})[Span(file, 0, 10)]

    async with trio.open_nursery() as nursery:
        for number in range(BUCKET_THREADS + 2):
            nursery.start_soon(from_disk, partial(ask, bucket.answer, number))
        await until(lambda: len(bucket.asked) == BUCKET_THREADS, "reads of the bucket")
        assert common.borrowed_tokens == 0
        assert await from_disk(read) == bytes(10)
        assert len(bucket.asked) == BUCKET_THREADS
        bucket.gate.set()
    assert sorted(bucket.asked) == list(range(BUCKET_THREADS + 2))


async def test_a_task_that_reads_from_disk_repeats_its_read_with_the_bytes() -> None:
    file = Disk(ColdReads()).file

    def read() -> bytes:
        check_resident(file, 0, 10)  # first this, then the rest: two reads in a thread
        check_resident(file, 100, 10)
        return (bytes_got() or {})[Span(file, 100, 10)]

    assert await from_disk(read) == bytes(10)


SMALL_FILES = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 20 * 16,
               "max_hash_slot_num": 50, "max_index_num": 60}  # fmt: skip


async def test_sends_go_on_while_a_cold_pull_waits_for_the_disk() -> None:
    fs = MemoryFiles()
    fill(fs, [b"old"])
    pulled: list[Command] = []
    async with running(fs, **SMALL_FILES) as (client, addr), trio.open_nursery() as nursery:
        gate = Gate(fs)
        await client.invoke(addr, send_request("t", b"makes the topic"))

        async def pull() -> None:
            pulled.append(await client.invoke(addr, pull_request("t", 0)))

        nursery.start_soon(pull)
        await until(lambda: gate.waiting > 0, "a thread reads")
        for number in range(20):
            assert (await client.invoke(addr, send_request("t", b"%d" % number))).code == 0
        assert not pulled
        gate.open()
        await until(lambda: bool(pulled), "answers")
        found = messages(pulled[0])
        assert found[0].body == b"old"


async def test_rocketmqs_clients_get_less_of_what_was_on_disk() -> None:
    fs = MemoryFiles()
    fill(fs, [b"%02d" % n for n in range(15)])
    limits = {"max_transfer_count_on_message_in_disk": 5, "max_transfer_bytes_on_message_in_disk": 10_000}
    async with running(fs, **SMALL_FILES, **limits) as (client, addr):
        await client.invoke(addr, send_request("t", b"makes the topic"))
        channel = await client.channel(addr, 1_000)
        pull = pull_request("t", 0)
        for _ in range(2):  # the first has waited for the queue's entries, the second for all the messages
            assert len(messages(await channel.invoke(pull, 5_000))) == 5
        assert len(messages(await channel.invoke(pull, 5_000))) >= 10, "they are in memory now"
        fs.cold.mark(LOG)
        pull.codec = CBOR
        assert len(messages(await channel.invoke(pull, 5_000))) >= 10, "a Skylark client gets what it asks for"
        assert await client.invoke(addr, Command(UPDATE_BROKER_CONFIG.code, {}, (
            b"maxTransferCountOnMessageInDisk=32\nmaxTransferBytesOnMessageInDisk=400")))  # fmt: skip
        fs.cold.mark(LOG)
        pull.codec = 0
        assert len(messages(await channel.invoke(pull, 5_000))) == 3, "400 bytes"


async def test_messages_that_came_from_the_disk_are_counted() -> None:
    fs = MemoryFiles()
    fill(fs, [b"%02d" % n for n in range(5)])
    async with running(fs, **SMALL_FILES) as (client, addr):
        await client.invoke(addr, send_request("t", b"makes the topic"))
        channel = await client.channel(addr, 1_000)
        fs.cold.mark(LOG)
        for _ in range(3):  # only the first has to wait
            assert len(messages(await channel.invoke(pull_request("t", 0), 5_000))) == 6
        counted = {}
        for name, key in (("GROUP_GET_FROM_DISK_NUMS", "t@group"), ("BROKER_GET_FROM_DISK_NUMS", "DefaultCluster")):
            answer = await client.invoke(
                addr, Command(VIEW_BROKER_STATS_DATA.code, {"statsName": name, "statsKey": key})
            )
            counted[name] = decode_body(BrokerStatsData, answer.body, answer.codec).stats_day.sum
        assert set(counted.values()) == {6}


async def test_a_disk_that_cannot_be_read_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as disk:
        peer = Caller()

        def fail(path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

        disk.fs.cold.before_read = fail
        disk.ask(peer, 0)
        await until(lambda: bool(peer.received()), "answers")
        assert peer.received()[0].code == ResponseCode.SYSTEM_ERROR and "Input/output error" in str(
            peer.received()[0].remark
        )
        disk.fs.cold.before_read = None
        disk.ask(peer, 1)
        await until(lambda: len(peer.received()) == 2, "answers")
        assert peer.received()[1].code == 0, "others go on"


async def test_a_request_for_bytes_in_memory_is_answered_at_once() -> None:
    async with serving() as disk:
        peer = Caller()
        assert disk.ask(peer, 7) is None
        await until(lambda: bool(peer.received()), "answers")
        assert peer.received()[0].remark == "True", "it was told that it had waited"
        again = disk.ask(peer, 7)
        assert again is not None and again.remark == "False"


async def test_clients_take_turns_however_much_each_asks_for() -> None:
    async with serving() as disk:
        turnstile = Turnstile(disk.fs)
        greedy, modest = Caller(), Caller()
        for number in range(20):
            disk.ask(greedy, number)
        disk.ask(modest, 100, file=disk.other)
        for number in range(20 + 1):
            wanted = min(THREADS + number, 20 + 1)
            await until(lambda n=wanted: len(turnstile.began) == n, "the next read begins")  # type: ignore[misc]
            turnstile.let_one_end()
        await until(lambda: len(disk.reads) == 0, "all is served")
        assert sorted(disk.served) == [*range(20), 100]
        assert turnstile.began.index("/d/other") <= THREADS + 1


async def test_a_peer_that_does_not_take_large_answers_is_not_made_more_and_others_are() -> None:
    async with serving() as disk:
        slow, other = Caller(), Caller()
        slow.channel.queue(encode(Command(1, body=bytes(1 << 20), flag=FLAG_RESPONSE)))
        for number in range(THREADS + 6):
            disk.ask(slow, number)
            disk.ask(other, 100 + number)
        await until(lambda: len(other.received()) == THREADS + 6, "answers")
        assert len([number for number in disk.served if number < 100]) <= THREADS
        await until(lambda: len(slow.received()) == 1 + THREADS + 6, "answers")


async def test_too_many_are_refused_with_a_code_that_consumers_retry_later() -> None:
    async with serving(max_waiting=3) as disk:
        gate, peer = Gate(disk.fs), Caller()
        for number in range(THREADS):
            assert disk.ask(peer, number) is None
            await until(lambda n=number: gate.waiting == n + 1, "a thread reads")  # type: ignore[misc]
        for number in range(3):
            assert disk.ask(peer, 10 + number) is None
        refused = disk.ask(peer, 20)
        assert refused is not None and refused.code == ResponseCode.SYSTEM_BUSY
        gate.open()
        await until(lambda: len(peer.received()) == THREADS + 3, "answers")


async def test_a_request_that_waited_too_long_is_refused_without_a_read(mock_clock: trio.testing.MockClock) -> None:
    mock_clock.rate = 1
    async with serving() as disk:
        gate, peer, late = Gate(disk.fs), Caller(), Caller()
        for number in range(THREADS):
            disk.ask(peer, number)
        await until(lambda: gate.waiting == THREADS, "a thread reads")
        disk.ask(late, 50)
        mock_clock.jump(cold_module.TIMEOUT_S)
        gate.open()
        await until(lambda: bool(late.received()), "answers")
        assert late.received()[0].code == ResponseCode.SYSTEM_BUSY
        assert (("/d/f", 500, 10)) not in disk.fs.cold.reads


async def test_the_requests_of_a_closed_connection_are_forgotten() -> None:
    async with serving() as disk:
        gate, peer, gone = Gate(disk.fs), Caller(), Caller()
        for number in range(THREADS):
            disk.ask(peer, number)
        await until(lambda: gate.waiting == THREADS, "a thread reads")
        for number in range(5):
            disk.ask(gone, 50 + number)
        disk.reads.channel_closed(gone.channel)
        assert len(disk.reads) == THREADS
        gate.open()
        await until(lambda: len(peer.received()) == THREADS, "answers")
        disk.ask(peer, 99)
        await until(lambda: len(peer.received()) == THREADS + 1, "answers")
        assert not gone.received() and len(disk.fs.cold.reads) == THREADS + 1


async def test_a_stop_refuses_what_waits_and_ends_with_what_is_being_read() -> None:
    async with serving() as disk, trio.open_nursery() as nursery:
        gate, peer, stopped = Gate(disk.fs), Caller(), []

        async def stop() -> None:
            await disk.reads.stop()
            stopped.append(list(disk.served))

        for number in range(THREADS + 2):
            disk.ask(peer, number)
        await until(lambda: gate.waiting == THREADS, "a thread reads")
        nursery.start_soon(stop)
        await until(lambda: len(peer.received()) == 2, "answers")
        assert {answer.code for answer in peer.received()} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        late = disk.ask(peer, 50)
        assert late is not None and late.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not stopped
        gate.open()
        await until(lambda: bool(stopped), "the stop")
        assert sorted(stopped[0]) == list(range(THREADS)), "what was being read is answered before the stop ends"


async def test_a_disk_that_hangs_does_not_hold_up_the_end() -> None:
    async with serving() as disk:
        gate = Gate(disk.fs)
        disk.ask(Caller(), 0)
        await until(lambda: gate.waiting == 1, "a thread reads")
    # Cancelled with the read still under way; closing the file under it does no harm.
    disk.file.close()
    gate.open()


async def test_a_broker_stops_though_its_disk_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_module, "STOP_TIMEOUT_S", 0.05)
    fs = MemoryFiles()
    fill(fs, [b"old"])
    async with running(fs, **SMALL_FILES, message_index_enable=False) as (client, addr):
        gate = Gate(fs)
        await client.invoke(addr, send_request("t", b"makes the topic"))
        channel = await client.channel(addr, 1_000)
        channel.submit(pull_request("t", 0), 60_000, lambda answer: None)
        await until(lambda: gate.waiting > 0, "a thread reads")
    assert not fs.exists("/store/abort"), "a clean stop"
    gate.open()


def removed(store: MessageStore, fs: MemoryFiles) -> None:
    """Remove the log's first file, as retention does."""
    segment = store.log.chain.segments.pop(0)
    segment.close()
    fs.remove(segment.path)
    queue = store.queues.find("t", 0)
    assert queue is not None
    queue.min_offset = next(n for n in range(queue.next_offset) if queue.entry(n)[0] >= store.log.start)


async def test_a_file_that_is_removed_during_the_read_is_no_longer_there_afterwards() -> None:
    fs = MemoryFiles()
    fill(fs, [bytes(1_000)] * 8)
    store = open_store(fs)
    queue = store.queues.find("t", 0)
    assert queue is not None
    peer, found, request = Caller(), [], Command(1)

    def attempt() -> Command:
        found.append(read_queue(store.log, queue, 0, 1, 10_000))
        return request.respond()

    async with serving() as disk:
        gate = Gate(fs)
        fs.cold.mark(LOG)
        disk.reads.handle(peer.channel, request, attempt)
        await until(lambda: gate.waiting > 0, "a thread reads")
        removed(store, fs)
        gate.open()
        await until(lambda: bool(peer.received()), "answers")
    assert [result.status for result in found] == [GetStatus.OFFSET_TOO_SMALL]


@pytest.mark.parametrize(("step", "expected"), [(10, [True] * 4 + [False]), (0, [True, True, False])])
async def test_the_last_attempt_waits_for_the_disk_in_the_event_loop(
    step: int, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk without end, and bytes that are gone again before they are looked at."""
    monkeypatch.setattr(cold_module, "MAX_ATTEMPTS", 5)
    attempts: list[bool] = []
    async with serving() as disk:
        peer, request = Caller(), Command(1)

        def attempt() -> Command:
            attempts.append(bytes_got() is not None)
            if attempts[-1]:
                raise NotResident([Span(disk.file, step * len(attempts), 10)])
            return request.respond()

        disk.reads.handle(peer.channel, request, attempt)
        await until(lambda: bool(peer.received()), "answers")
    assert attempts == expected


@pytest.mark.parametrize("on_disk", [True, False])
async def test_bytes_that_a_thread_only_copies_are_no_wait_for_the_disk(on_disk: bool) -> None:
    async with serving() as disk:
        peer, request = Caller(), Command(1)

        def attempt(remark: str) -> Command:
            if not bytes_got():
                raise NotResident([Span(disk.file, 0, 10)], on_disk=on_disk)
            return request.respond(remark=remark)

        disk.reads.handle(peer.channel, request, partial(attempt, "first"), partial(attempt, "after the disk"))
        await until(lambda: bool(peer.received()), "answers")
    (answer,) = peer.received()
    assert answer.remark == ("after the disk" if on_disk else "first")


async def test_a_read_that_finds_no_descriptor_is_to_be_tried_again() -> None:
    def attempt() -> Command | None:
        raise OutOfDescriptors("no descriptor")

    peer = Caller()
    answer = ColdReads().handle(peer.channel, Command(11), attempt)
    assert answer is not None and answer.code == ResponseCode.SYSTEM_BUSY


def mark_all(fs: MemoryFiles) -> None:
    """All of the store is on disk only, from now on."""
    for path in fs.paths():
        fs.cold.mark(path)
    fs.cold.reads.clear()


def read_from(fs: MemoryFiles) -> set[str]:
    """The directories of the files that were read from disk since `mark_all`."""
    return {path.split("/")[2] for path, _, _ in fs.cold.reads}


async def test_queries_wait_for_the_disk_in_a_thread_and_find_the_same() -> None:
    fs = MemoryFiles()
    fill(fs, [b"%d" % n for n in range(12)])
    loop = threading.get_ident()
    readers: set[int] = set()
    fs.cold.before_read = lambda path: readers.add(threading.get_ident())
    async with running(fs, **SMALL_FILES) as (client, addr):
        await client.invoke(addr, send_request("t", b"makes the topic"))
        mark_all(fs)
        query = {"topic": "t", "key": "k", "maxNum": 4, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        found = messages(await client.invoke(addr, Command(QUERY_MESSAGE.code, query)))
        assert [message.body for message in found] == [b"11", b"10", b"9", b"8"]
        assert read_from(fs) >= {"index", "commitlog"}
        mark_all(fs)
        search = {"topic": "t", "queueId": 0, "timestamp": 0}
        answer = await client.invoke(addr, Command(SEARCH_OFFSET_BY_TIMESTAMP.code, search))
        assert answer.ext is not None and int(answer.ext["offset"]) == 0
        assert read_from(fs) >= {"commitlog", "consumequeue"}
        fs.cold.mark(LOG)
        view = await client.invoke(addr, Command(VIEW_MESSAGE_BY_ID.code, {"offset": 0}))
        assert messages(view)[0].body == b"0"
    assert readers and loop not in readers


# --- damage of the log


class DamagedDisk:
    """A read of ten bytes that are damaged until `mend`; a thread finds that."""

    def __init__(self) -> None:
        self.path, self.size = "/store/commitlog/0", 10_000
        self.mended = trio.Event()
        self.in_memory = False
        self.waiting = 0

    def mend(self) -> None:
        self.mended.set()

    async def wait(self, blocks: Sequence[Block]) -> None:
        self.waiting += 1
        await self.mended.wait()

    def resident(self, at: int, size: int) -> bool:
        return self.in_memory

    def pread(self, at: int, size: int) -> bytes:
        if not self.mended.is_set():
            raise Damaged([Block(0, 4096)], self)
        self.in_memory = True
        return bytes(size)

    def read(self) -> bytes:
        check_resident(self, 0, 10)
        return b"sound"

    def ask(self, reads: ColdReads, peer: Caller, number: int) -> Command | None:
        request = Command(1, opaque=number)
        return reads.handle(peer.channel, request, lambda: request.respond(body=self.read()))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for a repair for as long as a test takes."""
    monkeypatch.setattr(cold_module, "MEND_TIMEOUT_S", 1_000.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_module, "MEND_TIMEOUT_S", 0.01)


@pytest.mark.usefixtures("patient")
async def test_a_request_that_meets_damage_is_answered_when_it_is_mended() -> None:
    async with serving() as disk:
        damaged, peer, other = DamagedDisk(), Caller(), Caller()
        for number in range(20):  # more than there are threads: others do not wait for the repair
            assert damaged.ask(disk.reads, peer, number) is None
        await until(lambda: damaged.waiting == 20, "all wait")
        disk.ask(other, 1)
        await until(lambda: bool(other.received()), "another request is answered")
        assert not peer.received() and len(disk.reads) == 20
        damaged.mend()
        await until(lambda: len(peer.received()) == 20, "answers")
        assert {answer.body for answer in peer.received()} == {b"sound"}
        await until(lambda: len(disk.reads) == 0, "nothing waits")


@pytest.mark.usefixtures("impatient")
async def test_a_request_does_not_wait_long_for_a_repair() -> None:
    async with serving() as disk:
        damaged, peer = DamagedDisk(), Caller()
        assert damaged.ask(disk.reads, peer, 1) is None
        await until(lambda: bool(peer.received()), "an answer")
        (answer,) = peer.received()
        assert answer.code == ResponseCode.SYSTEM_BUSY and "damaged" in str(answer.remark)
        await until(lambda: len(disk.reads) == 0, "nothing waits")


@pytest.mark.usefixtures("patient")
async def test_a_stop_does_not_wait_for_a_repair() -> None:
    async with serving() as disk:
        damaged, peer = DamagedDisk(), Caller()
        assert damaged.ask(disk.reads, peer, 1) is None
        await until(lambda: damaged.waiting == 1, "it waits")
        await disk.reads.stop()
        await until(lambda: bool(peer.received()), "an answer")
        assert peer.received()[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
        refused = damaged.ask(disk.reads, peer, 2)
        assert refused is not None and refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.usefixtures("patient")
async def test_too_many_requests_that_wait_for_a_repair_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_module, "MAX_MENDING", 2)
    async with serving() as disk:
        damaged, peer = DamagedDisk(), Caller()
        for number in range(3):
            assert damaged.ask(disk.reads, peer, number) is None
        await until(lambda: len(peer.received()) == 1, "the third one is refused")
        assert peer.received()[0].code == ResponseCode.SYSTEM_BUSY
        damaged.mend()
        await until(lambda: len(peer.received()) == 3, "answers")


@pytest.mark.usefixtures("impatient")
async def test_a_task_waits_until_damage_is_mended_however_long_that_takes() -> None:
    damaged, found = DamagedDisk(), list[bytes]()

    async def read() -> None:
        found.append(await from_disk(damaged.read))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: damaged.waiting == 1, "it waits")
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        damaged.mend()
    assert found == [b"sound"]


@pytest.mark.usefixtures("patient")
async def test_steps_wait_for_a_repair() -> None:
    stepper, damaged, found = Stepper(), DamagedDisk(), list[bytes]()

    async def read() -> None:
        found.append(await stepper.run(reading(damaged.read)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: damaged.waiting == 1, "it waits")
        damaged.mend()
    assert found == [b"sound"]


@pytest.mark.usefixtures("impatient")
async def test_steps_do_not_wait_long_for_a_repair() -> None:
    with pytest.raises(Damaged):
        await Stepper().run(reading(DamagedDisk().read))


async def test_the_index_waits_for_a_disk_that_cannot_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.broker.tasks.flush.PAUSE_FULL_S", 0.01)
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"old", b"KEYS\x01k\x02")
    store.checkpoint()
    fs = fs.killed()
    recover = MessageStore.open

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    def open_and_forget(store: MessageStore, *args: Any) -> RecoveryReport:
        report = recover(store, *args)
        fs.cold.mark(LOG)
        fs.cold.before_read = fail
        return report

    monkeypatch.setattr(MessageStore, "open", open_and_forget)
    async with running(fs, **SMALL_FILES) as (client, addr):
        await until(lambda: "the index is not updated until the disk can read" in caplog.text, "it has tried")
        assert (await client.invoke(addr, send_request("t", b"new"))).code == 0
        fs.cold.before_read = None
        query = {"topic": "t", "key": "k", "maxNum": 4, "beginTimestamp": 0, "endTimestamp": 1 << 60}

        async def finds() -> bool:
            return (await client.invoke(addr, Command(QUERY_MESSAGE.code, query))).code == 0

        await until(finds, "the index has it")


class SlowBucket:
    """What a bucket answers: a number and how often it was asked. ``gate``: opened by the test."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[int] = []

    def answer(self, number: int) -> str:
        self.asked.append(number)
        assert self.gate.wait(DEADLINE_S)
        return f"answer {number}"

    def ask(self, reads: ColdReads, peer: Caller, *numbers: int) -> Command | None:
        """A request that needs the answers to several questions, one after the other."""
        request = Command(1, opaque=numbers[0])

        def attempt(waited_for_disk: bool) -> Command:
            answers = [ask(self.answer, number) for number in numbers]
            return request.respond(remark=f"{answers} {waited_for_disk}")

        return reads.handle(peer.channel, request, partial(attempt, False), partial(attempt, True))


async def test_each_answer_of_a_bucket_is_got_once_though_the_request_begins_anew() -> None:
    async with serving() as disk:
        bucket, peer = SlowBucket(), Caller()
        bucket.gate.set()
        assert bucket.ask(disk.reads, peer, 1, 2, 3) is None
        await until(lambda: bool(peer.received()), "an answer")
        # It counts as in memory: RocketMQ's clients get as many messages as from there.
        assert peer.received()[0].remark == "['answer 1', 'answer 2', 'answer 3'] False"
        assert bucket.asked == [1, 2, 3]
        assert await from_disk(lambda: ask(bucket.answer, 4) + ask(bucket.answer, 5)) == "answer 4answer 5"
        assert await Stepper().run(reading(lambda: ask(bucket.answer, 6) + ask(bucket.answer, 7))) == (
            "answer 6answer 7"
        )


async def test_reads_of_the_disk_go_on_while_a_bucket_hangs() -> None:
    async with serving() as disk:
        bucket, peer = SlowBucket(), Caller()
        for number in range(BUCKET_THREADS + 2):
            assert bucket.ask(disk.reads, peer, number) is None
        await until(lambda: len(bucket.asked) == BUCKET_THREADS, "reads of the bucket")
        disk.ask(Caller(), 1)
        await until(lambda: disk.served == [1], "a read of the disk")
        assert disk.reads.head_wait_s == 0, "nobody waits for the disk"
        bucket.gate.set()
        await until(lambda: len(peer.received()) == BUCKET_THREADS + 2, "answers")


async def test_a_request_waits_for_a_bucket_for_a_bounded_time(mock_clock: trio.testing.MockClock) -> None:
    mock_clock.rate = 1
    async with serving() as disk:
        bucket, peer = SlowBucket(), Caller()
        bucket.ask(disk.reads, peer, 1)
        await until(lambda: bucket.asked == [1], "a read of the bucket")
        mock_clock.jump(BUCKET_TIMEOUT_S + 1)
        await until(lambda: bool(peer.received()), "a refusal")
        assert peer.received()[0].code == ResponseCode.SYSTEM_BUSY
        bucket.gate.set()


def test_nothing_waits_for_a_bucket_where_nothing_may_wait_for_the_disk() -> None:
    bucket = SlowBucket()
    with pytest.raises(RequestRefused) as refused:
        ask(bucket.answer, 1)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY and not bucket.asked
