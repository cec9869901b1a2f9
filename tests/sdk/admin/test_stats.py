"""statsAll."""

import json

from mqcommon.errors import BrokerError, RequestTimeout
from mqcommon.message.queue import MessageQueue
from remoting.protocol.requests.brokers import BrokerStatsData, BrokerStatsItem
from remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats
from sdk.admin.commands.stats import of_a_day
from tests.sdk.admin.fake import MASTER, World, route, run
from tests.sdk.admin.test_golden import golden

NOBODY = "NO_CONSUMER"


def counter(tps: float, day: int) -> BrokerStatsData:
    return BrokerStatsData(BrokerStatsItem(0, tps), BrokerStatsItem(), BrokerStatsItem(day))


def recorded() -> tuple[World, list[str]]:
    """A cluster of which RocketMQ's tool printed these lines."""
    head, *rows = golden("statsAll")
    world = World(topics=["%RETRY%g", "%DLQ%g"])
    for row in rows:
        topic, group = row[:64].strip(), row[66:130].strip()
        numbers = row[130:].split()
        if topic not in world.topics:
            world.topics.append(topic)
        world.routes[topic] = route()
        world.counters["TOPIC_PUT_NUMS", topic] = counter(float(numbers[1]), int(numbers[-2]))
        if numbers[-1] != NOBODY:
            world.groups.setdefault(topic, []).append(group)
            world.counters["GROUP_GET_NUMS", f"{topic}@{group}"] = counter(float(numbers[2]), int(numbers[-1]))
            left = ConsumeOffset(10, 10 - int(numbers[0]))
            world.consume_stats[group] = ConsumeStats({MessageQueue(topic, "broker-a", 0): left})
    return world, [head, *rows]


def test_as_rocketmq_prints_it() -> None:
    world, (head, *rows) = recorded()
    result = run(world, "statsAll")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *others = result.stdout.splitlines()
    assert first == head
    assert sorted(others) == sorted(rows)


def test_one_topic_and_active_topics() -> None:
    world, _ = recorded()
    shown = json.loads(run(world, "statsAll", "-t", "WireTopic", "--output", "json").stdout)
    assert {row["topic"] for row in shown} == {"WireTopic"}
    assert {row["consumerGroup"]: row["accumulation"] for row in shown}["wire_push_cg"] == 2
    active = json.loads(run(world, "statsAll", "-a", "--output", "json").stdout)
    assert 0 < len(active) < len(recorded()[1]) - 1
    assert all(row["inMsg24Hour"] or row["outMsg24Hour"] for row in active)


def test_a_counter_or_a_group_that_is_not_there_counts_nothing() -> None:
    offline = BrokerError(206, "not online", MASTER)
    world = World(topics=["T"], routes={"T": route()}, groups={"T": ["g"]}, errors={("consume_stats",): offline})
    [row] = json.loads(run(world, "statsAll", "--output", "json").stdout)
    assert row == {
        "topic": "T", "consumerGroup": "g", "accumulation": 0, "inTps": 0.0, "outTps": 0.0,
        "inMsg24Hour": 0, "outMsg24Hour": 0,
    }  # fmt: skip


def test_a_broker_that_does_not_answer_is_told() -> None:
    world = World(
        topics=["T", "U"], routes={"T": route()}, errors={("broker_stats",): RequestTimeout(MASTER, 315, 3000)}
    )
    result = run(world, "statsAll")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "topic T" in result.stderr
    unknown = run(World(), "statsAll", "-t", "U")
    assert (unknown.exit_code, "no NameServer knows topic U" in unknown.stderr) == (1, True)


def test_a_young_counter_of_rocketmq_has_the_hour_or_the_minute_only() -> None:
    for minute, hour, day, expected in ((1, 2, 3, 3), (1, 2, 0, 2), (1, 0, 0, 1), (0, 0, 0, 0)):
        items = (BrokerStatsItem(total) for total in (minute, hour, day))
        assert of_a_day(BrokerStatsData(*items)) == expected
