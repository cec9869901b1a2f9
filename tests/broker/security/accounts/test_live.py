"""Files that change while a broker serves: what should pass passes, and what is revoked is refused."""

import logging
from pathlib import Path

import pytest
import trio

from skylark.mqcommon.errors import ConfigError
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.acl import DELETE_ACL_CONFIG, UPDATE_AND_CREATE_ACL_CONFIG
from tests.broker.running import running, send_request
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, account, write
from tests.broker.security.wire import Wire, connected
from tests.support.waiting import until

RELOAD = "skylark.broker.security.accounts.guard.RELOAD_INTERVAL_S"
KEPT = "the accounts that were read before stay in force"
STAYS = account("stays-here", "topicPerms:", "- T=PUB")


def text(*changing: str) -> str:
    return ADMIN + STAYS + "".join(account(name, "defaultTopicPerm: PUB") for name in changing)


async def may_send(wire: Wire, name: str) -> bool:
    answer = await wire.ask(send_request("T", b"x"), name, SECRET)
    assert answer.code == ResponseCode.SUCCESS or "AclException" in (answer.remark or ""), answer
    return answer.code == ResponseCode.SUCCESS


async def test_files_change_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RELOAD, 0.01)
    path = tmp_path / "plain_acl.yml"
    write(path, text("account-0"))
    refused: list[Command] = []
    async with running(acl_enable=True, acl_file=str(path)) as (_, addr), connected(addr) as wire:
        assert await may_send(wire, "admin-account")
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                async with connected(addr) as mine:
                    while True:
                        if not await may_send(mine, "stays-here"):
                            refused.append(Command(0))

            for _ in range(3):
                nursery.start_soon(load)
            for number in range(1, 6):
                write(path, text(f"account-{number}"))
                await until(lambda number=number: may_send(wire, f"account-{number}"), "the new account may send")
                assert not await may_send(wire, f"account-{number - 1}")
                write(path, "accounts:\n- broken")
                await until(lambda number=number: caplog.text.count(KEPT) == number, "the log says so")
                assert await may_send(wire, f"account-{number}")
            nursery.cancel_scope.cancel()
    assert refused == []
    assert SECRET not in caplog.text


async def test_commands_under_load(tmp_path: Path) -> None:
    """The change is in force when it is answered."""
    path = write(tmp_path / "plain_acl.yml", text())
    async with running(acl_enable=True, acl_file=path) as (_, addr), connected(addr) as wire:
        for number in range(10):
            name = f"account-{number}"
            fields = {"accessKey": name, "secretKey": SECRET, "defaultTopicPerm": "PUB", "admin": False}
            update = Command(UPDATE_AND_CREATE_ACL_CONFIG.code, fields)
            assert (await wire.ask(update, "admin-account", SECRET)).code == ResponseCode.SUCCESS
            assert await may_send(wire, name)
            delete = Command(DELETE_ACL_CONFIG.code, {"accessKey": name})
            assert (await wire.ask(delete, "admin-account", SECRET)).code == ResponseCode.SUCCESS
            assert not await may_send(wire, name)
            assert await may_send(wire, "stays-here")


async def test_a_broken_file_at_the_start_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", "accounts:\n- accessKey: x")
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="account 1: accessKey"), flatten_subgroups=True):
        async with running(acl_enable=True, acl_file=path):
            pass


async def test_white_lists_are_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = write(tmp_path / "plain_acl.yml", f"globalWhiteRemoteAddresses:\n- 10.0.0.*\n{ADMIN}")
    async with running(acl_enable=True, acl_file=path):
        pass
    assert f"1 accounts in force, of {path}" in caplog.text
    assert f"clients at these addresses are not asked who they are ({path}): 10.0.0.*" in caplog.text
