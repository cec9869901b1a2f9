"""303, 308, 317; 208 is in test_stats.py with its neighbours."""

import pytest

from broker.observe.consume_stats import NO_CORRECTION
from mqcommon.arguments import LONG_MAX
from mqcommon.message.queue import MessageQueue
from remoting.protocol.command import CBOR
from remoting.protocol.dialect import decode_body
from remoting.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.requests.groups import (
    GET_BROKER_CONSUME_STATS,
    QUERY_CONSUME_TIME_SPAN,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    SubscriptionGroupConfig,
)
from remoting.protocol.requests.offsets import QUERY_CORRECTION_OFFSET, CorrectionOffsets
from remoting.protocol.requests.topics import TopicConfig
from tests.broker.desk import Desk
from tests.broker.store.support import put
from tests.support.caller import Caller

SPAN = QUERY_CONSUME_TIME_SPAN.code
CORRECTION = QUERY_CORRECTION_OFFSET.code
ALL = GET_BROKER_CONSUME_STATS.code


def desk_with_messages() -> Desk:
    """Queue 1 of T has three messages, one a second."""
    desk = Desk()
    desk.meta.topics.put(TopicConfig("T", 2, 2))
    for _ in range(3):
        put(desk.store, "T", 1, b"x")
        desk.clock.advance(1_000)
    return desk


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_time_spans(codec: int) -> None:
    desk = desk_with_messages()
    now_ms = desk.clock.now_ms()

    async def spans() -> list[tuple[int, ...]]:
        answer = await desk.ask(SPAN, {"topic": "T", "group": "g"}, codec=codec)
        found = decode_body(QueryConsumeTimeSpanBody, answer.body, codec).consume_time_span_set
        assert [one.message_queue for one in found] == [MessageQueue("T", "broker-a", number) for number in (0, 1)]
        return [(one.min_time_stamp, one.max_time_stamp, one.consume_time_stamp, one.delay_time) for one in found]

    assert await spans() == [(-1, -1, -1, 0), (now_ms - 3_000, now_ms - 1_000, now_ms - 3_000, 3_000)]
    desk.meta.offsets.commit("g", "T", 1, 2)
    assert (await spans())[1] == (now_ms - 3_000, now_ms - 1_000, now_ms - 2_000, 1_000)
    desk.meta.offsets.commit("g", "T", 1, 3)
    assert (await spans())[1] == (now_ms - 3_000, now_ms - 1_000, now_ms - 1_000, 0)


async def test_unknown_topics() -> None:
    for code, ext in ((SPAN, {"group": "g"}), (CORRECTION, {"compareGroup": "g"})):
        answer = await Desk().ask(code, {"topic": "T", **ext})
        assert (answer.code, answer.remark) == (17, "topic[T] not exist")


async def test_the_lowest_offsets_of_all_groups() -> None:
    desk = desk_with_messages()
    for group, queue_id, offset in (("a", 1, 2), ("b", 1, 1), ("b", 0, 0), ("late", 1, 0)):
        desk.meta.offsets.commit(group, "T", queue_id, offset)

    async def lowest(compare: str, left_out: str) -> dict[int, int]:
        ext = {"topic": "T", "compareGroup": compare, "filterGroups": left_out}
        return decode_body(CorrectionOffsets, (await desk.ask(CORRECTION, ext)).body).correction_offsets

    assert await lowest("none", "late") == {0: 0, 1: 1}
    assert await lowest("none", "late, b") == {1: 2}
    assert await lowest("none", "") == {0: 0, 1: 0}
    assert await lowest("late", "late") == {0: 0, 1: NO_CORRECTION}
    assert desk.meta.offsets.query("late", "T", 1) == 0


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_the_progress_of_all_groups(codec: int) -> None:
    desk = desk_with_messages()
    desk.meta.topics.put(TopicConfig("ordered", 1, 1, order=True))
    for group in ("g", "idle", "moved"):
        desk.meta.groups.put(SubscriptionGroupConfig(group))
    desk.meta.offsets.commit("g", "T", 1, 1)
    desk.meta.offsets.commit("g", "ordered", 0, 0)
    desk.meta.offsets.commit("g", "gone", 0, 5)
    desk.meta.offsets.commit("moved", "T", 1, 0)
    data = ConsumerData("moved", subscription_data_set=[SubscriptionData("other")])
    desk.clients.consume(Caller().channel, HeartbeatData("c"), data, "JAVA", 479, 0)

    async def ask(*, is_order: bool) -> tuple[dict[str, list[str]], int]:
        answer = await desk.ask(ALL, {"isOrder": is_order}, codec=codec)
        found = decode_body(ConsumeStatsList, answer.body, codec)
        assert found.broker_addr == "127.0.0.1:10911"
        rows = [item for one in found.consume_stats_list for item in one.items()]
        return {group: [min(one.offset_table).topic for one in stats] for group, stats in rows}, found.total_diff

    groups, diff = await ask(is_order=False)
    assert {name: groups[name] for name in ("g", "idle", "moved")} == {"g": ["T", "ordered"], "idle": [], "moved": []}
    assert diff == 2
    assert (await ask(is_order=True))[0]["g"] == ["ordered"]


async def test_offsets_far_past_the_end_do_not_break_the_sums() -> None:
    desk = desk_with_messages()
    desk.meta.groups.put(SubscriptionGroupConfig("g"))
    for queue_id in range(2):
        desk.meta.offsets.commit("g", "T", queue_id, LONG_MAX)
    answer = await desk.ask(ALL, {"isOrder": False})
    found = decode_body(ConsumeStatsList, answer.body)
    assert (found.total_diff, found.total_inflight_diff) == (-LONG_MAX - 1, 0)
