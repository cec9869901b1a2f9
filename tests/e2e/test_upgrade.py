"""docs/operate/upgrade.md, followed under load: from an earlier version to this one, half the way back, on, and back.

Messages come from this version's SDK and from the earlier one's, all the time.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.compare import Side, checkout
from scripts.daemons import ROOT, DaemonFailed
from scripts.rolling.clusters import CONTROLLER, DLEDGER, MODES, SETS, Cluster, cluster
from scripts.rolling.pods import Image, Network, Pod, StatefulSet
from scripts.rolling.traffic import Place
from scripts.rolling.update import TOPIC, Plan, Row, running, table, under_traffic
from skylark import Admin
from skylark.mqcommon.errors import BrokerError, RemotingError, RouteNotFound, UserError
from skylark.mqcommon.names import MASTER_ID
from tests.support.rounds import report
from tests.support.waiting import until

pytestmark = pytest.mark.nightly

# The last version with another import root, other places of docs, and other files of the Raft groups.
EARLIER = "c714cb7a"
COMMANDS = ("namesrv", "controller", "broker")
CLIENT = ROOT / "tests" / "e2e" / "upgrade_client.py"
PLAN = Plan(down_s=0.1, quiet_sends=500)
NOT_YET = (RemotingError, BrokerError, RouteNotFound, UserError, KeyError)
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The earlier version, whose commands look names up where this version's do."""
    known = subprocess.run(["git", "cat-file", "-e", f"{EARLIER}^{{commit}}"], cwd=ROOT, capture_output=True)
    if known.returncode:
        pytest.skip(f"the commit {EARLIER} is not in this repository: fetch its whole history")
    with checkout(EARLIER) as tree:
        side = Side(tree, tmp_path_factory.mktemp("earlier") / "python")
        environment = {"PYTHONPATH": side.env["PYTHONPATH"], "PATH": side.env["PATH"]}
        yield Image(side.bin, environment, {each: options_of(side, each) for each in COMMANDS})


def options_of(side: Side, command: str) -> frozenset[str]:
    """The options that a command of that version has."""
    told = subprocess.run([side.bin / command, "--help"], env=side.env, capture_output=True, text=True, check=True)
    return frozenset(re.findall(r"^ +(?:-\w, )?(--?[a-z][a-z0-9-]*)", told.stdout, re.MULTILINE)) | {"-c"}


@asynccontextmanager
async def earlier_client(made: Cluster, image: Image, log: Path) -> AsyncIterator[None]:
    """The earlier version's producer sends while the block runs; ``log`` gets its lines."""
    command = [str(image.bin / "python"), str(CLIENT), made.nameserver, TOPIC]
    environment = {**os.environ, **image.environment_with(made.network.names)}
    with (
        log.open("wb") as out,
        log.with_suffix(".err").open("wb") as err,
        subprocess.Popen(  # noqa: ASYNC220  it is started at once
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment
        ) as client,
    ):
        await until(lambda: log.stat().st_size > 0, "the earlier client sends", TIMEOUT_S)
        try:
            yield
        finally:
            assert client.stdin is not None
            client.stdin.close()
    assert client.returncode == 0, log.with_suffix(".err").read_text(encoding="utf-8")


