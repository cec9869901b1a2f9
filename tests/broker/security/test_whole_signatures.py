"""What somebody who has seen signed requests can do with them, at servers with access control."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, JSON, Command
from skylark.remoting.protocol.requests.brokers import GET_BROKER_CONFIG
from skylark.remoting.protocol.requests.clients import CHALLENGE
from skylark.remoting.protocol.requests.routes import DELETE_KV_CONFIG, PUT_KV_CONFIG
from skylark.remoting.protocol.requests.topics import DELETE_TOPIC_IN_BROKER
from skylark.remoting.protocol.signature import ACCESS_KEY_FIELD, SIGNATURE_FIELD
from tests.broker.running import running, send_request
from tests.broker.security.accounts.acl_files import ADMIN, SECRET, write
from tests.broker.security.wire import connected
from tests.namesrv.peer import serve

# The administrator of all: the user of the second way has the name of the account of the first.
WHO = "admin-account"
SERVERS = ("accounts", "users", "NameServer")


@asynccontextmanager
async def guarded(kind: str, tmp_path: Path, **more: Any) -> AsyncIterator[str]:
    """The address of a server with this kind of access control."""
    path = write(tmp_path / "plain_acl.yml", ADMIN)
    if kind == "NameServer":
        async with trio.open_nursery() as nursery:
            yield (await serve(nursery, tmp_path, acl_enable=True, acl_file=path, **more)).address
            nursery.cancel_scope.cancel()
        return
    options: dict[str, Any] = {"acl_enable": True, "acl_file": path}
    if kind == "users":
        first = json.dumps({"username": WHO, "password": SECRET})
        options = {"authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": first}
    async with running(**options, **more) as (_, addr):
        yield addr


def requests(kind: str) -> tuple[Command, Callable[[dict[str, Any]], Command]]:
    """A request of an administrator; and a request with more effect that an attacker makes of its fields."""
    if kind == "NameServer":
        put = Command(PUT_KV_CONFIG.code, {"namespace": "n", "key": "k", "value": "v"})
        return put, lambda ext: Command(DELETE_KV_CONFIG.code, ext)
    # All fields of the send become text of one field that a deletion does not look at.
    return send_request("T", b"x"), lambda ext: Command(
        DELETE_TOPIC_IN_BROKER.code,
        {
            ACCESS_KEY_FIELD: WHO,
            SIGNATURE_FIELD: ext[SIGNATURE_FIELD],
            "a": "group",
            "topic": "T",
            "z": "".join(_text(ext[name]) for name in "cdefghijkmn") + "x",
        },
    )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("codec", [JSON, CBOR])
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_captured_request_is_served_nowhere_else(kind: str, codec: int, tmp_path: Path) -> None:
    request, made = requests(kind)
    request.codec = codec
    async with guarded(kind, tmp_path) as addr, connected(addr) as client, connected(addr) as thief:
        await client.ask_for_challenge()
        assert (await client.ask(request, WHO, SECRET)).code == ResponseCode.SUCCESS
        assert (await client.ask(request)).code == ResponseCode.NO_PERMISSION, "on its own connection"
        for _ in range(2):
            for captured in (request, made(dict(request.ext or {}))):
                answer = await thief.ask(captured)
                assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
                assert "sign" in (answer.remark or "")
            await thief.ask_for_challenge()
        assert (await client.ask(request, WHO, SECRET)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", ["accounts", "users"])
async def test_a_request_with_rocketmqs_signature_can_be_replayed_as_clients_requests_only(
    kind: str, tmp_path: Path
) -> None:
    """As security-clients.md says, it is served again, but not cut anew into an administrator's request."""
    request, made = requests(kind)
    async with guarded(kind, tmp_path) as addr, connected(addr, plain=True) as client, connected(addr) as thief:
        assert (await client.ask(request, WHO, SECRET)).code == ResponseCode.SUCCESS
        assert (await thief.ask(request)).code == ResponseCode.SUCCESS
        for captured in (made(dict(request.ext or {})), Command(GET_BROKER_CONFIG.code, request.ext, request.body)):
            answer = await thief.ask(captured)
            assert f"add {WHO}@127.0.0.1:{captured.code} to plainSignatureCodes" in (answer.remark or "")


@pytest.mark.parametrize("kind", ["accounts", "users"])
async def test_an_option_names_who_may_sign_which_requests_of_administrators_as_rocketmq_does(
    kind: str, tmp_path: Path
) -> None:
    named = f"{WHO}@127.0.0.1:{GET_BROKER_CONFIG.code};10.0.0.0/8:{DELETE_TOPIC_IN_BROKER.code}"
    async with guarded(kind, tmp_path, plain_signature_codes=named) as addr, connected(addr, plain=True) as client:
        assert (await client.ask(Command(GET_BROKER_CONFIG.code), WHO, SECRET)).code == ResponseCode.SUCCESS
        answer = await client.ask(Command(DELETE_TOPIC_IN_BROKER.code, {"topic": "T"}), WHO, SECRET)
        assert "plainSignatureCodes" in (answer.remark or "")


@pytest.mark.parametrize("kind", SERVERS)
async def test_old_clients_go_on_with_the_other_signature(kind: str, tmp_path: Path) -> None:
    """Also on a connection with a challenge, which changes nothing for those who ignore it."""
    request, _ = requests(kind)
    named = f"{WHO}@127.0.0.1:{request.code}"
    more = {"plain_signature_codes": named} if kind == "NameServer" else {}
    async with guarded(kind, tmp_path, **more) as addr, connected(addr, plain=True) as client:
        assert (await client.ask(Command(CHALLENGE.code))).code == ResponseCode.SUCCESS
        assert (await client.ask(request, WHO, SECRET)).code == ResponseCode.SUCCESS
