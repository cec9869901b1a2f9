"""clusterTopology."""

import json
from pathlib import Path

import pytest

from skylark.mqcommon.errors import ConnectFailed
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.protocol.requests.groups import ConsumeOffset, ConsumeStats
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.mqadmin.fake import MASTER, SLAVE, World, run
from tests.sdk.admin.test_topology import texts


@pytest.fixture
def world() -> World:
    at = ConsumeStats({MessageQueue("T", "broker-a", 0): ConsumeOffset(10, 4), MessageQueue("T", "broker-a", 1):
                       ConsumeOffset(3, 5)})  # fmt: skip
    return World(
        topic_configs={"T": TopicConfig("T", 2, 2), "TBW102": TopicConfig("TBW102", 8, 8)},
        consume_stats={"g": at},
        infos={MASTER: {"putTps": "3.5 1 1", "commitLogMaxOffset": "100"}, SLAVE: {"commitLogMaxOffset": "90"}},
    )


def test_the_command_asks_masters_and_draws(world: World, tmp_path: Path) -> None:
    file = tmp_path / "cluster.svg"
    result = run(world, "clusterTopology", "--svg", str(file), "--output", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    [one] = found["clusters"][0]["sets"]
    assert (one["topicCount"], one["readQueues"], one["lag"]) == (1, 2, 6)
    assert [(each["brokerId"], each["inTps"], each["lagBytes"]) for each in one["brokers"]] == [
        (0, 3.5, None),
        (1, 0.0, 10),
    ]
    assert "slave 1" in " ".join(texts(file.read_text(encoding="utf-8")))
    assert world.called("all_topic_config") == [(MASTER,)]
    lines = run(world, "clusterTopology").stdout.splitlines()
    assert lines[1].split() == ["DefaultCluster", "broker-a", "0,1", "1", "2", "2", "6"]
    assert lines[-1].split() == ["T", "2", "2", "6"]


def test_a_broker_that_does_not_answer_is_shown_and_its_slave_is_asked(world: World, tmp_path: Path) -> None:
    world.errors[("broker_runtime_info", MASTER)] = ConnectFailed(MASTER, "refused")
    result = run(world, "clusterTopology")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].split() == ["DefaultCluster", "broker-a", "0!,1", "1", "2", "2", "6"]
    assert world.called("all_topic_config") == [(SLAVE,)]
    result = run(world, "clusterTopology", "--svg", str(tmp_path / "no" / "file.svg"))
    assert "cannot be written" in result.stderr
