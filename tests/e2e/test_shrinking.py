"""A cluster is drained, shrunk and grown again and again under load, while its parts are killed.

Every acknowledged message is consumed, no send fails, and each command ends when it is run again.
"""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest
import trio

from scripts.daemons import BIN, Daemon
from sdk import Message, MessageExt, Producer, PushConsumer, SendFailed, TopicConfig
from tests.support.daemons import SMALL, Cluster, make_topic, running
from tests.support.waiting import until

TOPIC = "shrinking"
OPTIONS = (*SMALL, "--flush-consumer-offset-interval", "500")
# Clients of ours know of a change at once.
SETTLE = ("--settle", "1", "--deadline", "120")
# Runs of a command until it has to end, though a part of the cluster was killed under each.
MOST_RUNS = 20
END_TIMEOUT_S = 120


class Load:
    """A producer and a consumer group that never stop."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self.acked: set[bytes] = set()
        self.consumed: set[bytes] = set()
        self.failed: list[SendFailed] = []
        self._sent = 0
        self.producing = trio.CancelScope()

    async def produce(self) -> None:
        with self.producing:
            await self._produce()

    async def _produce(self) -> None:
        async with Producer(self._nameserver, group="p") as producer:
            while True:
                self._sent += 1
                body = b"%d" % self._sent
                try:
                    await producer.send(Message(TOPIC, body, keys=f"key-{self._sent % 7}"), timeout_ms=30_000)
                except SendFailed as error:
                    self.failed.append(error)
                else:
                    self.acked.add(body)
                await trio.sleep(0.002)

    async def consume(self) -> None:
        async def handle(message: MessageExt) -> None:
            self.consumed.add(message.body)

        async with PushConsumer(self._nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle):
            await trio.sleep_forever()

    async def goes_on(self, messages: int) -> None:
        """Return when so many more messages are acknowledged: a measure of time that does not depend on the machine."""
        wanted = len(self.acked) + messages
        await until(lambda: len(self.acked) >= wanted, f"{messages} more messages are stored")


def commands(kind: str, broker: str) -> list[tuple[str, ...]]:
    """What one round does, command after command; the topic has eight queues at its end."""
    on_topic = ("-t", TOPIC, "-c", "DefaultCluster", *SETTLE)
    if kind == "shrink":
        return [("shrinkTopic", *on_topic, "-w", "1"), ("rebalanceTopic", *on_topic, "-w", "8")]
    if kind == "rebalance":
        return [("rebalanceTopic", *on_topic, "-w", "3"), ("rebalanceTopic", *on_topic, "-w", "8")]
    move = ("--move",) if kind == "move" else ()
    return [("drain", "-b", broker, *move, *SETTLE), ("undrain", "-b", broker)]


class GoesOn(Protocol):
    async def goes_on(self, messages: int) -> None: ...


def started(line: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def run_to_its_end(words: tuple[str, ...], cluster: Cluster, load: GoesOn, random: Random) -> dict[str, Any]:
    """Run a command while something is killed, again and again until it ends well; returns its result."""
    line = [str(BIN / "mqadmin"), *words, "-n", cluster.nameserver, "--output", "json"]
    seen = ""
    for number in range(MOST_RUNS):
        process = started(line)
        if number == 0:
            await load.goes_on(random.randrange(1, 200))
            victim: Daemon | None = random.choice([None, *cluster.namesrvs, *cluster.brokers])
            if victim is None:
                process.kill()
            else:
                victim.kill()
                victim.start()
                await until(victim.ready, f"{victim.name} serves again")
        out, errors = await trio.to_thread.run_sync(process.communicate)
        if process.returncode == 0:
            found: dict[str, Any] = json.loads(out)
            return found
        seen = errors
        assert "Traceback" not in errors, errors
    raise AssertionError(f"{' '.join(words)} does not end: {seen}")


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_nothing_is_lost_while_a_cluster_shrinks_and_grows(tmp_path: Path, rounds: int, seed: int) -> None:
    random = Random(seed)
    async with running(tmp_path, 2, OPTIONS) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        load = Load(cluster.nameserver)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.consume)
            nursery.start_soon(load.produce)
            for number in range(rounds):
                kind = ("shrink", "drain", "rebalance", "move")[number % 4]
                for words in commands(kind, random.choice(cluster.brokers).name):
                    sys.stdout.write(f"{number}: {' '.join(words)}\n")
                    await run_to_its_end(words, cluster, load, random)
            await load.goes_on(20)
            load.producing.cancel()
            await until(lambda: load.acked <= load.consumed, "all is consumed", END_TIMEOUT_S)
            nursery.cancel_scope.cancel()
    assert load.failed == []
    assert len(load.acked) > 100 * rounds
