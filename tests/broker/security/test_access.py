"""What requests need."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker import broker as broker_module
from skylark.broker.security.access import FROM_NAMESERVERS, needs_of
from skylark.broker.unsupported_requests import RefusedHandlers
from skylark.broker.wiring.wiring import Wiring, wire
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.queue import MessageQueue
from skylark.mqcommon.names import REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from skylark.remoting.protocol.body import Body
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.auth import AUTH_CREATE_USER
from skylark.remoting.protocol.requests.brokers import UPDATE_BROKER_CONFIG
from skylark.remoting.protocol.requests.clients import (
    CHECK_CLIENT_CONFIG,
    CONSUME_MESSAGE_DIRECTLY,
    HEART_BEAT,
    UNREGISTER_CLIENT,
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK, LOCK_BATCH_MQ, LockBatchRequestBody
from skylark.remoting.protocol.requests.controller import NOTIFY_BROKER_ROLE_CHANGED
from skylark.remoting.protocol.requests.groups import (
    DELETE_SUBSCRIPTIONGROUP,
    GET_CONSUME_STATS,
    QUERY_ASSIGNMENT,
    SET_MESSAGE_REQUEST_MODE,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from skylark.remoting.protocol.requests.offsets import CLONE_GROUP_OFFSET
from skylark.remoting.protocol.requests.pops import BATCH_ACK_MESSAGE, POP_MESSAGE, BatchAck, BatchAckMessageRequestBody
from skylark.remoting.protocol.requests.pulls import PULL_MESSAGE
from skylark.remoting.protocol.requests.query import VIEW_MESSAGE_BY_ID
from skylark.remoting.protocol.requests.raft import RAFT_MEMBERS
from skylark.remoting.protocol.requests.replication import GET_BROKER_EPOCH_CACHE
from skylark.remoting.protocol.requests.sends import (
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE,
    SEND_MESSAGE_V2,
    SEND_REPLY_MESSAGE_V2,
)
from skylark.remoting.protocol.requests.table import BY_CODE
from skylark.remoting.protocol.requests.topics import UPDATE_AND_CREATE_TOPIC_LIST, TopicConfig, TopicConfigList
from skylark.remoting.protocol.requests.transactions import END_TRANSACTION
from skylark.remoting.protocol.rights import Need
from tests.broker.running import running

SUB, PUB, GET, UPDATE = ("Sub",), ("Pub",), ("Get",), ("Update",)
CLIENT = HeartbeatData(
    "c", [ProducerData("p")],
    [ConsumerData("g", subscription_data_set=[SubscriptionData("T"), SubscriptionData("%RETRY%g")])],
)  # fmt: skip

CODES = st.sampled_from(sorted(BY_CODE))
NAMES = st.sampled_from(["topic", "b", "a", "consumerGroup", "group", "srcGroup", "producerGroup", "groupName"])
VALUES = st.text(max_size=5) | st.sampled_from(["%RETRY%", "%RETRY%g+T", "%RETRY%+"]) | st.integers() | st.none()
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(["consumerDataSet", "mqSet", "acks", "topic", "groupName", "topicConfigList"]), each
        )
    ),
)


def topic(name: str, actions: tuple[str, ...]) -> Need:
    return Need("Topic", name, actions)


def group(name: str, actions: tuple[str, ...]) -> Need:
    return Need("Group", name, actions)


LIGHT = "a\x01b\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b,%LMQ%a\x02"


@pytest.mark.parametrize(
    ("code", "ext", "body", "needs"),
    [
        (SEND_MESSAGE.code, {"topic": "T", "b": "other"}, None, [topic("T", PUB)]),
        (SEND_MESSAGE_V2.code, {"b": "T", "topic": "other"}, None, [topic("T", PUB)]),
        (SEND_BATCH_MESSAGE.code, {"b": "T", "topic": "other"}, None, [topic("T", PUB)]),
        (SEND_MESSAGE_V2.code, {"b": 5}, None, [topic("5", PUB)]),
        (SEND_MESSAGE.code, {"topic": "T", "properties": LIGHT}, None,
         [topic("T", PUB), topic("%LMQ%a", PUB), topic("%LMQ%b", PUB)]),
        (SEND_MESSAGE_V2.code, {"b": "T", "i": LIGHT}, None,
         [topic("T", PUB), topic("%LMQ%a", PUB), topic("%LMQ%b", PUB)]),
        (SEND_MESSAGE_V2.code, {"b": "T", "i": "a\x01INNER_MULTI_DISPATCH\x02"}, None, [topic("T", PUB)]),
        (SEND_MESSAGE_V2.code, None, None, [topic("", PUB)]),
        (SEND_MESSAGE_V2.code, {"a": "p", "b": "%RETRY%g"}, None, [group("g", SUB)]),
        (SEND_MESSAGE.code, {"topic": TIMER_TOPIC}, None, [Need("Cluster", "", UPDATE)]),
        (SEND_MESSAGE_V2.code, {"b": f"{REVIVE_TOPIC_PREFIX}c"}, None, [Need("Cluster", "", UPDATE)]),
        (SEND_REPLY_MESSAGE_V2.code, {"b": TIMER_TOPIC}, None, [Need("Cluster", "", UPDATE)]),
        (SEND_MESSAGE_V2.code, {"b": "rmq_sys_TRACE_DATA_r"}, None, [topic("rmq_sys_TRACE_DATA_r", PUB)]),
        (END_TRANSACTION.code, {"topic": "T"}, None, [topic("T", PUB)]),
        (CONSUME_MESSAGE_DIRECTLY.code, {"consumerGroup": "g", "msgId": "x"}, None,
         [Need("Cluster", "", GET), group("g", UPDATE)]),
        (END_TRANSACTION.code, {}, None, []),
        (PULL_MESSAGE.code, {"consumerGroup": "g", "topic": "T"}, None, [group("g", SUB), topic("T", SUB)]),
        (PULL_MESSAGE.code, {"consumerGroup": "g", "topic": "%RETRY%h"}, None, [group("g", SUB), group("h", SUB)]),
        (PULL_MESSAGE.code, {"consumerGroup": "g", "topic": "%RETRY%g_T"}, None, [group("g", SUB), group("g_T", SUB)]),
        (POP_MESSAGE.code, {"consumerGroup": "g", "topic": "%RETRY%g_T"}, None, [group("g", SUB), group("g", SUB)]),
        (POP_MESSAGE.code, {"consumerGroup": "g", "topic": "%RETRY%h+T"}, None, [group("g", SUB), group("h", SUB)]),
        (CONSUMER_SEND_MSG_BACK.code, {"group": "g"}, None, [group("g", SUB)]),
        (UNREGISTER_CLIENT.code, {"clientID": "c", "consumerGroup": ""}, None, []),
        (UNREGISTER_CLIENT.code, {"clientID": "c", "consumerGroup": "g"}, None, [group("g", SUB)]),
        (HEART_BEAT.code, {}, CLIENT, [group("g", SUB), topic("T", SUB), group("g", SUB)]),
        (CHECK_CLIENT_CONFIG.code, {}, CheckClientRequestBody("c", "g", SubscriptionData("T")),
         [group("g", SUB), topic("T", SUB)]),
        (LOCK_BATCH_MQ.code, {}, LockBatchRequestBody("g", "c", mq_set=[MessageQueue("T", "b", n) for n in (0, 1)]),
         [group("g", SUB), topic("T", SUB)]),
        (BATCH_ACK_MESSAGE.code, {}, BatchAckMessageRequestBody([BatchAck(consumer_group="g", topic="T")] * 2),
         [group("g", SUB), topic("T", SUB)]),
        (QUERY_ASSIGNMENT.code, {}, QueryAssignmentRequestBody("T", "g"), [group("g", SUB), topic("T", SUB)]),
        (SET_MESSAGE_REQUEST_MODE.code, {}, MessageRequestMode("g", "T"), [group("g", UPDATE), topic("T", UPDATE)]),
        (UPDATE_AND_CREATE_TOPIC_LIST.code, {}, TopicConfigList([TopicConfig("T"), TopicConfig("U")]),
         [topic("T", ("Create",)), topic("U", ("Create",))]),
        (UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, {}, SubscriptionGroupConfig("g"), [group("g", ("Create",))]),
        (UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.code, {}, SubscriptionGroupList([SubscriptionGroupConfig("g")]),
         [group("g", ("Create",))]),
        (DELETE_SUBSCRIPTIONGROUP.code, {"groupName": "g"}, None, [group("g", ("Delete",))]),
        (GET_CONSUME_STATS.code, {"consumerGroup": "g", "topic": ""}, None, [group("g", GET)]),
        (CLONE_GROUP_OFFSET.code, {"srcGroup": "g", "destGroup": "h"}, None, [group("g", GET), group("h", UPDATE)]),
        (VIEW_MESSAGE_BY_ID.code, {"topic": "T"}, None, [Need("Cluster", "", GET)]),
        (AUTH_CREATE_USER.code, {}, None, [Need("Cluster", "", UPDATE)]),
        (UPDATE_BROKER_CONFIG.code, {}, None, [Need("Cluster", "", UPDATE)]),
        (4711, {}, None, [Need("Cluster", "", UPDATE)]),
    ],
)  # fmt: skip
def test_each_request_needs_its_right(
    code: int, ext: dict[str, object] | None, body: Body | None, needs: list[Need]
) -> None:
    assert needs_of(Command(code, ext, encode_body(body) if body else b"")) == needs


async def test_every_code_that_a_broker_handles_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Wiring] = []

    def wired(*args: Any) -> Wiring:
        made.append(wire(*args))
        return made[-1]

    monkeypatch.setattr(broker_module, "wire", wired)
    async with running(enable_slave_acting_master=True):
        parts = [part for part in made[0].parts if not isinstance(part, RefusedHandlers)]
        tables = [table for part in parts for table in (part.handlers(), part.step_handlers(), part.slow_handlers())]
        handled = {code for table in tables for code in table}
    in_other_modes = {GET_BROKER_EPOCH_CACHE.code, NOTIFY_BROKER_ROLE_CHANGED.code, RAFT_MEMBERS.code}
    assert (
        handled - set(FROM_NAMESERVERS) == {code for code, request in BY_CODE.items() if request.right} - in_other_modes
    )


@given(CODES, st.none() | st.dictionaries(NAMES, VALUES), JUNK | st.binary(max_size=20))
def test_whatever_comes_is_refused_or_needs_something(code: int, ext: dict[str, object] | None, body: object) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        needs = needs_of(Command(code, ext, data))
    except RequestRefused:
        return
    for need in needs:
        assert need.kind in ("Cluster", "Topic", "Group")
        assert need.actions
        assert not need.name.startswith("%RETRY%")
