"""haStatus, resetMasterFlushOffset, and how far slaves are behind in clusterList."""

import json
from typing import Any

import pytest

from mqcommon.errors import BrokerError
from remoting.protocol.requests.brokers import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from tests.sdk.admin.fake import MASTER, SLAVE, World, run
from tests.sdk.admin.test_golden import golden, printed

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


def test_without_the_flag_cluster_list_has_rocketmqs_columns() -> None:
    world = World(infos={MASTER: TOLD, SLAVE: {"commitLogMaxOffset": "1"}})
    assert printed(world, "clusterList")[0] == golden("clusterList")[0]
