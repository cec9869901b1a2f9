"""mqadmin exportMetadata: RocketMQ's files, with what users made."""

import json
from pathlib import Path

import pytest

from skylark.mqcommon.errors import ConnectFailed
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.mqadmin.fake import MASTER, SLAVE, World, run

TOPICS = ["T", "TBW102", "DefaultCluster", "broker-a", "%RETRY%g", "%DLQ%g", "rmq_sys_REVIVE_LOG_DefaultCluster"]
GROUPS = ["g", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL", "DEFAULT_PRODUCER"]


def world() -> World:
    return World(
        brokers={"broker-a": {0: MASTER}, "broker-b": {0: SLAVE}},
        topic_configs={name: TopicConfig(name, 4, 3, attributes={"message.type": "FIFO"}) for name in TOPICS},
        group_configs={name: SubscriptionGroupConfig(name, retry_queue_nums=2) for name in GROUPS},
    )


def test_a_cluster_with_its_queues_added_up(tmp_path: Path) -> None:
    result = run(world(), "exportMetadata", "-c", "DefaultCluster", "-f", str(tmp_path / "new"))
    path = tmp_path / "new" / "metadata.json"
    assert (result.exit_code, result.stdout) == (0, f"export {path} success\n")
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found.pop("exportTime") > 1_700_000_000_000
    assert found == {
        "topicConfigTable": {"T": TopicConfig("T", 8, 6, attributes={"message.type": "FIFO"}).to_wire()},
        "subscriptionGroupTable": {"g": SubscriptionGroupConfig("g", retry_queue_nums=4).to_wire()},
    }


def test_topics_of_a_broker_with_retry_and_dead_letter_topics(tmp_path: Path) -> None:
    assert run(world(), "exportMetadata", "-b", MASTER, "-t", "-s", "-f", str(tmp_path)).exit_code == 0
    text = (tmp_path / "topic.json").read_text(encoding="utf-8")
    assert text.startswith('{\n\t"dataVersion":{\n\t\t"counter":7,\n\t\t"stateVersion":0,\n\t\t"timestamp":5\n\t},\n')
    assert list(json.loads(text)) == ["dataVersion", "topicConfigTable"]
    assert list(json.loads(text)["topicConfigTable"]) == ["T", "%RETRY%g", "%DLQ%g"]


def test_groups_of_a_broker(tmp_path: Path) -> None:
    world_ = world()
    assert run(world_, "exportMetadata", "-b", MASTER, "-g", "-f", str(tmp_path)).exit_code == 0
    found = json.loads((tmp_path / "subscriptionGroup.json").read_text(encoding="utf-8"))
    assert list(found) == ["dataVersion", "forbiddenTable", "subscriptionGroupTable"]
    assert list(found["subscriptionGroupTable"]) == ["g"]
    assert world_.called("all_topic_config") == []


def test_the_result_as_json(tmp_path: Path) -> None:
    result = run(world(), "exportMetadata", "-b", MASTER, "-f", str(tmp_path), "--output", "json")
    found = json.loads(result.stdout)
    assert found.pop("path") == str(tmp_path / "metadata.json")
    assert found == json.loads((tmp_path / "metadata.json").read_text(encoding="utf-8"))


def test_nothing_is_written_when_a_broker_does_not_answer(tmp_path: Path) -> None:
    failing = world()
    failing.errors["all_groups", SLAVE] = ConnectFailed(SLAVE, "refused")
    result = run(failing, "exportMetadata", "-c", "DefaultCluster", "-f", str(tmp_path))
    assert result.exit_code == 1
    assert f"cannot connect to {SLAVE}" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give --brokerAddr or --clusterName"),
        (("-b", MASTER, "-t", "-g"), "Give only one of --topic or --subscriptionGroup."),
    ],
)
def test_what_cannot_be_asked_for(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    result = run(world(), "exportMetadata", *arguments, "-f", str(tmp_path))
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(world(), "exportMetadata", "-b", MASTER, "-f", str(tmp_path / "file"))
    assert result.exit_code == 1
    assert "give another directory with -f" in result.stderr
    assert len(result.stderr.splitlines()) == 1
