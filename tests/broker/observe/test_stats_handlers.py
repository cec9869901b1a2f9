"""202, 208, 300, 303, 308, 315, 317, 343, and the sampling of the counters."""

import pytest
import trio
import trio.testing

from skylark.broker.meta import consumer_offsets
from skylark.broker.observe import group_overview, stats_handlers
from skylark.broker.observe.stats_handlers import NO_CORRECTION, QUEUES, TOPICS
from skylark.mqcommon.arguments import LONG_MAX
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.channel import Channel
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.brokers import VIEW_BROKER_STATS_DATA, BrokerStatsData
from skylark.remoting.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from skylark.remoting.protocol.requests.groups import (
    GET_BROKER_CONSUME_STATS,
    GET_CONSUME_STATS,
    QUERY_CONSUME_TIME_SPAN,
    QUERY_TOPICS_BY_CONSUMER,
    ConsumeStats,
    ConsumeStatsList,
    GroupMembers,
    QueryConsumeTimeSpanBody,
    SubscriptionGroupConfig,
    Traffic,
)
from skylark.remoting.protocol.requests.offsets import QUERY_CORRECTION_OFFSET, CorrectionOffsets
from skylark.remoting.protocol.requests.proxied import ProxiedClient
from skylark.remoting.protocol.requests.topics import (
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    GroupList,
    TopicConfig,
    TopicList,
    TopicStatsTable,
)
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


def connect(desk: Desk, group: str, topic: str) -> Channel:
    channel = Caller().channel
    data = ConsumerData(group, subscription_data_set=[SubscriptionData(topic)])
    desk.clients.join_consumer_group(channel, HeartbeatData("client"), data, "JAVA", 479, 0)
    return channel


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_the_offsets_of_a_topics_queues_are_shown(codec: int) -> None:
    desk = desk_with_messages()
    desk.stats.put("T", 30, 1)
    answer = await desk.ask(GET_TOPIC_STATS_INFO.code, {"topic": "T"}, codec=codec)
    table = decode_body(TopicStatsTable, answer.body, codec)
    assert table.topic_put_tps == 3.0
    empty, full = (table.offset_table[MessageQueue("T", "broker-a", queue_id)] for queue_id in (0, 1))
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert full.last_update_timestamp == desk.clock.now_ms() - 1000


async def test_messages_that_are_not_confirmed_do_not_count() -> None:
    """30 does not count them either, and pulls do not return them."""
    desk = desk_with_messages()
    desk.store.confirmed = lambda: desk.store.log.end - 1
    answer = await desk.ask(GET_TOPIC_STATS_INFO.code, {"topic": "T"}, codec=0)
    full = decode_body(TopicStatsTable, answer.body, 0).offset_table[MessageQueue("T", "broker-a", 1)]
    assert full.max_offset == desk.store.visible_end("T", 1) == 2
    assert full.last_update_timestamp == desk.clock.now_ms() - 2000


