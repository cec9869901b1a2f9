"""The commands about accounts in files, against a broker in this process."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from skylark import Admin
from skylark.mqadmin.cli import mqadmin
from skylark.remoting.protocol.signature import Credentials
from tests.broker.running import running
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write

AS_ADMIN = {"ROCKETMQ_ACCESS_KEY": "admin-account", "ROCKETMQ_SECRET_KEY": SECRET}
SHOP = account("shop-account", "topicPerms:", "- orders=PUB", "groupPerms:", "- kitchen=SUB")


def content(path: str) -> bytes:
    return Path(path).read_bytes()


async def run(*args: str, env: dict[str, str] | None = None) -> Result:
    env = AS_ADMIN | (env or {})
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(mqadmin, list(args), env=env))


async def ok(*args: str, env: dict[str, str] | None = None) -> str:
    result = await run(*args, env=env)
    assert result.exit_code == 0, result.output
    return result.output


async def rows(*args: str) -> Any:
    return json.loads(await ok(*args, "--output", "json"))


@asynccontextmanager
async def guarded(tmp_path: Path, text: str = ADMIN + SHOP) -> AsyncIterator[tuple[str, str]]:
    """The broker's address, and its file."""
    path = write(tmp_path / "plain_acl.yml", text)
    async with running(acl_enable=True, acl_file=path) as (_, addr):
        yield addr, path


async def test_the_life_of_an_account(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (addr, path):
        at = ("-b", addr)
        made = await ok(
            "updateAclConfig",
            *at,
            "-a",
            "anna-account",
            "-t",
            "a=PUB,b=DENY",
            "-i",
            "SUB",
            env={"MQADMIN_SECRET_KEY": SECRET},
        )  # fmt: skip
        assert made == f"create or update plain access config to {addr} success.\n"
        await ok("updateAclConfig", *at, "-a", "anna-account", "-w", "10.0.0.{1,2}", "-m", "true", "-g", "g=SUB")
        (found,) = await rows("getAclConfig", *at)
        assert [one["accessKey"] for one in found["accounts"]] == ["admin-account", "shop-account", "anna-account"]
        assert found["accounts"][2] == {
            "accessKey": "anna-account", "whiteRemoteAddress": "10.0.0.{1,2}", "admin": True, "defaultTopicPerm": "SUB",
            "defaultGroupPerm": "DENY", "topicPerms": ["a=PUB", "b=DENY"], "groupPerms": ["g=SUB"],
        }  # fmt: skip
        shown = await ok("getAccessConfigSubCommand", *at)
        assert "  topicPerms        : [a=PUB, b=DENY]" in shown and SECRET not in shown
        await ok("updateGlobalWhiteAddr", *at, "-g", "10.1.*.*,10.2.3.{4,5}")
        assert (await rows("getAclConfig", *at))[0]["globalWhiteAddrs"] == ["10.1.*.*", "10.2.3.{4,5}"]
        assert await ok("deleteAccessConfig", *at, "-a", "anna-account") == (
            f"delete plain access config account from {addr} success.\n"
        )
        (version,) = await rows("clusterAclConfigVersion", *at)
        assert (version["file"], version["counter"], version["brokerName"]) == (path, 4, "broker-a")
        table = await ok("clusterAclConfigVersion", *at)
        assert table.startswith("#Cluster Name     #Broker Name ") and path in table
        assert [one["accessKey"] for one in (await rows("getAclConfig", *at))[0]["accounts"]] == [
            "admin-account", "shop-account",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("updateAclConfig", "-a", "anna-account"), "secretKey must be a text of at least 7 characters"),
        (("updateAclConfig", "-a", "anna", "-s", "long-enough"), "accessKey must be a text of at least 7 characters"),
        (("updateAclConfig", "-a", "shop-account", "-w", "10.0.0.300"), "'10.0.0.300' is no address"),
        (("updateAclConfig", "-a", "shop-account", "-t", "a=ALL"), "'ALL' is no permission"),
        (("deleteAclConfig", "-a", "nobody-here"), "there is no such account"),
        (("updateGlobalWhiteAddr", "-g", "10.0"), "'10.0' is no address"),
        (("updateGlobalWhiteAddr", "-g", "*", "-p", "/etc/passwd"), "/etc/passwd is no file of accounts"),
    ],
)
async def test_a_mistake_changes_nothing_and_says_what_to_do(tmp_path: Path, args: tuple[str, ...], text: str) -> None:
    async with guarded(tmp_path) as (addr, path):
        before = content(path)
        result = await run(*args, "-b", addr)
        assert result.exit_code == 1
        assert text in result.output and result.output.count("\n") == 1
        assert content(path) == before


async def test_without_accounts_the_commands_are_refused() -> None:
    async with running() as (_, addr):
        for args in (("getAclConfig",), ("updateAclConfig", "-a", "anna-account"), ("clusterAclConfigVersion",)):
            result = await run(*args, "-b", addr)
            assert result.exit_code == 1
            assert "set aclEnable=true and aclFile" in result.output


