"""SYNC_FLUSH: what a whole broker acknowledged survives power loss at any moment, also in the middle of an fsync.

Producers on several connections send singly and in batches, topics and groups are made, until the power goes at a
random call to the disk; the broker starts again on what is left, and so on. The store alone goes through many more
such moments in store/test_schedules.py. A failure prints its seed; TEST_SEED repeats it, as far as threads
can be repeated.
"""

import sys
import threading
from collections import defaultdict
from random import Random

import pytest
import trio
import trio.testing

from skylark.mqcommon.errors import RemotingError, StoreError
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.message import decode_messages
from skylark.remoting.net.client import RemotingClient, open_client
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.dialect import encode_body
from skylark.remoting.protocol.requests.groups import (
    GET_SUBSCRIPTIONGROUP_CONFIG,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    SubscriptionGroupConfig,
)
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE
from skylark.remoting.protocol.requests.topics import GET_TOPIC_CONFIG, UPDATE_AND_CREATE_TOPIC
from tests.broker.running import pull_request, running, send_request
from tests.support.memory_files import MemoryFiles
from tests.support.rounds import report

TOPIC = "t"
QUEUES = 2
CONNECTIONS = 3
SENDERS = 3
HELD_UP_S = 1

# (queue, offset in it, body)
Acked = tuple[int, int, bytes]


