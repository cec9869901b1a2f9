"""Commands about the load: counters, test messages, what is not consumed."""

import json
import re
from typing import Any

import pytest

from skylark.mqadmin.commands.stats import _average_ms
from skylark.mqcommon.errors import BrokerError, ConnectFailed, RequestTimeout, RouteNotFound, SendFailed
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.brokers import BrokerStatsData, BrokerStatsItem
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats
from skylark.remoting.protocol.requests.topics import TopicOffset, TopicStatsTable
from skylark.sdk.admin.reports.counters import of_a_day
from tests.mqadmin.fake import MASTER, World, route, run
from tests.mqadmin.test_golden import golden

# --- statsAll


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
            progress = world.consume_stats.setdefault(group, ConsumeStats())
            progress.offset_table[MessageQueue(topic, "broker-a", 0)] = left
    return world, [head, *rows]


@pytest.mark.parametrize("is_rocketmq", [True, False])
def test_as_rocketmq_prints_it(is_rocketmq: bool) -> None:
    world, (head, *rows) = recorded()
    world.is_rocketmq = is_rocketmq
    result = run(world, "statsAll")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *others = result.stdout.splitlines()
    assert first == head
    assert sorted(others) == sorted(rows)
    # Each broker is asked once for all of its groups.
    assert world.called("broker_consume_stats") == [(MASTER, False, False, True)] and not world.called("consume_stats")
    assert bool(world.called("broker_stats")) == bool(world.called("groups_of_topic")) == is_rocketmq


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
        topics=["T", "U"], routes={"T": route()}, errors={("broker_stats",): RequestTimeout(MASTER, 315, 3000)},
        is_rocketmq=True,
    )  # fmt: skip
    result = run(world, "statsAll")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "topic T" in result.stderr
    unknown = run(World(), "statsAll", "-t", "U")
    assert (unknown.exit_code, "no NameServer knows topic U" in unknown.stderr) == (1, True)


def test_a_young_counter_of_rocketmq_has_the_hour_or_the_minute_only() -> None:
    for minute, hour, day, expected in ((1, 2, 3, 3), (1, 2, 0, 2), (1, 0, 0, 1), (0, 0, 0, 0)):
        items = (BrokerStatsItem(total) for total in (minute, hour, day))
        assert of_a_day(BrokerStatsData(*items)) == expected


# --- sendMsgStatus, checkMsgSendRT, clusterRT


JSON = ("--output", "json")
SENT = (
    r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK, msgId=FD0000\w+, offsetMsgId=7F00\w+,"
    r" messageQueue=MessageQueue \[topic=broker-a, brokerName=broker-a, queueId=3\], queueOffset=0\]"
)


class Fails:
    """A key of errors: fails from the n-th time on."""

    def __init__(self, world: World, error: BaseException, after: int) -> None:
        self.sends = 0
        asked = world.asked

        def counting(method: str, *arguments: Any) -> None:
            asked(method, *arguments)
            if method == "send":
                self.sends += 1
                if self.sends > after:
                    raise error

        world.asked = counting  # type: ignore[method-assign]


