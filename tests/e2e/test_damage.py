"""A store is damaged while its broker is away, again and again: nothing acknowledged is lost, and the log names it.

A failure prints its seed; TEST_SEED repeats it, as far as the moments of other processes can be repeated.
"""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.daemons import BIN, Daemon
from skylark import Producer
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import Acked, Load, check_acknowledged, stored
from tests.support.daemons import Cluster, make_topic, running, start, until_route
from tests.support.waiting import until

QUEUES = 2
TOPICS = {"damaged": "SimpleCQ", "beside": "SimpleCQ", "batches": "BatchCQ"}
SENDERS = 10
FEW = 150


@asynccontextmanager
async def damaged(home: Path) -> AsyncIterator[tuple[Cluster, Daemon, Path]]:
    """A cluster with the topics, its broker and the store that tests damage."""
    async with running(home) as cluster:
        for topic, kind in TOPICS.items():
            await make_topic(cluster, TopicConfig(topic, QUEUES, QUEUES, attributes={"queue.type": kind}))
        (broker,) = cluster.brokers
        yield cluster, broker, home / broker.name


async def sent(cluster: Cluster, number: int) -> dict[str, list[Acked]]:
    """Load on all topics until the broker is away; what was acknowledged."""
    async with Producer(cluster.nameserver, retries=0) as producer, trio.open_nursery() as nursery:
        loads = {topic: Load(producer, topic, f"round-{number}") for topic in TOPICS}
        for load in loads.values():
            for sender in range(SENDERS):
                nursery.start_soon(load.send, sender)
        for load in loads.values():
            await load.more(FEW)
        for load in loads.values():
            load.stopping = True
    return {topic: load.acked for topic, load in loads.items()}


def queue_files(store: Path) -> list[Path]:
    return sorted([*store.glob("consumequeue/damaged/*/*"), *store.glob("batchconsumequeue/batches/*/*")])


def queue_file(store: Path, random: Random) -> Path:
    """A queue's file of a topic with acknowledged messages."""
    return random.choice(queue_files(store))


def bit_flipped(store: Path, random: Random) -> str:
    path = queue_file(store, random)
    raw = bytearray(path.read_bytes())
    entry = 46 if "batchconsumequeue" in str(path) else 20
    used = len(bytes(raw).rstrip(b"\0")) // entry
    at = random.randrange(max(used - 1, 1)) * entry + random.randrange(12)
    raw[at] ^= 1 << random.randrange(8)
    path.write_bytes(raw)
    return ""


def removed(store: Path, random: Random) -> str:
    queue_file(store, random).unlink()
    return "consume queues lacked messages and were rebuilt"


def emptied(store: Path, random: Random) -> str:
    queue_file(store, random).write_bytes(b"")
    return "consume queues lacked messages and were rebuilt"


def cut(store: Path, random: Random) -> str:
    path = queue_file(store, random)
    path.write_bytes(path.read_bytes()[:50])
    return "consume queues lacked messages and were rebuilt"


def queue_removed(store: Path, random: Random) -> str:
    shutil.rmtree(queue_file(store, random).parent)
    return "consume queues lacked messages and were rebuilt"


DAMAGES: list[Callable[[Path, Random], str]] = [bit_flipped, removed, emptied, cut, queue_removed]


@pytest.mark.fault("lies", "files of queues are damaged while the broker is away", "single")
@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.nightly)])
async def test_damaged_queues_lose_nothing(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with damaged(tmp_path) as (cluster, broker, store):
        acked: dict[str, list[Acked]] = {topic: [] for topic in TOPICS}
        for number in range(rounds):
            before = {topic: len(acked[topic]) for topic in TOPICS}
            for topic, more in (await sent(cluster, number)).items():
                acked[topic] += more
            await until(lambda: len(queue_files(store)) >= 2 * QUEUES, "a checkpoint has written the queues")
            gracefully = random.random() < 0.5
            await away(broker, gracefully=gracefully)
            said = DAMAGES[number % len(DAMAGES)](store, random)
            await back(cluster, broker)
            # After a kill the file may be newer than the checkpoint: the start reads the log from there in any case.
            assert not gracefully or said in logged(broker)
            for topic in TOPICS:
                found = await stored(cluster.nameserver, topic)
                check_acknowledged(acked[topic], found, counted_before=before[topic])
            assert "Traceback" not in logged(broker)


async def away(broker: Daemon, *, gracefully: bool) -> None:
    if gracefully:
        broker.terminate()
        await until(lambda: not broker.runs, "the broker has stopped")
    else:
        broker.kill()


async def back(cluster: Cluster, broker: Daemon) -> None:
    await start(broker)
    for topic in TOPICS:
        await until_route(cluster, topic, [broker.name])


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.nightly)])
async def test_a_store_that_lacks_a_part_does_not_look_new(tmp_path: Path, seed: int, rounds: int) -> None:
    """The metadata is made again by the command that the refusal names; a file of the log has to be put back."""
    random = Random(seed)
    async with damaged(tmp_path) as (cluster, broker, store):
        acked: dict[str, list[Acked]] = {topic: [] for topic in TOPICS}
        for number in range(rounds):
            before = {topic: len(acked[topic]) for topic in TOPICS}
            for topic, more in (await sent(cluster, number)).items():
                acked[topic] += more
            broker.kill()
            if number % 2:
                first = sorted(store.glob("commitlog/*"))[0]
                first.rename(tmp_path / "taken")
                assert f"{first} is damaged at offset 0: the file is missing" in await refused(broker)
                (tmp_path / "taken").rename(first)
            else:
                for journal in store.glob("config/metadata.*"):
                    random.choice([Path.unlink, make_empty])(journal)
                assert "broker rebuildMetadata" in await refused(broker)
                done = await trio.run_process([str(BIN / "broker"), "rebuildMetadata", str(store)], capture_stdout=True)
                assert b"topic batches made with 2 queues" in done.stdout
            await back(cluster, broker)
            for topic in TOPICS:
                found = await stored(cluster.nameserver, topic)
                check_acknowledged(acked[topic], found, counted_before=before[topic])


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


async def refused(broker: Daemon) -> str:
    """The output of a start that ends at once, without a traceback."""
    broker.start()
    await until(lambda: not broker.runs, "the broker refuses to start")
    assert broker.exit_code == 1 and "Traceback" not in logged(broker)
    return logged(broker)


def logged(broker: Daemon) -> str:
    return broker.logged.decode()
