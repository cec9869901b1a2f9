"""The SDK against answers of Apache RocketMQ's own servers, and its requests beside requests of the Java tools."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skylark.mqcommon.message.message import decode_messages
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import open_client
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.connection import Connection
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk import broker_api, namesrv_api
from skylark.sdk.endpoint import Endpoint
from skylark.sdk.routes import make_route
from tests.sdk.admin_at import admin_at
from tests.sdk.fakes import Fake, serving

WIRE = Path(__file__).parents[1] / "golden" / "wire"
RELEASES = ["admin_5.3.3", "admin_4.9.8"]
# What Java adds to requests of any sort: signature, broker name, namespace, static topics.
ADDED = {"AccessKey", "Signature", "bname", "ReqT", "ns", "nsd", "lo", "oway"}


class Recorded(NamedTuple):
    """The first of each sort."""

    requests: dict[int, Command]
    answers: dict[int, Command]


def recorded(release: str) -> Recorded:
    found = Recorded({}, {})
    for line in (WIRE / f"{release}.jsonl").read_text().splitlines():
        row = json.loads(line)
        code, sort, *_ = row["name"].split(".")
        (command,) = Connection(MAX_FRAME_BYTES).receive_data(bytes.fromhex(row["hex"]))
        if sort == "REQ":
            found.requests.setdefault(int(code), command)
        elif command.code == 0:
            found.answers.setdefault(int(code), command)
    return found


@asynccontextmanager
async def replaying(release: str) -> AsyncIterator[tuple[Endpoint, Fake, Recorded]]:
    """A server that answers each code as RocketMQ did."""
    golden = recorded(release)
    fake = Fake()
    fake.json_only = True
    for code, answer in golden.answers.items():
        fake.on(
            code,
            lambda request, answer=answer: request.respond(0, answer.remark, answer.ext, answer.body),  # type: ignore[misc]
        )
    async with serving(fake), open_client() as client:
        yield Endpoint(client, fake.addr), fake, golden


TOPIC = "WireTopic"
QUEUE = MessageQueue(TOPIC, "broker-a", 3)

CALLS: dict[int, Callable[[Endpoint], Awaitable[Any]]] = {
    11: lambda at: broker_api.pull(at, "g", TOPIC, 3, 0, max_count=32, max_bytes=2**31 - 1),
    12: lambda at: broker_api.query_messages(at, "AdminT", "adminkey", max_num=64, begin_ms=0, end_ms=2**63 - 1),
    14: lambda at: broker_api.committed_offset(at, "g", TOPIC, 3),
    15: lambda at: broker_api.commit_offset(at, "g", TOPIC, 3, 1),
    17: lambda at: admin_at(at).create_topic(at.addr, TopicConfig("AdminT", 4, 4)),
    25: lambda at: admin_at(at).update_broker_config(at.addr, {"fileReservedTime": "71"}),
    28: lambda at: admin_at(at).broker_runtime_info(at.addr),
    29: lambda at: broker_api.search_offset(at, TOPIC, 3, 1795229895086),
    30: lambda at: broker_api.max_offset(at, TOPIC, 3),
    31: lambda at: broker_api.min_offset(at, TOPIC, 3),
    36: lambda at: broker_api.send_back(at, "wire_push_cg", 0, "ID", TOPIC, 0, 16),
    35: lambda at: broker_api.unregister_client(at, "id", consumer_group="g"),
    105: lambda at: namesrv_api.topic_route(at, TOPIC),
    106: lambda at: namesrv_api.cluster_info(at),
    200: lambda at: admin_at(at).create_group(at.addr, SubscriptionGroupConfig("admin_group")),
    201: lambda at: admin_at(at).all_groups(at.addr),
    202: lambda at: admin_at(at).topic_stats(TOPIC),
    205: lambda at: admin_at(at).wipe_write_perm("broker-a"),
    206: lambda at: admin_at(at).topic_list(),
    207: lambda at: admin_at(at).delete_group(at.addr, "admin_group", clean_offset=False),
    208: lambda at: admin_at(at).consume_stats("wire_order_cg"),
    215: lambda at: admin_at(at).delete_topic_in_broker(at.addr, "AdminT"),
    216: lambda at: admin_at(at).delete_topic_in_namesrv("AdminT"),
    300: lambda at: admin_at(at).groups_of_topic("RMQ_SYS_TRANS_HALF_TOPIC"),
    315: lambda at: admin_at(at).broker_stats(at.addr, "TOPIC_PUT_NUMS", TOPIC),
    319: lambda at: admin_at(at).namesrv_config(),
    327: lambda at: admin_at(at).add_write_perm("broker-a"),
    41: lambda at: broker_api.lock_queues(at, "wire_order_cg", "192.0.2.2@order", [QUEUE]),
    42: lambda at: broker_api.unlock_queues(at, "wire_order_cg", "192.0.2.2@order", [QUEUE]),
    100: lambda at: admin_at(at).put_kv("ns1", "k1", "v1"),
    102: lambda at: admin_at(at).delete_kv("ns1", "k1"),
}


@pytest.mark.parametrize("release", RELEASES)
async def test_every_recorded_answer_is_understood(release: str) -> None:
    async with replaying(release) as (at, _, golden):
        codes = [code for code in CALLS if code in golden.answers]
        assert len(codes) > 20
        answers = {code: await CALLS[code](at) for code in codes}

    pulled = answers[11]
    assert pulled.code == 0 and len(decode_messages(pulled.data)) == pulled.next_offset > 0
    (found,) = answers[12]
    assert (found.topic, found.keys, found.body) == ("AdminT", "adminkey", b"hello admin")
    for code in (14, 29, 30, 31):
        assert answers[code].offset == int((golden.answers[code].ext or {})["offset"])
    assert answers[28]["msgPutTotalTodayNow"].isdigit()
    route = make_route(TOPIC, answers[105])
    assert QUEUE in route.writable and route.master("broker-a")
    assert answers[106].cluster_addr_table == {"DefaultCluster": ["broker-a"]}
    assert answers[201].subscription_group_table["SELF_TEST_C_GROUP"].retry_max_times == 16
    assert answers[41] == [QUEUE]
    assert answers[202].offset_table[QUEUE].max_offset > 0
    assert answers[205] == answers[327] and min(answers[205].values()) > 10
    assert TOPIC in answers[206]
    assert answers[208].offset_table[QUEUE].broker_offset > 0
    assert answers[300] == sorted(json.loads(golden.answers[300].body)["groupList"])
    assert answers[315].stats_minute.sum > 0
    (config,) = answers[319].values()
    assert config["listenPort"].isdigit()


@pytest.mark.parametrize("release", RELEASES)
async def test_requests_have_the_fields_of_the_java_tools(release: str) -> None:
    async with replaying(release) as (at, fake, golden):
        for code, call in CALLS.items():
            if code not in golden.requests or code not in golden.answers:
                continue
            await call(at)
            (ours,) = fake.asked(code)
            theirs = golden.requests[code]
            missing = set(theirs.ext or {}) - set(ours.ext or {}) - ADDED
            if release == "admin_5.3.3":
                assert missing == set(), code
            assert bool(ours.body) == bool(theirs.body), code


async def test_codes_that_mean_none() -> None:
    async with replaying("admin_5.3.3") as (at, fake, _):
        fake.on(
            14, lambda request: request.respond(22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
        )
        assert await broker_api.committed_offset(at, "g", TOPIC, 3) is None
        fake.on(12, lambda request: request.respond(22, "can not find message, maybe time range not correct"))
        assert await broker_api.query_messages(at, TOPIC, "k", max_num=1, begin_ms=0, end_ms=1) == []
        fake.on(32, lambda request: {"timestamp": -1})
        assert await broker_api.earliest_store_time(at, TOPIC, 3) is None