def test_messages_to_a_broker() -> None:
    world = World()
    result = run(world, "sendMsgStatus", "-b", "broker-a", "-c", "3", "-s", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert all(re.fullmatch(SENT, line) for line in lines), lines
    assert [len(message.body) for message, _ in world.called("send")] == [16, 5, 5, 5]
    rows = json.loads(run(world, "sendMsgStatus", "-b", "broker-a", "-c", "1", *JSON).stdout)
    assert [(row["sendStatus"], row["error"]) for row in rows] == [("SEND_OK", None)]


def test_a_broker_that_nobody_knows() -> None:
    """A send would create a topic of that name."""
    world = World()
    result = run(world, "sendMsgStatus", "-b", "broker-x")
    assert (result.exit_code, result.stdout, world.called("send")) == (1, "", [])
    assert result.stderr.count("\n") == 1 and "there is no broker broker-x; the NameServer knows: " in result.stderr


def test_a_broker_without_a_topic_of_its_own() -> None:
    world = World(errors={("send_to", "broker-a"): RouteNotFound("broker-a")})
    result = run(world, "sendMsgStatus", "-b", "broker-a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1 and "no NameServer knows topic broker-a" in result.stderr


def test_a_send_that_fails_among_others() -> None:
    world = World()
    Fails(world, SendFailed("no broker stored the message"), 2)
    result = run(world, "sendMsgStatus", "-b", "broker-a", "-c", "3")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    assert result.stderr.count("no broker stored the message") == 2


def test_the_queues_of_a_topic_in_turn() -> None:
    world = World()
    result = run(world, "checkMsgSendRT", "-t", "T", "-a", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    head, *rows, average = result.stdout.splitlines()
    assert head == "#Broker Name                      #QID  #Send Result            #RT"
    assert [row.split()[:3] for row in rows] == [["broker-a", str(number % 4), "true"] for number in range(5)]
    assert re.fullmatch(r"Avg RT: \d+\.\d\d", average)
    assert {len(message.body) for message, _ in world.called("send")} == {128}


def test_a_queue_that_takes_nothing() -> None:
    world = World()
    Fails(world, SendFailed("no broker stored the message"), 1)
    result = run(world, "checkMsgSendRT", "-t", "T", "-a", "2", *JSON)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [row["ok"] for row in found["sends"]] == [True, False]
    assert "no broker stored" in found["sends"][1]["error"]


def test_the_first_send_does_not_count() -> None:
    assert _average_ms([100, 2, 4]) == 3.0
    assert _average_ms([100]) == 100.0


def test_each_broker_of_the_cluster_until_ctrl_c() -> None:
    world = World(brokers={"broker-a": {0: MASTER}, "broker-b": {0: "127.0.0.1:1"}})
    Fails(world, KeyboardInterrupt(), 4)
    result = run(world, "clusterRT", "-a", "2", "-i", "0.001")
    assert (result.exit_code, result.stderr) == (0, "")
    head, *rows = result.stdout.splitlines()
    assert head == "#Cluster Name             #Broker Name              #RT   #successCount  #failCount"
    assert [row.split()[:2] + row.split()[3:] for row in rows] == [
        ["DefaultCluster", name, "2", "0"] for name in ("broker-a", "broker-b")
    ]


@pytest.mark.usefixtures("utc")
def test_rounds_as_a_log_and_as_json() -> None:
    world = World()
    Fails(world, KeyboardInterrupt(), 1)
    logged = run(world, "clusterRT", "-a", "1", "-p", "true", "-m", "room", "-i", "0.001").stdout
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|room\|DefaultCluster\|broker-a\|\d+\n", logged)
    world = World(errors={("send_to", "broker-a"): BrokerError(14, "full", MASTER)})
    Fails(world, KeyboardInterrupt(), 2)
    result = run(world, "clusterRT", "-a", "2", "-i", "0.001", *JSON)
    [line] = result.stdout.splitlines()
    assert (json.loads(line)[0]["successCount"], json.loads(line)[0]["failCount"]) == (0, 2)
    assert "full" in result.stderr


def test_a_cluster_that_nobody_knows() -> None:
    result = run(World(), "clusterRT", "-c", "other")
    assert (result.exit_code, "no cluster 'other'" in result.stderr) == (1, True)
    result = run(World(brokers={}), "clusterRT")
    assert (result.exit_code, "knows no broker" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments", [["sendMsgStatus"], ["checkMsgSendRT", "-t", "T", "-a", "0"], ["clusterRT", "-i", "0"]]
)
def test_a_command_line_with_a_mistake(arguments: list[str]) -> None:
    assert run(World(), *arguments).exit_code == 2


# --- startMonitoring


LINE = "=" * 41


class Rounds(World):
    """Ends with Ctrl-C after some rounds."""

    rounds = 2

    def asked(self, method: str, *arguments: object) -> None:
        super().asked(method, *arguments)
        if method == "topic_list":
            self.rounds -= 1
            if self.rounds < 0:
                raise KeyboardInterrupt


def monitored() -> Rounds:
    world = Rounds(topics=["%RETRY%g", "%RETRY%idle", "%DLQ%g", "%DLQ%idle", "T"])
    queues = [MessageQueue("T", "broker-a", number) for number in range(3)]
    world.consume_stats["g"] = ConsumeStats(
        {
            queues[0]: ConsumeOffset(10, 8, 8, 1_000),
            queues[1]: ConsumeOffset(10, 5, 5, 3_000),
            queues[2]: ConsumeOffset(0, 0),
            MessageQueue("%RETRY%g", "broker-a", 0): ConsumeOffset(1, 1, 1, 5_000),
        }
    )
    world.topic_stats["T"] = TopicStatsTable({queue: TopicOffset(0, 10, 6_000) for queue in queues})
    world.topic_stats["%DLQ%g"] = TopicStatsTable({MessageQueue("%DLQ%g", "broker-a", 0): TopicOffset(2, 5)})
    world.topic_stats["%DLQ%idle"] = TopicStatsTable()
    return world


def test_round_after_round_until_ctrl_c() -> None:
    world = monitored()
    result = run(world, "startMonitoring", "-i", "0.001")
    assert (result.exit_code, result.stderr) == (0, "")
    assert world.called("consume_stats") == [("idle", None, None)] * 2, "the others are in the answer about all groups"
    one = [
        f"[MONITOR] {LINE}beginRound",
        "[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup=g, topic=%RETRY%g, undoneMsgsTotal=0,"
        " undoneMsgsSingleMQ=0, undoneMsgsDelayTimeMills=0]",
        "[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup=g, topic=T, undoneMsgsTotal=7,"
        " undoneMsgsSingleMQ=5, undoneMsgsDelayTimeMills=5000]",
        "[MONITOR] reportFailedMsgs: FailedMsgs [consumerGroup=g, topic=%DLQ%g, failedMsgsTotalRecently=3]",
        f"[MONITOR] {LINE}endRound",
    ]
    assert result.stdout.splitlines() == one * 2


def test_each_round_is_a_line_of_json() -> None:
    lines = run(monitored(), "startMonitoring", "-i", "0.001", "--output", "json").stdout.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["dead"] == [{"consumerGroup": "g", "topic": "%DLQ%g", "total": 3}]
    assert [row["total"] for row in json.loads(lines[0])["undone"]] == [0, 7]


def test_it_goes_on_when_a_server_is_away() -> None:
    world = monitored()
    world.errors["consume_stats", "idle"] = ConnectFailed("10.0.0.1:10911", "refused")
    result = run(world, "startMonitoring", "-i", "0.001")
    assert result.exit_code == 1
    assert result.stderr.count("10.0.0.1:10911") == 2
    assert result.stdout.count("undoneMsgsTotal=7") == 2
