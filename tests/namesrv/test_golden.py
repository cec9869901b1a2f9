"""Requests recorded from RocketMQ's brokers, clients and mqadmin, answered by our NameServer as by theirs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.dialect import loads
from skylark.remoting.protocol.requests.registrations import UNREGISTER_BROKER
from skylark.remoting.protocol.requests.routes import (
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    REGISTER_TOPIC_IN_NAMESRV,
)
from tests.namesrv.peer import Peer

WIRE = Path(__file__).parents[1] / "golden" / "wire"
REGISTER_FRAMES = ("admin_4.9.8.jsonl", "admin_5.3.3.jsonl", "broker_namesrv.jsonl")
ONE_BROKER = {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "brokerId": "0"}
CLUSTERS = [("admin_4.9.8.jsonl", "127.0.0.1:20911"), ("admin_5.3.3.jsonl", "127.0.0.1:30911")]


class Recorded(NamedTuple):
    """One frame."""

    is_answer: bool
    code: int
    frame: bytes
    command: Command


def recorded(file: str, name: str, aliases: tuple[str, ...] = ()) -> Iterator[Recorded]:
    for line in (WIRE / file).read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["name"].split(".")[0] in (name, *aliases):
            frame = bytes.fromhex(row["hex"])
            (command,) = Connection().receive_data(frame)
            yield Recorded(command.is_response, command.code, frame, command)


def answers(file: str, code: int, result: int = 0) -> list[Command]:
    found = [r.command for r in recorded(file, str(code)) if r.is_answer and r.code == result]
    assert found, f"no answer {result} to {code} in {file}"
    return found


@pytest.mark.parametrize("file", REGISTER_FRAMES)
async def test_registrations_of_java_brokers_are_taken(peer: Peer, file: str) -> None:
    topics: set[str] = set()
    rows = list(recorded(file, "103", ("REGISTER_BROKER",)))
    expected = {(r.command.code, str(r.command.ext), r.command.body) for r in rows if r.is_answer}
    for row in rows:
        if row.is_answer:
            continue
        answer = await peer.exchange(row.frame)
        if row.command.ext and row.command.ext["brokerId"] == "0":
            topics |= set(loads(row.command.body)["topicConfigSerializeWrapper"]["topicConfigTable"])
        assert (answer.code, str(answer.ext), answer.body) in expected
    assert await peer.topics() == sorted(topics)
    assert len(topics) > 5


@pytest.mark.parametrize(("file", "addr"), CLUSTERS)
async def test_routes_have_javas_bytes(peer: Peer, file: str, addr: str) -> None:
    await peer.register(addr)
    for theirs in answers(file, 105):
        await peer.ask(REGISTER_TOPIC_IN_NAMESRV.code, {"topic": "WireTopic"}, theirs.body)
        ours = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": "WireTopic"}, version=theirs.version)
        assert without_acting_master(ours.body) == without_acting_master(theirs.body)
        assert (ours.code, ours.ext, ours.remark) == (theirs.code, theirs.ext, theirs.remark)


@pytest.mark.parametrize("file", ["admin_5.3.3.jsonl", "java_5.3.3.jsonl"])
async def test_absent_routes_have_javas_words(peer: Peer, file: str) -> None:
    for theirs in answers(file, 105, 17):
        assert theirs.remark is not None
        topic = theirs.remark.split("topic: ")[1].split("\n")[0]
        ours = await peer.ask(GET_ROUTEINFO_BY_TOPIC.code, {"topic": topic})
        assert (ours.code, ours.remark, ours.ext, ours.body) == (17, theirs.remark, theirs.ext, theirs.body)


@pytest.mark.parametrize(("file", "addr"), CLUSTERS)
async def test_the_cluster_has_javas_members(peer: Peer, file: str, addr: str) -> None:
    await peer.register(addr)
    theirs = answers(file, 106)[0]
    old = await peer.ask(GET_BROKER_CLUSTER_INFO.code, version=399)
    assert without_acting_master(old.body) == without_acting_master(theirs.body)


@pytest.mark.parametrize("file", ["admin_4.9.8.jsonl", "admin_5.3.3.jsonl"])
async def test_administrators_get_javas_answers(peer: Peer, file: str) -> None:
    """Each request of mqadmin to a NameServer, against one whose broker has the recorded number of topics."""
    for code, field in ((205, "wipeTopicCount"), (327, "addTopicCount")):
        theirs = answers(file, code)[0]
        assert theirs.ext is not None
        await peer.register("127.0.0.1:1", *(f"t{n}" for n in range(int(theirs.ext[field]))), counter=code)
        for row in recorded(file, str(code)):
            if not row.is_answer:
                ours = await peer.exchange(row.frame)
                assert (ours.code, ours.ext, ours.remark, ours.body) == (0, theirs.ext, theirs.remark, theirs.body)
        await peer.ask(UNREGISTER_BROKER.code, ONE_BROKER)
    for code in (100, 102, 104, 216):
        rows = list(recorded(file, str(code)))
        results = {(r.command.code, r.command.remark, str(r.command.ext), r.command.body) for r in rows if r.is_answer}
        for row in rows:
            if not row.is_answer:
                ours = await peer.exchange(row.frame)
                assert (ours.code, ours.remark, str(ours.ext), ours.body) in results


async def test_topic_lists_have_javas_members(peer: Peer) -> None:
    theirs = loads(answers("admin_5.3.3.jsonl", 206)[0].body)
    await peer.register("127.0.0.1:1", *theirs["topicList"])
    ours = loads((await peer.ask(GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code)).body)
    assert ours == {"topicList": sorted(theirs["topicList"])}


async def test_a_cpp_client_finds_its_topic(peer: Peer) -> None:
    await peer.register("127.0.0.1:1", "WireTopic", "TBW102")
    codes = set()
    for row in recorded("cpp.jsonl", "GET_ROUTEINFO_BY_TOPIC"):
        if not row.is_answer:
            answer = await peer.exchange(row.frame)
            codes.add(answer.code)
            assert answer.code in (0, 17)
            assert answer.code == 17 or b'"brokerAddrs":{0:"127.0.0.1:1"}' in answer.body
    assert codes


def without_acting_master(body: bytes) -> bytes:
    """4.9.8 does not have this member, 5.x and we do."""
    return body.replace(b',"enableActingMaster":false', b"")
