"""202, 208, 300, 315, 343."""

import pytest

from broker.meta import consumer_offsets
from broker.observe.consume_stats import QUEUES, TOPICS
from mqcommon.message.queue import MessageQueue
from remoting.net.channel import Channel
from remoting.protocol.command import CBOR, Command
from remoting.protocol.dialect import decode_body
from remoting.protocol.requests.brokers import VIEW_BROKER_STATS_DATA, BrokerStatsData
from remoting.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.requests.groups import GET_CONSUME_STATS, QUERY_TOPICS_BY_CONSUMER, ConsumeStats
from remoting.protocol.requests.topics import (
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


def desk_with_messages() -> Desk:
    desk = Desk()
    desk.meta.topics.create_on_send("T", "TBW102", 2)
    for _ in range(3):
        put(desk.store, "T", 1, b"x")
        desk.clock.advance(1000)
    return desk


def connect(desk: Desk, group: str, topic: str) -> Channel:
    channel = Caller().channel
    data = ConsumerData(group, subscription_data_set=[SubscriptionData(topic)])
    desk.clients.consume(channel, HeartbeatData("client"), data, "JAVA", 479, 0)
    return channel


@pytest.mark.parametrize("codec", [0, CBOR])
async def test_topic_stats(codec: int) -> None:
    desk = desk_with_messages()
    desk.stats.put("T", 30, 1)
    answer = await desk.ask(GET_TOPIC_STATS_INFO.code, {"topic": "T"}, codec=codec)
    table = decode_body(TopicStatsTable, answer.body, codec)
    assert table.topic_put_tps == 3.0
    empty, full = (table.offset_table[MessageQueue("T", "broker-a", queue_id)] for queue_id in (0, 1))
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert full.last_update_timestamp == desk.clock.now_ms() - 1000


async def test_topic_stats_as_old_java_reads_them() -> None:
    desk = desk_with_messages()
    answer = await desk.ask(GET_TOPIC_STATS_INFO.code, {"topic": "T"}, version=300)
    assert b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{' in answer.body


async def test_topic_stats_of_an_unknown_topic() -> None:
    answer = await Desk().ask(GET_TOPIC_STATS_INFO.code, {"topic": "T"})
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


async def test_counters() -> None:
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


@pytest.mark.parametrize("code", [GET_TOPIC_STATS_INFO.code, GET_CONSUME_STATS.code])
async def test_many_queues_are_looked_at_in_steps(code: int) -> None:
    desk = Desk()
    desk.meta.topics.put(TopicConfig("T", 20 * QUEUES, 20 * QUEUES))
    request = Command(code, {"topic": "T", "consumerGroup": "g"})
    steps = desk.step_handlers[code](Caller().channel, request)
    assert len(list(steps)) >= 20


async def test_many_unknown_topics_are_looked_at_in_steps() -> None:
    desk = Desk()
    names = ";".join(f"t{n}" for n in range(20 * TOPICS))
    request = Command(GET_CONSUME_STATS.code, {"consumerGroup": "g", "topicList": names})
    assert len(list(desk.step_handlers[request.code](Caller().channel, request))) >= 20


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (QUERY_TOPIC_CONSUME_BY_WHO.code, {"topic": "T1"}),
        (QUERY_TOPICS_BY_CONSUMER.code, {"group": "g"}),
        (GET_CONSUME_STATS.code, {"consumerGroup": "nobody"}),
    ],
)
async def test_many_offsets_are_looked_at_in_steps(
    code: int, ext: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "KEYS", 10)
    desk = Desk()
    for number in range(200):
        desk.meta.offsets.commit("g", f"T{number}", 0, 1)
    assert len(list(desk.step_handlers[code](Caller().channel, Command(code, ext)))) >= 20
