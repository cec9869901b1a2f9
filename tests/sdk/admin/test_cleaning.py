"""deleteExpiredCommitLog, cleanExpiredCQ, cleanUnusedTopic; and -b without a NameServer."""

import json

import pytest

from mqcommon.errors import ConnectFailed
from remoting.protocol.requests.groups import SubscriptionGroupConfig
from remoting.protocol.requests.topics import TopicConfig
from tests.sdk.admin.fake import MASTER, SLAVE, World, run

CALLS = {
    "deleteExpiredCommitLog": "delete_expired_commit_log",
    "cleanExpiredCQ": "clean_expired_consume_queue",
    "cleanUnusedTopic": "clean_unused_topic",
}


@pytest.mark.parametrize(("name", "method"), CALLS.items())
def test_at_one_broker_or_at_all(name: str, method: str) -> None:
    world = World()
    assert run(world, name, "-b", MASTER, namesrv=None).stdout == "success\n"
    assert world.called(method) == [(MASTER,)]
    assert world.called("cluster_info") == []
    for arguments in (["-c", "DefaultCluster"], []):
        world = World()
        assert run(world, name, *arguments).stdout == "success\n"
        assert world.called(method) == [(MASTER,), (SLAVE,)]


@pytest.mark.parametrize(("name", "method"), CALLS.items())
def test_a_broker_that_does_not_answer(name: str, method: str) -> None:
    world = World(errors={(method, MASTER): ConnectFailed(MASTER, "refused")})
    result = run(world, name, "-c", "DefaultCluster")
    assert (result.exit_code, result.stdout) == (1, "false\n")
    assert MASTER in result.stderr
    assert world.called(method) == [(MASTER,), (SLAVE,)]
    document = json.loads(run(world, name, "--output", "json").stdout)
    assert [row["ok"] for row in document["results"]] == [False, True]


@pytest.mark.parametrize("name", CALLS)
def test_wrong_usage(name: str) -> None:
    assert run(World(), name, "-b", MASTER, "-c", "DefaultCluster").exit_code == 2
    assert "no cluster 'nowhere'" in run(World(), name, "-c", "nowhere").stderr
    without = run(World(), name, namesrv=None)
    assert without.exit_code == 2
    assert "give -n HOST:PORT or set NAMESRV_ADDR" in without.stderr


@pytest.mark.parametrize(
    "command_line",
    [
        f"brokerStatus -b {MASTER}",
        f"getBrokerConfig -b {MASTER}",
        f"updateBrokerConfig -b {MASTER} -k a -v b",
        f"updateTopic -b {MASTER} -t T",
        f"updateTopicPerm -b {MASTER} -t T -p 6",
        f"updateSubGroup -b {MASTER} -g G",
        f"deleteSubGroup -b {MASTER} -g G",
    ],
)
def test_a_broker_is_enough_where_nothing_is_asked_of_a_nameserver(command_line: str) -> None:
    world = World(
        configs={MASTER: {}},
        topic_configs={"T": TopicConfig("T")},
        group_configs={"G": SubscriptionGroupConfig("G")},
    )
    result = run(world, *command_line.split(), namesrv=None)
    assert result.exit_code == 0, result.stderr
    assert [settings.namesrv for settings in world.opened] == [""]


@pytest.mark.parametrize(
    "command_line", ["brokerStatus -c C", "topicList", "queryCq -t T -q 0 -i 0", "wipeWritePerm -b broker-a"]
)
def test_else_one_must_be_named(command_line: str) -> None:
    world = World()
    result = run(world, *command_line.split(), namesrv=None)
    assert (result.exit_code, world.opened) == (2, [])
    assert "no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR" in result.stderr
