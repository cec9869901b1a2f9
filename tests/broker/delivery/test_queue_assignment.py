"""400, 401: queues that the broker assigns, and modes of consumption."""

from typing import Any

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delivery.queue_assignment import STRATEGIES, allocate, allocate_for_pop
from skylark.broker.registration.topic_queues import FRESH_S, RETRY_S
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import Dialect, decode_body, encode_body
from skylark.remoting.protocol.requests.clients import HEART_BEAT, ConsumerData, HeartbeatData, SubscriptionData
from skylark.remoting.protocol.requests.groups import (
    QUERY_ASSIGNMENT,
    SET_MESSAGE_REQUEST_MODE,
    MessageQueueAssignment,
    MessageRequestMode,
    MessageRequestModes,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from skylark.remoting.protocol.requests.replication import GET_ALL_MESSAGE_REQUEST_MODE
from tests.broker.running import running, send_request
from tests.sdk.fakes import FakeBroker, FakeNamesrv, serving
from tests.support.memory_files import MemoryFiles


async def assigned(
    client: RemotingClient, addr: str, member: str, *, mode: str = "PULL", **changes: Any
) -> list[MessageQueue] | None:
    """The queues of a member."""
    asked = QueryAssignmentRequestBody(
        **{"topic": "T", "consumer_group": "g", "client_id": member, "strategy_name": "AVG", **changes}
    )
    answer = await client.invoke(addr, Command(QUERY_ASSIGNMENT.code), body=asked)
    assert answer.code == 0, answer.remark
    found = decode_body(QueryAssignmentResponseBody, answer.body, answer.codec).message_queue_assignments
    assert found is None or {one.mode for one in found} <= {mode}
    return None if found is None else [one.message_queue for one in found]


def own(*ids: int) -> list[MessageQueue]:
    return [MessageQueue("T", "broker-a", number) for number in ids]


async def join(client: RemotingClient, addr: str, member: str) -> None:
    data = ConsumerData("g", subscription_data_set=[SubscriptionData("T")])
    beat = HeartbeatData(member, consumer_data_set=[data])
    assert (await client.invoke(addr, Command(HEART_BEAT.code), body=beat)).code == 0


async def test_queues_are_shared_among_the_members() -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("T", b"x"))
        await join(client, addr, "b")
        assert await assigned(client, addr, "b") == own(0, 1, 2, 3)
        assert await assigned(client, addr, "b", strategy_name="AVG_BY_CIRCLE") == own(0, 1, 2, 3)
        assert await assigned(client, addr, "stranger") == []
        assert await assigned(client, addr, "stranger", message_model="BROADCASTING") == own(0, 1, 2, 3)
        assert await assigned(client, addr, "b", topic="unknown") is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strategy_name": "MACHINE_ROOM"}, "strategyName is one of AVG, AVG_BY_CIRCLE, not 'MACHINE_ROOM'"),
        ({"topic": ""}, "topic is blank"),
        ({"consumer_group": "a b"}, "illegal characters"),
    ],
)
async def test_a_question_with_a_mistake(changes: dict[str, str], text: str) -> None:
    body = QueryAssignmentRequestBody(**{"topic": "T", "consumer_group": "g", "strategy_name": "AVG", **changes})
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(QUERY_ASSIGNMENT.code), body=body)
        assert (answer.code, text in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), answer.remark
        channel = await client.channel(addr, 1_000)
        answer = await channel.invoke(Command(QUERY_ASSIGNMENT.code, {}, b'{"messageModel":"SOME"}'), 5_000)
        assert (answer.code, "messageModel" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_the_queues_are_those_of_all_brokers() -> None:
    namesrv = FakeNamesrv()
    namesrv.on(103, lambda asked: {})
    async with serving(namesrv), running(namesrv_addr=f"127.0.0.1:1;{namesrv.addr}") as (client, addr):
        namesrv.add("T", FakeBroker("broker-b"), queues=2)
        namesrv.add("T", FakeBroker("broker-w"), queues=2, perm=2)
        await join(client, addr, "b")
        for _ in range(2):
            assert await assigned(client, addr, "b") == [MessageQueue("T", "broker-b", number) for number in (0, 1)]
        assert len([asked for asked in namesrv.asked(105) if (asked.ext or {})["topic"] == "T"]) == 1


async def test_a_nameserver_that_goes_is_not_asked_all_the_time(mock_clock: trio.testing.MockClock) -> None:
    namesrv = FakeNamesrv()
    namesrv.on(103, lambda asked: {})
    answers = []
    async with serving(namesrv), running(namesrv_addr=namesrv.addr) as (client, addr):
        namesrv.add("T", FakeBroker("broker-b"), queues=1)
        await join(client, addr, "b")
        answers.append(await assigned(client, addr, "b"))
        namesrv.on(105, lambda asked: asked.respond(1, "busy"))
        for pause_s in (0, FRESH_S, 0, RETRY_S, 0):
            mock_clock.jump(pause_s)
            await join(client, addr, "b")
            answers.append(await assigned(client, addr, "b"))
        assert answers == [[MessageQueue("T", "broker-b", 0)]] * 6
        assert await assigned(client, addr, "b", topic="U") is None
        assert [(asked.ext or {})["topic"] for asked in namesrv.asked(105)] == ["T", "T", "T", "U"]


async def test_a_mode_is_kept_and_told() -> None:
    fs = MemoryFiles()
    mode = MessageRequestMode("g", "T", "PULL", 5)
    async with running(fs) as (client, addr):
        for _ in range(2):
            assert (await client.invoke(addr, Command(SET_MESSAGE_REQUEST_MODE.code), body=mode)).code == 0
    async with running(fs) as (client, addr):
        answer = await client.invoke(addr, Command(GET_ALL_MESSAGE_REQUEST_MODE.code))
        modes = decode_body(MessageRequestModes, answer.body, answer.codec)
        assert modes.message_request_mode_map == {"T": {"g": mode}}


async def test_a_group_that_pops_gets_all_queues_of_each_broker() -> None:
    async with running() as (client, addr):
        await client.invoke(addr, send_request("T", b"x"))
        await join(client, addr, "b")
        mode = MessageRequestMode("g", "T", "POP", 8)
        assert (await client.invoke(addr, Command(SET_MESSAGE_REQUEST_MODE.code), body=mode)).code == 0
        assert await assigned(client, addr, "b", mode="POP") == own(-1)


@pytest.mark.parametrize(
    ("mode", "code", "text"),
    [
        (MessageRequestMode("g", "T", "PUSH"), ResponseCode.INVALID_PARAMETER, "mode is PULL or POP, not 'PUSH'"),
        (MessageRequestMode("g", "%RETRY%g"), ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"),
        (MessageRequestMode("", "T"), ResponseCode.INVALID_PARAMETER, "group is blank"),
        (MessageRequestMode("g", "a b"), ResponseCode.INVALID_PARAMETER, "illegal characters"),
    ],
)
async def test_a_mode_that_is_refused(mode: MessageRequestMode, code: int, text: str) -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(SET_MESSAGE_REQUEST_MODE.code), body=mode)
        assert (answer.code, text in (answer.remark or "")) == (code, True), answer.remark
        told = await client.invoke(addr, Command(GET_ALL_MESSAGE_REQUEST_MODE.code))
        assert decode_body(MessageRequestModes, told.body, told.codec) == MessageRequestModes()


def test_an_answer_is_what_java_reads() -> None:
    body = QueryAssignmentResponseBody([MessageQueueAssignment(MessageQueue("T", "broker-a", 1))])
    assert encode_body(body, Dialect.STANDARD) == (
        b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":1,"topic":"T"},"mode":"PULL"}]}'
    )


QUEUES = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b"]), st.integers(0, 20)), unique=True, max_size=30
)
MEMBERS = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, min_size=1, max_size=12)


