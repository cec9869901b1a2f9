"""A group that is deleted with its offsets: what it failed on does not come to the next group of its name."""

import logging
from functools import partial

import pytest

from skylark.broker.registration import registrar
from skylark.broker.replication import slave as slave_module
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.groups import DELETE_SUBSCRIPTIONGROUP
from skylark.remoting.protocol.requests.offsets import UPDATE_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.topics import GET_TOPIC_CONFIG
from tests.broker.replication.dledger.groups import started
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.replication.test_role_change import acknowledged, switch
from tests.broker.running import send_request
from tests.support.waiting import until

RETRY, OTHERS_RETRY = "%RETRY%g", "%RETRY%g_T"
# Level 1 is due at once.
LEVELS = {"message_delay_level": "0s 1s"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)


async def ask(member: Running, request: Command) -> Command:
    answer = await member.client.invoke(member.addr, request, 5_000)
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer


async def has_topic(member: Running, topic: str = RETRY) -> bool:
    answer = await member.client.invoke(member.addr, Command(GET_TOPIC_CONFIG.code, {"topic": topic}), 5_000)
    return answer.code == ResponseCode.SUCCESS


async def fail_on(member: Running, body: bytes, group: str = "g", level: int = 2) -> None:
    """A consumer of the group gets a message and gives it back."""
    sent = await ask(member, send_request("T", body, n=member.broker.options.broker_name))
    offset = int((sent.ext or {})["msgId"][-16:], 16)
    await ask(member, Command(CONSUMER_SEND_MSG_BACK.code, {"offset": offset, "group": group, "delayLevel": level}))


async def delete_group(member: Running, clean: str = "true") -> None:
    await ask(member, Command(DELETE_SUBSCRIPTIONGROUP.code, {"groupName": "g", "cleanOffset": clean}))


async def dropped(member: Running) -> str:
    answer = await ask(member, Command(GET_BROKER_RUNTIME_INFO.code))
    return decode_body(KVTable, answer.body, answer.codec).table["droppedMessages"]


async def test_no_message_that_waits_or_came_back_comes_to_the_next_group(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with broker(**LEVELS) as member:
        await fail_on(member, b"came back", level=1)
        await member.has(RETRY, 1)
        await fail_on(member, b"old")
        await fail_on(member, b"older")
        # Its retry topic has the name of the pop retry topic of group g and topic T.
        await fail_on(member, b"of another group", "g_T")
        offset = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
        await ask(member, Command(UPDATE_CONSUMER_OFFSET.code, offset))
        await delete_group(member)
        assert not await has_topic(member)
        await fail_on(member, b"new")
        assert await member.has(RETRY, 1) == [b"new"]
        assert await member.has(OTHERS_RETRY, 1) == [b"of another group"]
        assert await dropped(member) == "2"
    lines = [line for line in caplog.messages if "are dropped" in line]
    assert len(lines) == 1 and f"delivered to {RETRY} are dropped, as it was deleted" in lines[0]


async def test_a_group_that_keeps_its_offsets_keeps_what_it_failed_on() -> None:
    async with broker(**LEVELS) as member:
        await fail_on(member, b"old", level=1)
        await delete_group(member, "false")
        await fail_on(member, b"new", level=1)
        assert await member.has(RETRY, 2) == [b"old", b"new"]


async def test_a_start_after_a_kill_knows_it() -> None:
    async with broker(**LEVELS) as member:
        await fail_on(member, b"old")
        await delete_group(member)
        await fail_on(member, b"new")
        left = member.kill()
    async with broker(left, **LEVELS) as member:
        assert await member.has(RETRY, 1) == [b"new"]


async def test_a_slave_that_becomes_the_master_knows_it() -> None:
    async with (
        namesrv() as addr,
        broker(namesrv_addr=addr, **LEVELS) as master,
        broker(namesrv_addr=addr, **SLAVE, **LEVELS) as slave,
    ):
        await fail_on(master, b"old")
        await until(partial(has_topic, slave), "the slave has the retry topic")
        await delete_group(master)

        async def is_gone() -> bool:
            return not await has_topic(slave)

        await until(is_gone, "the slave has the deletion")
        await switch(master, slave)
        await until(partial(acknowledged, slave), "the old master follows")
        await fail_on(slave, b"new")
        assert await slave.has(RETRY, 1) == [b"new"]


async def test_the_next_leader_of_a_group_of_brokers_knows_it() -> None:
    async with started(**LEVELS) as made:
        leader = await made.leader()
        await fail_on(leader, b"old")
        await delete_group(leader)
        leader.kill()
        leader = await made.leader(but=leader)
        await fail_on(leader, b"new")
        assert await leader.has(RETRY, 1) == [b"new"]
