"""What requests need."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import broker as broker_module
from broker.handlers.refused import RefusedHandlers
from broker.security.needs import FROM_NAMESERVERS, needs_of
from broker.wiring.wiring import Wiring, wire
from mqcommon.errors import RequestRefused
from mqcommon.message.queue import MessageQueue
from remoting.protocol.body import Body
from remoting.protocol.codes import RequestCode
from remoting.protocol.codes import RequestCode as R
from remoting.protocol.command import Command
from remoting.protocol.dialect import encode_body
from remoting.protocol.requests.clients import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from remoting.protocol.requests.consuming import LockBatchRequestBody
from remoting.protocol.requests.groups import (
    MessageRequestMode,
    QueryAssignmentRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from remoting.protocol.requests.pops import BatchAck, BatchAckMessageRequestBody
from remoting.protocol.requests.table import BY_CODE
from remoting.protocol.requests.topics import TopicConfig, TopicConfigList
from remoting.protocol.rights import Need
from tests.broker.running import running

SUB, PUB, GET, UPDATE = ("Sub",), ("Pub",), ("Get",), ("Update",)
CLIENT = HeartbeatData(
    "c", [ProducerData("p")],
    [ConsumerData("g", subscription_data_set=[SubscriptionData("T"), SubscriptionData("%RETRY%g")])],
)  # fmt: skip

CODES = st.sampled_from(sorted(code for name, code in vars(R).items() if name.isupper()))
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
        (R.SEND_MESSAGE, {"topic": "T", "b": "other"}, None, [topic("T", PUB)]),
        (R.SEND_MESSAGE_V2, {"b": "T", "topic": "other"}, None, [topic("T", PUB)]),
        (R.SEND_BATCH_MESSAGE, {"b": "T", "topic": "other"}, None, [topic("T", PUB)]),
        (R.SEND_MESSAGE_V2, {"b": 5}, None, [topic("5", PUB)]),
        (R.SEND_MESSAGE, {"topic": "T", "properties": LIGHT}, None,
         [topic("T", PUB), topic("%LMQ%a", PUB), topic("%LMQ%b", PUB)]),
        (R.SEND_MESSAGE_V2, {"b": "T", "i": LIGHT}, None,
         [topic("T", PUB), topic("%LMQ%a", PUB), topic("%LMQ%b", PUB)]),
        (R.SEND_MESSAGE_V2, {"b": "T", "i": "a\x01INNER_MULTI_DISPATCH\x02"}, None, [topic("T", PUB)]),
        (R.SEND_MESSAGE_V2, None, None, [topic("", PUB)]),
        (R.SEND_MESSAGE_V2, {"a": "p", "b": "%RETRY%g"}, None, [group("g", SUB)]),
        (R.END_TRANSACTION, {"topic": "T"}, None, [topic("T", PUB)]),
        (R.END_TRANSACTION, {}, None, []),
        (R.PULL_MESSAGE, {"consumerGroup": "g", "topic": "T"}, None, [group("g", SUB), topic("T", SUB)]),
        (R.PULL_MESSAGE, {"consumerGroup": "g", "topic": "%RETRY%h"}, None, [group("g", SUB), group("h", SUB)]),
        (R.PULL_MESSAGE, {"consumerGroup": "g", "topic": "%RETRY%g_T"}, None, [group("g", SUB), group("g_T", SUB)]),
        (R.POP_MESSAGE, {"consumerGroup": "g", "topic": "%RETRY%g_T"}, None, [group("g", SUB), group("g", SUB)]),
        (R.POP_MESSAGE, {"consumerGroup": "g", "topic": "%RETRY%h+T"}, None, [group("g", SUB), group("h", SUB)]),
        (R.CONSUMER_SEND_MSG_BACK, {"group": "g"}, None, [group("g", SUB)]),
        (R.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": ""}, None, []),
        (R.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}, None, [group("g", SUB)]),
        (R.HEART_BEAT, {}, CLIENT, [group("g", SUB), topic("T", SUB), group("g", SUB)]),
        (R.CHECK_CLIENT_CONFIG, {}, CheckClientRequestBody("c", "g", SubscriptionData("T")),
         [group("g", SUB), topic("T", SUB)]),
        (R.LOCK_BATCH_MQ, {}, LockBatchRequestBody("g", "c", mq_set=[MessageQueue("T", "b", n) for n in (0, 1)]),
         [group("g", SUB), topic("T", SUB)]),
        (R.BATCH_ACK_MESSAGE, {}, BatchAckMessageRequestBody([BatchAck(consumer_group="g", topic="T")] * 2),
         [group("g", SUB), topic("T", SUB)]),
        (R.QUERY_ASSIGNMENT, {}, QueryAssignmentRequestBody("T", "g"), [group("g", SUB), topic("T", SUB)]),
        (R.SET_MESSAGE_REQUEST_MODE, {}, MessageRequestMode("g", "T"), [group("g", UPDATE), topic("T", UPDATE)]),
        (R.UPDATE_AND_CREATE_TOPIC_LIST, {}, TopicConfigList([TopicConfig("T"), TopicConfig("U")]),
         [topic("T", ("Create",)), topic("U", ("Create",))]),
        (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, SubscriptionGroupConfig("g"), [group("g", ("Create",))]),
        (R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, SubscriptionGroupList([SubscriptionGroupConfig("g")]),
         [group("g", ("Create",))]),
        (R.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, None, [group("g", ("Delete",))]),
        (R.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": ""}, None, [group("g", GET)]),
        (R.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "h"}, None, [group("g", GET), group("h", UPDATE)]),
        (R.VIEW_MESSAGE_BY_ID, {"topic": "T"}, None, [Need("Cluster", "", GET)]),
        (R.AUTH_CREATE_USER, {}, None, [Need("Cluster", "", UPDATE)]),
        (R.UPDATE_BROKER_CONFIG, {}, None, [Need("Cluster", "", UPDATE)]),
        (4711, {}, None, [Need("Cluster", "", UPDATE)]),
    ],
)  # fmt: skip
def test_needs(code: int, ext: dict[str, object] | None, body: Body | None, needs: list[Need]) -> None:
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
    in_controller_mode = {RequestCode.GET_BROKER_EPOCH_CACHE, RequestCode.NOTIFY_BROKER_ROLE_CHANGED}
    assert (
        handled - set(FROM_NAMESERVERS)
        == {code for code, request in BY_CODE.items() if request.right} - in_controller_mode
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
