"""A master and its slave with users: what is signed between them, and what the slave knows."""

import json
from typing import Any

import pytest

from skylark.mqcommon.errors import BrokerError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.client import Admin
from tests.broker.replication.sets import SLAVE, broker, namesrv
from tests.broker.security.users.rows import SECRET
from tests.support.waiting import until

ROOT = Credentials("root", SECRET)
GUARDED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": SECRET}),
    "inner_client_authentication_credentials": json.dumps({"accessKey": "inner", "secretKey": "inner-secret"}),
    "ha_shared_secret": "of-the-link",
}


async def test_a_slave_knows_its_masters_users_and_policies_and_keeps_them() -> None:
    policy = PolicyInfo("Custom", [PolicyEntryInfo("Topic:*", ["Get"], None, "Allow")])
    async with namesrv() as addr, Admin("", credentials=ROOT) as root:
        options = {**GUARDED, "namesrv_addr": addr}
        async with broker(**options) as master, broker(**options, **SLAVE) as slave:
            await root.create_user(master.addr, UserInfo("anna", "anna-secret"))
            await root.create_acl(master.addr, AclInfo("User:anna", [policy]))
            copied = slave.broker

            async def known() -> bool:
                try:
                    found = await root.get_acl(slave.addr, "User:anna")
                except BrokerError:  # the user is not there yet
                    return False
                return found is not None

            await until(known, "the slave has the policies")
            users = await root.list_users(slave.addr)
            assert {user.username: user.password for user in users} == {
                "root": SECRET, "inner": "inner-secret", "anna": "anna-secret",
            }  # fmt: skip
            # left to the master, and said so
            await root.delete_user(slave.addr, "anna")
            assert await root.get_user(slave.addr, "anna") is not None
            fs = slave.fs
            assert copied.options.is_slave
        async with (
            broker(fs, **options, **SLAVE) as slave,
            Admin(credentials=Credentials("anna", "anna-secret")) as anna,
        ):
            with pytest.raises(BrokerError) as refused:
                await anna.all_groups(slave.addr)
            assert refused.value.code == ResponseCode.NO_PERMISSION
            assert "User:anna has no permission to access Cluster:DefaultCluster" in refused.value.remark
            with pytest.raises(BrokerError) as unknown:
                await anna.topic_config(slave.addr, "T")
            assert unknown.value.code == ResponseCode.TOPIC_NOT_EXIST, "the policy allows to ask"
