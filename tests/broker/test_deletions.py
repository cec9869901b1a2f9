"""A topic's deletion seen from outside: whole or not begun, whenever the broker dies, and on slaves as well."""

from functools import partial
from random import Random

import pytest

from skylark.broker.replication.copied_deletions import CopiedDeletions
from skylark.mqcommon.message.flags import TRANSACTION_COMMIT
from skylark.mqcommon.message.message import decode_messages
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.offsets import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG, UPDATE_AND_CREATE_TOPIC
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION, EndTransactionRequestHeader
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.replication.test_role_change import switch
from tests.broker.running import pull_request, running, send_request
from tests.support.amounts import share_of
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

OFFSET = {"consumerGroup": "group", "topic": "T", "queueId": 0}


async def code_of(client: RemotingClient, addr: str, request: Command) -> int:
    return (await client.invoke(addr, request, 5_000)).code


async def bodies(client: RemotingClient, addr: str, topic: str = "T") -> list[bytes]:
    answer = await client.invoke(addr, pull_request(topic, 0))
    return [message.body for message in decode_messages(answer.body)]


def delete(topic: str = "T") -> Command:
    return Command(DELETE_TOPIC_IN_BROKER.code, {"topic": topic})


def create(topic: str = "T") -> Command:
    return Command(UPDATE_AND_CREATE_TOPIC.code, {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    })  # fmt: skip


async def images_of_a_deletion() -> list[MemoryFiles]:
    """The disks that a kill and a power loss leave at each call to the disk, from the request to after the answer."""
    fs, images, random = MemoryFiles(), list[MemoryFiles](), Random(7)

    def note(operation: str, path: str) -> None:
        if operation != "read":
            fs.before_call = None
            images.extend([fs.killed(), fs.crash(random)])
            fs.before_call = note

    async with running(fs, flush_disk_type="SYNC_FLUSH") as (client, addr):
        for queue_id in (0, 1):
            assert await code_of(client, addr, send_request("T", b"old", queue_id=queue_id)) == 0
        assert await code_of(client, addr, send_request("Other", b"kept")) == 0
        assert await code_of(client, addr, Command(UPDATE_CONSUMER_OFFSET.code, {**OFFSET, "commitOffset": 1})) == 0
    async with running(fs, flush_disk_type="SYNC_FLUSH") as (client, addr):
        fs.before_call = note
        assert await code_of(client, addr, delete()) == 0
        fs.before_call = None
        images += [fs.killed(), fs.crash(random)]
    return images


async def test_a_kill_at_any_step_leaves_the_whole_topic_or_none_and_its_successor_begins_empty() -> None:
    images = await images_of_a_deletion()
    assert len(images) > 20
    deleted = []
    for image in [*share_of(images[:-2], 4), *images[-2:]]:
        async with running(image, flush_disk_type="SYNC_FLUSH") as (client, addr):
            is_there = await code_of(client, addr, Command(GET_TOPIC_CONFIG.code, {"topic": "T"})) == 0
            deleted.append(not is_there)
            if is_there:
                assert await bodies(client, addr) == [b"old"]
                continue
            assert not image.exists("/store/consumequeue/T")
            # Without a committed offset a group begins at the start of the queue.
            answer = await client.invoke(addr, Command(QUERY_CONSUMER_OFFSET.code, OFFSET))
            assert int((answer.ext or {})["offset"]) == 0
            answer = await client.invoke(addr, send_request("T", b"new"), 5_000)
            assert (answer.code, int((answer.ext or {})["queueOffset"])) == (0, 0)
            assert await bodies(client, addr) == [b"new"]
            assert await bodies(client, addr, "Other") == [b"kept"]
        async with running(image) as (client, addr):
            assert await bodies(client, addr) == [b"new"]
    # The first images are from before the mark; the answer came after it.
    assert (deleted[0], *deleted[-2:]) == (False, True, True)