async def test_offsets_are_shown_as_old_java_reads_them() -> None:
    desk = desk_with_messages()
    answer = await desk.ask(GET_TOPIC_STATS_INFO.code, {"topic": "T"}, version=300)
    assert b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{' in answer.body


@pytest.mark.parametrize("code", [GET_TOPIC_STATS_INFO.code, SPAN, CORRECTION])
async def test_an_unknown_topic_is_refused(code: int) -> None:
    answer = await Desk().ask(code, {"topic": "T", "group": "g", "compareGroup": "g"})
    assert (answer.code, answer.remark) == (17, "topic[T] not exist")


async def test_progress_of_a_group() -> None:
    desk = desk_with_messages()
    desk.meta.offsets.commit("g", "T", 1, 2)
    desk.meta.offsets.commit("g", "gone", 0, 2)
    desk.stats.get("g", "T", 20, 1)
    answer = await desk.ask(GET_CONSUME_STATS.code, {"consumerGroup": "g"})
    found = decode_body(ConsumeStats, answer.body)
    assert found.consume_tps == 2.0
    rows = {queue.queue_id: row for queue, row in found.offset_table.items()}
    assert (rows[0].broker_offset, rows[0].consumer_offset, rows[0].last_timestamp) == (0, 0, 0)
    assert (rows[1].broker_offset, rows[1].consumer_offset, rows[1].pull_offset) == (3, 2, 2)
    assert rows[1].last_timestamp == desk.clock.now_ms() - 2000
    assert len(rows) == 2


async def test_progress_of_given_topics_and_of_subscribed_ones_only() -> None:
    desk = desk_with_messages()
    desk.meta.topics.create_on_send("U", "TBW102", 1)
    for topic in "TU":
        desk.meta.offsets.commit("g", topic, 0, 1)

    async def topics(**ext: str) -> set[str]:
        answer = await desk.ask(GET_CONSUME_STATS.code, {"consumerGroup": "g", **ext})
        return {queue.topic for queue in decode_body(ConsumeStats, answer.body).offset_table}

    assert await topics() == {"T", "U"}
    assert await topics(topic="T") == {"T"}
    assert await topics(topicList="T;U") == {"T", "U"}
    assert await topics(topic=" ") == {"T", "U"}
    connect(desk, "g", "U")
    assert await topics() == {"U"}


async def test_groups_of_a_topic_and_topics_of_a_group() -> None:
    desk = desk_with_messages()
    desk.meta.offsets.commit("g", "T", 0, 1)
    connect(desk, "online", "T")
    connect(desk, "g", "T")
    answer = await desk.ask(QUERY_TOPIC_CONSUME_BY_WHO.code, {"topic": "T"})
    assert sorted(decode_body(GroupList, answer.body).group_list) == ["g", "online"]
    answer = await desk.ask(QUERY_TOPIC_CONSUME_BY_WHO.code, {"topic": "U"})
    assert answer.body == b'{"groupList":[]}'  # golden
    answer = await desk.ask(QUERY_TOPICS_BY_CONSUMER.code, {"group": "g"})
    assert decode_body(TopicList, answer.body) == TopicList(["T"], "127.0.0.1:10911")


async def test_one_counter_is_shown_or_refused() -> None:
    desk = Desk()
    desk.stats.put("T", 60, 6000)
    ask = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    answer = await desk.ask(VIEW_BROKER_STATS_DATA.code, ask)
    assert decode_body(BrokerStatsData, answer.body).stats_minute.sum == 60
    answer = await desk.ask(VIEW_BROKER_STATS_DATA.code, {**ask, "statsKey": "BenchmarkTest"})
    # golden: 315.RESP_code1
    assert (answer.code, answer.remark) == (1, "The stats <TOPIC_PUT_NUMS> <BenchmarkTest> not exist")


async def test_a_topic_that_is_named_often_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_with_messages()
    desk.meta.offsets.commit("g", "T", 0, 2)
    looks = []
    query = desk.meta.offsets.query
    monkeypatch.setattr(desk.meta.offsets, "query", lambda *args: looks.append(args) or query(*args))
    ext = {"consumerGroup": "g", "topicList": ";".join(["T"] * 21_000)}
    answer = await desk.ask(GET_CONSUME_STATS.code, ext)
    assert len(decode_body(ConsumeStats, answer.body).offset_table) == 2
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        pytest.param(GET_TOPIC_STATS_INFO.code, {"topic": "T"}, id="queues of a topic"),
        pytest.param(GET_CONSUME_STATS.code, {"topic": "T", "consumerGroup": "g"}, id="queues of a group"),
        pytest.param(
            GET_CONSUME_STATS.code,
            {"consumerGroup": "g", "topicList": ";".join(f"t{n}" for n in range(20 * TOPICS))},
            id="unknown topics",
        ),
        pytest.param(QUERY_TOPIC_CONSUME_BY_WHO.code, {"topic": "T1"}, id="offsets by topic"),
        pytest.param(QUERY_TOPICS_BY_CONSUMER.code, {"group": "g"}, id="offsets by group"),
        pytest.param(GET_CONSUME_STATS.code, {"consumerGroup": "nobody"}, id="offsets of no group"),
        pytest.param(SPAN, {"topic": "T", "group": "g"}, id="store times of a topic's queues"),
    ],
)
async def test_long_tables_are_read_in_steps(code: int, ext: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "KEYS", 10)
    desk = Desk()
    desk.meta.topics.put(TopicConfig("T", 20 * QUEUES, 20 * QUEUES))
    for number in range(200):
        desk.meta.offsets.commit("g", f"T{number}", 0, 1)
    assert len(list(desk.step_handlers[code](Caller().channel, Command(code, ext)))) >= 20


