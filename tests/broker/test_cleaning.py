"""Retention and full disks as clients see them: codes, corrections, requests of administrators."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from skylark.broker.broker import store_options
from skylark.broker.options import BrokerOptions
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.errors import DiskFull
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.message import MessageExt
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
    GET_BROKER_RUNTIME_INFO,
)
from skylark.remoting.protocol.requests.offsets import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
)
from tests.broker.running import SMALL, pull_request, running, send_request
from tests.broker.store.support import open_store as open_store_
from tests.broker.store.support import put
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

BODY = bytes(8_000)
FILES = "/store/commitlog/"


def log_files(fs: MemoryFiles) -> list[str]:
    return [path for path in fs.paths() if path.startswith(FILES)]


def open_store(fs: MemoryFiles) -> MessageStore:
    """The broker's store, without the broker."""
    return open_store_(fs, options=store_options(BrokerOptions(**SMALL)))


def cleaning(fs: MemoryFiles, **options: Any) -> AbstractAsyncContextManager[tuple[RemotingClient, str]]:
    """A broker that looks at its disk as one does by default."""
    by_default = {
        "disk_max_used_space_ratio": 75, "disk_space_clean_forcibly_ratio": 85, "disk_space_warning_level_ratio": 90,
        "clean_file_forcibly_enable": True, "file_reserved_time": 72,
    }  # fmt: skip
    return running(fs, **{**by_default, **options})


async def fill(client: RemotingClient, addr: str, topic: str, count: int, batch: bool = False) -> list[Command]:
    """The answers to ``count`` messages."""
    body = encode_batch([(0, BODY, b"")]) if batch else BODY
    return [await client.invoke(addr, send_request(topic, body, m=batch)) for _ in range(count)]


async def offset_of(client: RemotingClient, addr: str, code: int, topic: str, **ext: object) -> int:
    answer = await client.invoke(addr, Command(code, {"topic": topic, "queueId": 0, **ext}))
    assert answer.code == ResponseCode.SUCCESS and answer.ext is not None, answer
    return int(answer.ext["offset"])


def corrected(answer: Command) -> tuple[int, str | None, int]:
    assert answer.ext is not None
    return answer.code, answer.remark, int(answer.ext["nextBeginOffset"])


