"""A disk that lies, under a set of real processes and load: bytes of a minority's files change, again and again.

Readers of each broker, whatever its role, get each acknowledged message as it was sent; the damage is repaired; in the
end all logs are equal and verifyStore finds nothing. A failure prints its seed.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import trio

from scripts.controller_set import NAME, running
from scripts.daemons import BIN, Daemon
from skylark import Admin, Producer
from skylark.broker.store.sums.sum_rows import decode_rows
from skylark.mqcommon.errors import RemotingError
from skylark.mqcommon.message.queue import MessageQueue
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.healing import LOG_SUMS, MAX_SUMS, LogSumsRequestHeader
from tests.broker.running import pull_request
from tests.broker.test_send_pull import messages
from tests.e2e.faults.catalogue import FEW
from tests.e2e.faults.sets import CONTROLLER, DLEDGER, SET, MasterAndSlave, Trial, trial
from tests.e2e.switches import QUEUES, TOPIC
from tests.support.rounds import report
from tests.support.waiting import until

# A file of the log is one block, so that load fills and seals several of them soon.
SEGMENT_BYTES = 64 * 1024
OPTIONS = ("--mapped-file-size-commit-log", str(SEGMENT_BYTES), "--max-message-size", "10000")
SEALED_FILES = 2
FLIPS = 3
TIMEOUT_MS = 5_000
MANY = 100
REPAIRED = b"was damaged, and is right again"


async def sealed(client: RemotingClient, broker: Daemon) -> set[int]:
    """The files of the broker's log that have a sum; each file is one block."""
    header = LogSumsRequestHeader(0, MAX_SUMS * SEGMENT_BYTES)
    answer = await call(Remote(client, broker.addr, TIMEOUT_MS), LOG_SUMS, header, b"")
    return {number * SEGMENT_BYTES for number, found in enumerate(decode_rows(answer.body())) if found is not None}


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


async def one_round(tried: Trial, client: RemotingClient, random: Random, *, is_first: bool) -> None:
    """Damage old files of one broker's log; readers of it get all, and the files become right again.

    In the first round the reads find the damage. Later the broker may have compared the blocks before, and gives
    readers what it keeps of them: the scrub finds the damage.
    """
    master, others = await tried.roles()
    stores = [tried.at.store_of(broker) for broker in tried.at.brokers]
    await tried.load.more_from(NAME, FEW)
    common: set[int] = set()

    async def are_sealed() -> bool:
        common.update(set.intersection(*[await sealed(client, broker) for broker in tried.at.brokers]))
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

    if is_first:
        await until(is_repaired, f"{victim.name} has repaired {bases} for its readers")
    await scrubbed(tried, victim, other_files(store, random), random)
    await until(is_repaired, f"{victim.name} has repaired {bases}")
    assert REPAIRED in victim.logged
    report(1)


def other_files(store: Path, random: Random) -> list[Path]:
    """A file of each kind, as far as there are any: a full file of a queue and of the index, sums, metadata."""
    queues = [path for queue in store.glob(f"consumequeue/{TOPIC}/*") for path in sorted(queue.iterdir())[:-1]]
    kinds = [queues, sorted(store.glob("index/*"))[:-1], [*store.glob("sums/*")], [*store.glob("config/metadata.*")]]
    found = [[path for path in kind if path.is_file()] for kind in kinds]
    return [random.choice(kind) for kind in found if kind]


async def scrubbed(tried: Trial, victim: Daemon, files: Sequence[Path], random: Random) -> None:
    """Damage files that readers hardly touch: a scrub finds the damage, and all of it is mended."""
    admin = tried.now.admin
    for path in files:
        flip(path, random)
    asked_ms = (await admin.begin_scrub(victim.addr)).asked_ms

    async def has_ended() -> bool:
        status = await admin.scrub_status(victim.addr)
        if status.asked_ms == asked_ms and status.running:
            return False
        assert status.problem_count == status.mended_count and not status.suspects, status.problems
        return True

    await until(has_ended, f"the scrub of {victim.name} ends")
    sys.stdout.write(f"{[str(path.relative_to(tried.at.home)) for path in files]} were damaged\n")