async def test_the_overview_of_all_groups_is_made_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = desk_with_messages()
    proxied = [ConsumerData(f"proxied {number}") for number in range(10)]
    assert desk.proxied.register(Caller().channel, ProxiedClient("p", "10.0.0.9:1", "GO", 500, [], proxied), 0)
    for number in range(10):
        desk.meta.groups.put(SubscriptionGroupConfig(f"g{number}"))
        # Two members of one group have one row.
        connect(desk, f"g{number // 2}", "T")
        desk.meta.offsets.commit(f"g{number}", "T", 1, 2)
        desk.stats.get(f"g{number}", "T", 20, 2)
    request = Command(ALL, {"isOrder": "false", "members": "true", "traffic": "true"})

    def run() -> tuple[int, bytes]:
        steps = desk.step_handlers[ALL](Caller().channel, request)
        count = 0
        while True:
            try:
                next(steps)
                count += 1
            except StopIteration as ended:
                return count, ended.value.body

    few, whole = run()
    monkeypatch.setattr(group_overview, "ROWS", 1)
    monkeypatch.setattr(stats_handlers, "TOPICS", 1)
    more, same = run()
    assert same == whole
    assert more - few >= 5 * 10, "members twice, readers twice, counters, and the groups themselves"


async def test_counters_of_a_topic_that_was_removed_elsewhere_are_forgotten(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    desk = Desk()
    desk.meta.topics.create_on_send("T", "TBW102", 1)
    desk.stats.put("T", 1, 1)
    await nursery.start(desk.stats_handlers.run)
    await trio.sleep(25)
    assert desk.stats.view("TOPIC_PUT_NUMS", "T") is not None
    desk.meta.topics.delete("T")
    await trio.sleep(10)
    assert desk.stats.view("TOPIC_PUT_NUMS", "T") is None


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_store_times_of_what_a_group_has_consumed(codec: int) -> None:
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


async def test_the_lowest_offset_of_all_groups_is_told_for_each_queue() -> None:
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
    # An offset of a message that is no longer stored, and a group that is ahead of the others.
    desk.meta.offsets.commit("behind", "T", 1, -1)
    desk.meta.offsets.commit("ahead", "T", 1, 3)
    assert await lowest("ahead", "late") == {0: 0, 1: 1}
    assert desk.meta.offsets.query("late", "T", 1) == 0


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_the_progress_of_all_groups_is_told_at_once(codec: int) -> None:
    desk = desk_with_messages()
    desk.meta.topics.put(TopicConfig("ordered", 1, 1, order=True))
    for group in ("g", "idle", "moved"):
        desk.meta.groups.put(SubscriptionGroupConfig(group))
    desk.meta.offsets.commit("g", "T", 1, 1)
    desk.meta.offsets.commit("g", "ordered", 0, 0)
    desk.meta.offsets.commit("g", "gone", 0, 5)
    desk.meta.offsets.commit("moved", "T", 1, 0)
    connect(desk, "moved", "other")

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


async def test_all_that_tools_show_of_groups_comes_with_their_progress() -> None:
    desk = desk_with_messages()
    desk.meta.groups.put(SubscriptionGroupConfig("g"))
    desk.meta.offsets.commit("g", "T", 1, 2)
    desk.meta.offsets.commit("left", "T", 1, 2)
    connect(desk, "g", "T")
    connect(desk, "new", "U")
    client = ProxiedClient("proxied", "10.0.0.9:1", "GO", 500, [], [ConsumerData("h", consume_type="CONSUME_POP")])
    assert desk.proxied.register(Caller().channel, client, 0)
    desk.stats.put("T", 30, 3)
    desk.stats.get("g", "T", 20, 2)
    plain = decode_body(ConsumeStatsList, (await desk.ask(ALL, {"isOrder": "false"})).body)
    assert plain.members is None and plain.readers is None and plain.traffic is None
    asked = {"isOrder": "false", "members": "true", "traffic": "true"}
    found = decode_body(ConsumeStatsList, (await desk.ask(ALL, asked)).body)
    assert found.consume_stats_list == plain.consume_stats_list
    assert found.members == {
        "g": GroupMembers({"client": 479}, "CONSUME_ACTIVELY", "CLUSTERING"),
        "new": GroupMembers({"client": 479}, "CONSUME_ACTIVELY", "CLUSTERING"),
        "h": GroupMembers({"proxied": 500}, "CONSUME_POP", "CLUSTERING"),
    }
    assert found.readers is not None
    assert {topic: sorted(names) for topic, names in found.readers.items()} == {"T": ["g", "left"], "U": ["new"]}
    assert found.traffic == [Traffic("T", "", 3.0, 30), Traffic("T", "g", 2.0, 20)]


async def test_more_than_a_frame_holds_is_refused_where_a_part_would_mislead() -> None:
    desk = desk_with_messages()
    for number in range(50):
        connect(desk, f"g{number}", "T")
    small = Caller(max_frame_bytes=3_000)
    asked = {"isOrder": "false", "members": "true"}
    answer = await desk.ask(ALL, asked, channel=small.channel)
    assert answer.code == 1 and "ask for one group or topic at a time" in (answer.remark or "")
