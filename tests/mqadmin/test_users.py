"""The twelve commands about users and policies, against a broker in this process."""

import json
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from skylark.mqadmin.cli import mqadmin
from skylark.mqcommon.errors import InvalidArgument
from skylark.remoting.protocol.requests.auth import UserInfo
from skylark.remoting.protocol.signature import Credentials
from skylark.sdk.admin.client import Admin
from tests.broker.running import running


async def run(*args: str, env: dict[str, str] | None = None) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, list(args), env=env))


async def ok(*args: str) -> str:
    result = await run(*args)
    assert result.exit_code == 0, result.output
    return result.output


async def rows(*args: str) -> Any:
    return json.loads(await ok(*args, "--output", "json"))


async def test_the_life_of_a_user() -> None:
    async with running() as (_, addr):
        at = ("-b", addr)
        assert await ok("createUser", *at, "-u", "anna", "-p", "secret-1") == f"create user to {addr} success.\n"
        result = await run("createUser", *at, "-u", "bob", "-t", "super", env={"MQADMIN_USER_PASSWORD": "secret-2"})
        assert result.exit_code == 0, result.output
        shown = await ok("getUser", *at, "-u", "anna")
        assert shown == (
            f"{'#UserName':16}  {'#Password':22}  {'#UserType':22}  {'#UserStatus':22}\n"
            f"{'anna':16}  {'******':22}  {'Normal':22}  {'enable':22}\n"
        )
        await ok("updateUser", *at, "-u", "anna", "-t", "Super", "-s", "disable")
        listed = await rows("listUser", *at)
        assert listed == [
            {"username": "anna", "userType": "Super", "userStatus": "disable", "brokerAddr": addr},
            {"username": "bob", "userType": "Super", "userStatus": "enable", "brokerAddr": addr},
        ]
        assert [row["username"] for row in await rows("listUser", *at, "-f", "ob")] == ["bob"]
        assert await ok("deleteUser", *at, "-u", "anna") == f"delete user to {addr} success.\n"
        assert [row["username"] for row in await rows("listUser", *at)] == ["bob"]
        for command in ("getUser", "deleteUser"):
            gone = await run(command, *at, "-u", "anna")
            assert gone.exit_code == 1
            assert "there is no user anna" in gone.output and "success" not in gone.output


async def test_what_can_be_no_name_is_signed_for_nobody() -> None:
    """No broker is there: the name is refused before anybody is asked."""
    at = "127.0.0.1:1"
    name = 'stranger1{"password":"x","userType":"Super"}'
    async with Admin("", credentials=Credentials("root", "secret")) as admin:
        for ask in (
            lambda: admin.get_user(at, name),
            lambda: admin.delete_user(at, name),
            lambda: admin.create_user(at, UserInfo(name, "x")),
            lambda: admin.update_user(at, UserInfo(name, "x")),
        ):
            with pytest.raises(InvalidArgument, match="has blanks, or one of"):
                await ask()


