"""A disk that lies, under a set of real processes and load: bytes of a minority's files change, again and again.

Readers of each broker, whatever its role, get each acknowledged message as it was sent; the damage is repaired; in the
end all logs are equal and verifyStore finds nothing. A failure prints its seed.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME
from scripts.daemons import BIN, Daemon
from skylark.broker.store.sums.block_sums import BlockSums
from skylark.broker.store.sums.sum_files import SumFiles, bases_in
from skylark.mqcommon.disk.files import OsFiles
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.running import pull_request
from tests.broker.test_send_pull import messages
from tests.e2e.faults.catalogue import FEW
from tests.e2e.faults.sets import CONTROLLER, DLEDGER, SET, Trial, trial
from tests.e2e.switches import QUEUES, TOPIC
from tests.support.rounds import report
from tests.support.waiting import until

# A file of the log is one block, so that load fills and seals several of them soon.
SEGMENT_BYTES = 64 * 1024
OPTIONS = ("--mapped-file-size-commit-log", str(SEGMENT_BYTES), "--max-message-size", "10000")
SEALED_FILES = 2
FLIPS = 3
TIMEOUT_MS = 5_000
REPAIRED = b"were damaged and are right again"


def sealed(store: Path) -> set[int]:
    """The files of the log whose sums are on disk."""
    fs = OsFiles()
    files = SumFiles(fs, str(store), BlockSums(SEGMENT_BYTES), SEGMENT_BYTES)
    found = {base: files._read(base) for base in bases_in(fs, str(store))}
    return {base for base, file in found.items() if file is not None and all(file.states)}


def log_file(store: Path, base: int) -> Path:
    return store / "commitlog" / f"{base:020d}"


def flip(path: Path, random: Random) -> None:
    """Change bits of the file, on disk and in the page cache, and let the kernel forget what it may."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        for _ in range(FLIPS):
            at = random.randrange(size)
            (byte,) = os.pread(descriptor, 1, at)
            os.pwrite(descriptor, bytes([byte ^ 1 << random.randrange(8)]), at)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


async def read_all(client: RemotingClient, broker: Daemon, queue_id: int, end: int) -> list[bytes]:
    """The bodies of a queue from one broker, which may be busy with repairs for a while."""
    found: list[bytes] = []

    async def is_read() -> bool:
        while len(found) < end:
            request = pull_request(TOPIC, len(found), queue_id=queue_id)
            try:
                answer = await client.invoke(broker.addr, request, TIMEOUT_MS)
            except RemotingError:
                return False
            if answer.code != ResponseCode.SUCCESS:
                return False
            for message in messages(answer):
                assert message.queue_offset == len(found), f"{broker.name} skips {len(found)} of queue {queue_id}"
                found.append(message.body)
        return True

    await until(is_read, f"{broker.name} shows all of queue {queue_id}")
    return found


async def one_round(tried: Trial, client: RemotingClient, random: Random) -> None:
    """Damage old files of one broker's log; readers of it get all, and the files become right again."""
    master, others = await tried.roles()
    stores = [tried.at.store_of(broker) for broker in tried.at.brokers]
    await tried.load.more_from(NAME, FEW)
    common: set[int] = set()

    def are_sealed() -> bool:
        common.update(set.intersection(*map(sealed, stores)))
        return len(common) >= SEALED_FILES

    await until(are_sealed, "all have sealed some files")
    victim = random.choice([master, *others])
    store = tried.at.store_of(victim)
    right = next(each for each in stores if each != store)
    bases = random.sample(sorted(common), SEALED_FILES)
    acked = list(tried.load.acked)
    for base in bases:
        flip(log_file(store, base), random)
    for queue_id in range(QUEUES):
        wanted = {offset: body for queue, offset, body in acked if queue == MessageQueue(TOPIC, NAME, queue_id)}
        found = await read_all(client, victim, queue_id, max(wanted) + 1)
        wrong = {offset for offset, body in wanted.items() if found[offset] != body}
        report(wrong=len(wrong))
        assert wrong == set(), f"{victim.name} serves {len(wrong)} wrong messages of queue {queue_id}"

    def is_repaired() -> bool:
        return all(log_file(store, base).read_bytes() == log_file(right, base).read_bytes() for base in bases)

    await until(is_repaired, f"{victim.name} has repaired {bases}")
    assert REPAIRED in victim.logged
    report(1)


async def verified(stores: Sequence[Path]) -> None:
    """The command finds nothing wrong in the stores of stopped brokers."""
    for store in stores:
        done = await trio.run_process(
            [str(BIN / "broker"), "verifyStore", str(store)], capture_stdout=True, capture_stderr=True, check=False
        )
        assert done.returncode == 0, f"{store}: {done.stdout.decode()}{done.stderr.decode()}"


# CI tries one round of one mode, at night there are some of each mode, and very many.
CASES = [
    pytest.param(mode, rounds, marks=[pytest.mark.nightly] if (mode, rounds) != (SET, 1) else [])
    for rounds in (1, 100)
    for mode in (SET, CONTROLLER, DLEDGER)
]


@pytest.mark.fault("lies", "bits of the log of a minority flip while it is read", "{mode}")
@pytest.mark.parametrize(("mode", "rounds"), CASES)
async def test_what_a_disk_changes_is_repaired_and_served_to_nobody(
    mode: str, rounds: int, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    async with trial(mode, tmp_path, options=OPTIONS, is_stopped=True) as tried, open_client() as client:
        for _ in range(rounds):
            await one_round(tried, client, random)
    await verified([tried.at.store_of(broker) for broker in tried.at.brokers])
