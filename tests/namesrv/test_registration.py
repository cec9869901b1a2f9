"""Registrations in parts: until the last one has come, nobody takes what is there for the whole."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.namesrv.registration import RegistrationPart
from skylark.namesrv.routes import Outcome, Registered, RouteTable
from skylark.remoting.net.steps import finish
from skylark.remoting.protocol.body import DataVersion
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body, loads
from skylark.remoting.protocol.requests.registrations import REGISTER_BROKER, RegisterBrokerBody
from skylark.remoting.protocol.requests.routes import GET_ALL_TOPIC_LIST_FROM_NAMESERVER
from skylark.remoting.protocol.requests.topics import TopicConfig, TopicConfigTable
from tests.namesrv.peer import Peer, Served
from tests.namesrv.registrations import all_topics, live_addrs, registration, version
from tests.support.caller import Caller

ADDR = "127.0.0.1:10911"
Table = RouteTable[str]


def register(
    table: Table, *topics: str, connection: str = "c", counter: int = 1, part: RegistrationPart | None = None
) -> Outcome:
    new = replace(registration(addr=ADDR, topics=topics, counter=counter), part=part)
    told: Registered[str] = table.register(new, connection, 0)
    return told.outcome


def known(table: Table) -> DataVersion | None:
    live = table.touch("DefaultCluster", ADDR, "c", 0)
    return None if live is None else live.data_version


def test_a_set_in_parts() -> None:
    table = Table()
    assert register(table, "t1", part=RegistrationPart(0, False)) is Outcome.REGISTERED
    assert known(table) not in (None, version(1))
    assert register(table, "t2", part=RegistrationPart(1, False)) is Outcome.REGISTERED
    assert known(table) != version(1)
    assert register(table, "t3", part=RegistrationPart(2, True)) is Outcome.REGISTERED
    assert known(table) == version(1)
    assert all_topics(table) == {"t1", "t2", "t3"}


@pytest.mark.parametrize(
    "part",
    [
        RegistrationPart(1, True),
        RegistrationPart(3, True),
        RegistrationPart(-1, True),
        RegistrationPart(0, True, version(7)),
    ],
)
def test_a_part_that_does_not_follow(part: RegistrationPart) -> None:
    table = Table()
    register(table, "t1", part=RegistrationPart(0, False))
    register(table, "t2", part=RegistrationPart(1, False))
    assert register(table, "t9", part=part) is Outcome.WHOLE_NEEDED
    assert register(table, "t9", part=RegistrationPart(2, True), counter=2) is Outcome.WHOLE_NEEDED
    assert register(table, "t9", part=RegistrationPart(2, True), connection="another") is Outcome.WHOLE_NEEDED
    assert "t9" not in all_topics(table)
    assert known(table) != version(1)


def test_changes_since_a_version() -> None:
    table = Table()
    register(table, "t1", "t2", counter=1)
    finish(table.wipe_write_perm("broker-a"))
    changes = RegistrationPart(0, True, version(1), removed=("t1", "t0"))
    assert register(table, "t3", counter=2, part=changes) is Outcome.REGISTERED
    assert (all_topics(table), known(table)) == ({"t2", "t3"}, version(2))
    route = table.route("t2")
    assert route is not None
    assert route.queue_datas[0].perm == 4  # it did not change
    assert register(table, "t4", counter=3, part=changes) is Outcome.WHOLE_NEEDED


def test_a_topic_deleted_here_only_comes_back() -> None:
    table = Table()
    register(table, "t1", "t2", counter=1)
    table.delete_topic("t1")
    assert register(table, "t3", counter=2, part=RegistrationPart(0, True, version(1))) is Outcome.WHOLE_NEEDED
    # A topic that the broker has deleted, too, does not need it.
    assert register(table, counter=2, part=RegistrationPart(0, True, version(1), removed=("t1",))) is Outcome.REGISTERED


def test_a_slave_whose_topics_were_not_taken_tells_them_when_they_count() -> None:
    table = Table()
    register(table, "t1", "t2")
    slave = registration(addr="127.0.0.1:10921", broker_id=1, topics=("t1", "t2", "t3"), counter=1)
    table.register(slave, "s", 0)
    changes = replace(slave, topics={}, part=RegistrationPart(0, True, version(1)))
    assert table.register(changes, "s", 0).outcome is Outcome.REGISTERED
    table.unregister("DefaultCluster", "broker-a", ADDR)
    assert table.register(changes, "s", 0).outcome is Outcome.WHOLE_NEEDED
    table.register(slave, "s", 0)
    assert all_topics(table) == {"t1", "t2", "t3"}


@given(
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.lists(st.sampled_from("abcdefgh"), unique=True),
    st.integers(1, 4),
    st.booleans(),
)
def test_parts_end_as_one_registration_does(before: list[str], after: list[str], size: int, drop_absent: bool) -> None:
    whole, parted = Table(), Table()
    for table in (whole, parted):
        register(table, *before, "x", "y", counter=1)
    whole.register(
        registration(addr=ADDR, topics=[*after, "x", "y"], counter=2), "c", 0, delete_absent_topics=drop_absent
    )
    names = [*after, "x", "y"]
    parts = [names[at : at + size] for at in range(0, len(names), size)]
    for number, part in enumerate(parts):
        new = replace(
            registration(addr=ADDR, topics=part, counter=2), part=RegistrationPart(number, number == len(parts) - 1)
        )
        assert parted.register(new, "c", 0, delete_absent_topics=drop_absent).outcome is Outcome.REGISTERED
    assert all_topics(parted) == all_topics(whole)
    assert known(parted) == known(whole)


BAD = {
    "a b": TopicConfig("a b"),
    "x" * 128: TopicConfig("x"),
    "": TopicConfig(""),
    "a\nb": TopicConfig("a\nb"),
    "many": TopicConfig("many", 65_537, 4),
    "negative": TopicConfig("negative", 4, -1),
    "perm": TopicConfig("perm", perm=8),
}


async def register_topics(peer: Peer, topics: dict[str, TopicConfig], **ext: Any) -> Command:
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
    assert (await register_topics(peer, {**BAD, **good})).code == 0
    assert await peer.topics() == sorted(good)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("7 topics of broker broker-a at 127.0.0.1:10911 left out, the first is 'a b': ")


async def test_the_topics_of_a_brokers_own_names(peer: Peer) -> None:
    """A Java broker may have any name, and makes topics of it."""
    own = {name: TopicConfig(name, perm=7) for name in ("rack 1", "my.cluster", "my.cluster_REPLY_TOPIC")}
    assert (await register_topics(peer, own, brokerName="rack 1", clusterName="my.cluster")).code == 0
    assert await peer.topics() == sorted(own)


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName", "haServerAddr"])
@pytest.mark.parametrize("value", ["x" * 256, "a\nb", "a\0b", "\u202e"])
async def test_a_broker_that_could_not_be_shown_is_refused(served: Served, peer: Peer, field: str, value: str) -> None:
    answer = await register_topics(peer, {"t1": TopicConfig("t1"), "t2": TopicConfig("t2")}, **{field: value})
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
