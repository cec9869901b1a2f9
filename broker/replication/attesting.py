"""A slave and its master attest each other's sums, and find the blocks in which their logs differ.

A replica that seals a block knows only that its own bytes have that sum. The slave (in a DLedger group each member that
does not lead) tells its sums to the master (7160), which answers with its own. Equal sums are attested on both sides:
from then on the sum judges damage, and not one of the two. Blocks whose sums differ are compared and repaired on both
sides; neither the master's bytes nor the slave's are right for that reason (healing/judgement.py).
Blocks are asked for soon after they were sealed, and all that are not attested again every `AGAIN_S`: the scrub of
either side may have sealed old blocks meanwhile.
Neighbours: healing/serving.py (answers), store/sums/block_sums.py, compared_log.py (what a master sends).
"""

import logging
from collections.abc import Callable, Sequence
from itertools import islice

import trio

from skylark.broker.part import Part
from skylark.broker.replication.known_master import KnownMaster
from skylark.broker.replication.role import RoleMachine
from skylark.broker.store.sums.block_sums import Block, BlockSum, BlockSums
from skylark.broker.store.sums.sum_rows import decode_rows, encode_rows
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import OpenClient, RemotingClient
from skylark.remoting.protocol.requests.healing import LOG_SUMS, LogSumsRequestHeader

logger = logging.getLogger(__name__)

# The sums of 64 MiB are told at once.
BLOCKS_AT_ONCE = 256
ASK_TIMEOUT_MS = 3_000
# Pause before sums that were sealed meanwhile are told.
INTERVAL_S = 10.0
# Pause between two questions in a row, so that a log of 10 TB takes its master no noticeable time.
PAUSE_S = 0.05
# Blocks in this part of the log are told until they are attested: the master may be about to seal them.
NEWEST_BYTES = 256 * 1024 * 1024
# How often all blocks that are not attested are told again.
AGAIN_S = 3_600.0


class Attesting(Part):
    """Tells this replica's sums to its master while it follows one. ``suspect`` has blocks that differ compared."""

    def __init__(
        self,
        sums: BlockSums,
        role: RoleMachine,
        known: KnownMaster,
        open_client: OpenClient,
        suspect: Callable[[Sequence[Block]], None],
    ) -> None:
        self._sums = sums
        self._role = role
        self._known = known
        self._open_client = open_client
        self._suspect = suspect
        # Starts of blocks that the log has named.
        self._differing: set[int] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell the sums, until cancelled."""
        task_status.started()
        # Blocks before ``at`` were told since the last time when all were. A master of RocketMQ or of an older Skylark
        # does not know the request: such a master is told no sums until all are due again.
        at, master, all_at, is_known = 0, "", trio.current_time(), True
        async with self._open_client() as client:
            while True:
                await trio.sleep(INTERVAL_S)
                address = self._known.address
                if address is None or not self._role.now.follows:
                    continue
                if address.addr != master or trio.current_time() >= all_at + AGAIN_S:
                    at, master, all_at, is_known = 0, address.addr, trio.current_time(), True
                    self._differing.clear()
                if not is_known:
                    continue
                try:
                    at = await self._tell_from(client, master, at)
                except (BrokerError, RemotingError, ProtocolError) as error:
                    if isinstance(error, BrokerError):
                        is_known = not error.is_unknown_request
                    logger.info("block sums of this log were not compared with the master's, %s: %s", master, error)

    @property
    def _end(self) -> int:
        """Where the newest sealed block ends."""
        newest = next(self._sums.newest(), None)
        return 0 if newest is None else newest.end

    async def _tell_from(self, client: RemotingClient, master: str, start: int) -> int:
        """Tell the blocks from ``start`` on that are not attested; returns from where on to tell them the next time."""
        sums, at = self._sums, start
        while (first := sums.next_unattested(at)) is not None:
            at = await self._tell(client, master, first)
            await trio.sleep(PAUSE_S)
        # The master may be about to seal the newest ones.
        waits = sums.next_unattested(max(self._end - NEWEST_BYTES, start))
        return at if waits is None else waits.start

    async def _tell(self, client: RemotingClient, master: str, first: Block) -> int:
        """Tell the sums of the blocks from ``first`` on; returns the end of these blocks."""
        sums = self._sums
        blocks = list(islice(sums.blocks(first.start, self._end), BLOCKS_AT_ONCE))
        rows, end = encode_rows(sums.sum_of(block) for block in blocks), blocks[-1].end
        server, header = Remote(client, master, ASK_TIMEOUT_MS), LogSumsRequestHeader(first.start, end)
        answer = await call(server, LOG_SUMS, header, rows)
        differing = attest(sums, blocks, decode_rows(answer.body()))
        if new := [block for block in differing if block.start not in self._differing]:
            self._differing.update(block.start for block in new)
            text = (
                "%d blocks of this log have other sums than the same blocks of the master %s, the first block is at"
                " byte %d: both brokers compare the blocks byte by byte, and repair the wrong ones"
            )
            logger.warning(text, len(new), master, new[0].start)
        if differing:
            self._suspect(differing)
        return end


def attest(sums: BlockSums, blocks: Sequence[Block], theirs: Sequence[BlockSum | None]) -> list[Block]:
    """Attest the ``blocks`` for which another replica has the same sum; returns those for which it has another one."""
    differing = []
    for block, their in zip(blocks, theirs, strict=False):
        if their is not None and sums.sum_of(block) is not None and not sums.attest(block, their.crc):
            differing.append(block)
    return differing
