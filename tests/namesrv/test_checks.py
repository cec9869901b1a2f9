"""What a NameServer takes of a registration: a bad topic costs itself, a bad broker everything."""

import logging
from typing import Any

import pytest

from remoting.protocol.body import DataVersion
from remoting.protocol.command import Command
from remoting.protocol.dialect import encode_body, loads
from remoting.protocol.requests.registrations import REGISTER_BROKER, RegisterBrokerBody
from remoting.protocol.requests.routes import GET_ALL_TOPIC_LIST_FROM_NAMESERVER
from remoting.protocol.requests.topics import TopicConfig, TopicConfigTable
from tests.namesrv.peer import Peer, Served
from tests.namesrv.registrations import registration
from tests.namesrv.tables import live_addrs
from tests.support.caller import Caller

BAD = {
    "a b": TopicConfig("a b"),
    "x" * 128: TopicConfig("x"),
    "": TopicConfig(""),
    "a\nb": TopicConfig("a\nb"),
    "many": TopicConfig("many", 65_537, 4),
    "negative": TopicConfig("negative", 4, -1),
    "perm": TopicConfig("perm", perm=8),
}


async def register(peer: Peer, topics: dict[str, TopicConfig], **ext: Any) -> Command:
    body = encode_body(RegisterBrokerBody(TopicConfigTable(DataVersion(0, 1, 1), topics)))
    fields = {
        "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "C", "brokerId": 0,
        "haServerAddr": "127.0.0.1:10912", "compressed": False,
    }  # fmt: skip
    return await peer.ask(REGISTER_BROKER.code, {**fields, **ext}, body)


async def test_bad_topics_are_left_out_with_one_line_and_the_others_have_routes(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    good = {name: TopicConfig(name) for name in ("t1", "%RETRY%g", "%DLQ%" + "g" * 200)}
    assert (await register(peer, {**BAD, **good})).code == 0
    assert await peer.topics() == sorted(good)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("7 topics of broker broker-a at 127.0.0.1:10911 left out, the first is 'a b': ")


async def test_the_topics_of_a_brokers_own_names(peer: Peer) -> None:
    """A Java broker may have any name, and makes topics of it."""
    own = {name: TopicConfig(name, perm=7) for name in ("rack 1", "my.cluster", "my.cluster_REPLY_TOPIC")}
    assert (await register(peer, own, brokerName="rack 1", clusterName="my.cluster")).code == 0
    assert await peer.topics() == sorted(own)


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName", "haServerAddr"])
@pytest.mark.parametrize("value", ["x" * 256, "a\nb", "a\0b", "\u202e"])
async def test_a_broker_that_could_not_be_shown_is_refused(served: Served, peer: Peer, field: str, value: str) -> None:
    answer = await register(peer, {"t1": TopicConfig("t1"), "t2": TopicConfig("t2")}, **{field: value})
    assert answer.code == 1
    assert field in (answer.remark or "")
    assert live_addrs(served.namesrv.state.routes) == []


async def test_lists_that_no_frame_holds_are_cut(served: Served, peer: Peer) -> None:
    config = TopicConfig("x")
    topics = {f"T{number}".ljust(127, "x"): config for number in range(140_000)}
    served.namesrv.state.routes.register(registration(addr="127.0.0.1:10911", topics=topics), Caller().channel, 0)
    answer = await peer.ask(GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code)
    assert answer.code == 0
    assert "of 140000 entries are left out" in (answer.remark or "")
    assert len(answer.body) > 16_000_000
    assert len(loads(answer.body)["topicList"]) > 120_000
