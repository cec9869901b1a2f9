"""What a proxy knows of topics and groups while some brokers, or NameServers, do not answer."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from skylark.mqcommon.errors import BrokerError, RequestTimeout, SkylarkError
from skylark.mqproxy import masters, metadata
from skylark.mqproxy.metadata import UNSPECIFIED, Metadata, Remembered
from skylark.mqproxy.options import ProxyOptions
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.routes import BrokerData, ClusterInfo, TopicRouteData
from skylark.remoting.protocol.requests.topics import TopicConfig

TIMEOUT = RequestTimeout("a", 201, 5.0)
NO_TOPIC = BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no such topic", "b")
NO_GROUP = BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group", "b")
FIFO = TopicConfig("orders", attributes={"message.type": "fifo"})
ORDERED = SubscriptionGroupConfig("shop", consume_message_orderly=True)


class FakeAdmin:
    """Two masters; ``answers`` has the answer of each, None for a frozen master."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.brokers = [BrokerData("cluster", name, {0: name}) for name in answers]

    async def topic_route(self, topic: str) -> TopicRouteData:
        return TopicRouteData(broker_datas=self.brokers)

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo({broker.broker_name: broker for broker in self.brokers})

    async def topic_config(self, addr: str, topic: str) -> Any:
        return await self._answer(addr)

    async def group_config(self, addr: str, group: str) -> Any:
        return await self._answer(addr)

    async def _answer(self, addr: str) -> Any:
        self.asked.append(addr)
        answer = self.answers[addr]
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, Exception):
            raise answer
        return answer


Made = Callable[..., tuple[FakeAdmin, Metadata]]


@pytest.fixture
def made(nursery: trio.Nursery) -> Made:
    """Makes metadata of the two masters."""

    def make(**answers: Any) -> tuple[FakeAdmin, Metadata]:
        admin = FakeAdmin(**answers)
        found: Any = admin
        return admin, Metadata(found, ProxyOptions(), nursery)

    return make


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "SOON_S", 0)
    monkeypatch.setattr(metadata, "PATIENCE_S", 0)


@pytest.mark.parametrize("first", [None, TIMEOUT])
async def test_a_broker_that_does_not_answer_is_not_needed(first: Any, made: Made) -> None:
    admin, known = made(a=first, b=FIFO)
    assert (await known.message_type("orders"), admin.asked) == ("FIFO", ["a", "b"])
    admin, known = made(a=first, b=ORDERED)
    assert (await known.group("shop"), admin.asked) == (ORDERED, ["a", "b"])


async def test_one_answer_is_enough_when_it_is_there_at_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "SOON_S", 60)
    admin, known = made(a=FIFO, b=None)
    assert (await known.message_type("orders"), admin.asked) == ("FIFO", ["a"])


async def test_a_topic_is_of_no_type_only_if_all_brokers_say_so(made: Made) -> None:
    _, known = made(a=TIMEOUT, b=NO_TOPIC)
    with pytest.raises(RequestTimeout):
        await known.message_type("orders")
    _, known = made(a=NO_TOPIC, b=NO_TOPIC)
    assert await known.message_type("orders") == UNSPECIFIED


async def test_a_group_has_no_settings_if_a_broker_says_so(made: Made) -> None:
    _, known = made(a=TIMEOUT, b=NO_GROUP)
    assert await known.group("shop") is None
    _, known = made(a=TIMEOUT, b=TIMEOUT)
    with pytest.raises(RequestTimeout):
        await known.group("shop")


async def test_an_old_answer_counts_at_once_when_it_could_not_be_asked_again(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    answers: list[str | SkylarkError] = ["old", TIMEOUT, TIMEOUT, "new"]

    async def ask(key: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    known = Remembered(nursery, ask, fresh_s=20, most=10)
    found = []
    for seconds in (0, 21, 0, 19, 2, 19, 2, 0):
        mock_clock.jump(seconds)
        answer = await known.get("key")
        # A caller goes on with the old answer before the new one is there.
        await wait_all_tasks_blocked()
        found.append((answer, len(answers)))
    assert [left for _, left in found] == [3, 2, 2, 2, 1, 1, 0, 0]
    assert [answer for answer, _ in found][-1] == "new" and found[0][0] == "old"


async def test_only_a_fresh_answer_counts_without_a_question(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    async def ask(key: str) -> str:
        return "an answer"

    known = Remembered(nursery, ask, fresh_s=20, most=10)
    assert known.fresh("key", trio.current_time()) is None
    await known.get("key")
    assert known.fresh("key", trio.current_time()) == ("an answer",), "which could be None"
    mock_clock.jump(21)
    assert known.fresh("key", trio.current_time()) is None


async def test_an_old_answer_does_not_outlive_the_right_to_ask(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PATIENCE_S", 60)
    answers: list[str | SkylarkError] = ["old", BrokerError(16, "no permission"), BrokerError(16, "no permission")]

    async def ask(key: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    known = Remembered(nursery, ask, fresh_s=0, most=10)
    assert await known.get("key") == "old"
    for _ in range(2):
        with pytest.raises(BrokerError, match="no permission"):
            await known.get("key")


async def test_a_caller_with_an_old_answer_does_not_wait_for_servers_that_do_not_answer(
    nursery: trio.Nursery,
) -> None:
    may_answer = trio.Event()
    may_answer.set()

    async def ask(key: str) -> str:
        await may_answer.wait()
        return key

    known = Remembered(nursery, ask, fresh_s=0, most=10)
    assert await known.get("key") == "key"
    may_answer = trio.Event()
    assert await known.get("key") == "key"
    may_answer.set()
