"""What each command prints is what RocketMQ 5.3.3's mqadmin printed on the same cluster."""

import re
from pathlib import Path

import pytest

from skylark.mqcommon.errors import BrokerError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats, SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicOffset, TopicStatsTable
from tests.mqadmin.fake import MASTER, SLAVE, World, message, route, run

GOLDEN = Path(__file__).parents[1] / "golden" / "mqadmin-5.3.3.txt"


def golden(command_line: str) -> list[str]:
    """The lines that RocketMQ printed for a command."""
    sections = re.split(r"(?m)^== (.*)\n", GOLDEN.read_text())[1:]
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    return found[command_line].rstrip("\n").split("\n")


def printed(world: World, *arguments: str) -> list[str]:
    """The lines that ours prints."""
    result = run(world, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.rstrip("\n").split("\n")


pytestmark = pytest.mark.usefixtures("utc")


@pytest.mark.parametrize(
    "command_line",
    [
        "updateTopic -c DefaultCluster -t AdminT -r 4 -w 4",
        "updateSubGroup -c DefaultCluster -g admin_group",
        "updateKvConfig -s ns1 -k k1 -v v1",
        f"updateBrokerConfig -b {MASTER} -k fileReservedTime -v 71",
        "wipeWritePerm -b broker-a",
        "addWritePerm -b broker-a",
        "deleteSubGroup -c DefaultCluster -g admin_group",
        "deleteTopic -c DefaultCluster -t AdminT",
    ],
)
def test_changes(command_line: str) -> None:
    world = World(
        topic_configs={"AdminT": TopicConfig("AdminT", 4, 4)},
        group_configs={"admin_group": SubscriptionGroupConfig("admin_group")},
    )
    assert printed(world, *command_line.split()) == golden(command_line)


def test_another_number_of_queues_moves_keys() -> None:
    world = World(topic_configs={"AdminT": TopicConfig("AdminT", 4, 4)})
    result = run(world, "updateTopic", "-c", "DefaultCluster", "-t", "AdminT", "-r", "8", "-w", "8")
    assert (result.exit_code, "messages of a key may go to another queue" in result.stderr) == (0, True)


def test_update_topic_perm() -> None:
    world = World(topic_configs={"AdminT": TopicConfig("AdminT", 4, 4, 6)})
    command_line = "updateTopicPerm -c DefaultCluster -t AdminT -p 4"
    assert printed(world, *command_line.split()) == golden(command_line)


def test_cluster_list(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = {
        f"{pool}ThreadPoolQueue{what}": "0"
        for pool in ("send", "pull", "ack")
        for what in ("Size", "HeadWaitTimeMills")
    }
    master = {
        **loads,
        "brokerVersionDesc": "V5_3_3",
        "brokerActive": "true",
        "putTps": "0.1 0.2 0.3",
        "getTransferredTps": "0.0 0.0",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": "1795229954659",
        "commitLogDiskRatio": "0.27",
        "timerReadBehind": "1",
    }
    slave = {**master, "brokerActive": "false", "putTps": "0.0", "earliestMessageTimeStamp": "-1"}
    slave["timerReadBehind"] = "604745"
    monkeypatch.setattr("skylark.sdk.admin.reports.clusters.time.time", lambda: 1795229980.0)
    world = World(infos={MASTER: master, SLAVE: slave})
    # RocketMQ's tool counts the hours of a broker without messages from 1970.
    expected = [line.replace("498674.99", "0.00     ") for line in golden("clusterList")]
    assert printed(world, "clusterList") == expected


def test_cluster_list_more() -> None:
    world = World(infos={MASTER: {"msgPutTotalTodayNow": "10", "msgGetTotalTodayNow": "19"}})
    assert printed(world, "clusterList", "-m") == golden("clusterList -m")


def test_topic_list() -> None:
    listed = golden("topicList")
    assert printed(World(topics=listed), "topicList") == sorted(listed)


def test_topic_list_of_clusters() -> None:
    head, *rows = golden("topicList -c")
    pairs = [(row[22:86].strip(), row[88:].strip()) for row in rows]
    groups: dict[str, list[str]] = {}
    for topic, group in pairs:
        groups.setdefault(topic, []).extend([group] if group else [])
    topics = golden("topicList")
    world = World(topics=topics, groups=groups, routes={topic: route() for topic in topics})
    first, *others = printed(world, "topicList", "-c")
    assert first == head
    assert sorted(others) == sorted(rows)


def test_topic_route() -> None:
    world = World(routes={"AdminT": route()})
    assert printed(world, "topicRoute", "-t", "AdminT") == golden("topicRoute -t AdminT")


def test_topic_status() -> None:
    minute = 1795229940000
    ends = [(1, minute + 15_854), (2, minute + 14_757), (4, minute + 14_893), (1, minute + 14_746)]
    table = {MessageQueue("WireTopic", "broker-a", number): TopicOffset(0, *end) for number, end in enumerate(ends)}
    world = World(topic_stats={"WireTopic": TopicStatsTable(table)})
    assert printed(world, "topicStatus", "-t", "WireTopic") == golden("topicStatus -t WireTopic")


def test_topic_cluster_list() -> None:
    world = World(routes={"AdminT": route()})
    assert printed(world, "topicClusterList", "-t", "AdminT") == golden("topicClusterList -t AdminT")


def test_broker_status() -> None:
    command_line = f"brokerStatus -b {MASTER}"
    lines = golden(command_line)
    pairs = [line.split(": ", 1) for line in lines]
    world = World(infos={MASTER: {key.strip(): value for key, value in pairs}})
    assert printed(world, *command_line.split()) == lines


def test_consumer_progress() -> None:
    offline = BrokerError(206, "the consumer group[g] not online", MASTER)
    world = World(topics=["AdminT"], errors={("consumer_connection",): offline})
    for group, diff in (("wire_order_cg", 0), ("wire_push_cg", 2), ("wire_pull_cg", 1)):
        world.topics.append(f"%RETRY%{group}")
        queue = MessageQueue("WireTopic", "broker-a", 0)
        world.consume_stats[group] = ConsumeStats({queue: ConsumeOffset(8, 8 - diff)})
    head, *rows = printed(world, "consumerProgress")
    assert head == golden("consumerProgress")[0]
    assert sorted(rows) == sorted(golden("consumerProgress")[1:])


def test_send_message() -> None:
    lines = printed(World(), "sendMessage", "-t", "AdminT", "-p", "hello admin", "-k", "adminkey", "-c", "TagA")
    assert lines == golden("sendMessage -t AdminT -p hello admin -k adminkey -c TagA")


def test_query_msg_by_key() -> None:
    world = World(messages=[message()])
    lines = printed(world, "queryMsgByKey", "-t", "AdminT", "-k", "adminkey")
    assert lines == golden("queryMsgByKey -t AdminT -k adminkey")


def test_consume_message() -> None:
    world = World(messages=[message()], routes={"AdminT": route()})
    lines = printed(world, "consumeMessage", "-t", "AdminT")
    expected = golden("consumeMessage -t AdminT")
    # RocketMQ takes the queues in the order of a hash table
    by_queue = {number: [line for line in expected if f"queueId={number}]" in line] for number in range(3)}
    assert lines == [*by_queue[0], *by_queue[1], *by_queue[2], *expected[1:4]]


def test_print_msg() -> None:
    world = World(messages=[message()], routes={"AdminT": route()})
    lines = printed(world, "printMsg", "-t", "AdminT")
    expected = golden("printMsg -t AdminT")
    # RocketMQ takes the queues in the order of a hash table
    heads = {number: at for at, line in enumerate(expected) for number in range(4) if f"queueId={number}]" in line}
    blocks = {number: expected[at : expected.index("-" * 56, at) + 1] for number, at in heads.items()}
    assert lines == [line for number in range(4) for line in blocks[number]]
