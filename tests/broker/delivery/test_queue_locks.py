"""41 and 42 over the network: golden bodies, bad ones, and every role."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.broker.delivery.queue_locks import LIFE_MS, LockTable
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body, encode_body
from skylark.remoting.protocol.requests.consuming import (
    LOCK_BATCH_MQ,
    UNLOCK_BATCH_MQ,
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from skylark.sdk import broker_api
from skylark.sdk.endpoint import Endpoint
from tests.broker.running import running

ONE, TWO = MessageQueue("T", "broker-a", 1), MessageQueue("T", "broker-a", 2)
JAVA = b'{"clientId":"192.0.2.2@order","consumerGroup":"g","mqSet":[{"brokerName":"broker-a","queueId":1,"topic":"T"}]}'


@pytest.mark.parametrize("options", [{}, {"broker_role": "SLAVE", "broker_id": 1}], ids=["master", "slave"])
async def test_a_queue_has_one_owner(options: dict[str, object]) -> None:
    async with running(**options) as (client, addr):
        at = Endpoint(client, addr)
        assert await broker_api.lock_queues(at, "g", "a", [ONE, TWO]) == [ONE, TWO]
        assert await broker_api.lock_queues(at, "g", "b", [ONE, TWO]) == []
        assert await broker_api.lock_queues(at, "other", "b", [ONE]) == [ONE]
        await broker_api.unlock_queues(at, "g", "b", [ONE])
        await broker_api.unlock_queues(at, "g", "a", [TWO])
        assert await broker_api.lock_queues(at, "g", "b", [ONE, TWO]) == [TWO]
        async with open_client() as java:
            answer = await java.invoke(addr, Command(LOCK_BATCH_MQ.code, None, JAVA))
            assert decode_body(LockBatchResponseBody, answer.body, answer.codec).lock_ok_mq_set == []


async def test_a_connection_that_ends_keeps_its_locks() -> None:
    async with running() as (client, addr):
        assert await broker_api.lock_queues(Endpoint(client, addr), "g", "a", [ONE]) == [ONE]
        client.close_connection(addr, "a new one")
        assert await broker_api.lock_queues(Endpoint(client, addr), "g", "b", [ONE]) == []
        assert await broker_api.lock_queues(Endpoint(client, addr), "g", "a", [ONE]) == [ONE]


@pytest.mark.parametrize("code", [LOCK_BATCH_MQ.code, UNLOCK_BATCH_MQ.code])
@pytest.mark.parametrize(
    ("body", "refusal", "text"),
    [
        (b"", ResponseCode.SYSTEM_ERROR, "the body cannot be read"),
        (b'{"consumerGroup":"g","clientId":"a","mqSet":[1]}', ResponseCode.SYSTEM_ERROR, "not a message queue"),
        (encode_body(LockBatchRequestBody("", "a")), ResponseCode.INVALID_PARAMETER, "group is blank"),
        (encode_body(LockBatchRequestBody("a b", "a")), ResponseCode.INVALID_PARAMETER, "illegal characters"),
        (encode_body(LockBatchRequestBody("g", "")), ResponseCode.INVALID_PARAMETER, "the clientId has 0 characters"),
        (
            json.dumps({"consumerGroup": "g", "clientId": "x" * 2_000}).encode(), ResponseCode.INVALID_PARAMETER,
            "the clientId has 2000 characters",
        ),
    ],
)  # fmt: skip
async def test_a_malformed_request_is_refused(code: int, body: bytes, refusal: int, text: str) -> None:
    async with running() as (client, addr):
        answer = await client.invoke(addr, Command(code, None, body))
        assert (answer.code, text in (answer.remark or "")) == (refusal, True), answer


MAX_LOCKS = 6
QUEUES = [MessageQueue("t", "b", number) for number in range(4)]
queues = st.lists(st.sampled_from(QUEUES), unique=True)
groups = st.sampled_from(["g", "h"])
owners = st.sampled_from(["one", "two", "three"])


class Locks(RuleBasedStateMachine):
    """The table beside a model that forgets nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LockTable(MAX_LOCKS)
        self.locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}
        self.now = 0

    @rule(group=groups, owner=owners, wanted=queues)
    def lock(self, group: str, owner: str, wanted: list[MessageQueue]) -> None:
        got = []
        for queue in wanted:
            known = self.locks.get((group, queue))
            if known is None and len(self.locks) >= MAX_LOCKS:
                continue
            if known is None or known[0] == owner or known[1] < self.now:
                self.locks[group, queue] = owner, self.now + LIFE_MS
                got.append(queue)
        assert self.table.lock(group, owner, wanted, self.now) == got

    @rule(group=groups, owner=owners, given_up=queues)
    def unlock(self, group: str, owner: str, given_up: list[MessageQueue]) -> None:
        for queue in given_up:
            if self.locks.get((group, queue), ("", 0))[0] == owner:
                del self.locks[group, queue]
        self.table.unlock(group, owner, given_up)

    @rule(ms=st.sampled_from([1, 20_000, LIFE_MS, LIFE_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def drop_expired(self) -> None:
        self.locks = {place: lock for place, lock in self.locks.items() if lock[1] >= self.now}
        self.table.drop_expired(self.now)

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.locks)
        for group in ("g", "h"):
            held = [until for (its_group, _), (_, until) in self.locks.items() if its_group == group]
            assert self.table.is_ordered(group, self.now) == any(until >= self.now for until in held)


TestLocks = Locks.TestCase
TestLocks.settings = settings(stateful_step_count=30)
