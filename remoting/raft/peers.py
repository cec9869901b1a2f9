"""Messages to other nodes: each node has a queue, and a task for what cannot leave at once.

So no node holds up another. Messages may be lost, as Raft sends again what matters: a full queue drops messages, and a
lost connection is opened anew.
"""

import logging
from collections.abc import Callable

import trio

from skylark.mqcommon.backoff import Backoff
from skylark.mqcommon.errors import ConnectFailed, RemotingError
from skylark.mqcommon.raft.messages import AppendRequest, InstallSnapshot, RaftMessage
from skylark.mqcommon.signal import Signal
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.raft import RAFT_MESSAGES, RaftMessagesHeader
from skylark.remoting.raft.disk import Disk

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS = 1_000
MAX_QUEUED = 1_000
# Messages in one frame: much less than the longest frame, as a single message may be large.
FRAME_BYTES = 1 << 20
MAX_PEERS = 100


class Peer:
    """The queue of one node. ``in_task``: the node's task is sending, and will send what is added, too."""

    def __init__(self) -> None:
        self.wake = Signal()
        self.queue: list[RaftMessage] = []
        self.in_task = False


class Peers:
    """The queues of all other nodes; neither `send` nor `flush` waits. ``self_addr``: where others reach this node."""

    def __init__(self, group: str, self_addr: str, disk: Disk, client: RemotingClient, backoff: Backoff) -> None:
        #: Called with the address of a node to which no connection can be made.
        self.on_unreachable: Callable[[str], None] = _ignore_unreachable
        self._group = group
        self._self_addr = self_addr
        self._disk = disk
        self._client = client
        self._backoff = backoff
        self._peers: dict[str, Peer] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None  # a write to the disk may end later, and has messages to send then

    def send(self, addr: str, message: RaftMessage) -> None:
        """Queue ``message``; `flush` follows in the same turn."""
        peer = self._peers.get(addr)
        if peer is None:
            if self._nursery is None or len(self._peers) >= MAX_PEERS:
                return
            peer = self._peers[addr] = Peer()
            self._nursery.start_soon(self._serve, addr, peer)
        if len(peer.queue) < MAX_QUEUED:
            peer.queue.append(message)

    def flush(self) -> None:
        """Send what is queued: at once where a connection takes it, else in a task."""
        for addr, peer in self._peers.items():
            while peer.queue and not peer.in_task:
                batch = _take_batch(peer.queue, self._disk.travelling_bytes)
                # A task would cost a turn of the loop, for each message of each node.
                body = self._disk.encode_now(batch) if self._client.flush(addr) else None
                if body is None:
                    peer.queue[:0] = batch
                    peer.in_task = True
                    peer.wake.set()
                else:
                    self._client.push(addr, self._command(batch, body), wake=False)
                    self._client.flush(addr)

    def lost(self, addr: str) -> None:
        """Connect to ``addr`` again, as the connection ended, to learn whether that node is gone."""
        peer = self._peers.get(addr)
        if peer is not None and not peer.in_task:
            peer.in_task = True
            peer.wake.set()

    def _command(self, batch: list[RaftMessage], body: bytes) -> Command:
        command = RAFT_MESSAGES.oneway(RaftMessagesHeader(self._group, batch[0].sender, self._self_addr))
        command.body = body
        return command

    async def _serve(self, addr: str, peer: Peer) -> None:
        failures = 0
        while True:
            await peer.wake.wait()
            try:
                channel = await self._client.channel(addr, CONNECT_TIMEOUT_MS)
                failures = 0
                while peer.queue:
                    batch = _take_batch(peer.queue, self._disk.travelling_bytes)
                    self._client.push(addr, self._command(batch, await self._disk.encode(batch)))
                    await channel.sent()
            except RemotingError as error:
                failures += 1
                if isinstance(error, ConnectFailed):
                    self.on_unreachable(addr)
                if failures == 1:
                    logger.warning("node at %s cannot be reached: %s", addr, error)
                await trio.sleep(self._backoff.pause_s(failures))
                peer.queue.clear()  # these messages are out of date
            peer.in_task = False


def _ignore_unreachable(addr: str) -> None:
    """The default of `Peers.on_unreachable`, until the node runs."""


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
