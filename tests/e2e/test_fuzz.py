"""Hostile peers at each port, honest clients beside them, and a kill -9 at the end.

A failure prints its seed; TEST_SEED makes the same requests again, though not at the same moments.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.daemons import ROOT, Daemon, free_port
from tests.e2e.fuzz.honest import TOPIC, Honest
from tests.e2e.fuzz.streams import stranger
from tests.e2e.load import check_acknowledged, stored
from tests.support.daemons import BrokerSet, broker_set, start
from tests.support.waiting import until
from tests.support.warm_daemons import PYTHON, warm

PORTS = ("namesrv", "broker", "ha", "metrics")
STRANGERS = 100
# What a daemon may keep once its hostile peers are gone.
KEPT_BYTES = 30 * 1024 * 1024
# Connections, topics and groups that the first requests make are there before memory is compared.
WARM_UP_SHARE = 0.3


@dataclass(frozen=True)
class Target:
    """A port, whose it is, and what hostile peers send there."""

    daemon: Daemon
    port: int
    kind: str


@pytest.mark.parametrize(
    ("ports", "seconds"),
    [
        pytest.param(PORTS, 1, id="all"),
        *(pytest.param((port,), 300, id=port, marks=pytest.mark.nightly) for port in PORTS),
    ],
)
async def test_honest_clients_are_served_beside_hostile_peers(
    tmp_path: Path, ports: tuple[str, ...], seconds: float, seed: int
) -> None:
    ha_port, http_port = free_port(), free_port()
    options = [
        "--ha-listen-port", str(ha_port),
        "--metrics-exporter-type", "PROM" if "metrics" in ports else "DISABLE",
        "--metrics-prom-exporter-port", str(http_port),
    ]  # fmt: skip
    async with broker_set(tmp_path, role="ASYNC_MASTER", master_options=options) as made:
        await made.make_topic(TOPIC)
        known = {
            "namesrv": Target(made.namesrv, made.namesrv.port, "commands"),
            "broker": Target(made.master, made.master.port, "commands"),
            "ha": Target(made.master, ha_port, "reports"),
            "metrics": Target(made.master, http_port, "pages"),
        }
        targets = [known[port] for port in ports]
        honest = Honest(made.nameserver, "broker-a")
        random = Random(seed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(honest.until_cancelled)
            await hostile(targets, random, seconds * WARM_UP_SHARE)
            before = {target.daemon.name: target.daemon.rss_bytes() for target in targets}
            await hostile(targets, random, seconds * (1 - WARM_UP_SHARE))
            if "ha" in ports:
                await slave_returns(made, ha_port)
            for target in targets:
                await until(lambda: kept_bytes(target, before) < KEPT_BYTES, "memory is given back")  # noqa: B023
            await more(honest, 20)
            nursery.cancel_scope.cancel()
        sys.stdout.write(
            f"{len(honest.acked)} honest sends; the worst answer came after {honest.worst_s * 1000:.0f} ms, the clients"
            f" themselves stood still for up to {honest.stood_still_s * 1000:.0f} ms; KiB kept:"
            f" {[kept_bytes(target, before) // 1024 for target in targets]}\n"
        )
        for daemon in (made.namesrv, made.master, made.slave):
            assert daemon.runs, daemon.log_end()
            assert b"Traceback" not in daemon.logged, daemon.log_end()
        made.master.kill()
        await check_store(made, made.master)
        await start(made.master)
        check_acknowledged(honest.acked, await stored(made.nameserver, TOPIC))


def kept_bytes(target: Target, before: dict[str, int]) -> int:
    return target.daemon.rss_bytes() - before[target.daemon.name]


async def hostile(targets: Sequence[Target], random: Random, seconds: float) -> None:
    """Several peers at each port for so long."""
    async with trio.open_nursery() as nursery:
        for target in targets:
            command = [warm(PYTHON), "-m", "tests.e2e.fuzz.streams", target.kind, str(target.port)]
            command += [str(random.getrandbits(64)), str(seconds)]
            nursery.start_soon(partial(trio.run_process, command, cwd=ROOT))


async def slave_returns(made: BrokerSet, ha_port: int) -> None:
    """However many strangers knock at the HA port."""
    async with trio.open_nursery() as nursery:
        for _ in range(STRANGERS):
            nursery.start_soon(stranger, ha_port)
        made.slave.kill()
        await start(made.slave)
        await made.until_in_sync(1)
        nursery.cancel_scope.cancel()


async def more(honest: Honest, count: int) -> None:
    wanted = len(honest.acked) + count
    await until(lambda: len(honest.acked) >= wanted, "honest clients are served")


async def check_store(made: BrokerSet, daemon: Daemon) -> None:
    """The store that the kill left recovers, and then verifyStore finds no fault in it."""
    await start(daemon)
    daemon.terminate()
    await trio.to_thread.run_sync(daemon.wait_stopped)
    conf = made.home / "sizes.conf"
    conf.write_text("maxHashSlotNum=1000\nmaxIndexNum=4000\n")  # as in tests/support/daemons.py
    command = [warm("broker"), "verifyStore", str(made.store_of(daemon)), "-c", str(conf)]
    run = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
