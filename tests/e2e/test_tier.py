"""Masters of a set with a bucket are killed again and again, while files go to an S3 server and leave their disks.

Afterwards consumers read all acknowledged messages, from the first message on; most messages are in the bucket only. A
failure prints its seed.
"""

import sys
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME, AnySet, running
from scripts.daemons import Daemon
from skylark import Admin, Producer
from skylark.mqcommon.errors import RemotingError, RequestRefused
from tests.e2e.faults.sets import CONTROLLER, DLEDGER, MADE, SET, SINGLE, open_links
from tests.e2e.load import Load, check_acknowledged, check_order, stored
from tests.e2e.switches import PAUSE_S, QUEUES, SEND_TIMEOUT_MS, TOPIC
from tests.support.amounts import amount, rounds_or
from tests.support.rounds import report
from tests.support.waiting import until

SEGMENT_BYTES = 64 * 1024
LOCAL_FILES = 2
# What many senders send takes moto, the server in CI, long to take and to give back.
SENDERS = amount(6, 20)
# How long the uploads of what many kills have left behind may take.
UPLOADED_S = 600
# Messages from the master in a round; they fill some files of the log.
FEW, BODY_BYTES = 400, 400
OPTIONS = (
    *("--mapped-file-size-commit-log", str(SEGMENT_BYTES), "--max-message-size", "10000"),
    *("--tier-local-bytes", str(LOCAL_FILES * SEGMENT_BYTES), "--clean-resource-interval", "200"),
    *("--delete-commit-log-files-interval", "10", "--tier-tail-interval-ms", "2000"),
)
# The fixtures that give a new bucket.
MOTO, SEAWEEDFS = "s3_url", "seaweedfs_url"
NIGHTLY = [pytest.mark.nightly, pytest.mark.needs("SeaweedFS")]
# CI kills masters in two modes; the nightly run kills masters in all modes, very often, with a real object store.
CASES = [
    *((mode, 1, MOTO) for mode in (SINGLE, CONTROLLER)),
    *(pytest.param(mode, 25, SEAWEEDFS, marks=NIGHTLY) for mode in (SINGLE, SET, CONTROLLER, DLEDGER)),
]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a new bucket, by the fixture that the case names."""
    found: str = request.getfixturevalue(request.param)
    return found


async def one_round(at: AnySet, admin: Admin, load: Load, random: Random, mode: str) -> None:
    """The master is killed at some moment of an upload, and comes back."""
    await at.until_in_sync(admin)
    await load.more_from(NAME, FEW)
    master = await until_uploading(at, admin)
    await load.more(random.randrange(100))
    master.kill()
    if mode in (CONTROLLER, DLEDGER):
        await at.until_master(admin, but=master)
    await at.start_broker(master)
    report(1)


async def until_uploading(at: AnySet, admin: Admin) -> Daemon:
    """Wait until the master has uploaded a file since the master started, so owns the set; returns the master."""
    masters: list[Daemon] = []

    async def does() -> bool:
        # A busy machine may make another broker the master meanwhile.
        masters[:] = [await at.until_master(admin)]
        try:
            return (await admin.tier_status(masters[0].addr)).uploads > 0
        except (RemotingError, RequestRefused):
            return False

    await until(does, "the master uploads")
    return masters[0]


async def until_most_is_in_the_bucket_only(at: AnySet, admin: Admin, master: Daemon) -> int:
    """Returns how many files have left the master's disk."""
    files: list[int] = []

    async def is_reached() -> bool:
        files[:] = sorted(int(path.name) for path in (at.store_of(master) / "commitlog").iterdir())
        try:
            status = await admin.tier_status(master.addr)
        except (RemotingError, RequestRefused):
            return False
        assert status.role == "OWNER" or not status.problem, status.problem
        return len(files) <= LOCAL_FILES + 1 and files[0] > 0 and not status.behind_bytes

    await until(is_reached, f"only {LOCAL_FILES} files are on the disk of {master.name}", UPLOADED_S)
    return files[0] // SEGMENT_BYTES


@pytest.mark.fault("tier", "masters die while files go to a bucket and leave their disks", "{mode}")
@pytest.mark.parametrize(("mode", "rounds", "url"), CASES, indirect=["url"])
async def test_what_was_acknowledged_is_read_from_the_bucket(
    mode: str, rounds: int, tmp_path: Path, seed: int, url: str
) -> None:
    random = Random(seed)
    at = MADE[mode](tmp_path)
    for broker in at.brokers:
        broker.command = [*broker.command, *OPTIONS, "--tier-path", f"{url}/prod"]
    async with trio.open_nursery() as links:
        await open_links(at, links)
        async with (
            running(at),
            Admin(at.nameserver) as admin,
            Producer(at.nameserver, send_timeout_ms=SEND_TIMEOUT_MS) as producer,
        ):
            await at.until_in_sync(admin)
            await at.make_topic(admin, TOPIC, QUEUES)
            load = Load(producer, TOPIC, pause_s=PAUSE_S, body_bytes=BODY_BYTES)
            async with trio.open_nursery() as senders:
                for sender in range(SENDERS):
                    senders.start_soon(load.send, sender)
                for _ in range(rounds_or(rounds)):
                    await one_round(at, admin, load, random, mode)
                await load.more_from(NAME, FEW)
                load.stopping = True
            master = await at.until_in_sync(admin)
            gone = await until_most_is_in_the_bucket_only(at, admin, master)
            found = await stored(at.nameserver, TOPIC)
            check_acknowledged(load.acked, found)
            twice = check_order(found)
        links.cancel_scope.cancel()
    sys.stdout.write(
        f"{len(load.acked)} acknowledged, 0 lost, {twice} stored twice, {len(load.failures)} failed;"
        f" {gone} files are in the bucket only\n"
    )
