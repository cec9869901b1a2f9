"""State that no frame holds: both daemons run, register, replicate and restart with it.

CI runs it with frames of 64 KiB; ``--nightly`` with frames as large as RocketMQ's, 48,600 topics with names of 120
characters, 1.7 million offsets and 300 MB of KV config.
"""

from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from scripts.daemons import Daemon, broker_daemon, namesrv_daemon
from skylark.broker.replication.master_api import MasterClient as BrokerTables
from skylark.mqcommon.errors import BrokerError, RemotingError
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.body import KVTable
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import decode_body
from skylark.remoting.protocol.frame import MAX_FRAME_BYTES
from skylark.remoting.protocol.requests.offsets import GET_ALL_CONSUMER_OFFSET
from skylark.remoting.protocol.requests.replication import FIRST_PAGE, PageRequestHeader
from skylark.remoting.protocol.requests.routes import (
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_KVLIST_BY_NAMESPACE,
    GET_ROUTEINFO_BY_TOPIC,
    PUT_KV_CONFIG,
    TopicRouteData,
)
from skylark.remoting.protocol.requests.topics import GET_ALL_TOPIC_CONFIG, UPDATE_AND_CREATE_TOPIC
from tests.support.daemons import SMALL, start, started
from tests.support.waiting import until

NAME_CHARS = 120
GROUPS = 10
TIMEOUT_S = 300


@dataclass(frozen=True)
class Size:
    """How much there is of everything, and in what frames it is to be carried."""

    frame_bytes: int
    topics: int
    offsets: int
    kv_bytes: int
    kv_value_bytes: int


REDUCED = Size(64 * 1024, 320, 6_400, 1_000_000, 10_000)
FULL = Size(MAX_FRAME_BYTES, 48_600, 1_700_000, 300_000_000, 100_000)


def topic(number: int) -> str:
    return f"T{number}".ljust(NAME_CHARS, "x")


def offsets_of(size: Size) -> dict[str, dict[int, int]]:
    """Offsets by topic and group, with as many queues each as make the whole number."""
    queues = size.offsets // (size.topics * GROUPS) + 1
    keys = (f"{topic(number)}@g{group}" for number in range(size.topics) for group in range(GROUPS))
    table: dict[str, dict[int, int]] = {}
    left = size.offsets
    for key in keys:
        if left <= 0:
            break
        table[key] = dict.fromkeys(range(min(queues, left)), left)
        left -= queues
    return table


