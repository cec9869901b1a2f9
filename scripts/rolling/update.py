"""Rolling updates under traffic: rounds of a mode, and the table of what they cost."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from scripts.controller_set import NOT_YET, until
from scripts.rolling.clusters import SETS, SINGLE, Cluster, cluster
from scripts.rolling.names import Names
from scripts.rolling.pods import Image, Network, StatefulSet
from scripts.rolling.traffic import Figures, Traffic
from skylark import Admin, Producer, PushConsumer
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.topics import TopicConfig

TOPIC, GROUP = "rolled", "readers"
QUEUES = 4
# A single broker is away for as long as its restart takes, and sends wait; otherwise the SDK's default.
WAITING_TIMEOUT_MS, DEFAULT_TIMEOUT_MS = 60_000, 3_000


@dataclass(frozen=True)
class Plan:
    """How much is done: ``rounds`` updates of all pods, with ``senders`` tasks that pause between their sends."""

    rounds: int = 1
    senders: int = 20
    pause_s: float = 0.02
    #: How long a pod is away, besides its stop and its start.
    down_s: float = 1.0
    #: Sends before the first update, and after each.
    quiet_sends: int = 500


@dataclass(frozen=True)
class Row:
    """The outcome of a mode."""

    mode: str
    rounds: int
    figures: Figures = field(repr=False)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    heads = ("mode", "rounds", "acknowledged", "failed", "lost", "doubled", "p99, ms", "longest wait, ms")
    lines = [heads, ("---", *["---:"] * (len(heads) - 1))]
    for row in rows:
        at = row.figures
        counts = (row.rounds, len(at.acknowledged), len(at.failures), at.lost, at.doubled)
        waits = (f"{each * 1000:,.0f}" for each in (at.p99_s, at.longest_s))
        lines.append((row.mode, *(f"{count:,}" for count in counts), *waits))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class _Resolver(trio.abc.HostnameResolver):
    """Looks up the names of a cluster for the clients of this process."""

    def __init__(self, names: Names) -> None:
        self._names = names

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # type: ignore[no-untyped-def]
        name = host.decode() if isinstance(host, bytes) else host
        found = []
        for address in self._names.of(name):
            found += await trio.socket.getaddrinfo(address, port, family, type, proto, flags)
        if not found:
            raise OSError(f"{name} stands for no address")
        return found

    async def getnameinfo(self, sockaddr, flags):  # type: ignore[no-untyped-def]
        raise NotImplementedError


@asynccontextmanager
async def running(made: Cluster, image: Image | None = None) -> AsyncIterator[Admin]:
    """Run the cluster in the block, with the topic on all its broker sets; its clients use its names."""
    before = trio.socket.set_custom_hostname_resolver(_Resolver(made.network.names))
    try:
        for pod in made.pods:
            pod.image = image or pod.image
            pod.start()
        async with trio.open_nursery() as nursery:
            for pod in made.pods:
                nursery.start_soon(pod.until_ready)
        async with Admin(made.nameserver) as admin:
            await _make_topic(made, admin)
            yield admin
    finally:
        for pod in reversed(made.pods):
            if pod.daemon.runs:
                pod.daemon.kill()
        trio.socket.set_custom_hostname_resolver(before)


async def _make_topic(made: Cluster, admin: Admin) -> None:
    async def everywhere() -> bool:
        try:
            found = (await admin.cluster_info()).broker_addr_table
            for name in made.brokers:
                await admin.create_topic(found[name].broker_addrs[MASTER_ID], TopicConfig(TOPIC, QUEUES, QUEUES))
            return len((await admin.topic_route(TOPIC)).queue_datas) == len(made.brokers)
        except (*NOT_YET, KeyError):
            return False

    await until(everywhere, f"all broker sets have topic {TOPIC}")


@asynccontextmanager
async def under_traffic(made: Cluster, plan: Plan) -> AsyncIterator[Traffic]:
    """Senders and a group of consumers work while the block does; then what they sent is counted and checked."""
    timeout_ms = WAITING_TIMEOUT_MS if made.mode in (SINGLE, SETS) else DEFAULT_TIMEOUT_MS
    async with Producer(made.nameserver, send_timeout_ms=timeout_ms, accept_weaker=made.mode == SETS) as producer:
        traffic = Traffic(producer, TOPIC, plan.pause_s)
        async with PushConsumer(made.nameserver, group=GROUP, subscriptions={TOPIC: "*"}, handler=traffic.consume):
            async with trio.open_nursery() as nursery:
                for sender in range(plan.senders):
                    nursery.start_soon(traffic.send, sender)
                await traffic.more(plan.quiet_sends)
                yield traffic
                await traffic.more(plan.quiet_sends)
                traffic.is_over = True
            await traffic.until_consumed()
    await traffic.check(made.nameserver)


async def update(made: Cluster, down_s: float, image: Image, say: Callable[[str], None]) -> None:
    """Replace all pods of the cluster."""

    async def one_after_the_other(sets: Sequence[StatefulSet]) -> None:
        for each in sets:
            await each.roll(down_s, image, say)

    async with trio.open_nursery() as nursery:
        for sets in made.together:
            nursery.start_soon(one_after_the_other, sets)


async def roll(mode: str, home: Path, plan: Plan, say: Callable[[str], None]) -> Row:
    """Start a cluster, update it under traffic, and check all that was sent. ``say`` gets a line for each step."""
    made = cluster(mode, Network(home))
    async with running(made), under_traffic(made, plan) as traffic:
        for number in range(plan.rounds):
            await update(made, plan.down_s, Image(), say)
            at = traffic.figures
            say(f"round {number + 1} of {plan.rounds}: {at.ended:,} sends, {len(at.failures):,} failed")
    return Row(mode, plan.rounds, traffic.figures)
