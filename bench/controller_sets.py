"""What 10,000 broker sets cost the Controller that leads: a heartbeat of each of them a second, for half a minute.

Each set has one broker, which took an id, registered, and was elected. The brokers are tasks of the bench, which share
some connections; their heartbeats are encoded before. The limits are the targets: processor seconds a second, and
resident memory. Part of bench/controller.py.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from bench.harness import Row, cpu_s, row
from scripts.controller_set import ControllerSet
from skylark import Admin
from skylark.mqcommon.addresses import split_address
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.frame import encode
from skylark.remoting.protocol.requests.controller import (
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_REGISTER_BROKER,
    ApplyBrokerIdRequestHeader,
    ElectMasterRequestHeader,
    GetNextBrokerIdRequestHeader,
    RegisterBrokerToControllerRequestHeader,
)
from skylark.remoting.protocol.requests.registrations import BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader

CLUSTER = "DefaultCluster"
CONNECTIONS = 100
JOINING = 200
WARM_UP_S, SPAN_S = 5, 30
# No broker is dead, however late this process is.
TIMEOUT_MS = 60_000
CALL_TIMEOUT_MS = 60_000
CPU_BAR, MEMORY_BAR_MB = 0.5, 300.0
READ_BYTES = 256 * 1024


def heartbeat(number: int) -> BrokerHeartbeatRequestHeader:
    return BrokerHeartbeatRequestHeader(
        CLUSTER, _addr(number), f"set-{number}", 1, 1, 1_000_000, 1_000_000, TIMEOUT_MS, 2_147_483_647, True
    )


def _addr(number: int) -> str:
    """An address of the network for documentation, so of no machine."""
    return f"192.0.2.{number % 250 + 1}:{10_000 + number // 250}"


async def join(client: RemotingClient, leader: str, number: int) -> None:
    """Join as a broker of a new set does."""
    at, name = Remote(client, leader, CALL_TIMEOUT_MS), f"set-{number}"
    await call(at, CONTROLLER_GET_NEXT_BROKER_ID, GetNextBrokerIdRequestHeader(CLUSTER, name))
    await call(at, CONTROLLER_APPLY_BROKER_ID, ApplyBrokerIdRequestHeader(CLUSTER, name, 1, f"{_addr(number)};1"))
    who = RegisterBrokerToControllerRequestHeader(CLUSTER, name, 1, _addr(number))
    await call(at, CONTROLLER_REGISTER_BROKER, who)
    await call(at, BROKER_HEARTBEAT, heartbeat(number))
    await call(at, CONTROLLER_ELECT_MASTER, ElectMasterRequestHeader(name, CLUSTER, 1))


class Beats:
    """All heartbeats of one connection, each second; ``answered`` counts all answers."""

    def __init__(self) -> None:
        self.answered = 0
        self.refused = 0

    async def run(self, leader: str, frames: bytes, wait_s: float) -> None:
        await trio.sleep(wait_s)
        host, port = split_address(leader)
        stream = await trio.open_tcp_stream(host, port)
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._read, stream)
            while True:
                at = trio.current_time() + 1
                await stream.send_all(frames)
                await trio.sleep_until(at)

    async def _read(self, stream: trio.SocketStream) -> None:
        data = b""
        while True:
            data += await stream.receive_some(READ_BYTES)
            at = 0
            while len(data) - at >= 4 and (size := int.from_bytes(data[at : at + 4], "big") + 4) <= len(data) - at:
                self.answered += 1
                self.refused += data.find(b'"code":0,', at, at + size) < 0
                at += size
            data = data[at:]


async def measure(at: ControllerSet, sets: int) -> tuple[float, float, float]:
    """The leader's processor seconds a second, its MB, and the heartbeats that it answered a second."""
    async with Admin(at.nameserver) as admin, open_client() as client:
        leader = None
        with trio.fail_after(30):
            while leader is None:
                leader = await at.leading_controller(admin)
                await trio.sleep(0.01)
        limit = trio.CapacityLimiter(JOINING)

        async def one(number: int) -> None:
            async with limit:
                await join(client, leader.addr, number)

        async with trio.open_nursery() as joining:
            for number in range(sets):
                joining.start_soon(one, number)
        beats = Beats()
        async with trio.open_nursery() as beating:
            for each in range(CONNECTIONS):
                frames = b"".join(
                    encode(BROKER_HEARTBEAT.command(heartbeat(number))) for number in range(each, sets, CONNECTIONS)
                )
                beating.start_soon(beats.run, leader.addr, frames, each / CONNECTIONS)
            await trio.sleep(WARM_UP_S)
            before, answered, started = cpu_s(leader.pid), beats.answered, time.perf_counter()
            await trio.sleep(SPAN_S)
            took_s = time.perf_counter() - started
            found = (
                (cpu_s(leader.pid) - before) / took_s,
                leader.rss_bytes() / 1e6,
                (beats.answered - answered) / took_s,
            )
            beating.cancel_scope.cancel()
    if beats.refused:
        raise SystemExit(f"{beats.refused} heartbeats were refused")
    return found


def rows(args: argparse.Namespace) -> Iterator[Row]:
    """The figures of one group of three."""
    with tempfile.TemporaryDirectory() as home:
        at = ControllerSet(Path(home), brokers=0)
        try:
            at.start()
            cpu, memory, rate = trio.run(measure, at, args.sets)
        finally:
            at.end()
    name = f"Controller, {args.sets:,} sets"
    yield row(f"{name}: processor of the leader", "cores", [cpu], [CPU_BAR], args.sets, smaller_is_better=True)
    yield row(f"{name}: its memory", "MB", [memory], [MEMORY_BAR_MB], args.sets, smaller_is_better=True)
    yield row(f"{name}: heartbeats answered", "1/s", [rate], [float(args.sets)], args.sets)