async def test_the_life_of_policies() -> None:
    async with running() as (_, addr):
        at, subject = ("-b", addr), ("-s", "User:anna")
        await ok("createUser", *at, "-u", "anna", "-p", "secret-1")
        entry = ("-r", "Topic:orders,Topic:a*", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.0/8")
        assert await ok("createAcl", *at, *subject, *entry) == f"create acl to {addr} success.\n"
        shown = await ok("getAcl", *at, *subject)
        line = (
            f"{'User:anna':16}  {'Custom':10}  {'Topic:a*':22}  {'[Pub, Sub]':20}  {'[10.0.0.0/8]':24}  {'Allow':10}\n"
        )
        assert shown.endswith(line)
        never = await run("deleteAcl", *at, *subject, "-r", "Topic:typo")
        assert never.exit_code == 1
        assert "User:anna has no policy about Topic:typo" in never.output and "success" not in never.output
        await ok("updateAcl", *at, *subject, "-r", "Topic:orders", "-a", "All", "-d", "deny")
        await ok("updateAcl", *at, *subject, "-r", "*", "-a", "Get", "-d", "Allow", "-t", "Default")
        listed = await rows("listAcl", *at)
        assert [(row["policyType"], row["resource"], row["actions"], row["decision"]) for row in listed] == [
            ("Custom", "Topic:a*", ["Pub", "Sub"], "Allow"),
            ("Custom", "Topic:orders", ["All"], "Deny"),
            ("Default", "*", ["Get"], "Allow"),
        ]
        assert len(await rows("listAcl", *at, "-s", "ann", "-r", "orders")) == 1
        assert await ok("deleteAcl", *at, *subject, "-r", "Topic:orders") == f"delete acl to {addr} success.\n"
        await ok("deleteAcl", *at, *subject, "-r", "*", "-t", "Default")
        assert [row["resource"] for row in await rows("getAcl", *at, *subject)] == ["Topic:a*"]
        await ok("deleteAcl", *at, *subject)
        gone = await run("getAcl", *at, *subject)
        assert gone.exit_code == 1
        assert "User:anna has no policies" in gone.output


async def test_policies_are_copied_and_users_by_a_super_user() -> None:
    root = {"init_authentication_user": json.dumps({"username": "root", "password": "root-secret"})}
    as_root = {"ROCKETMQ_ACCESS_KEY": "root", "ROCKETMQ_SECRET_KEY": "root-secret"}
    async with running(**root) as (_, here), running(broker_name="broker-b") as (_, there):
        for name in ("anna", "bob"):
            await ok("createUser", "-b", here, "-u", name, "-p", f"secret-of-{name}")
            await ok("createAcl", "-b", here, "-s", f"User:{name}", "-r", "*", "-a", "All", "-d", "Allow")
        hidden = await run("copyUser", "-f", here, "-t", there)
        assert hidden.exit_code == 1
        assert "did not show the passwords: sign in as a Super user" in hidden.output
        copied = await run("copyUser", "-f", here, "-t", there, "-u", "root", env=as_root)
        assert copied.output == f"copy user of root from {here} to {there} success.\n"
        every = await run("copyUser", "-f", here, "-t", there, "--output", "json", env=as_root)
        assert json.loads(every.output) == {"copied": ["anna", "bob", "root"]}
        async with Admin(credentials=Credentials("root", "root-secret")) as admin:
            assert await admin.list_users(there) == await admin.list_users(here)
        assert await rows("copyAcl", "-f", here, "-t", there, "-s", "User:bob") == {"copied": ["User:bob"]}
        await ok("copyAcl", "-f", here, "-t", there)
        assert [row["subject"] for row in await rows("listAcl", "-b", there)] == ["User:anna", "User:bob"]
        for command, option, name in (("copyUser", "-u", "who"), ("copyAcl", "-s", "User:who")):
            missing = await run(command, "-f", here, "-t", there, option, name)
            assert missing.exit_code == 1
            assert name in missing.output


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("createUser", "-u", "anna", "-p", "x"), "give --brokerAddr or --clusterName"),
        (("createUser", "-b", "127.0.0.1:1", "-u", "anna"), "--password"),
        (("createUser", "-b", "127.0.0.1:1", "-u", "anna", "-p", "x", "-t", "King"), "King"),
        (("updateUser", "-b", "127.0.0.1:1", "-u", "anna"), "give -p/--password, -t/--userType or -s/--userStatus"),
        (("createAcl", "-b", "127.0.0.1:1", "-s", "User:a", "-r", ",", "-a", "All", "-d", "Deny"), "must not be empty"),
        (("deleteAcl", "-b", "127.0.0.1:1", "-s", "User:a", "-t", "Default"), "needs -r/--resources"),
        (("copyUser", "-f", "127.0.0.1:1"), "--toBroker"),
    ],
)
async def test_a_wrong_command_line(args: tuple[str, ...], text: str) -> None:
    result = await run(*args)
    assert result.exit_code == 2
    assert text in result.output


async def test_a_refusal_is_one_line_that_says_what_to_do() -> None:
    async with running() as (_, addr):
        await ok("createUser", "-b", addr, "-u", "anna", "-p", "secret-1")
        for args, text in (
            (("createUser", "-b", addr, "-u", "anna", "-p", "x"), "The user is existed: change anna with updateUser"),
            (("updateUser", "-b", addr, "-u", "bob", "-p", "x"), "create bob with createUser"),
            (
                ("createAcl", "-b", addr, "-s", "User:anna", "-r", "Q:a", "-a", "All", "-d", "Deny"),
                "'Q:a' is no resource: give Topic:name",
            ),
        ):
            result = await run(*args)
            assert result.exit_code == 1
            assert text in result.output
            assert "check the permissions of the topic" not in result.output
            assert result.output.count("\n") == 1
