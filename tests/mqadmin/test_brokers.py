"""Commands about brokers: replication, removal of files, levels of loggers."""

import json
from typing import Any

import pytest

from skylark.mqadmin.cli import mqadmin
from skylark.mqadmin.params import BrokerAddress, BrokerName
from skylark.mqcommon.errors import BrokerError, ConnectFailed
from skylark.remoting.protocol.requests.brokers import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.mqadmin.fake import MASTER, NAMESRV, SLAVE, World, run
from tests.mqadmin.test_golden import golden, printed

# --- haStatus, resetMasterFlushOffset, and how far slaves are behind in clusterList


pytestmark = pytest.mark.usefixtures("utc")


def test_a_master_without_slaves_prints_as_rocketmqs_does() -> None:
    world = World(ha_statuses={MASTER: HARuntimeInfo(True, 4388)})
    assert printed(world, "haStatus", "-b", MASTER) == golden(f"haStatus -b {MASTER}")


def test_a_masters_slaves() -> None:
    slaves = [
        HAConnectionRuntimeInfo("10.0.0.1:40000", 4388, 0, True, 2560, 4388),
        HAConnectionRuntimeInfo("10.0.0.2:40000", 88, 4300, False, 0, 100),
    ]
    world = World(ha_statuses={MASTER: HARuntimeInfo(True, 4388, 1, slaves)})
    lines = printed(world, "haStatus", "-c", "DefaultCluster")
    assert lines[:5] == [
        "",
        f"#MasterAddr\t{MASTER}",
        "#MasterCommitLogMaxOffset\t4388",
        "#SlaveNum\t2",
        "#InSyncSlaveNum\t1",
    ]
    assert [line.split() for line in lines[6:]] == [
        ["10.0.0.1:40000", "4388", "0", "2.50", "OK", "4388"],
        ["10.0.0.2:40000", "88", "4300", "0.00", "Fall", "Behind", "100"],
    ]
    assert world.called("broker_ha_status") == [(MASTER,)], "of a cluster its masters, as RocketMQ's tool"


def test_a_slave() -> None:
    client = HAClientRuntimeInfo("10.0.0.9:10912", 1024, 77, 1_795_229_980_123, 1_795_229_981_000, 66)
    world = World(ha_statuses={SLAVE: HARuntimeInfo(False, ha_client_runtime_info=client)})
    assert printed(world, "haStatus", "-b", SLAVE) == [
        "",
        "#MasterAddr\t10.0.0.9:10912",
        "#CommitLogMaxOffset\t77",
        "#TransferSpeed(KB/s)\t1.00",
        "#LastReadTime\t2026-11-21 02:59:40,123",
        "#LastWriteTime\t2026-11-21 02:59:41,000",
        "#MasterFlushOffset\t66",
    ]


def test_as_json() -> None:
    world = World(ha_statuses={MASTER: HARuntimeInfo(True, 5, 1, [HAConnectionRuntimeInfo("a:1", 5, 0, True)])})
    (row,) = json.loads(run(world, "haStatus", "-b", MASTER, "--output", "json").stdout)
    assert (row["brokerAddr"], row["master"], row["haConnectionInfo"][0]["inSync"]) == (MASTER, True, True)


def test_a_broker_before_5_has_no_status() -> None:
    error = BrokerError(3, " request type 907 not supported", MASTER)
    result = run(World(errors={("broker_ha_status",): error}), "haStatus", "-b", MASTER)
    assert result.exit_code == 1 and "907" in result.stderr


def test_reset_master_flush_offset() -> None:
    world = World()
    line = "reset master flush offset to 4711 success"
    assert printed(world, "resetMasterFlushOffset", "-b", SLAVE, "-o", "4711") == [line]
    assert world.called("reset_master_flush_offset") == [(SLAVE, 4711)]
    assert run(world, "resetMasterFlushOffset", "-b", SLAVE, "-o", "-1").exit_code == 2


TOLD = {"commitLogMaxOffset": "1000", f"slaveAckDiff_{SLAVE}": "200", f"slaveBehindMs_{SLAVE}": "1500"}


@pytest.mark.parametrize(
    ("master", "slave", "columns", "lag"),
    [
        (TOLD, {"commitLogMaxOffset": "1"}, ["200", "1.5"], (200, 1500)),
        ({"commitLogMaxOffset": "1000"}, {"commitLogMaxOffset": "900"}, ["100", "-"], (100, None)),
        ({"commitLogMaxOffset": "900"}, {"commitLogMaxOffset": "1000"}, ["0", "-"], (0, None)),
        ({}, {"commitLogMaxOffset": "900"}, ["-", "-"], (None, None)),
        ({"commitLogMaxOffset": "1000"}, {}, ["-", "-"], (None, None)),
    ],
)
def test_lag_in_cluster_list(
    master: dict[str, str], slave: dict[str, str], columns: list[str], lag: tuple[Any, ...]
) -> None:
    world = World(infos={MASTER: master, SLAVE: slave})
    head, first, second = printed(world, "clusterList", "--lag")
    assert head.split()[-3:] == ["#ACTIVATED", "#LAG(bytes)", "#LAG(s)"]
    assert first.split()[-2:] == ["-", "-"], "a master is behind nobody"
    assert second.split()[-2:] == columns
    rows = json.loads(run(world, "clusterList", "--output", "json").stdout)
    assert [(row["lagBytes"], row["lagMs"]) for row in rows] == [(None, None), lag]


