"""Controllers whose Raft logs are damaged: each refuses its old id, and joins anew (docs/how/raft.md)."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio
from click.testing import CliRunner

from scripts.controller_set import NOT_YET, ControllerSet, running
from scripts.daemons import Daemon
from skylark import Admin
from skylark.mqadmin.cli import mqadmin
from tests.e2e.switches import QUICK
from tests.support.daemons import start
from tests.support.waiting import until


def emptied(log: Path) -> None:
    log.write_bytes(b"")


def cut(log: Path) -> None:
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def removed(log: Path) -> None:
    log.unlink()


DAMAGES: list[Callable[[Path], None]] = [emptied, cut, removed]


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.nightly)])
async def test_a_damaged_log_is_a_lost_disk(tmp_path: Path, seed: int, rounds: int) -> None:
    random = Random(seed)
    at = ControllerSet(tmp_path, brokers=2)
    async with running(at), Admin(at.nameserver) as admin:
        master = await at.until_in_sync(admin)
        for number in range(rounds):
            ids = {broker.name: at.id_of(broker) for broker in at.brokers}
            damaged = random.choice(at.controllers)
            voters = (await admin.controller_members(at.controller_addrs)).voters
            before = {node for node, addr in voters.items() if addr == damaged.addr}
            damaged.kill()
            home = next((tmp_path / damaged.name).iterdir())
            DAMAGES[number % len(DAMAGES)](home / "log")
            await refuses(damaged)
            # The set goes on meanwhile, with the ids and the SyncStateSet that it had.
            assert await at.until_in_sync(admin) is master
            shutil.rmtree(home)
            await start(damaged)

            async def is_whole(before: set[str] = before) -> bool:
                try:
                    voters = (await admin.controller_members(at.controller_addrs)).voters
                except NOT_YET:
                    return False
                return len(voters) == len(at.controllers) and voters.keys().isdisjoint(before)

            await until(is_whole, "it is a voter again, under a new id")
            assert await at.until_in_sync(admin) is master
            assert {broker.name: at.id_of(broker) for broker in at.brokers} == ids


async def refuses(controller: Daemon) -> None:
    for _ in range(2):  # the refusal changes nothing
        controller.start()
        await until(lambda: not controller.runs, "it refuses to start")
        said = controller.logged.decode()
        assert controller.exit_code == 1 and "has forgotten what it promised" in said and "Traceback" not in said


async def test_doctor_sees_what_is_away(tmp_path: Path) -> None:
    at = ControllerSet(tmp_path, options=(*QUICK, "--ha-max-time-slave-not-catchup", "1500"))

    async def rows() -> list[dict[str, str]]:
        words = ("doctor", "-n", at.nameserver, "--output", "json")
        done = await trio.to_thread.run_sync(CliRunner().invoke, mqadmin, words)
        checks = ("controller", "sync-state-set")
        return [row for row in json.loads(done.stdout)["findings"] if row["check"] in checks and row["state"] != "OK"]

    async def found() -> dict[str, str]:
        """The last state of each check that is not OK: what is said of the whole group comes behind its members."""
        return {row["check"]: row["state"] for row in await rows()}

    async with running(at), Admin(at.nameserver) as admin:
        master = await at.until_in_sync(admin)
        assert await found() == {}
        slaves = [broker for broker in at.brokers if broker is not master]
        slaves[0].kill()
        await at.until_in_sync(admin, 2)
        assert await found() == {"sync-state-set": "WARN"}
        slaves[1].kill()
        at.controllers[0].kill()

        async def alone() -> bool:
            return await found() == {"sync-state-set": "FAIL", "controller": "FAIL"}

        await until(alone, "one copy is left, and no Controller can be lost any more")
        at.controllers[1].kill()

        async def without_majority() -> bool:
            return any("nobody leads" in row["text"] for row in await rows())

        await until(without_majority, "a group without a majority is told")
