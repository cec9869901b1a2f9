"""Servers and clients of RocketMQ at servers with access control, by the lines of docs/operate/security-clients.md.

The requests are recorded ones, but for 21 and 3004, and signed as RocketMQ signs.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.requests.auth import AUTH_GET_USER, UserInfo
from tests.broker.running import running
from tests.broker.security.accounts.acl_files import SECRET as ACCOUNT_SECRET
from tests.broker.security.accounts.acl_files import account, write
from tests.broker.security.users.rows import SECRET
from tests.broker.security.wire import connected
from tests.namesrv.peer import serve
from tests.sdk.test_golden import recorded

DOCS = Path(__file__).parents[3] / "docs" / "operate" / "security-clients.md"
GET_USER = Command(AUTH_GET_USER.code, {"username": "ada"})


def line_of(peer: str) -> dict[str, str]:
    """Key to value, as the documentation has it for this peer, at this test's address."""
    (row,) = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| {peer}")]
    return dict(each.split("=") for each in re.findall(r"`(\w+=[^`]+)`", row.replace("10.0.0.7", "127.0.0.1")))


def codes_of(line: dict[str, str]) -> list[int]:
    return [int(code) for code in line["plainSignatureCodes"].rpartition(":")[2].split(",")]


def requests(*codes: int) -> list[Command]:
    """Requests as Java 5.3.3 sent them, else Java 4.9.8."""
    found = recorded("admin_4.9.8").requests | recorded("admin_5.3.3").requests
    return [found[code] for code in codes]


async def answers(addr: str, name: str, asked: list[Command], secret: str = SECRET) -> list[Command]:
    async with connected(addr, plain=True) as wire:
        return [await wire.ask(Command(each.code, dict(each.ext or {}), each.body), name, secret) for each in asked]


PEERS = {
    "a slave of RocketMQ": ("slave", [Command(21), *requests(43, 45, 201, 402)]),
    "RocketMQ's proxy": ("proxy", [GET_USER]),
    "a Java client that calls `createTopic`": ("shop", requests(17)),
}


@pytest.mark.parametrize("peer", PEERS)
async def test_a_broker_serves_the_peer_with_its_line_only(peer: str) -> None:
    name, asked = PEERS[peer]
    line = line_of(peer)
    assert {each.code for each in asked} <= set(codes_of(line))
    options: dict[str, Any] = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": json.dumps({"username": name, "password": SECRET}),
        "inner_client_authentication_credentials": json.dumps({"accessKey": "ada", "secretKey": "of-ada"}),
    }
    async with running(**options) as (_, addr):
        for answer in await answers(addr, name, asked):
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "to plainSignatureCodes in the conf file of this server" in (answer.remark or "")
    options["plain_signature_codes"] = line["plainSignatureCodes"]
    options["plain_passwords_to"] = line.get("plainPasswordsTo", "")
    async with running(**options) as (_, addr):
        served = await answers(addr, name, asked)
        assert all(answer.code == ResponseCode.SUCCESS for answer in served), served
        if GET_USER in asked:
            assert decode_body(UserInfo, served[0].body).password == "of-ada"
        (other,) = await answers(addr, name, requests(26))
        assert other.code == ResponseCode.NO_PERMISSION, "other requests of administrators are refused"


async def test_a_nameserver_serves_a_broker_of_rocketmq_with_its_line_only(tmp_path: Path) -> None:
    path = write(tmp_path / "plain_acl.yml", "accounts:\n" + account("broker-1", "admin: true"))
    line = line_of("a broker of RocketMQ")["plainSignatureCodes"]
    asked = requests(103, 104)
    for codes, served in (("", False), (line, True)):
        async with trio.open_nursery() as nursery:
            options = {"acl_enable": True, "acl_file": path, "plain_signature_codes": codes}
            addr = (await serve(nursery, tmp_path, **options)).address
            found = await answers(addr, "broker-1", asked, ACCOUNT_SECRET)
            assert all((answer.code == ResponseCode.SUCCESS) is served for answer in found), found
            (refused,) = await answers(addr, "broker-1", requests(100), ACCOUNT_SECRET)
            assert refused.code == ResponseCode.NO_PERMISSION
            nursery.cancel_scope.cancel()