def write_state(home: Path, size: Size) -> None:
    """Write the state that a Java broker and a Java NameServer would have left."""
    config = home / "master" / "config"
    config.mkdir(parents=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = {
        name: {"topicName": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
        for name in map(topic, range(size.topics))
    }
    (config / "topics.json").write_bytes(orjson.dumps({"topicConfigTable": topics, "dataVersion": version}))
    offsets = {"offsetTable": offsets_of(size), "dataVersion": version}
    (config / "consumerOffset.json").write_bytes(orjson.dumps(offsets, option=orjson.OPT_NON_STR_KEYS))
    values = {f"k{number}": "v" * size.kv_value_bytes for number in range(size.kv_bytes // size.kv_value_bytes)}
    table = {"ORDER_TOPIC_CONFIG": values, "other": {"key": "value"}}
    (home / "namesrv.json").write_bytes(orjson.dumps({"configTable": table}))


def daemons(home: Path, size: Size) -> tuple[Daemon, Daemon, Daemon]:
    frames = ("--frame-max-length", str(size.frame_bytes))
    namesrv = namesrv_daemon(home, "namesrv", 0, *frames)
    options = (*SMALL, *frames)
    master = broker_daemon(home, "broker-a", namesrv.addr, 0, *options, "--store-path-root-dir", str(home / "master"))
    slave_options = ("--broker-role", "SLAVE", "--broker-id", "1", "--store-path-root-dir", str(home / "slave"))
    slave = broker_daemon(home, "broker-a", namesrv.addr, 0, *options, *slave_options)
    slave.log = home / "slave.log"
    return namesrv, master, slave


async def brokers_of(client: RemotingClient, namesrv: Daemon, name: str) -> list[int]:
    """The ids of the brokers in the topic's route."""
    answer = await client.invoke(namesrv.addr, Command(GET_ROUTEINFO_BY_TOPIC.code, {"topic": name}))
    if answer.code != 0:
        return []
    route = decode_body(TopicRouteData, answer.body, answer.codec)
    return sorted(broker_id for data in route.broker_datas for broker_id in data.broker_addrs)


async def until_registered(client: RemotingClient, namesrv: Daemon, size: Size) -> None:
    """The first, the last and some other topics have a route to the master and its slave."""
    names = [topic(number) for number in range(0, size.topics, max(size.topics // 20, 1))] + [topic(size.topics - 1)]

    async def known() -> bool:
        try:
            return all([await brokers_of(client, namesrv, name) == [0, 1] for name in names])
        except RemotingError:
            return False

    await until(known, "all topics have routes to both brokers", TIMEOUT_S)


async def offsets_at(client: RemotingClient, daemon: Daemon) -> dict[str, dict[int, int]]:
    tables = BrokerTables(client, daemon.addr)
    await tables.log_end()  # tells which wire it speaks
    found: dict[str, dict[int, int]] = {}
    page: PageRequestHeader | None = FIRST_PAGE
    while page is not None:
        got = await tables.consumer_offsets(None, page)
        found |= got.table.offset_table
        page = got.next_page
    return found


async def until_copied(client: RemotingClient, slave: Daemon, size: Size) -> None:
    expected = offsets_of(size)

    async def copied() -> bool:
        try:
            return await offsets_at(client, slave) == expected
        except (RemotingError, BrokerError):
            return False

    await until(copied, "the slave has all offsets", TIMEOUT_S)
    topics = (await BrokerTables(client, slave.addr).topics()).topic_config_table
    assert {topic(number) for number in range(size.topics)} <= topics.keys()


async def check_lists(client: RemotingClient, namesrv: Daemon, master: Daemon) -> None:
    """A list that no frame can hold is cut or refused, with a remark."""
    answer = await client.invoke(
        namesrv.addr, Command(GET_KVLIST_BY_NAMESPACE.code, {"namespace": "ORDER_TOPIC_CONFIG"}), 30_000
    )
    if answer.code == 0:
        assert "entries are left out" in (answer.remark or "")
        assert decode_body(KVTable, answer.body, answer.codec).table
    else:
        assert "the answer is too large" in (answer.remark or "")
    for addr, code in (
        (namesrv.addr, GET_ALL_TOPIC_LIST_FROM_NAMESERVER.code),
        (master.addr, GET_ALL_CONSUMER_OFFSET.code),
        (master.addr, GET_ALL_TOPIC_CONFIG.code),
    ):
        answer = await client.invoke(addr, Command(code), 30_000)
        assert answer.code == 0 or "frame" in (answer.remark or "")
    put = {"namespace": "other", "key": "key", "value": "new"}
    assert (await client.invoke(namesrv.addr, Command(PUT_KV_CONFIG.code, put), 60_000)).code == 0


async def run(home: Path, size: Size) -> None:
    write_state(home, size)
    namesrv, master, slave = everything = daemons(home, size)
    async with started(*everything, timeout_s=TIMEOUT_S):
        async with open_client() as client:
            await until_registered(client, namesrv, size)
            await until_copied(client, slave, size)
            await check_lists(client, namesrv, master)
            header = {
                "topic": "One", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "order": False,
            }  # fmt: skip
            made = await client.invoke(master.addr, Command(UPDATE_AND_CREATE_TOPIC.code, header), 30_000)
            assert made.code == 0

            async def has_route() -> bool:
                return await brokers_of(client, namesrv, "One") == [0, 1]

            await until(has_route, "the new topic has a route", TIMEOUT_S)
            for daemon in (namesrv, master, slave):
                daemon.kill()
                await start(daemon, timeout_s=TIMEOUT_S)
                await until_registered(client, namesrv, size)
                await until_copied(client, slave, size)
        for daemon in everything:
            assert daemon.runs
            assert b"Traceback" not in daemon.log.read_bytes()


async def test_state_that_no_frame_holds(tmp_path: Path) -> None:
    await run(tmp_path, REDUCED)


@pytest.mark.nightly
async def test_state_that_no_frame_of_rocketmqs_holds(tmp_path: Path) -> None:
    await run(tmp_path, FULL)