# --- deleteExpiredCommitLog, cleanExpiredCQ, cleanUnusedTopic; and -b without a NameServer


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


@pytest.mark.parametrize("broker", ["broker-a", MASTER, SLAVE])
def test_a_broker_is_given_by_its_name_or_by_an_address(broker: str) -> None:
    world = World(infos={MASTER: {}, SLAVE: {}})
    assert run(world, "brokerStatus", "-b", broker).exit_code == 0
    assert world.called("broker_runtime_info") == [(SLAVE if broker == SLAVE else MASTER,)]
    assert run(world, "wipeWritePerm", "-b", broker).exit_code == 0
    calls = world.called("wipe_write_perm")
    assert calls and all("broker-a" in call for call in calls)


@pytest.mark.parametrize("command_line", ["brokerStatus -b nowhere", "drain -b 127.0.0.9:1"])
def test_an_unknown_broker_is_named_with_those_that_are_known(command_line: str) -> None:
    result = run(World(), *command_line.split())
    assert result.exit_code == 1
    assert f"at this NameServer (it knows: broker-a ({MASTER}), broker-a ({SLAVE})); check -b" in result.stderr


def test_every_command_that_takes_one_broker_takes_its_name_and_its_address() -> None:
    kinds = {
        name: param.type
        for name, command in mqadmin.commands.items()
        for param in command.params
        if "-b" in param.opts and param.name in ("broker", "broker_name", "broker_addr")
    }
    others = sorted(name for name, kind in kinds.items() if not isinstance(kind, BrokerAddress | BrokerName))
    # Controllers know replica sets of brokers that no NameServer knows.
    assert others == ["forgetBroker", "getSyncStateSet"] and len(kinds) > 30


@pytest.mark.parametrize(
    "command_line",
    [
        "brokerStatus -c C", "topicList", "queryCq -t T -q 0 -i 0", "wipeWritePerm -b broker-a",
        "brokerStatus -b broker-a",
    ],
)  # fmt: skip
def test_else_one_must_be_named(command_line: str) -> None:
    world = World()
    result = run(world, *command_line.split(), namesrv=None)
    assert (result.exit_code, world.opened) == (2, [])
    assert "no NameServer address: give -n HOST:PORT or set NAMESRV_ADDR" in result.stderr


# --- setLogLevel


def test_a_level_is_added_to_those_that_are_set() -> None:
    world = World(configs={MASTER: {"logLevels": "broker.store=DEBUG"}, SLAVE: {"logLevels": ""}})
    result = run(world, "setLogLevel", "-c", "DefaultCluster", "-l", "root", "-v", "warning")
    assert result.stdout == "".join(f"set log level success, {addr}, root : WARNING\n" for addr in (MASTER, SLAVE))
    assert world.called("update_broker_config") == [
        (MASTER, {"logLevels": "broker.store=DEBUG;root=WARNING"}),
        (SLAVE, {"logLevels": "root=WARNING"}),
    ]


def test_a_level_is_taken_away() -> None:
    world = World(configs={NAMESRV: {"logLevels": "namesrv=DEBUG;root=ERROR"}})
    result = run(world, "setLogLevel", "-s", "-l", "namesrv", "-v", "default")
    assert result.exit_code == 0
    assert world.called("update_namesrv_config") == [(NAMESRV, {"logLevels": "root=ERROR"}, None)]


def test_rocketmqs_brokers_are_left_alone() -> None:
    world = World(configs={MASTER: {"a": "b"}})
    result = run(world, "setLogLevel", "-b", MASTER, "-l", "root", "-v", "INFO")
    assert result.exit_code == 1
    assert "only Skylark's servers" in result.stderr
    assert world.called("update_broker_config") == []


def test_a_logger_that_cannot_be_named_is_refused_before_anything_is_sent() -> None:
    world = World(configs={MASTER: {"logLevels": ""}})
    assert run(world, "setLogLevel", "-b", MASTER, "-l", "a b", "-v", "INFO").exit_code == 1
    assert world.called("update_broker_config") == []


# --- switchTimerEngine


def test_an_engine_of_timers_is_chosen() -> None:
    world = World()
    assert printed(world, "switchTimerEngine", "-b", MASTER, "-e", "F") == [f"switchTimerEngine to F success, {MASTER}"]
    assert world.called("switch_timer_engine") == [(MASTER, "F")]
    lines = printed(world, "switchTimerEngine", "-c", "DefaultCluster", "-e", "R")
    assert lines == [f"switchTimerEngine to ROCKSDB_TIMELINE success, {MASTER}"]
    wrong = run(world, "switchTimerEngine", "-b", MASTER, "-e", "r")
    assert (wrong.exit_code, "engineType must be R or F" in wrong.stderr) == (2, True)
