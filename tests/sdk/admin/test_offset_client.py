"""`OffsetAdmin` against fakes of brokers, also of those that cannot reset offsets while no consumer is connected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqcommon.errors import BrokerError, UserError
from remoting.protocol.requests.clients import ProducerInfo, ProducerTableInfo
from remoting.protocol.requests.groups import (
    ConsumeOffset,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from remoting.protocol.requests.offsets import GetConsumerStatusBody, ResetOffsetBody
from sdk.admin.client import rollback_of
from tests.sdk.admin.two_brokers import cluster, ext, mq


async def test_both_brokers_reset() -> None:
    config = b"a=b\n"
    async with cluster() as it:
        it.a.on(222, lambda request: ResetOffsetBody({mq("broker-a"): 1}))
        it.b.on(222, lambda request: ResetOffsetBody({mq("broker-b"): 2}))
        assert await it.admin.reset_offsets("g", "t", 5, force=False) == {mq("broker-a"): 1, mq("broker-b"): 2}
        assert ext(it.a.asked(222)[0]) == {
            "group": "g", "topic": "t", "timestamp": "5", "isForce": "false", "queueId": "-1", "offset": "-1",
        }  # fmt: skip
        it.a.on(26, lambda request: request.respond(ext={"version": "1"}, body=config))
        with pytest.raises(UserError, match="cannot reset one queue"):
            await it.admin.reset_queue(it.a.addr, "g", "t", 0, -1, 7)
        config = b"a=b\nuseServerSideResetOffset=true\n"
        assert await it.admin.reset_queue(it.a.addr, "g", "t", 0, -1, 7) == {mq("broker-a"): 1}
        asked = ext(it.a.asked(222)[1])
        assert (asked["queueId"], asked["offset"]) == ("0", "7")


async def test_a_broker_that_only_tells_consumers_has_its_offsets_committed() -> None:
    async with cluster() as it:
        for broker in (it.a, it.b):
            broker.on(222, lambda request: request.respond(206, "Consumer not online, so can not reset offset"))
            broker.on(29, lambda request: {"offset": "3"})
            broker.on(15, lambda request: request.respond())
        it.a.on(208, lambda request: ConsumeStats({mq("broker-a"): ConsumeOffset(10, 7, 8, 1)}))
        it.b.on(208, lambda request: ConsumeStats({mq("broker-b"): ConsumeOffset(10, 2, 8, 1)}))
        assert await it.admin.reset_offsets("g", "t", 5) == {mq("broker-a"): 3, mq("broker-b"): 3}
        assert await it.admin.reset_offsets("g", "t", 5, force=False) == {mq("broker-a"): 3, mq("broker-b"): 2}
        assert await it.admin.reset_offsets("g", "t", -1) == {mq("broker-a"): 10, mq("broker-b"): 10}
        assert [ext(request)["commitOffset"] for request in it.b.asked(15)] == ["3", "2", "10"]
        rows = await it.admin.roll_back_offsets("g", "t", 5)
        assert [(row.consumer_offset, row.timestamp_offset, row.rollback_offset) for row in rows] == [
            (7, 3, 3),
            (2, 3, 3),
        ]


async def test_another_refusal_is_an_error() -> None:
    async with cluster() as it:
        it.a.on(222, lambda request: ResetOffsetBody({}))
        it.b.on(222, lambda request: request.respond(26, "Group g does not exist"))
        with pytest.raises(BrokerError, match="Group g does not exist"):
            await it.admin.reset_offsets("g", "t", 5)


async def test_what_clients_and_brokers_say_is_merged() -> None:
    async with cluster() as it:
        it.a.on(223, lambda request: GetConsumerStatusBody(consumer_table={"c": {mq("broker-a"): 1}}))
        it.b.on(223, lambda request: GetConsumerStatusBody(consumer_table={"c": {mq("broker-b"): 2}, "d": {}}))
        assert await it.admin.consumer_status("g", "t") == {"c": {mq("broker-a"): 1, mq("broker-b"): 2}, "d": {}}
        for broker in (it.a, it.b):
            broker.on(303, lambda request: QueryConsumeTimeSpanBody([QueueTimeSpan(mq("x"), delay_time=9)]))
            broker.on(314, lambda request: request.respond())
        assert [span.delay_time for span in await it.admin.consume_time_spans("g", "t")] == [9, 9]
        await it.admin.clone_group_offsets("g", "h", "t")
        assert len(it.a.asked(314)) == len(it.b.asked(314)) == 1


async def test_one_broker() -> None:
    async with cluster() as it:
        it.a.on(317, lambda request: ConsumeStatsList([{"g": [ConsumeStats()]}], it.a.addr, 7))
        it.a.on(201, lambda request: SubscriptionGroupTable({"g": SubscriptionGroupConfig("g")}))
        it.a.on(328, lambda request: ProducerTableInfo({"p": [ProducerInfo("c")]}))
        assert (await it.admin.broker_consume_stats(it.a.addr)).total_diff == 7
        assert (await it.admin.group_config(it.a.addr, "g")).group_name == "g"
        with pytest.raises(BrokerError, match="Group h does not exist"):
            await it.admin.group_config(it.a.addr, "h")
        assert list((await it.admin.all_producers(it.a.addr)).data) == ["p"]


async def test_arguments_are_checked() -> None:
    async with cluster() as it:
        with pytest.raises(ValueError, match="group"):
            await it.admin.reset_offsets("a b", "t", 5)
        with pytest.raises(TypeError, match="timestamp_ms"):
            await it.admin.reset_offsets("g", "t", "now")  # type: ignore[arg-type]


OFFSETS = st.integers(0, 1 << 62)


@given(OFFSETS, OFFSETS, st.integers(-1, 1 << 62), st.booleans())
def test_a_group_is_moved_to_the_time_or_stays(end: int, consumed: int, by_time: int, force: bool) -> None:
    row = rollback_of(mq("a"), ConsumeOffset(end, consumed, consumed, 0), by_time, force=force)
    assert row.rollback_offset in (max(by_time, 0), consumed)
    assert row.rollback_offset <= consumed or force
    assert not force or row.rollback_offset == row.timestamp_offset
