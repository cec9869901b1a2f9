"""Proxies, brokers, a master and NameServers go down while official clients of RocketMQ 5 send and consume.

Nothing that was acknowledged to a producer is lost, and nothing that a consumer acknowledged in time comes again. The
graceful stop of a proxy is no error for applications. A failure prints its seed; TEST_SEED repeats it, as far as the
moments of other processes can be.
"""

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from scripts.controller_set import ControllerSet
from scripts.controller_set import running as running_set
from scripts.daemons import Daemon, broker_daemon, proxy_daemon
from skylark import Admin
from skylark.mqcommon.errors import RemotingError, RouteNotFound
from skylark.mqcommon.names import MASTER_ID
from skylark.remoting.protocol.requests.groups import SubscriptionGroupConfig
from skylark.remoting.protocol.requests.topics import TopicConfig
from tests.e2e.load import stored
from tests.e2e.switches import QUICK
from tests.support.amounts import amount
from tests.support.daemons import SMALL, start, started
from tests.support.official_programs import Balancer, Program
from tests.support.proxies import NODE, PYTHON, languages
from tests.support.rounds import report
from tests.support.waiting import until

TOPIC, POPPERS, PUSHED = "proxied", "poppers", "pushed"
QUEUES = 4
INVISIBLE_S = 3
# A busy machine starts many processes slowly.
TIMEOUT_S = 120
PROXY_OPTIONS = (
    # Each proxy has a port of its own, which clients know.
    "--use-endpoint-port-from-request", "true",
    "--min-invisible-time-mills-for-recv", "1000",
    "--default-invisible-time-mills", "3000",
    "--renew-ahead-time-millis", "1500",
    "--renew-schedule-period-millis", "300",
    "--grpc-client-consumer-min-long-polling-timeout-millis", "100",
    "--grpc-client-consumer-max-long-polling-timeout-millis", "1000",
    "--topic-config-cache-refresh-seconds", "1",
)  # fmt: skip


@dataclass
class World:
    """``at`` has a set of two brokers, whose master is elected; ``alone`` is a broker with another name."""

    at: ControllerSet
    alone: Daemon
    proxies: list[Daemon]
    admin: Admin
    loads: list[Program]
    poppers: list[Program]
    pushed: list[Program]

    @property
    def programs(self) -> list[Program]:
        return [*self.loads, *self.poppers, *self.pushed]

    def sent(self) -> set[str]:
        """The messages that were acknowledged to producers."""
        return {line["sent"] for program in self.loads for line in program.lines() if "sent" in line}

    def next_proxy(self) -> Daemon:
        """The proxy of the Python clients. They begin with the first proxy, and move when their proxy goes down."""
        proxy = self.proxies.pop(0)
        self.proxies.append(proxy)
        return proxy

    async def goes_on(self) -> None:
        """Each program sends or consumes what was sent from now on."""
        for program in self.programs:
            assert program.runs, program.log_end()
        now_ns = time.monotonic_ns()
        before = {program.name: progress(program, now_ns) for program in self.programs}

        def have_more() -> bool:
            return all(progress(program, now_ns) > before[program.name] for program in self.programs)

        try:
            await until(have_more, "all programs go on", TIMEOUT_S)
        except AssertionError:
            slow = [each for each in self.programs if progress(each, now_ns) <= before[each.name]]
            raise AssertionError("\n".join(f"{each.name} stands still: {each.log_end()}" for each in slow)) from None


def progress(program: Program, since_ns: int) -> int:
    """Sends that were answered, or messages that were asked for since then."""
    return sum("sent" in line or line.get("asked", 0) > since_ns for line in program.lines())


