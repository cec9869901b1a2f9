"""What mqadmin tells of a master and its slave, over real sockets."""

from pathlib import Path

import pytest
import trio

from sdk import Message, Producer
from tests.sdk.admin.test_cluster import Cluster, cluster
from tests.support.in_process import small_broker

__all__ = ["cluster"]


@pytest.fixture
async def slave(nursery: trio.Nursery, cluster: Cluster, tmp_path: Path) -> str:
    """The address of a slave of the cluster's broker, which follows it."""
    broker = small_broker(cluster.namesrv, tmp_path / "slave", broker_id=1, broker_role="SLAVE")
    addr = await nursery.start(broker.run)
    assert isinstance(addr, str)
    with trio.fail_after(10):
        while (await cluster.json("haStatus", "-b", cluster.broker))[0]["inSyncSlaveNums"] != 1:
            pass
    return addr


async def test_a_set(cluster: Cluster, slave: str) -> None:
    await cluster.topic("t")
    async with Producer(cluster.namesrv) as producer:
        await producer.send(Message("t", b"hello"))
    with trio.fail_after(10):
        while (await cluster.json("haStatus", "-b", cluster.broker))[0]["haConnectionInfo"][0]["diff"]:
            pass
    _, first, second = (await cluster.text("clusterList", "-l")).splitlines()
    assert first.split()[-3:] == ["true", "-", "-"]
    assert second.split()[2:4] == ["1", slave] and second.split()[-3:] == ["false", "0", "0.0"]
    (row,) = await cluster.json("haStatus", "-b", slave)
    assert not row["master"] and row["haClientRuntimeInfo"]["maxOffset"] > 0
    assert f"My Master: {cluster.broker}=====Slave: {slave}" in await cluster.text(
        "getBrokerConfig", "-c", "DefaultCluster"
    )
    await cluster.text("resetMasterFlushOffset", "-b", slave, "-o", "4711")
    assert "#MasterFlushOffset\t4711" in await cluster.text("haStatus", "-b", slave)


async def test_topics_are_changed_on_the_master(cluster: Cluster, slave: str) -> None:
    refused = await cluster.run("updateTopic", "-b", slave, "-t", "t")
    assert refused.exit_code == 1 and "please execute it from master broker" in refused.stderr
