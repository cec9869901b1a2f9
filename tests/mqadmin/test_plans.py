"""updateTopicList, updateOrderConf, allocateMQ, updateSubGroupList, setConsumeMode."""

import json
from pathlib import Path

import pytest

from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.mqadmin.fake import MASTER, NAMESRV, World, route, run

ORDER = ("ORDER_TOPIC_CONFIG", "T")


def written(home: Path, text: str) -> str:
    (home / "list.json").write_text(text)
    return str(home / "list.json")


def test_a_list_of_topics(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[{"topicName":"A","readQueueNums":4,"attributes":{"+message.type":"FIFO"}},{"topicName":"B"}]'
    )
    world = World()
    result = run(world, "updateTopicList", "-c", "DefaultCluster", "-f", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"submit batch of topic config to {MASTER} success, please check the result later.\n"
    topics = [TopicConfig("A", 4, attributes={"+message.type": "FIFO"}), TopicConfig("B")]
    assert world.called("create_topics") == [(MASTER, topics)]


def test_a_list_of_groups(tmp_path: Path) -> None:
    path = written(tmp_path, '[{"groupName":"g","retryMaxTimes":3}]')
    world = World()
    result = run(world, "updateSubGroupList", "-b", MASTER, "-f", path, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)["groups"]) == (0, ["g"])
    assert world.called("create_groups") == [(MASTER, [SubscriptionGroupConfig("g", retry_max_times=3)])]
    result = run(world, "updateSubGroupList", "-b", MASTER, "-f", path)
    assert result.stdout == (
        f"submit batch of subscription group config to {MASTER} success, please check the result later.\n"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "list.json is not JSON"),
        ("{}", 'list.json must hold a JSON list, as in [{"topicName":"..."}]'),
        ("[]", "must hold a JSON list"),
        ('[{"topicName":"A"},{"topicNam":"B"}]', "list.json: entry 2 is not an object with a topicName"),
        ('[{"topicName":"A","perm":"much"}]', "list.json: entry 1: TopicConfig.perm"),
    ],
)
def test_a_file_with_a_mistake(text: str, told: str, tmp_path: Path) -> None:
    world = World()
    result = run(world, "updateTopicList", "-b", MASTER, "-f", written(tmp_path, text))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert told in result.stderr
    assert world.called("create_topics") == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run(World(), "updateTopicList", "-b", MASTER, "-f", str(tmp_path / "no.json"))
    assert (result.exit_code, "no.json cannot be read: No such file" in result.stderr) == (1, True)


def test_a_member_that_means_nothing_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, '[{"topicName":"A","readQueueNum":4}]')
    result = run(World(), "updateTopicList", "-b", MASTER, "-f", path)
    assert result.exit_code == 0
    assert "entry 1 has a member readQueueNum, which means nothing: readQueueNums?" in result.stderr


def test_a_broker_that_refuses_a_list(tmp_path: Path) -> None:
    world = World(errors={("create_topics", MASTER): BrokerError(29, "perm is 0 to 7, not 9", MASTER)})
    result = run(world, "updateTopicList", "-b", MASTER, "-f", written(tmp_path, '[{"topicName":"A","perm":9}]'))
    assert (result.exit_code, "perm is 0 to 7, not 9" in result.stderr) == (1, True)


def test_an_order_conf() -> None:
    world = World(kv={ORDER: "broker-a:4"})
    lines = [
        run(world, "updateOrderConf", "-t", "T", *arguments).stdout
        for arguments in (("-m", "get"), ("-m", "put", "-v", "broker-a:4;broker-b:8"), ("-m", "delete"))
    ]
    assert lines == [
        "get orderConf success. topic=[T], orderConf=[broker-a:4] \n",
        "update orderConf success. topic=[T], orderConf=[broker-a:4;broker-b:8]\n",
        "delete orderConf success. topic=[T]\n",
    ]
    assert world.called("put_kv") == [(NAMESRV, *ORDER, "broker-a:4;broker-b:8")]
    assert world.called("delete_kv") == [(NAMESRV, *ORDER)]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("-m", "put"), 2, "please set orderConf with -v"),
        (("-m", "put", "-v", "broker-a"), 2, "'broker-a:' is not brokerName:num"),
        (("-m", "put", "-v", "broker-a:0"), 2, "is not brokerName:num"),
        (("-m", "put", "-v", ":4"), 2, "is not brokerName:num"),
        (("-m", "set"), 2, "'put', 'get', 'delete'"),
        (("-m", "get"), 1, "topic T has no orderConf; set it with -m put"),
    ],
)
def test_an_order_conf_with_a_mistake(arguments: tuple[str, ...], code: int, told: str) -> None:
    world = World()
    result = run(world, "updateOrderConf", "-t", "T", *arguments)
    assert (result.exit_code, told in result.stderr) == (code, True), result.stderr
    assert world.called("put_kv") == []


def test_shares_of_queues() -> None:
    world = World(routes={"T": route(3)})
    result = run(world, "allocateMQ", "-t", "T", "-i", "10.0.0.2, 10.0.0.1")
    assert result.exit_code == 0
    queues = [{"brokerName": "broker-a", "queueId": number, "topic": "T"} for number in range(3)]
    assert json.loads(result.stdout) == {"result": {"10.0.0.2": queues[:2], "10.0.0.1": queues[2:]}}
    assert result.stdout.count("\n") == 1
    assert run(world, "allocateMQ", "-t", "T", "-i", " , ").exit_code == 2


def test_a_mode_of_consumption() -> None:
    world = World()
    result = run(world, "setConsumeMode", "-c", "DefaultCluster", "-t", "T", "-g", "g", "-m", "PULL", "-q", "4")
    assert result.stdout.splitlines() == [
        f"set consume mode to {MASTER} success.",
        "topic[T] group[g] consume mode[PULL] popShareQueueNum[4]",
    ]
    assert world.called("set_consume_mode") == [(MASTER, "T", "g", "PULL", 4)]
    world.errors["set_consume_mode",] = BrokerError(16, "retry topic is not allowed to set mode", MASTER)
    result = run(world, "setConsumeMode", "-b", MASTER, "-t", "T", "-g", "g", "-m", "POP")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "retry topic is not allowed to set mode" in result.stderr
