"""What a proxy remembers of users: how long, how many, and what counts when brokers do not answer."""

import hmac
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.errors import SkylarkError
from skylark.mqproxy import users
from skylark.mqproxy.options import ProxyOptions
from skylark.mqproxy.signatures import CallSignature
from skylark.mqproxy.statuses import Refused
from skylark.mqproxy.users import KnownUsers
from skylark.mqproxy.wire import messaging_pb2 as wire
from skylark.remoting.protocol.requests.auth import UserInfo


class FakeAdmin:
    """Two brokers; ``users`` are the users of the second."""

    def __init__(self) -> None:
        self.users: dict[str, UserInfo] = {}
        self.asked = 0
        self.failing: SkylarkError | None = None
        self.may_answer = trio.Event()
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


Made = Callable[..., tuple[FakeAdmin, KnownUsers]]


@pytest.fixture
def made(nursery: trio.Nursery) -> Made:
    """Makes the users of the two brokers; one is ada."""

    def make(**options: Any) -> tuple[FakeAdmin, KnownUsers]:
        admin = FakeAdmin()
        admin.users["ada"] = UserInfo("ada", "tea", "Normal", "enable")
        found: Any = admin
        return admin, KnownUsers(found, ProxyOptions(**options), nursery)

    return make


async def test_a_user_is_asked_once_for_many_calls(made: Made) -> None:
    admin, known = made()
    signed = signature("ada", "tea")
    assert known.known_secret_of(signed) is None
    found: list[str] = []

    async def ask() -> None:
        found.append(await known.secret_of(signed))

    async with trio.open_nursery() as callers:
        for _ in range(20):
            callers.start_soon(ask)
    assert found == ["tea"] * 20
    assert await known.secret_of(signed) == known.known_secret_of(signed) == "tea"
    assert known.known_secret_of(signature("ada", "coffee")) is None, "the password may be new"
    assert admin.asked == 2  # the first broker does not know the user


async def test_a_new_password_counts_at_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "UNKNOWN_FRESH_S", 0)
    admin, known = made(user_cache_refresh_seconds=3600)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.users["ada"] = UserInfo("ada", "coffee", "Normal", "enable")
    assert await known.secret_of(signature("ada", "coffee")) == "coffee"
    with pytest.raises(Refused, match="check signature failed"):
        await known.secret_of(signature("ada", "tea"))


async def test_wrong_signatures_do_not_reach_brokers_each_time(made: Made) -> None:
    admin, known = made()
    for _ in range(20):
        with pytest.raises(Refused, match="check signature failed"):
            await known.secret_of(signature("ada", "wrong"))
        with pytest.raises(Refused, match="User:eve is not found"):
            await known.secret_of(signature("eve", "wrong"))
    assert admin.asked == 4


@pytest.mark.parametrize("name", ['stranger1{"password":"tea"}', '{"userType":"Super"}', "a b", "a" * 256, "\x00"])
async def test_what_can_be_no_name_is_not_asked_for(made: Made, name: str) -> None:
    """The proxy would sign the caller's text, which a fake broker could use as the body of another request."""
    admin, known = made()
    with pytest.raises(Refused, match="is not found"):
        await known.secret_of(signature(name, "tea"))
    assert admin.asked == 0


async def test_a_known_user_is_let_in_while_no_broker_answers(made: Made, mock_clock: MockClock) -> None:
    admin, known = made(user_cache_refresh_seconds=20, user_cache_expired_seconds=300)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.failing = SkylarkError("no broker answers")
    mock_clock.jump(299)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    mock_clock.jump(2)
    with pytest.raises(Refused) as refused:
        await known.secret_of(signature("ada", "tea"))
    assert refused.value.code == wire.INTERNAL_SERVER_ERROR


async def test_made_up_names_are_bounded_and_leave_known_users_alone(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "MAX_ASKED", 3)
    monkeypatch.setattr(users, "MAX_UNKNOWN", 3)
    admin, known = made(user_cache_max_num=1)
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    admin.may_answer = trio.Event()

    async def ask_for(name: str) -> None:
        with pytest.raises(Refused):
            await known.secret_of(signature(name, "x"))

    async with trio.open_nursery() as strangers:
        for number in range(3):
            strangers.start_soon(ask_for, f"eve{number}")
        await wait_all_tasks_blocked()
        with pytest.raises(Refused) as refused:
            await known.secret_of(signature("eve4", "x"))
        assert refused.value.code == wire.TOO_MANY_REQUESTS
        assert await known.secret_of(signature("ada", "tea")) == "tea"
        admin.may_answer.set()
    asked = admin.asked
    assert await known.secret_of(signature("ada", "tea")) == "tea"
    with pytest.raises(Refused, match="is not found"):
        await known.secret_of(signature("e" * 256, "x"))
    assert admin.asked == asked