class Plug:
    """Pulled at the n-th call to the disk; ``image`` is what is left."""

    def __init__(self, fs: MemoryFiles, rounds: "Rounds", calls: int) -> None:
        self.pulled = trio.Event()
        self.image = fs
        self._fs = fs
        self._rounds = rounds
        self._at = fs.calls.total() + calls
        self._token = trio.lowlevel.current_trio_token()
        self._done = threading.Event()
        fs.before_call = self._before_call

    def _before_call(self, operation: str, path: str) -> None:
        if self._fs.calls.total() < self._at:
            return
        self._fs.before_call = None
        if threading.current_thread() is threading.main_thread():
            self._pull()
            return
        # A thread syncs. Whoever is answered too early hears of it before the power goes.
        self._token.run_sync_soon(trio.lowlevel.spawn_system_task, self._pull_when_quiet)
        if not self._done.wait(HELD_UP_S):
            # The loop waits for this very thread.
            self._pull()

    async def _pull_when_quiet(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        self._pull()

    def _pull(self) -> None:
        if self._done.is_set():
            return
        self._rounds.note_answered()
        self.image = self._fs.crash(self._rounds.random)
        self._done.set()
        self._token.run_sync_soon(self.pulled.set)


class Rounds:
    """One store through its power losses."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._fs = MemoryFiles()
        self._number = 0
        # Answered, and of these the ones that were answered when the power went.
        self._acked: list[Acked] = []
        self._made: list[tuple[int, str]] = []
        self._safe_acked: list[Acked] = []
        self._safe_made: list[tuple[int, str]] = []

    def note_answered(self) -> None:
        self._safe_acked, self._safe_made = list(self._acked), list(self._made)

    async def run_one(self) -> None:
        """Start, look for all that was answered before, work until the power goes."""
        self._number += 1
        async with running(self._fs, flush_disk_type="SYNC_FLUSH") as (client, addr):
            await self.check(client, addr)
            plug = Plug(self._fs, self, calls=self.random.randrange(1, 60))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._make, client, addr)
                for connection in range(CONNECTIONS):
                    nursery.start_soon(self._connect, connection, addr)
                await plug.pulled.wait()
                nursery.cancel_scope.cancel()
            self._fs.before_call = None
        self._acked, self._made = list(self._safe_acked), list(self._safe_made)
        self._fs = plug.image

    async def look_once_more(self) -> int:
        """After the last power loss; returns how many messages were answered."""
        async with running(self._fs, flush_disk_type="SYNC_FLUSH") as (client, addr):
            await self.check(client, addr)
        return len(self._acked)

    # --- work

    async def _connect(self, connection: int, addr: str) -> None:
        async with open_client() as client, trio.open_nursery() as nursery:
            for sender in range(SENDERS):
                nursery.start_soon(self._send, client, addr, f"{self._number}/{connection}/{sender}")

    async def _send(self, client: RemotingClient, addr: str, name: str) -> None:
        queue_id = self.random.randrange(QUEUES)
        for number in range(10_000):
            count = self.random.choice((1, 1, 3))
            bodies = [f"{name}/{number:05}/{n}/".encode() + bytes(self.random.choice((0, 900))) for n in range(count)]
            request = send_request(TOPIC, bodies[0], queue_id=queue_id)
            if count > 1:
                rows = [(0, body, b"") for body in bodies]
                request = send_request(TOPIC, encode_batch(rows), queue_id=queue_id, m=True)
                request.code = SEND_BATCH_MESSAGE.code
            answer = await client.invoke(addr, request)
            if answer.code == 0 and answer.ext is not None:
                first = int(answer.ext["queueOffset"])
                self._acked += [(queue_id, first + n, body) for n, body in enumerate(bodies)]

    async def _make(self, client: RemotingClient, addr: str) -> None:
        """Topics and groups, one after the other."""
        for number in range(10_000):
            name = f"made-{self._number}-{number}"
            if number % 2:
                request = Command(UPDATE_AND_CREATE_TOPIC.code, _topic(name))
            else:
                body = encode_body(SubscriptionGroupConfig(name))
                request = Command(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.code, body=body)
            if (await client.invoke(addr, request)).code == 0:
                self._made.append((number % 2, name))

    # --- what must be there

    async def check(self, client: RemotingClient, addr: str) -> None:
        found = [await _bodies(client, addr, queue_id) for queue_id in range(QUEUES)]
        lost = [acked for acked in self._acked if found[acked[0]][acked[1] : acked[1] + 1] != [acked[2]]]
        report(lost=len(lost))
        assert lost == [], f"{len(lost)} of {len(self._acked)} acknowledged messages are lost"
        for bodies in found:
            assert len(set(bodies)) == len(bodies), "a message is there twice"
            by_sender: dict[bytes, list[bytes]] = defaultdict(list)
            for body in bodies:
                by_sender[body.rsplit(b"/", 3)[0]].append(body.rstrip(b"\0"))
            assert all(sent == sorted(sent) for sent in by_sender.values()), "out of order"
        for is_topic, name in self._made:
            code = GET_TOPIC_CONFIG.code if is_topic else GET_SUBSCRIPTIONGROUP_CONFIG.code
            answer = await client.invoke(addr, Command(code, {"topic": name, "group": name}))
            assert answer.code == 0, f"{name} was acknowledged and is gone: {answer.remark}"


def _topic(name: str) -> dict[str, object]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0,
        "topicFilterType": "SINGLE_TAG", "order": False,
    }  # fmt: skip


async def _bodies(client: RemotingClient, addr: str, queue_id: int) -> list[bytes]:
    bodies: list[bytes] = []
    while True:
        answer = await client.invoke(addr, pull_request(TOPIC, len(bodies), queue_id=queue_id))
        messages = decode_messages(answer.body)
        if not messages:
            return bodies
        assert messages[0].queue_offset == len(bodies)
        bodies += [message.body for message in messages]


async def run(rounds: int, random: Random) -> None:
    store = Rounds(random)
    for _ in range(rounds):
        await store.run_one()
    acknowledged = await store.look_once_more()
    report(rounds, acknowledged=acknowledged)
    sys.stdout.write(f"{rounds} power losses, {acknowledged} acknowledged messages, all there\n")


async def test_what_was_acknowledged_survives_power_loss(seed: int) -> None:
    await run(6, Random(seed))


@pytest.mark.nightly
async def test_what_was_acknowledged_survives_many_power_losses(seed: int) -> None:
    random = Random(seed)
    for _ in range(20):
        await run(25, random)


async def test_a_disk_that_breaks_stops_the_broker_and_loses_nothing_acknowledged() -> None:
    fs = MemoryFiles()
    acked: list[bytes] = []
    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match="the broker stops"), flatten_subgroups=True):
        async with running(fs, flush_disk_type="SYNC_FLUSH") as (client, addr):
            for number in range(1_000):
                if number == 20:
                    fs.faults.fail("sync", path_part="/commitlog/")
                try:
                    answer = await client.invoke(addr, send_request(TOPIC, b"%d" % number))
                except RemotingError:
                    break
                if answer.code == 0:
                    acked.append(b"%d" % number)
    assert len(acked) == 20
    for after in [fs.killed(), *(fs.crash(Random(seed)) for seed in range(5))]:
        async with running(after, flush_disk_type="SYNC_FLUSH") as (client, addr):
            assert (await _bodies(client, addr, 0))[:20] == acked