@asynccontextmanager
async def world(home: Path, random: Random) -> AsyncIterator[World]:
    at = ControllerSet(home, 2, (*QUICK, "--all-ack-in-sync-state-set", "true"), controllers=1)
    alone = broker_daemon(home, "broker-b", at.nameserver, 0, *SMALL, "--broker-heartbeat-interval", "300")
    proxies = sorted(
        (proxy_daemon(home, f"proxy-{n}", at.nameserver, *PROXY_OPTIONS) for n in range(2)), key=lambda each: each.port
    )
    balancer = Balancer([proxy.port for proxy in proxies], random)
    async with (
        running_set(at),
        started(alone, *proxies),
        Admin(at.nameserver) as admin,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(balancer.run)
        await make_topic_and_groups(at, alone, admin)
        # The Node client cannot have several addresses of proxies.
        endpoints = {PYTHON: ";".join(proxy.addr for proxy in proxies), NODE: balancer.addr}

        def programs(scenario: str, **arguments: Any) -> list[Program]:
            return [Program(home, scenario, each, endpoints[each], topic=TOPIC, **arguments) for each in languages()]

        made = World(
            at, alone, proxies, admin,
            programs("load", pause_s=amount(100, 20) / 1_000),
            programs("drain", push=False, group=POPPERS, invisible_s=INVISIBLE_S),
            programs("drain", push=True, group=PUSHED),
        )  # fmt: skip
        try:
            for program in made.programs:
                program.start()
            yield made
        finally:
            for program in made.programs:
                program.kill()
        nursery.cancel_scope.cancel()


async def make_topic_and_groups(at: ControllerSet, alone: Daemon, admin: Admin) -> None:
    master = await at.until_in_sync(admin)
    await at.make_topic(admin, TOPIC, QUEUES)
    await admin.create_topic(alone.addr, TopicConfig(TOPIC, QUEUES, QUEUES))

    await until_routed(admin)
    for group in (POPPERS, PUSHED):
        for addr in (master.addr, alone.addr):
            await admin.create_group(addr, SubscriptionGroupConfig(group))
        # A group that begins to pop begins at the end of the topic, unless it has offsets.
        await admin.reset_offsets(group, TOPIC, 0)


async def until_routed(admin: Admin) -> None:
    """The NameServer knows that both brokers have the topic."""

    async def is_routed() -> bool:
        try:
            route = await admin.topic_route(TOPIC)
        except (RemotingError, RouteNotFound):
            return False
        return sum(MASTER_ID in broker.broker_addrs for broker in route.broker_datas) == 2

    await until(is_routed, "both brokers have the topic")


# --- faults


async def proxy_killed(now: World) -> None:
    proxy = now.next_proxy()
    proxy.kill()
    await now.goes_on()
    await start(proxy)


async def proxy_stopped(now: World) -> None:
    """A proxy is stopped: its clients move to the other proxy, and their applications see no error."""
    before = {program.name: len(program.errors()) for program in now.programs}
    proxy = now.next_proxy()
    proxy.terminate()
    await trio.to_thread.run_sync(proxy.wait_stopped)
    await now.goes_on()
    new = [error for program in now.programs for error in program.errors()[before[program.name] :]]
    # A busy machine acknowledges some messages too late.
    assert [error for error in new if "receipt handle is expired" not in error] == []
    await start(proxy)


async def broker_killed(now: World) -> None:
    now.alone.kill()
    await start(now.alone)


async def master_killed(now: World) -> None:
    master = await now.at.until_in_sync(now.admin)
    master.kill()
    await now.at.until_master(now.admin, but=master)
    await now.goes_on()
    await now.at.start_broker(master)


async def nameserver_killed(now: World) -> None:
    now.at.namesrv.kill()
    await now.goes_on()
    await start(now.at.namesrv)
    await until_routed(now.admin)


FAULTS: list[Callable[[World], Awaitable[None]]] = [
    proxy_killed, proxy_stopped, broker_killed, master_killed, nameserver_killed,
]  # fmt: skip


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.nightly)])
async def test_official_clients_lose_nothing(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    async with world(tmp_path, random) as now:
        for number in range(rounds):
            if number % len(FAULTS) == 0:
                faults = random.sample(FAULTS, len(FAULTS))
            await now.goes_on()
            sys.stdout.write(f"round {number}: {faults[number % len(FAULTS)].__name__}\n")
            await faults[number % len(FAULTS)](now)
        await now.goes_on()
        for program in now.loads:
            await trio.to_thread.run_sync(program.stop)
        sent = now.sent()
        for programs in (now.poppers, now.pushed):
            try:
                await until(partial(have_all, programs, sent), "all that was sent is consumed", TIMEOUT_S)
            finally:
                report(lost=len(sent - got(programs)))
        report(acknowledged=len(sent))
        found = Counter(body.decode() for queue in (await stored(now.at.nameserver, TOPIC)).values() for body in queue)
        tell(now, sent, found)
        # Stored twice by a second try of a send: each copy is delivered.
        twice = {body for body, copies in found.items() if copies > 1}
        again = came_again([line for program in now.poppers for line in program.lines() if "kind" in line])
        assert [line for line in again if line["body"] not in twice] == []


def have_all(programs: Sequence[Program], sent: set[str]) -> bool:
    return sent <= got(programs)


def got(programs: Sequence[Program]) -> set[str]:
    """The bodies of the messages that these consumers have got."""
    kind = "got"
    return {line["body"] for each in programs for line in each.lines() if line.get("kind") == kind}


def came_again(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages that were acknowledged in time, and were received after that."""
    acked = {
        line["body"]: line["at"]
        for line in lines
        if line["kind"] == "acked" and line["at"] < line["asked"] + INVISIBLE_S * 1_000_000_000
    }
    return [line for line in lines if line["kind"] == "got" and line["asked"] > acked.get(line["body"], line["asked"])]


def tell(now: World, sent: set[str], found: Counter[str]) -> None:
    errors = sum(len(program.errors()) for program in now.programs)
    got = Counter(line["body"] for each in now.pushed for line in each.lines() if line.get("kind") == "got")
    twice = sum(copies > 1 for copies in found.values())
    sys.stdout.write(
        f"{len(sent)} sends acknowledged, 0 lost, {twice} stored twice by a second try; {errors} errors in all programs"
        f"; {sum(times > 1 for times in got.values())} came twice to PushConsumers\n"
    )


def test_a_message_that_came_again_is_found() -> None:
    second = 1_000_000_000
    got = {"kind": "got", "asked": 0, "at": 1, "body": "m"}
    acked = {"kind": "acked", "asked": 0, "at": second, "body": "m"}
    assert came_again([got, acked]) == []
    assert came_again([got, acked, {**got, "asked": second - 1}]) == []
    assert came_again([got, acked, {**got, "asked": second + 1}]) == [{**got, "asked": second + 1}]
    assert came_again([got, {**acked, "at": 4 * second}, {**got, "asked": 5 * second}]) == []