@given(st.sampled_from(sorted(STRATEGIES)), QUEUES, MEMBERS)
def test_each_queue_has_one_owner_and_shares_are_equal(
    strategy: str, queues: list[MessageQueue], members: list[str]
) -> None:
    shares = {member: allocate(strategy, queues, reversed(members), member) for member in members}
    assert sorted(queue for share in shares.values() for queue in share) == sorted(queues)
    sizes = {len(share) for share in shares.values()}
    assert max(sizes) - min(sizes) <= 1
    assert shares == {member: allocate(strategy, queues[::-1], members, member) for member in members}


@pytest.mark.parametrize(
    ("strategy", "member", "ids"),
    [
        ("AVG", "a", [0, 1, 2]), ("AVG", "b", [3, 4, 5]), ("AVG", "c", [6, 7]),
        ("AVG_BY_CIRCLE", "a", [0, 3, 6]), ("AVG_BY_CIRCLE", "c", [2, 5]), ("AVG", "nobody", []),
    ],
)  # fmt: skip
def test_as_rocketmq_allocates(strategy: str, member: str, ids: list[int]) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
    assert [queue.queue_id for queue in allocate(strategy, queues, "cab", member)] == ids


@pytest.mark.parametrize(
    ("members", "share", "ids"),
    [
        ("abcd", 0, [-1]), ("abcd", -1, [-1]), ("abcd", 3, [-1]), ("abcd", 1, [4, 5, 6, 7]),
        ("abcd", 2, [4, 5, 6, 7, 0, 1]), ("abcdefghijkl", 2, [2]), ("abxy", 1, []),
    ],
)  # fmt: skip
def test_as_rocketmq_allocates_for_pops(members: str, share: int, ids: list[int]) -> None:
    queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
    assert [queue.queue_id for queue in allocate_for_pop("AVG", queues, members, "c", share)] == ids


def test_a_pop_from_all_queues_names_each_broker_once() -> None:
    queues = [MessageQueue("T", broker, number) for broker in "ab" for number in range(3)]
    assert allocate_for_pop("AVG", queues, ["x"], "x", 0) == [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)]
