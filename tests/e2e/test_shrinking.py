"""A cluster is drained, shrunk and grown again and again under load, while its parts are killed.

Every acknowledged message is consumed, no send fails, and each command ends when it is run again.
"""

import json
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest
import trio

from scripts.controller_set import ControllerSet
from scripts.controller_set import running as controlled
from scripts.daemons import Daemon, broker_daemon
from skylark import (
    Admin,
    ConsumeFrom,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    SendFailed,
    TopicConfig,
)
from skylark.broker.replication.master_api import MasterClient as BrokerTables
from skylark.remoting.net.client import open_client
from tests.e2e.switches import QUICK
from tests.support.daemons import SMALL, Cluster, make_topic, running, until_route
from tests.support.daemons import started as started_daemons
from tests.support.rounds import report
from tests.support.waiting import until
from tests.support.warm_daemons import warm

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
                await trio.sleep(0.01)

    async def consume(self) -> None:
        async def handle(message: MessageExt) -> None:
            self.consumed.add(message.body)

        async with PushConsumer(self._nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle):
            await trio.sleep_forever()

    async def goes_on(self, messages: int) -> None:
        """Return when ``messages`` more are acknowledged: a measure of time that does not depend on the machine."""
        wanted = len(self.acked) + messages
        await until(lambda: len(self.acked) >= wanted, f"{messages} more messages are stored")


def commands(kind: str, broker: str) -> list[tuple[str, ...]]:
    """The commands of one round; the topic has eight queues at its end."""
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
    line = [warm("mqadmin"), *words, "-n", cluster.nameserver, "--output", "json"]
    seen = ""
    for number in range(MOST_RUNS):
        process = started(line)
        if number == 0:
            await load.goes_on(random.randrange(1, 40))
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


@pytest.mark.fault("members", "the cluster shrinks and grows while its parts are killed", "2m-2s")
@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.nightly)])
async def test_nothing_is_lost_while_a_cluster_shrinks_and_grows(tmp_path: Path, rounds: int, seed: int) -> None:
    random = Random(seed)
    async with running(tmp_path, 2, OPTIONS) as cluster:
        await make_topic(cluster, TopicConfig(TOPIC, 4, 4))
        load = Load(cluster.nameserver)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.consume)
            nursery.start_soon(load.produce)
            for number in range(rounds):
                kind = ("shrink", "move", "rebalance", "drain")[number % 4]
                for words in commands(kind, random.choice(cluster.brokers).name):
                    sys.stdout.write(f"{number}: {' '.join(words)}\n")
                    await run_to_its_end(words, cluster, load, random)
            await load.goes_on(20)
            load.producing.cancel()
            try:
                await until(lambda: load.acked <= load.consumed, "all is consumed", END_TIMEOUT_S)
            finally:
                report(acknowledged=len(load.acked), lost=len(load.acked - load.consumed))
            nursery.cancel_scope.cancel()
    assert load.failed == []
    assert len(load.acked) > 20 * rounds


async def test_a_drain_goes_on_at_the_next_master_and_its_end_reaches_one_that_was_away(tmp_path: Path) -> None:
    async with controlled(ControllerSet(tmp_path, 2, QUICK)) as brokers, Admin(brokers.nameserver) as admin:
        other = broker_daemon(tmp_path, "other", brokers.nameserver, 0, *SMALL)
        first = await brokers.until_in_sync(admin)
        await brokers.make_topic(admin, TOPIC)
        async with started_daemons(other), Producer(brokers.nameserver, group="p") as producer:
            await admin.create_topic(other.addr, TopicConfig(TOPIC, 4, 4))
            await until_route(Cluster(tmp_path, [brokers.namesrv], []), TOPIC, [brokers.name, "other"])
            queue = MessageQueue(TOPIC, brokers.name, 0)
            await consume(brokers.nameserver, producer, queue, sent=True)
            await producer.send(Message(TOPIC, b"left"), queue=queue)
            line = [warm("mqadmin"), "drain", "-b", brokers.name, "--settle", "0", "-n", brokers.nameserver]
            drain = started(line)
            for broker in brokers.brokers:
                await until(partial(is_drained, broker), f"{broker.name} is drained")
            await brokers.until_in_sync(admin)
            first.kill()
            second = await brokers.until_master(admin, but=first)
            await consume(brokers.nameserver, producer, queue)
            out, errors = await trio.to_thread.run_sync(drain.communicate)
            assert drain.returncode == 0, out + errors
            assert "it can be stopped" in out
            undrain = started([warm("mqadmin"), "undrain", "-b", brokers.name, "-n", brokers.nameserver])
            assert await trio.to_thread.run_sync(undrain.wait) == 0
            await brokers.start_broker(first)
            await until(partial(is_drained, first, wanted=False), "the former master copied the end of the drain")
            await brokers.until_in_sync(admin)
            second.kill()
            assert await brokers.until_master(admin, but=second) is first

            async def is_sent() -> bool:
                with suppress(SendFailed):  # A broker acts on what it copied within half a second.
                    await producer.send(Message(TOPIC, b"again"), queue=queue)
                    return True
                return False

            await until(is_sent, "the former master takes messages again")


async def is_drained(broker: Daemon, *, wanted: bool = True) -> bool:
    """Whether the broker knows of a drain, or of none, as ``wanted``."""
    async with open_client() as client:
        tables = BrokerTables(client, broker.addr)
        await (
            tables.topics()
        )  # A client knows by the first answer that the broker is Skylark's, and asks for pages then.
        drain = (await tables.topics()).drain
    return drain is not None and any(drain) == wanted


async def consume(nameserver: str, producer: Producer, queue: MessageQueue, *, sent: bool = False) -> None:
    """A group gets one message, which is ``sent`` first, and commits that."""
    got = trio.Event()

    async def handle(message: MessageExt) -> None:
        got.set()

    first = ConsumeFrom.FIRST_OFFSET
    async with PushConsumer(nameserver, group="g", subscriptions={TOPIC: "*"}, handler=handle, consume_from=first):
        if sent:
            await producer.send(Message(TOPIC, b"x"), queue=queue)
        with trio.fail_after(END_TIMEOUT_S):
            await got.wait()
