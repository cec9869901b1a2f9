"""Messages to other nodes: one task and one queue for each, so that a slow node holds up no other.

Messages may be lost, as Raft sends again what matters; so a full queue forgets, and a lost connection is opened anew.
"""

import logging
from collections.abc import Callable

import trio

from mqcommon.backoff import Backoff
from mqcommon.errors import RemotingError
from mqcommon.raft.messages import AppendRequest, InstallSnapshot, RaftMessage
from mqcommon.signal import Signal
from remoting.net.client import RemotingClient
from remoting.protocol.requests.raft import RAFT_MESSAGES, RaftMessagesHeader
from remoting.raft.disk import Disk

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 1_000
MAX_QUEUED = 1_000
# Messages in one frame: much less than the longest frame, as a single message may be large.
FRAME_BYTES = 1 << 20
MAX_PEERS = 100


class Peers:
    """``send`` never waits. ``self_addr``: where the others reach this node."""

    def __init__(self, group: str, self_addr: str, disk: Disk, client: RemotingClient, backoff: Backoff) -> None:
        self._group = group
        self._self_addr = self_addr
        self._disk = disk
        self._client = client
        self._backoff = backoff
        self._queues: dict[str, tuple[Signal, list[RaftMessage]]] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def send(self, addr: str, message: RaftMessage) -> None:
        if addr not in self._queues:
            if self._nursery is None or len(self._queues) >= MAX_PEERS:
                return
            self._queues[addr] = (Signal(), [])
            self._nursery.start_soon(self._serve, addr)
        signal, queue = self._queues[addr]
        if len(queue) < MAX_QUEUED:
            queue.append(message)
            signal.set()

    async def _serve(self, addr: str) -> None:
        signal, queue = self._queues[addr]
        failures = 0
        while True:
            await signal.wait()
            try:
                channel = await self._client.channel(addr, CONNECT_TIMEOUT_MS)
                failures = 0
                while queue:
                    batch = _take_batch(queue, self._disk.travelling_bytes)
                    command = RAFT_MESSAGES.oneway(RaftMessagesHeader(self._group, batch[0].sender, self._self_addr))
                    command.body = await self._disk.encode(batch)
                    self._client.push(addr, command)
                    await channel.sent()
            except RemotingError as error:
                failures += 1
                if failures == 1:
                    logger.warning("node at %s cannot be reached: %s", addr, error)
                await trio.sleep(self._backoff.pause_s(failures))
                queue.clear()  # old news


def _take_batch(queue: list[RaftMessage], travelling_bytes: Callable[[bytes], int]) -> list[RaftMessage]:
    """The messages of one frame, at least one."""
    size = count = 0
    for message in queue:
        size += _size(message, travelling_bytes)
        if count and size > FRAME_BYTES:
            break
        count += 1
    batch = queue[:count]
    del queue[:count]
    return batch


def _size(message: RaftMessage, travelling_bytes: Callable[[bytes], int]) -> int:
    match message:
        case AppendRequest():
            return sum(travelling_bytes(entry.data) for entry in message.entries) + 16 * len(message.entries)
        case InstallSnapshot():
            return len(message.snapshot.data)
    return 100