async def verified(stores: Sequence[Path]) -> None:
    """The command finds nothing wrong in the stores of stopped brokers."""
    for store in stores:
        done = await trio.run_process(
            [str(BIN / "broker"), "verifyStore", str(store)], capture_stdout=True, capture_stderr=True, check=False
        )
        assert done.returncode == 0, f"{store}: {done.stdout.decode()}{done.stderr.decode()}"


# CI tries few rounds of each mode, at night there are very many.
CASES = [
    pytest.param(mode, rounds, marks=[pytest.mark.nightly] if rounds == MANY else [])
    for mode, few in ((SET, 2), (CONTROLLER, 2), (DLEDGER, 1))
    for rounds in (few, MANY)
]


@pytest.mark.fault("lies", "bits of the log of a minority flip while it is read", "{mode}")
@pytest.mark.parametrize(("mode", "rounds"), CASES)
async def test_what_a_disk_changes_is_repaired_and_served_to_nobody(
    mode: str, rounds: int, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    async with trial(mode, tmp_path, options=OPTIONS, is_stopped=True) as tried, open_client() as client:
        for number in range(rounds):
            await one_round(tried, client, random, is_first=not number)
    await verified([tried.at.store_of(broker) for broker in tried.at.brokers])


@pytest.mark.nightly
async def test_damage_of_all_copies_is_said_and_nothing_is_invented(tmp_path: Path) -> None:
    """The message is held back, then skipped; all others are read, and no byte of the files changes."""
    at = MasterAndSlave(tmp_path)
    for broker in at.brokers:
        broker.command = [*broker.command, *OPTIONS, "--damaged-hold-ms", "300"]
    sent = [b"%d" % number + bytes(200) for number in range(600)]
    async with trio.open_nursery() as links:
        await at.open(links)
        async with (
            running(at),
            Admin(at.nameserver) as admin,
            Producer(at.nameserver) as producer,
            open_client() as client,
        ):
            master = await at.until_in_sync(admin)
            await at.make_topic(admin, TOPIC, 1)
            for first in range(0, len(sent), 20):
                await producer.send_many(TOPIC, sent[first : first + 20])

            async def are_sealed() -> bool:
                return all([0 in await sealed(client, broker) for broker in at.brokers])

            await until(are_sealed, "both have sealed the first file")
            files = [log_file(at.store_of(broker), 0) for broker in at.brokers]
            # In the body of some message.
            at_byte = files[0].read_bytes().index(b"100" + bytes(200)) + 100
            for number, path in enumerate(files):
                # In place: the brokers have mapped the file.
                with path.open("r+b") as file:
                    file.seek(at_byte)
                    file.write(bytes([number + 1]))
            before = [path.read_bytes() for path in files]
            found = await read_on(client, master, len(sent))
        links.cancel_scope.cancel()
    assert found == {offset: body for offset, body in enumerate(sent) if offset != 100}
    assert b"is damaged, and is not repaired" in master.logged and b"Traceback" not in master.logged
    assert [path.read_bytes() for path in files] == before


async def read_on(client: RemotingClient, broker: Daemon, end: int) -> dict[int, bytes]:
    """The bodies of the first queue from one broker by offset, as a consumer reads: it goes on where it is told to."""
    found: dict[int, bytes] = {}
    offset = 0

    async def is_read() -> bool:
        nonlocal offset
        answer = await client.invoke(broker.addr, pull_request(TOPIC, offset), TIMEOUT_MS)
        if answer.code == ResponseCode.SUCCESS:
            found.update({message.queue_offset: message.body for message in messages(answer)})
        offset = max(offset, int((answer.ext or {}).get("nextBeginOffset", 0)))
        return offset >= end

    await until(is_read, f"{broker.name} shows its first queue")
    return found
