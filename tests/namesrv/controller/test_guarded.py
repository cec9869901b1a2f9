"""Controllers with access control: only administrators ask, and the Controllers sign for each other."""

import json
from pathlib import Path

import pytest

from skylark.mqcommon.errors import BrokerError, ConfigError
from skylark.namesrv.controller.options import ControllerDaemonOptions
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.controller import CONTROLLER_GET_METADATA_INFO, GET_CONTROLLER_CONFIG
from skylark.remoting.protocol.signature import Credentials
from tests.namesrv.controller.controllers import TIMEOUT_MS, open_controllers

ACCOUNTS = "accounts:\n- accessKey: brokers\n  secretKey: 12345678\n  admin: true\n"
INNER = '{"accessKey":"brokers","secretKey":"12345678"}'


async def test_users_of_the_conf_register_brokers_and_do_nothing_else() -> None:
    users = [{"accessKey": "brokers", "secretKey": "12345678", "admin": True}, {"accessKey": "b1", "secretKey": "s-b1"}]
    more = {"registration_users": json.dumps(users), "inner_client_authentication_credentials": INNER}
    async with open_controllers("n0", "n1", **more) as controllers:
        at = await controllers.leader_addr()
        async with open_client() as stranger, open_client(credentials=Credentials("b1", "s-b1")) as broker:
            told = (await call(Remote(broker, at, TIMEOUT_MS), CONTROLLER_GET_METADATA_INFO)).header()
            assert told.controller_leader_address == at
            for who, what, why in (
                (stranger, CONTROLLER_GET_METADATA_INFO, "has no signature"),
                (broker, GET_CONTROLLER_CONFIG, "account b1 has no admin: true"),
            ):
                with pytest.raises(BrokerError, match=why):
                    await call(Remote(who, at, TIMEOUT_MS), what)


async def test_only_administrators_ask(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    file.chmod(0o600)
    more = {"acl_enable": True, "acl_file": str(file), "inner_client_authentication_credentials": INNER}
    async with open_controllers("n0", "n1", **more) as controllers:
        at = await controllers.leader_addr()
        async with open_client() as stranger, open_client(credentials=Credentials("brokers", "12345678")) as admin:
            with pytest.raises(BrokerError) as refused:
                await call(Remote(stranger, at, TIMEOUT_MS), CONTROLLER_GET_METADATA_INFO)
            assert refused.value.code == ResponseCode.NO_PERMISSION
            told = (await call(Remote(admin, at, TIMEOUT_MS), CONTROLLER_GET_METADATA_INFO)).header()
            assert told.controller_leader_address == at


def test_access_control_needs_what_controllers_sign_with() -> None:
    with pytest.raises(ConfigError, match="Credentials: aclEnable and registrationUsers need it"):
        ControllerDaemonOptions(
            controller_d_leger_peers="n0-h:1;n1-h:2", controller_d_leger_self_id="n0", acl_enable=True, acl_file="a"
        )
