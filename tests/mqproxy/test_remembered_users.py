"""What a proxy remembers of users: how long, how many, and what counts when brokers do not answer."""

import asyncio
import hmac
from types import SimpleNamespace
from typing import Any

import pytest

from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy import users
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.signatures import CallSignature
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.users import KnownUsers
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.auth import UserInfo
from tests.sdk.facades.adapter import in_asyncio


class FakeAdmin:
    """Two brokers; ``users`` are the users of the second."""

    def __init__(self) -> None:
        self.users: dict[str, UserInfo] = {}
        self.asked = 0
        self.failing: SkylarkError | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def cluster_info(self) -> Any:
        brokers = [SimpleNamespace(broker_addrs={0: addr}) for addr in ("a", "b")]
        return SimpleNamespace(broker_addr_table=dict(enumerate([*brokers, SimpleNamespace(broker_addrs={1: "c"})])))

    async def get_user(self, addr: str, name: str) -> UserInfo | None:
        self.asked += 1
        await self.may_answer.wait()
        if self.failing is not None:
            raise self.failing
        return self.users.get(name) if addr == "b" else None


def signature(name: str, secret: str) -> CallSignature:
    return CallSignature(name, b"now", hmac.digest(secret.encode(), b"now", "sha1"))


def made(**options: Any) -> tuple[FakeAdmin, KnownUsers]:
    admin = FakeAdmin()
    admin.users["ada"] = UserInfo("ada", "tea", "Normal", "enable")
    found: Any = admin
    return admin, KnownUsers(found, ProxyOptions(**options))


@in_asyncio
async def test_a_user_is_asked_once_for_many_calls() -> None:
    admin, known = made()
    signed = signature("ada", "tea")
    assert await asyncio.gather(*[known.secret_of(signed) for _ in range(20)]) == ["tea"] * 20
    assert await known.secret_of(signed) == "tea"
    assert admin.asked == 2  # the first broker does not know the user


@in_asyncio
async def test_a_new_password_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "UNKNOWN_FRESH_S", 0)
    admin, known = made(user_cache_refresh_seconds=3600)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.users["ada"] = UserInfo("ada", "coffee", "Normal", "enable")
    assert await known.secret_of(signature("ada", "coffee")) == "coffee"
    with pytest.raises(Refused, match="check signature failed"):
        await known.secret_of(signature("ada", "tea"))


@in_asyncio
async def test_wrong_signatures_do_not_reach_brokers_each_time() -> None:
    admin, known = made()
    for _ in range(20):
        with pytest.raises(Refused, match="check signature failed"):
            await known.secret_of(signature("ada", "wrong"))
        with pytest.raises(Refused, match="User:eve is not found"):
            await known.secret_of(signature("eve", "wrong"))
    assert admin.asked == 4


@in_asyncio
@pytest.mark.parametrize("name", ['stranger1{"password":"tea"}', '{"userType":"Super"}', "a b", "a" * 256, "\x00"])
async def test_what_can_be_no_name_is_not_asked_for(name: str) -> None:
    """The proxy would sign the caller's text, which a fake broker could use as the body of another request."""
    admin, known = made()
    with pytest.raises(Refused, match="is not found"):
        await known.secret_of(signature(name, "tea"))
    assert admin.asked == 0


@in_asyncio
async def test_a_known_user_is_let_in_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(users, "_now_s", lambda: now)
    admin, known = made(user_cache_refresh_seconds=20, user_cache_expired_seconds=300)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.failing = SkylarkError("no broker answers")
    now += 299
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    now += 2
    with pytest.raises(Refused) as refused:
        await known.secret_of(signature("ada", "tea"))
    assert refused.value.code == wire.INTERNAL_SERVER_ERROR


@in_asyncio
async def test_made_up_names_are_bounded_and_leave_known_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MAX_ASKED", 3)
    monkeypatch.setattr(users, "MAX_UNKNOWN", 3)
    admin, known = made(user_cache_max_num=1)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.may_answer.clear()
    waiting = [asyncio.create_task(known.secret_of(signature(f"eve{number}", "x"))) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Refused) as refused:
        await known.secret_of(signature("eve4", "x"))
    assert refused.value.code == wire.TOO_MANY_REQUESTS
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.may_answer.set()
    assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [Refused] * 3
    asked = admin.asked
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    with pytest.raises(Refused, match="is not found"):
        await known.secret_of(signature("e" * 256, "x"))
    assert admin.asked == asked