class Upgrade:
    """A cluster on the way between two versions."""

    def __init__(self, made: Cluster, admin: Admin, earlier: Image) -> None:
        self._made = made
        self._admin = admin
        self._earlier = earlier
        #: The pods whose files the earlier version did not read any more, and what it said.
        self.refused: dict[str, str] = {}

    async def replace(self, pod: Pod, image: Image) -> None:
        """Restart a pod as ``image``, and wait until its set is whole again."""
        await pod.delete()
        pod.image = image
        pod.start()
        await pod.until_ready()
        await self._until_whole()

    async def go_back(self, pod: Pod, at: StatefulSet) -> None:
        """Restart a pod as the earlier version. If that refuses its files, do what docs/operate/upgrade.md says."""
        try:
            await self.replace(pod, self._earlier)
            return
        except DaemonFailed:
            assert not pod.daemon.runs, pod.daemon.log_end()
            self.refused[pod.name] = pod.daemon.logged.decode()
        if pod.data is not None and len(at.pods) > 1 and not self._is_master_for_ever(pod):
            # The others have all of it.
            shutil.rmtree(pod.data)
        else:
            pod.image = Image()
        pod.start()
        await pod.until_ready()
        if pod.image is self._earlier and (at is self._made.controllers or self._made.mode == DLEDGER):
            await until(lambda: b"is a voter now" in pod.daemon.logged, f"{pod.name} is a voter", TIMEOUT_S)
        await self._until_whole()

    def _is_master_for_ever(self, pod: Pod) -> bool:
        """Whether it is the master by its conf file, so that it does not copy the others."""
        return self._made.mode == SETS and pod.name.endswith("-0")

    async def _until_whole(self) -> None:
        for name, pods in self._made.brokers.items():
            await until(partial(self._is_whole, name, len(pods.pods)), f"{name} is whole", TIMEOUT_S)

    async def _is_whole(self, name: str, brokers: int) -> bool:
        made, admin = self._made, self._admin
        try:
            if made.mode == CONTROLLER:
                known = (await admin.sync_state_sets(made.controller_addrs, [name])).replicas_info_table[name]
                return len([each for each in known.in_sync_replicas if each.alive]) == brokers
            master = (await admin.cluster_info()).broker_addr_table[name].broker_addrs[MASTER_ID]
            return brokers == 1 or (await admin.broker_ha_status(master)).in_sync_slave_nums == brokers - 1
        except NOT_YET:
            return False


def in_order(made: Cluster) -> list[StatefulSet]:
    """The StatefulSets in the order of docs/operate/upgrade.md.

    Brokers of the earlier version lose their leases when the leading Controller stops: these Controllers come last.
    """
    last = [] if made.controllers is None else [made.controllers]
    return [made.namesrvs, *made.brokers.values(), *last]


def check_earlier_client(log: Path, stored: dict[Place, bytes]) -> int:
    """Each message of the earlier client is where it was told; returns how many there are."""
    lines = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line[0] == "failed"] == []
    for broker, queue, offset, body in lines:
        assert stored[broker, int(queue), int(offset)] == body.encode()
    return len(lines)


@pytest.mark.parametrize("mode", MODES)
async def test_up_half_back_up_and_back(mode: str, tmp_path: Path, earlier: Image) -> None:
    made, log = cluster(mode, Network(tmp_path), moves=False), tmp_path / "earlier-client"
    async with running(made, earlier) as admin:
        at = Upgrade(made, admin, earlier)
        async with under_traffic(made, PLAN) as traffic, earlier_client(made, earlier, log):
            ways = [(pods, pod) for pods in in_order(made) for pod in reversed(pods.pods)]
            half = ways[: (len(ways) + 1) // 2]
            for _, pod in half:
                await at.replace(pod, Image())
            for pods, pod in reversed(half):
                await at.go_back(pod, pods)
            for _, pod in ways:
                await at.replace(pod, Image())
            await traffic.more(PLAN.quiet_sends)
            for pods, pod in reversed(ways):
                await at.go_back(pod, pods)
        figures, others = traffic.figures, check_earlier_client(log, traffic.stored)
    sys.stdout.write(f"{table([Row(mode, 1, figures)])}\nfrom the earlier client: {others}\n")
    report(1, acknowledged=len(figures.acknowledged), lost=figures.lost)
    assert (len(figures.failures), figures.lost, figures.same_place) == (0, 0, 0), figures.problems()
    for name, said in at.refused.items():
        sys.stdout.write(
            f"{name} does not go back: {[line for line in said.splitlines() if re.search('newer|Error', line)][-1]}\n"
        )
        assert name.startswith("controller-") or "newer" in said, said
    if mode == DLEDGER:
        assert at.refused
