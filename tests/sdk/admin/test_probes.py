"""sendMsgStatus, checkMsgSendRT, clusterRT."""

import json
import re
from typing import Any

import pytest

from mqcommon.errors import BrokerError, RouteNotFound, SendFailed
from sdk.admin.commands.stats import _average_ms
from tests.sdk.admin.fake import MASTER, World, run

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