async def test_readers_of_what_is_gone_are_told_where_to_go_on() -> None:
    fs = MemoryFiles()
    async with cleaning(fs, clean_resource_interval=10) as (client, addr):
        await fill(client, addr, "gone", 3)
        await fill(client, addr, "t", 60)
        offset = {"consumerGroup": "group", "topic": "t", "queueId": 0, "commitOffset": 2}
        await client.invoke(addr, Command(UPDATE_CONSUMER_OFFSET.code, offset))
        before = log_files(fs)
        fs.capacity = fs.used() * 100 // 88
        await until(lambda: len(log_files(fs)) < len(before), "files are deleted")
        await client.invoke(addr, Command(CLEAN_EXPIRED_CONSUMEQUEUE.code))
        low = await offset_of(client, addr, GET_MIN_OFFSET.code, "t")
        assert 2 < low < 60
        moved = await client.invoke(addr, pull_request("t", 2))
        assert corrected(moved) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low)
        held = await client.invoke(addr, pull_request("t", 0, wait_ms=60_000), 10_000)
        assert held.code == ResponseCode.PULL_OFFSET_MOVED, "there is nothing to wait for"
        found = await client.invoke(addr, pull_request("t", low))
        assert found.code == ResponseCode.SUCCESS
        first = MessageExt(found.body, 0, "")
        assert (first.queue_offset, first.body) == (low, BODY)
        # What a group has committed is its own: it is corrected by what its pulls are told.
        group = {"consumerGroup": "group"}
        assert await offset_of(client, addr, QUERY_CONSUMER_OFFSET.code, "t", **group) == 2

        high = await offset_of(client, addr, GET_MAX_OFFSET.code, "gone")
        assert (high, await offset_of(client, addr, GET_MIN_OFFSET.code, "gone")) == (3, 3)
        told = [corrected(await client.invoke(addr, pull_request("gone", n))) for n in (0, 3, 4)]
        assert told == [
            (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 3),
            (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
            (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        ]
        fs.capacity *= 2
        back = await client.invoke(addr, send_request("gone", b"back"))
        assert back.ext is not None and int(back.ext["queueOffset"]) == 3


@pytest.mark.parametrize("batch", [False, True])
async def test_a_disk_full_to_the_last_block_refuses_sends_and_nothing_else(batch: bool) -> None:
    fs = MemoryFiles()
    async with cleaning(fs, clean_resource_interval=3_600_000) as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        fs.capacity = fs.used() + 100_000
        answers = await fill(client, addr, "t", 40, batch)
        refused = [answer for answer in answers if answer.code]
        assert 0 < len(refused) < 40
        for answer in refused:
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark is not None and "the broker's disk is full: /store/commitlog/" in answer.remark
        stored = 41 - len(refused)
        assert await offset_of(client, addr, GET_MAX_OFFSET.code, "t") == stored
        fs.capacity = fs.used()
        at = 0
        while at < stored:
            found = await client.invoke(addr, pull_request("t", at, commitOffset=at, sysFlag=5))
            assert found.code == ResponseCode.SUCCESS and found.ext is not None
            at = int(found.ext["nextBeginOffset"])
        new_topic = await client.invoke(addr, send_request("another", b"x"))
        assert new_topic.code == ResponseCode.SERVICE_NOT_AVAILABLE
        fs.capacity *= 2
        assert [answer.code for answer in await fill(client, addr, "t", 5, batch)] == [0] * 5
        assert await offset_of(client, addr, GET_MAX_OFFSET.code, "t") == stored + 5
    store = open_store(fs)
    assert store.max_offset("t", 0) == stored + 5


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_broker_stops_and_starts_on_a_full_disk(how: str) -> None:
    fs = MemoryFiles()
    async with cleaning(fs, clean_resource_interval=3_600_000, clean_file_forcibly_enable=False) as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        fs.capacity = fs.used() + 100_000
        stored = 1 + [answer.code for answer in await fill(client, addr, "t", 40)].count(0)
        fs.capacity = fs.used()
        killed = fs.killed()
    fs = killed if how == "killed" else fs
    fs.capacity = fs.used()
    async with cleaning(fs, clean_resource_interval=10, clean_file_forcibly_enable=False) as (client, addr):
        assert await offset_of(client, addr, GET_MAX_OFFSET.code, "t") == stored
        assert (await client.invoke(addr, pull_request("t", 0))).code == ResponseCode.SUCCESS
        refused = await client.invoke(addr, send_request("t", b"x"))
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        fs.capacity *= 2
        while refused.code:
            refused = await client.invoke(addr, send_request("t", b"x"))
        assert await offset_of(client, addr, GET_MAX_OFFSET.code, "t") == stored + 1


async def test_a_broker_whose_start_cannot_write_queues_refuses_sends_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        await client.invoke(addr, send_request("t", b"first"))
        fs = fs.killed()

    def no_room(operation: str, path: str) -> None:
        if path.startswith("/store/consumequeue/"):
            raise DiskFull("no room for a queue")

    fs.before_call = no_room
    async with running(fs) as (client, addr):
        refused = await client.invoke(addr, send_request("t", b"x"))
        assert (refused.code, refused.remark) == (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: the broker's disk is full:"
            " no room for a queue",
        )
        assert (
            "sends are refused: entries of consume queues cannot be written: no room for a queue;"
            " make room or mend the disk, then sends are accepted again"
        ) in caplog.messages
        assert (await client.invoke(addr, pull_request("t", 0))).code == ResponseCode.SUCCESS
        fs.before_call = None
        while refused.code:
            refused = await client.invoke(addr, send_request("t", b"x"))
        assert await offset_of(client, addr, GET_MAX_OFFSET.code, "t") == 2


async def test_above_90_percent_sends_are_refused_until_there_is_room() -> None:
    fs = MemoryFiles()
    async with cleaning(fs, clean_resource_interval=10, clean_file_forcibly_enable=False) as (client, addr):
        await fill(client, addr, "t", 10)
        fs.capacity = fs.used() * 100 // 95
        refused = Command(0)
        while not refused.code:
            refused = await client.invoke(addr, send_request("t", b"x"))
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark is not None and "in use, at most 90%: make room" in refused.remark
        status = await client.invoke(addr, Command(GET_BROKER_RUNTIME_INFO.code))
        assert decode_body(KVTable, status.body, status.codec).table["commitLogDiskRatio"] == "0.95"
        assert (await client.invoke(addr, pull_request("t", 0))).code == ResponseCode.SUCCESS
        fs.capacity *= 2
        while refused.code:
            refused = await client.invoke(addr, send_request("t", b"x"))


async def test_deletion_on_request() -> None:
    fs = MemoryFiles()
    async with cleaning(fs, clean_resource_interval=3_600_000) as (client, addr):
        await fill(client, addr, "t", 60)
        before = log_files(fs)
        answer = await client.invoke(addr, Command(DELETE_EXPIRED_COMMITLOG.code))
        assert answer.code == ResponseCode.SUCCESS
        fs.capacity = fs.used() * 100 // 88
        await client.invoke(addr, Command(DELETE_EXPIRED_COMMITLOG.code))
        await until(lambda: len(log_files(fs)) < len(before), "files are deleted")


async def test_queues_of_topics_that_are_not_there_go_on_request() -> None:
    fs = MemoryFiles()
    store = open_store(fs)
    for topic in ("unknown", "SCHEDULE_TOPIC_XXXX"):
        put(store, topic, 0, b"x")
    store.close()
    async with cleaning(fs) as (client, addr):
        await fill(client, addr, "known", 1)
        assert (await client.invoke(addr, Command(CLEAN_UNUSED_TOPIC.code))).code == ResponseCode.SUCCESS
        left = {path.split("/")[3] for path in fs.paths() if path.startswith("/store/consumequeue/")}
        assert left == {"known", "SCHEDULE_TOPIC_XXXX"}
        await fill(client, addr, "unknown", 1)
        assert await offset_of(client, addr, GET_MAX_OFFSET.code, "unknown") == 1
    store = open_store(fs.killed())
    assert store.max_offset("known", 0) == 1


async def test_a_file_that_cannot_be_removed_is_told_to_who_asked(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFiles()
    options = {"clean_resource_interval": 3_600_000, "mapped_file_size_consume_queue": 20 * 10}
    async with cleaning(fs, **options) as (client, addr):
        await fill(client, addr, "t", 200)
        fs.capacity = fs.used() * 100 // 99
        fs.faults.fail("remove", path_part="consumequeue", times=2)
        await client.invoke(addr, Command(DELETE_EXPIRED_COMMITLOG.code))
        await until(lambda: "could not be deleted" in caplog.text, "the line")
        codes = [(await client.invoke(addr, Command(CLEAN_EXPIRED_CONSUMEQUEUE.code))).code for _ in range(2)]
        assert codes == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS]
