"""A whole broker whose old files have left for a bucket: what clients and tools get of the messages in them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylark.broker.tier.reads import OlderReads
from skylark.broker.wiring import tier as tier_module
from skylark.mqcommon.disk.files import FileSystem
from skylark.mqcommon.message.message import MessageExt
from skylark.mqcommon.tier import view as view_module
from skylark.mqcommon.tier.bucket import BucketAway
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MIN_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
)
from skylark.remoting.protocol.requests.pops import (
    INIT_MIN,
    PEEK_MESSAGE,
    POP_MESSAGE,
    PeekMessageRequestHeader,
    PopMessageRequestHeader,
)
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from skylark.sdk.broker_api import query_messages
from skylark.sdk.endpoint import Endpoint
from tests.broker.running import pull_request, running, send_request
from tests.broker.test_send_pull import messages
from tests.broker.tier.test_reads import LostBucket
from tests.support.inline_tier import InlineUploader
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

KIB = 1024
COUNT = 40


@asynccontextmanager
async def broker_with(
    bucket: LostBucket, monkeypatch: pytest.MonkeyPatch, fs: FileSystem, **options: Any
) -> AsyncIterator[tuple[RemotingClient, str]]:
    """A broker that keeps one small file of its log, and uploads the others in this process."""
    monkeypatch.setattr(tier_module, "open_bucket", lambda url, **_: bucket)
    monkeypatch.setattr(tier_module, "ChildUploader", lambda url, timeout_s: InlineUploader(bucket, fs))
    sizes = {"mapped_file_size_commit_log": 4 * KIB, "tier_local_bytes": 4 * KIB}
    often = {"clean_resource_interval": 1_000, "delete_commit_log_files_interval": 1}
    async with running(fs, tier_path="file:///of-the-test", **sizes, **often, **options) as (client, addr):
        yield client, addr


def first_file(fs: MemoryFiles) -> int:
    """Where the log in the store begins."""
    return min(int(path.rpartition("/")[2]) for path in fs.paths() if path.startswith("/store/commitlog/"))


def field(answer: Command, name: str) -> int:
    return int((answer.ext or {})[name])


async def test_clients_and_tools_get_messages_whose_files_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, fs = LostBucket(), MemoryFiles()
    async with broker_with(bucket, monkeypatch, fs) as (client, addr):
        for number in range(COUNT):
            body = b"%d" % number + b"x" * 500
            assert (await client.invoke(addr, send_request("t", body, properties=f"KEYS\x01k{number}\x02"))).code == 0
        await until(lambda: first_file(fs) >= 4 * 4 * KIB, "a cleaning")

        async def ask(code: int, **fields: Any) -> Command:
            return await client.invoke(addr, Command(code, fields))

        offset, found = 0, list[MessageExt]()
        while offset < COUNT:
            answer = await client.invoke(addr, pull_request("t", offset))
            assert (answer.code, field(answer, "minOffset")) == (ResponseCode.SUCCESS, 0)
            found += messages(answer)
            offset = field(answer, "nextBeginOffset")
        assert [message.queue_offset for message in found] == list(range(COUNT))
        assert [message.body for message in found] == [b"%d" % number + b"x" * 500 for number in range(COUNT)]
        place = {"topic": "t", "queueId": 0}
        assert field(await ask(GET_MIN_OFFSET.code, **place), "offset") == 0
        answer = await ask(GET_EARLIEST_MSG_STORETIME.code, **place)
        assert field(answer, "timestamp") == found[0].store_timestamp
        answer = await ask(SEARCH_OFFSET_BY_TIMESTAMP.code, **place, timestamp=found[5].store_timestamp)
        assert found[field(answer, "offset")].store_timestamp == found[5].store_timestamp
        answer = await ask(VIEW_MESSAGE_BY_ID.code, offset=found[3].physical_offset)
        assert MessageExt(answer.body, 0, "").body == found[3].body
        query = {"topic": "t", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        answer = await ask(QUERY_MESSAGE.code, **query, key="k7")
        assert [message.body for message in messages(answer)] == [found[7].body]

        # Nobody is moved while the bucket is away, and sends go on.
        bucket.failure = BucketAway("unplugged")
        for answer in (
            await ask(QUERY_MESSAGE.code, **query, key="k8"),
            await client.invoke(addr, pull_request("t", 0)),
        ):
            assert answer.code == ResponseCode.SYSTEM_BUSY and "unplugged" in str(answer.remark)
        assert (await client.invoke(addr, send_request("t", b"more"))).code == 0
        assert len(messages(await client.invoke(addr, pull_request("t", COUNT)))) == 1


async def test_a_task_of_spark_that_is_run_again_finds_its_claim_behind_many_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key of a claim has no time: it would be searched around the beginning of a month only."""
    monkeypatch.setattr(view_module, "NEAR_SEGMENTS", 4)
    bucket, fs, key = LostBucket(), MemoryFiles(), "5ca1ab1edecade00" + "0" * 16
    async with broker_with(bucket, monkeypatch, fs) as (client, addr):
        files, claim_in = 14, 7
        for number in range(2 * files):
            named = f"UNIQ_KEY\x01{key}\x02" if number == 2 * claim_in else ""
            body = b"%d" % number + b"x" * 1_700
            assert (await client.invoke(addr, send_request("t", body, properties=named))).code == 0
        await until(lambda: first_file(fs) >= (files - 4) * 4 * KIB, "a cleaning")
        why: list[str] = []

        async def found(key: str) -> list[bytes]:
            at, times = Endpoint(client, addr), {"begin_ms": 0, "end_ms": 1 << 60}
            found = await query_messages(at, "t", key, max_num=32, **times, unique=True, on_partial=why.append)
            return [message.body for message in found]

        assert await found(key) == [b"%d" % (2 * claim_in) + b"x" * 1_700]
        assert await found("5ca1ab1edecade01" + "0" * 16) == []
        assert not why


