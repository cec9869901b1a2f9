"""How soon clients know of a change: 200 clients that watch one NameServer, and a broker that is frozen.

    python -m bench.watch [--json] [--clients N] [--rounds N]

Each round makes a topic that all clients wait for, and kills a broker (kill -9) whose topics all clients use: the time
from when the NameServer knows until a client knows, as the median and the slowest of all clients. Then a broker is
frozen (SIGSTOP): how long it stays in the routes. Limits: 200 ms and 10 s; clients that poll would know after 15 s in
the median. NameServer and brokers are processes of their own; the clients share one process, whose own work is in the
times.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import trio

from bench.harness import Row, row, show
from scripts.daemons import Daemon, broker_daemon, namesrv_daemon, serving
from skylark import Admin
from skylark.mqcommon.errors import RouteNotFound
from skylark.remoting.protocol.requests.topics import TopicConfig
from skylark.sdk.client import ClientInstance

LIMIT_MS = 200.0
FROZEN_LIMIT_S = 10.0
BROKER_OPTIONS = ("--mapped-file-size-commit-log", str(64 * 1024 * 1024), "--max-index-num", "1000000")


class Sees:
    """Whether a client has a route of ``topic`` with ``brokers`` brokers."""

    def __init__(self, topic: str, brokers: int) -> None:
        self.topic, self.brokers = topic, brokers

    def __call__(self, client: ClientInstance) -> bool:
        route = client.routes.get(self.topic)
        return route is not None and sum(1 for addrs in route.brokers.values() if addrs) == self.brokers


async def until_all(clients: list[ClientInstance], sees: Sees) -> list[float]:
    """When each client saw the change, by trio's clock."""
    seen: dict[ClientInstance, float] = {}
    with trio.fail_after(60):
        while len(seen) < len(clients):
            seen |= {client: trio.current_time() for client in clients if client not in seen and sees(client)}
            await trio.sleep(0.0005)
    return list(seen.values())


async def until_known(admin: Admin, sees: Sees) -> float:
    """When the NameServer first said so, by trio's clock."""
    with trio.fail_after(60):
        while True:
            try:
                if len((await admin.topic_route(sees.topic)).broker_datas) == sees.brokers:
                    return trio.current_time()
            except RouteNotFound:
                pass


async def delays_ms(admin: Admin, clients: list[ClientInstance], sees: Sees) -> list[float]:
    """How long after the NameServer each client knew."""
    known_at = 0.0

    async def ask() -> None:
        nonlocal known_at
        known_at = await until_known(admin, sees)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        seen = await until_all(clients, sees)
    return [max(at - known_at, 0) * 1000 for at in seen]


async def hold(
    namesrv_addr: str, topics: list[str], *, task_status: trio.TaskStatus[ClientInstance] = trio.TASK_STATUS_IGNORED
) -> None:
    """A client that uses ``topics``, of which some do not exist yet."""
    async with ClientInstance(namesrv_addr) as client:
        for topic in topics:
            with suppress(RouteNotFound):
                await client.route(topic)
        task_status.started(client)
        await trio.sleep_forever()


async def measured(namesrv: Daemon, brokers: list[Daemon], count: int, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"new": [], "new slowest": [], "lost": [], "lost slowest": [], "frozen": []}
    lost = Sees("used", 1)
    async with Admin(namesrv.addr, timeout_ms=30_000) as admin, trio.open_nursery() as nursery:
        for broker in brokers:
            await admin.create_topic(broker.addr, TopicConfig("used", 4, 4))
        await until_known(admin, Sees("used", 2))
        topics = ["used", *[f"new-{number}" for number in range(rounds)]]
        clients = [await nursery.start(hold, namesrv.addr, topics) for _ in range(count)]
        # Every client has begun to watch by then.
        await trio.sleep(3)
        for number in range(rounds):
            await admin.create_topic(brokers[0].addr, TopicConfig(f"new-{number}", 4, 4))
            delays = await delays_ms(admin, clients, Sees(f"new-{number}", 1))
            found["new"].append(statistics.median(delays))
            found["new slowest"].append(max(delays))
            brokers[1].kill()
            delays = await delays_ms(admin, clients, lost)
            found["lost"].append(statistics.median(delays))
            found["lost slowest"].append(max(delays))
            brokers[1].start()
            await until_all(clients, Sees("used", 2))
        for _ in range(min(rounds, 3)):
            brokers[1].freeze()
            started = trio.current_time()
            found["frozen"].append(await until_known(admin, lost) - started)
            brokers[1].thaw()
            await until_known(admin, Sees("used", 2))
        nursery.cancel_scope.cancel()
    return found


def main(count: int, rounds: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as home:
        namesrv = namesrv_daemon(Path(home))
        brokers = [
            broker_daemon(Path(home), name, namesrv.addr, 0, *BROKER_OPTIONS) for name in ("broker-a", "broker-b")
        ]
        with serving(namesrv, *brokers):
            found = trio.run(measured, namesrv, brokers, count, rounds)
    for key, what in (("new", "a new topic"), ("lost", "a lost broker")):
        name = f"{what} is known, {count} clients"
        yield row(f"{name}, median", "ms", found[key], [LIMIT_MS], rounds, smaller_is_better=True)
        yield row(f"{name}, slowest", "ms", found[f"{key} slowest"], [LIMIT_MS], rounds, smaller_is_better=True)
    yield row(
        "a frozen broker is in the routes", "s", found["frozen"], [FROZEN_LIMIT_S], rounds, smaller_is_better=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    show(main(arguments.clients, arguments.rounds), arguments.json)