async def test_only_administrators_use_them(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (addr, _):
        shop = {"ROCKETMQ_ACCESS_KEY": "shop-account"}
        for args in (
            ("getAclConfig",), ("updateAclConfig", "-a", "shop-account", "-m", "true"), ("clusterAclConfigVersion",),
            ("explainAcl", "-a", "admin-account", "-r", "10.0.0.1", "-t", "orders"),
        ):  # fmt: skip
            result = await run(*args, "-b", addr, env=shop)
            assert result.exit_code == 1
            assert "Need admin permission" in result.output


async def explain(addr: str, *args: str) -> tuple[bool, str, str]:
    """Whether it is allowed, why, and the rule that decided."""
    (row,) = await rows("explainAcl", "-b", addr, *args)
    return row["allowed"], row["text"], row["steps"][-1]["rule"] if row["steps"] else ""


async def test_explanations_name_the_rule_that_decides(tmp_path: Path) -> None:
    text = f"globalWhiteRemoteAddresses:\n- 10.9.*.*\n{ADMIN}{SHOP}"
    async with guarded(tmp_path, text) as (addr, path):
        shop = ("-a", "shop-account", "-r", "10.0.0.1")
        refused = "org.apache.rocketmq.acl.common.AclException: No default permission for "
        for args, allowed, why, rule in (
            ((*shop, "-t", "orders"), True, "all that the request needs is permitted", "topicPerms: orders=PUB"),
            ((*shop, "-t", "other"), False, f"{refused}topic:other", "defaultTopicPerm: DENY"),
            ((*shop, "-t", "orders", "-g", "kitchen"), False, f"{refused}topic:orders", "topicPerms: orders=PUB"),
            ((*shop, "-g", "kitchen"), True, "all that", "groupPerms: kitchen=SUB"),
            ((*shop, "-g", "kitchen", "-q", "heart_beat"), True, "all that", "groupPerms: kitchen=SUB"),
            ((*shop, "-t", "orders", "-q", "17"), False, "org.apache", "admin: false"),
            (("-a", "nobody-here", "-r", "10.0.0.1", "-t", "orders"), False, "org.apache", "nobody-here"),
            (("-a", "nobody-here", "-r", "10.9.0.1", "-t", "orders"), True, "10.9.0.1 is in", "10.9.*.*"),
            (("-a", "admin-account", "-r", "10.0.0.1", "-q", "25"), True, "admin-account is", "admin: true"),
        ):  # fmt: skip
            found = await explain(addr, *args)
            assert (found[0], found[2]) == (allowed, rule), args
            assert found[1].startswith(why)
        shown = await ok("explainAcl", "-b", addr, *shop, "-t", "other")
        assert shown.startswith(f"{addr}: REFUSED: {refused}topic:other\n")
        assert f"  account                           yes   shop-account, in {path}\n" in shown


async def test_policies_are_explained_too() -> None:
    root = {"init_authentication_user": json.dumps({"username": "admin-account", "password": SECRET})}
    async with running(authentication_enabled=True, authorization_enabled=True, **root) as (_, addr):
        await ok("createUser", "-b", addr, "-u", "anna", "-p", "secret-1")
        await ok("createAcl", "-b", addr, "-s", "User:anna", "-r", "Topic:a*", "-a", "Pub", "-d", "Allow")
        here = ("-r", "10.0.0.1")
        for args, allowed, rule in (
            (("-a", "anna", *here, "-t", "abc"), True, "Custom Topic:a* Pub Allow"),
            (("-a", "anna", *here, "-t", "b"), False, "no policy matches"),
            (("-a", "admin-account", *here, "-t", "b"), True, "Super"),
            (("-a", "who", *here, "-t", "b"), False, "who"),
        ):
            found = await explain(addr, *args)
            assert (found[0], found[2]) == (allowed, rule), args
        await ok("updateUser", "-b", addr, "-u", "anna", "-s", "disable")
        assert (await explain(addr, "-a", "anna", *here, "-t", "abc"))[:2] == (False, "User:anna is disabled.")


async def test_without_access_control_everybody_may_do_everything() -> None:
    async with running() as (_, addr):
        found = await explain(addr, "-a", "who", "-r", "10.0.0.1", "-t", "T")
        assert found == (True, "this broker has no access control: everybody may do everything", "")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("updateAclConfig", "-a", "x"), "give --brokerAddr or --clusterName"),
        (("updateAclConfig", "-b", "127.0.0.1:1", "-a", "x", "-i", "ALL"), "ALL"),
        (("updateAclConfig", "-b", "127.0.0.1:1", "-a", "x", "-t", "topic"), "as in topicA=PUB|SUB"),
        (("explainAcl", "-b", "127.0.0.1:1", "-a", "x", "-r", "10.0.0.1", "-q", "SEND_IT"), "is no request"),
    ],
)
async def test_a_wrong_command_line(args: tuple[str, ...], text: str) -> None:
    result = await run(*args)
    assert result.exit_code == 2
    assert text in result.output


async def test_an_explanation_needs_a_name(tmp_path: Path) -> None:
    result = await run("explainAcl", "-b", "127.0.0.1:1", "-a", "x", "-r", "10.0.0.1")
    assert result.exit_code == 1
    assert "give a topic (-t), a group (-g), or a request (-q)" in result.output
    async with guarded(tmp_path) as (addr, _):
        nameless = await run("explainAcl", "-b", addr, "-a", "x", "-r", "10.0.0.1", "-q", "SEND_MESSAGE")
        assert "give its name" in nameless.output


async def test_the_sdk_asks_the_same(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (addr, _), Admin(credentials=Credentials("admin-account", SECRET)) as admin:
        config = await admin.accounts(addr)
        assert [one.secret_key for one in config.plain_access_configs] == [None, None]
