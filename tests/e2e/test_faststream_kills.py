"""kill -9 of a FastStream service, and of its broker: whenever that is, what was published is handled."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from skylark import Message, Producer, SendFailed
from skylark.sdk.integrations.faststream import RocketBroker
from skylark.sdk.testing import Cluster, cluster_fixture
from tests.support.rounds import report
from tests.support.waiting import until
from tests.tidy.tree import ROOT

TOPIC = "tasks"
EACH_ROUND = 200

cluster = cluster_fixture()


@contextmanager
def worker(cluster: Cluster, notes: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The service; it is killed at the end of the block, if not before."""
    command = [sys.executable, "-m", "tests.e2e.faststream_worker", cluster.nameserver, TOPIC, str(notes)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def handled(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


def has_handled(notes: Path, count: int) -> bool:
    return len(handled(notes)) >= count


async def kill_rounds(cluster: Cluster, notes: Path, rounds: int, random: Random) -> None:
    cluster.create_topic(TOPIC, 4)
    sent: set[str] = set()
    for number in range(rounds):
        texts = [f"{number}-{count}" for count in range(EACH_ROUND)]
        async with Producer(cluster.nameserver) as producer:
            await producer.send_many(TOPIC, [text.encode() for text in texts])
        sent.update(texts)
        wanted = len(handled(notes)) + random.randrange(1, EACH_ROUND)
        with worker(cluster, notes) as process:
            await until(partial(has_handled, notes, wanted), "the worker is at work")
            process.kill()
    async with Producer(cluster.nameserver) as producer:
        # For the last one, which may find nothing else: what has handled a message listens to signals, too.
        await producer.send(Message(TOPIC, b"last"))
    sent.add("last")
    with worker(cluster, notes) as process:
        try:
            await until(lambda: sent <= set(handled(notes)), "every message is handled")
        finally:
            report(acknowledged=len(sent), lost=len(sent - set(handled(notes))))
        # A stop in order commits: nothing is left for the next one.
        process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(process.wait) == 0
    # A kill brings back what was not committed: at most what was handled in its round.
    assert len(handled(notes)) <= len(sent) + rounds * EACH_ROUND


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_a_killed_service_loses_no_message(cluster: Cluster, tmp_path: Path, seed: int, rounds: int) -> None:
    await kill_rounds(cluster, tmp_path / "notes", rounds, Random(seed))


async def kill_brokers(cluster: Cluster, rounds: int, random: Random) -> None:
    cluster.create_topic(TOPIC, 4)
    broker, seen = RocketBroker(cluster.nameserver, group="survives", logger=None), set[str]()

    @broker.subscriber(TOPIC, max_workers=4)
    async def handle(text: str) -> None:
        await asyncio.sleep(0.001)  # the work, in which a kill may come
        seen.add(text)

    async def publish(texts: Sequence[str]) -> None:
        for text in texts:
            while True:
                try:
                    await broker.publish(text, TOPIC)
                    break
                except SendFailed:
                    pass  # nobody knows whether it is stored, so it is sent again

    async def until_seen(texts: Sequence[str]) -> None:
        while not seen.issuperset(texts):  # noqa: ASYNC110  the handler knows nothing of who waits
            await asyncio.sleep(0.005)

    async with asyncio.timeout(60 * rounds), broker:
        await broker.start()
        for number in range(rounds):
            texts = [f"{number}-{count}" for count in range(EACH_ROUND)]
            publishing = asyncio.create_task(publish(texts))
            await until_seen(texts[: random.randrange(1, EACH_ROUND)])
            await asyncio.to_thread(cluster.brokers[0].kill)
            await asyncio.to_thread(cluster.brokers[0].start)
            await publishing
            try:
                await until_seen(texts)
            finally:
                report(acknowledged=len(texts), lost=len(set(texts) - seen))


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_killed_broker_loses_no_message(cluster: Cluster, seed: int, rounds: int) -> None:
    asyncio.run(kill_brokers(cluster, rounds, Random(seed)))