async def test_what_a_killed_process_kept_of_the_bucket_goes_also_when_the_tier_is_switched_off() -> None:
    fs = MemoryFiles()
    fs.overwrite("/store/tiercache", bytes(100))
    async with running(fs):
        assert not fs.exists("/store/tiercache")


async def test_a_pop_gets_messages_of_several_queues_and_goes_on_without_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, fs = LostBucket(), MemoryFiles()
    async with broker_with(bucket, monkeypatch, fs) as (client, addr):
        for number in range(COUNT):
            body = b"%d" % number + b"x" * 500
            assert (await client.invoke(addr, send_request("t", body, queue_id=number % 2))).code == 0
        await until(lambda: first_file(fs) >= 4 * 4 * KIB, "a cleaning")
        for number in range(3):
            await client.invoke(addr, send_request("t", b"new %d" % number, queue_id=2))

        async def pop(most: int, queue_id: int = -1) -> Command:
            header = PopMessageRequestHeader("g", "t", queue_id, most, 60_000, 0, 0, INIT_MIN)
            return await client.invoke(addr, Command(POP_MESSAGE.code, header.to_ext()))

        answer = await pop(32)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = messages(answer)
        assert {(message.queue_id, message.queue_offset) for message in found} >= {(0, 0), (1, 0), (2, 0)}
        bucket.failure = BucketAway("unplugged")
        bucket.objects.clear()
        group = PopMessageRequestHeader("other", "t", -1, 32, 60_000, 0, 0, INIT_MIN)
        answer = await client.invoke(addr, Command(QUERY_MESSAGE.code, {
            "topic": "t", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}))  # fmt: skip
        assert answer.code == ResponseCode.SYSTEM_BUSY
        answer = await client.invoke(addr, Command(POP_MESSAGE.code, group.to_ext()))
        assert {message.body for message in messages(answer)} >= {b"new 0", b"new 1", b"new 2"}
        assert all(message.queue_id == 2 for message in messages(answer))
        group.consumer_group, group.queue_id = "third", 0
        assert (await client.invoke(addr, Command(POP_MESSAGE.code, group.to_ext()))).code == ResponseCode.SYSTEM_BUSY
        peek = PeekMessageRequestHeader("t", -1, 32, "third")
        answer = await client.invoke(addr, Command(PEEK_MESSAGE.code, peek.to_ext()))
        assert [message.body for message in messages(answer)] == [b"new 0", b"new 1", b"new 2"]
        # A group may begin where no queue's first offset was read yet.
        monkeypatch.setattr(OlderReads, "known_first", lambda reads, topic, queue_id: None)
        group.consumer_group, group.queue_id = "fourth", -1
        answer = await client.invoke(addr, Command(POP_MESSAGE.code, group.to_ext()))
        assert [message.body for message in messages(answer)] == [b"new 0", b"new 1", b"new 2"]
