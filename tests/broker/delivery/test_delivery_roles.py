"""Delayed and timed messages in a set of brokers: on the slave with the log, delivered by whoever is the master."""

from collections import Counter
from functools import partial

import pytest

from skylark.broker.registration import registrar as registrar_module
from skylark.broker.replication import slave as slave_module
from skylark.broker.replication.role import RoleKind
from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.names import SCHEDULE_TOPIC
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.offsets import GET_ALL_DELAY_OFFSET, DelayOffsetTable
from skylark.remoting.protocol.requests.query import QUERY_CONSUME_QUEUE
from tests.broker.replication.sets import SLAVE, Running, broker, namesrv
from tests.broker.running import pull_request, send_request
from tests.support.waiting import until

LEVELS = {"message_delay_level": "0s 1h"}
NOW, IN_AN_HOUR = "DELAY\x011\x02", "DELAY\x012\x02"
SOON, LATER = "TIMER_DELAY_MS\x011\x02", "TIMER_DELAY_MS\x013000\x02"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "MASTERLESS_S", 0.02)
    monkeypatch.setattr(slave_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(slave_module, "MAX_PAUSE_S", 0.05)


async def send(member: Running, body: bytes, properties: str, topic: str = "T") -> bool:
    answer = await member.client.invoke(member.addr, send_request(topic, body, properties=properties), 10_000)
    return answer.code == ResponseCode.SUCCESS


async def saved(member: Running) -> dict[int, int]:
    answer = await member.client.invoke(member.addr, Command(GET_ALL_DELAY_OFFSET.code))
    return decode_body(DelayOffsetTable, answer.body, answer.codec).offset_table


async def become_master(member: Running) -> None:
    member.broker.role.promoted()
    await until(lambda: member.broker.role.now.kind is RoleKind.MASTER, "it took over")


async def test_a_promoted_slave_goes_on_where_the_master_was() -> None:
    async with namesrv() as addr:
        common = {"namesrv_addr": addr, **LEVELS}
        async with (
            broker(**common, broker_role="SYNC_MASTER", total_replicas=2) as one,
            broker(**common, **SLAVE) as two,
        ):
            await until(partial(send, one, b"0", "", "W"), "the slave follows")
            for number in range(10):
                assert await send(one, b"%d" % number, NOW)
            assert await send(one, b"later", IN_AN_HOUR)
            await one.has("T", 10)
            await until_equal(two, {1: 10})
            one.broker.role.demoted(2)
            await until(lambda: two.log_end == one.log_end, "the slave has all")
            await become_master(two)
            await until(partial(send, two, b"10", NOW), "the other one follows")
            found = Counter(await two.has("T", 11))
            assert [found[b"%d" % number] for number in range(10)] == [1] * 10, "nothing comes twice"
            # The level that is not due is whole, with the times that the master noted.
            answers = [
                await each.client.invoke(each.addr, Command(QUERY_CONSUME_QUEUE.code, {
                    "topic": SCHEDULE_TOPIC, "queueId": 1, "index": 0, "count": 5,
                }))
                for each in (one, two)
            ]  # fmt: skip
            assert answers[0].body == answers[1].body != b""
            (waiting,) = decode_messages(
                (await two.client.invoke(two.addr, pull_request(SCHEDULE_TOPIC, 0, queue_id=1))).body
            )
            assert waiting.body == b"later"


async def until_equal(member: Running, offsets: dict[int, int]) -> None:
    async def equal() -> bool:
        return await saved(member) == offsets

    await until(equal, f"the delay offsets of {member.addr} are {offsets}")


async def test_a_slave_delivers_nothing_by_itself() -> None:
    async with namesrv() as addr:
        common = {"namesrv_addr": addr, **LEVELS}
        async with broker(**common) as one, broker(**common, **SLAVE) as two:
            one.broker.role.demoted(2)
            assert not await send(one, b"x", NOW)
            await become_master(two)
            await until(partial(send, two, b"a", NOW), "the other one follows")
            await two.has("T", 1)
            await one.has("T", 1)
            assert set(await one.bodies("T")) == {b"a"}


async def test_a_broker_that_was_killed_delivers_what_was_due_meanwhile() -> None:
    async with broker(**LEVELS) as one:
        assert await send(one, b"a", NOW)
        await one.has("T", 1)
        await until_equal(one, {1: 1})
        assert await send(one, b"b", NOW)
        fs = one.kill()
    async with broker(fs, **LEVELS) as again:
        assert sorted(set(await again.has("T", 2))) == [b"a", b"b"]


# --- timed messages


async def test_a_promoted_slave_goes_on_where_its_log_ends() -> None:
    async with namesrv() as addr:
        common = {"namesrv_addr": addr, "timer_precision_ms": 100}
        async with (
            broker(**common, broker_role="SYNC_MASTER", total_replicas=2) as one,
            broker(**common, **SLAVE) as two,
        ):
            await until(partial(send, one, b"0", "", "W"), "the slave follows")
            assert await send(one, b"later", LATER)
            for number in range(5):
                assert await send(one, b"%d" % number, SOON)
            await one.has("T", 5)
            one.broker.role.demoted(2)
            await until(lambda: two.log_end == one.log_end, "the slave has all")
            await become_master(two)
            # This send makes the topic there, if the slave has not copied it from its master yet. It may be repeated.
            await until(partial(send, two, b"again", SOON), "the other one follows")

            async def later_came() -> bool:
                return b"later" in await two.bodies("T")

            await until(later_came, "what waited is delivered")
            await until(lambda: two.log_end == one.log_end, "the other one has all")
            for each in (one, two):
                found = [body for body in await each.bodies("T") if body != b"again"]
                assert sorted(found) == [b"0", b"1", b"2", b"3", b"4", b"later"]


async def test_a_broker_that_was_killed_delivers_what_was_due_meanwhile_once() -> None:
    async with broker(timer_precision_ms=100) as one:
        assert await send(one, b"a", SOON)
        await one.has("T", 1)
        assert await send(one, b"b", "TIMER_DELAY_MS\x01700\x02")
        fs = one.kill()
    async with broker(fs, timer_precision_ms=100) as again:
        assert await again.has("T", 2) == [b"a", b"b"]
