"""A slave of a master with accounts in files: it signs as an administrator, and asks its own clients, too."""

import json
from pathlib import Path

import pytest

from skylark import Admin, testing
from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.remoting.protocol.signature import Credentials
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write
from tests.support.waiting import until

ROOT = Credentials("admin-account", SECRET)


async def test_a_slave_copies_tables_and_guards_itself(tmp_path: Path) -> None:
    options = {
        "aclEnable": True,
        "aclFile": write(tmp_path / "plain_acl.yml", ADMIN + account("shop-account", "defaultTopicPerm: SUB")),
        "haSharedSecret": "shared-secret-of-the-set",
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT.access_key, "secretKey": SECRET}),
    }
    async with (
        testing.Cluster(slaves=1, options=options) as cluster,
        Admin(cluster.nameserver, credentials=ROOT) as root,
        Admin(cluster.nameserver, credentials=Credentials("shop-account", SECRET)) as shop,
    ):
        master, slave = cluster.brokers[0].address, cluster.slaves[0].address
        await root.create_topic(master, TopicConfig("orders", 2, 2))

        async def copied() -> bool:
            return "orders" in (await root.all_topic_config(slave)).topic_config_table

        await until(copied, "the slave has the topic")
        for addr in (master, slave):
            with pytest.raises(BrokerError, match="Need admin permission"):
                await shop.accounts(addr)
            assert len((await root.accounts(addr)).plain_access_configs) == 2