async def test_what_cannot_be_removed_is_said_and_nobody_makes_the_topic_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skylark.broker.tasks.delete_topics.RETRY_S", 0.01)
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        await client.invoke(addr, send_request("T", b"old"))
    async with running(fs) as (client, addr):
        fs.faults.fail("remove", path_part="/consumequeue/T/", times=1_000_000)
        answer = await client.invoke(addr, delete())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "tried again" in (answer.remark or "")
        assert await code_of(client, addr, create()) == ResponseCode.SYSTEM_ERROR
        assert await code_of(client, addr, send_request("T", b"x")) == ResponseCode.TOPIC_NOT_EXIST
        fs.faults.clear()

        async def is_made() -> bool:
            return await code_of(client, addr, create()) == 0

        await until(is_made, "the deletion is finished")
        assert await bodies(client, addr) == []


async def test_queues_that_a_start_rebuilds_of_deleted_topics_go_again() -> None:
    fs = MemoryFiles()
    async with running(fs) as (client, addr):
        for topic, body in (("T", b"old"), ("Gone", b"old"), ("Other", b"kept")):
            assert await code_of(client, addr, send_request(topic, body)) == 0
        for topic in ("T", "Gone"):
            assert await code_of(client, addr, delete(topic)) == 0
        assert await code_of(client, addr, create()) == 0
        assert await code_of(client, addr, send_request("T", b"new", queue_id=1)) == 0
    fs.remove("/store/queueEnds")  # a start looks into the whole log, where all messages are
    async with running(fs) as (client, addr):
        assert await bodies(client, addr) == []
        assert await bodies(client, addr, "Other") == [b"kept"]
        assert int((await client.invoke(addr, send_request("T", b"more", queue_id=1))).ext["queueOffset"]) == 1  # type: ignore[index]
        assert sorted(fs.listdir("/store/consumequeue")) == ["Other", "T"]


@pytest.mark.parametrize("promoted", ["no", "later", "before it has dropped them"])
async def test_a_slave_that_was_away_drops_the_old_messages_of_a_topic_that_was_made_again(
    promoted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if promoted.startswith("before"):
        monkeypatch.setattr(CopiedDeletions, "follow_log", _nothing)
    async with namesrv() as addr, broker(namesrv_addr=addr) as master:
        fs = MemoryFiles()
        async with broker(fs, namesrv_addr=addr, **SLAVE) as slave:
            await master.send("T", b"old")
            await slave.has("T", 1)
        assert await code_of(master.client, master.addr, delete()) == 0
        assert await code_of(master.client, master.addr, create()) == 0
        await master.send("Other", b"more")
        async with broker(fs, namesrv_addr=addr, **SLAVE) as slave:
            await slave.has("Other", 1)
            if promoted.startswith("before"):
                assert await slave.bodies("T") == [b"old"]
            else:
                await until(partial(_is_empty, slave), "the old message is gone")
                await until(lambda: not fs.exists("/store/consumequeue/T/0"), "a thread has removed the file")
            if promoted != "no":
                await switch(master, slave)
                await until(partial(_stores, slave, b"new"), "the new master stores a message")
                assert await slave.has("T", 1) == [b"new"]


async def test_a_transaction_counts_as_sent_when_it_is_committed() -> None:
    async with running() as (client, addr):
        half = send_request("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01group\x02")
        answer = await client.invoke(addr, half)
        place = int((answer.ext or {})["msgId"][-16:], 16)
        assert await code_of(client, addr, delete()) == 0
        assert await code_of(client, addr, create()) == 0
        commit = EndTransactionRequestHeader("group", 0, place, TRANSACTION_COMMIT)
        assert await code_of(client, addr, END_TRANSACTION.command(commit)) == 0
        assert await bodies(client, addr) == [b"half"]


async def _nothing(self: CopiedDeletions) -> None:
    """The log has not come to the deletion."""


async def _stores(member: Running, body: bytes) -> bool:
    answer = await member.client.invoke(member.addr, send_request("T", body))
    if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        return False
    # The former master, as a slave, confirms the message or does not follow yet.
    stored = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    assert answer.code in stored, answer
    return True


async def _is_empty(member: Running) -> bool:
    return not await member.bodies("T")
