"""Asks the other replicas of the set for their bytes of a block (7161), RocketMQ's brokers for single records (33).

Each replica is asked at the same time; a replica that does not answer holds nobody up once the others' bytes decide.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from skylark.broker.healing.judgement import Copy, sound_records
from skylark.broker.store.log.valid_record import valid_record
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.mqcommon.crc import large_crc32
from skylark.mqcommon.errors import BrokerError, ProtocolError, RemotingError
from skylark.remoting.net.call import Remote, call
from skylark.remoting.net.client import OpenClient, RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.requests.healing import MAX_READ_BYTES, READ_LOG, ReadLogHeader, ReadLogRequestHeader
from skylark.remoting.protocol.requests.query import VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader

logger = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 3_000
# All that is asked of one replica, 9 MiB at most, with the pauses when it is busy.
PEER_TIMEOUT_S = 10.0
BUSY_S = 0.2
# A block has up to some 2,000 records; damage is mostly in one of them.
MAX_RECORDS = 256

#: The addresses of the other replicas, for requests.
Members = Callable[[], Awaitable[Sequence[str]]]
_Failures = (RemotingError, BrokerError, ProtocolError)


class PeerLogs:
    """The logs of the other replicas of this broker's set: `run` it."""

    def __init__(
        self, open_client: OpenClient, members: Members, segment_bytes: int, is_current: Callable[[], bool]
    ) -> None:
        """``is_current``: whether this broker's own log is known to be the one of the set."""
        self._open_client = open_client
        self._members = members
        self._segment_bytes = segment_bytes
        self._is_current = is_current
        self._client: RemotingClient | None = None
        # Why replicas gave nothing when they were asked last, by address.
        self._failures: dict[str, str] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a client open, until cancelled."""
        async with self._open_client() as self._client:
            task_status.started()
            await trio.sleep_forever()

    async def copies(self, block: Block, own: Copy, own_sum: BlockSum | None) -> list[Copy]:
        """What other replicas have where ``own`` has its bytes, which may reach beyond the block on both sides.

        As soon as one of them matches ``own_sum``, the others are not waited for. Copies that lack bytes of the block
        are left out.
        """
        found: list[Copy] = []

        async def ask(addr: str) -> None:
            try:
                with trio.fail_after(PEER_TIMEOUT_S):
                    copy = await self._copy_of(addr, block, own)
            except (*_Failures, trio.TooSlowError) as error:
                why = str(error) or f"not within {PEER_TIMEOUT_S:g} s"
                if self._failures.get(addr) != why:
                    logger.warning("%s gives no bytes of the block at %d of the log: %s", addr, block.start, why)
                self._failures[addr] = why
                return
            self._failures.pop(addr, None)
            if len(copy.of(block)) < block.size:
                return
            found.append(copy)
            if own_sum is not None and large_crc32(copy.of(block)) == own_sum.crc:
                nursery.cancel_scope.cancel()

        members = await self._members()
        self._failures = {addr: why for addr, why in self._failures.items() if addr in members}
        async with trio.open_nursery() as nursery:
            for addr in members:
                nursery.start_soon(ask, addr)
        return found

    async def _copy_of(self, addr: str, block: Block, own: Copy) -> Copy:
        try:
            return await self._bytes_of(addr, block, own)
        except BrokerError as error:
            if not error.is_unknown_request:
                raise
            return await self._records_of(addr, block, own)

    async def _bytes_of(self, addr: str, block: Block, own: Copy) -> Copy:
        # First the block itself, with as much on both sides as fits into one request; then the rest.
        end = own.start + len(own.data)
        first = max(own.start, block.end - MAX_READ_BYTES)
        data, header = await self._read(addr, first, min(end, first + MAX_READ_BYTES), block.start)
        while first + len(data) < end and (more := await self._more(addr, first + len(data), end)):
            data += more
        while first > own.start:
            start = max(own.start, first - MAX_READ_BYTES)
            more = await self._more(addr, start, first)
            if len(more) < first - start:
                break
            data, first = more + data, start
        sum_ = None if header.crc is None else BlockSum(header.crc, bool(header.is_attested))
        return Copy(addr, first, data, sum_, is_current=header.is_current and self._is_current())

    async def _more(self, addr: str, start: int, end: int) -> bytes:
        """Bytes around the block; none if the replica does not give any."""
        try:
            return (await self._read(addr, start, min(end, start + MAX_READ_BYTES), -1))[0]
        except BrokerError:
            return b""

    async def _read(self, addr: str, start: int, end: int, summed: int) -> tuple[bytes, ReadLogHeader]:
        while True:
            try:
                answer = await call(self._at(addr), READ_LOG, ReadLogRequestHeader(start, end - start, summed))
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
                await trio.sleep(BUSY_S)
                continue
            return answer.body()[: end - start], answer.header()

    async def _records_of(self, addr: str, block: Block, own: Copy) -> Copy:
        """``own`` with the records that RocketMQ's broker gives for it. It has no vote: most bytes are this one's."""
        data = bytearray(own.data)
        asked = 0
        for start, end in self._unsound(block, own):
            at = start
            while at < end and asked < MAX_RECORDS:
                asked += 1
                try:
                    answer = await call(
                        self._at(addr), VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(at, takes_batches=True)
                    )
                except BrokerError:
                    break  # no record begins there
                raw = answer.body()
                if valid_record(raw, at)[0] is None:
                    break
                last = min(at + len(raw), own.start + len(data))
                data[at - own.start : last - own.start] = raw[: last - at]
                at += len(raw)
        return Copy(f"records of {addr}", own.start, bytes(data), has_vote=False, is_current=self._is_current())

    def _unsound(self, block: Block, own: Copy) -> Iterator[tuple[int, int]]:
        """Where records are to be asked for: what is not sound, or, if all is sound and yet wrong, the whole block."""
        # Where a record begins; unknown before the first sound record, unless a file begins there.
        known = own.start if own.start % self._segment_bytes == 0 else None
        gaps: list[tuple[int, int]] = []
        first = block.end
        for each in sound_records(own.start, own.data, self._segment_bytes):
            if known is not None and known < each.start:
                gaps.append((known, each.start))
            known = each.end
            if each.end > block.start:
                first = min(first, each.start)
        if known is not None:
            gaps.append((known, own.start + len(own.data)))
        of_block = [(start, end) for start, end in gaps if start < block.end and end > max(start, block.start)]
        yield from of_block or [(first, block.end)]

    def _at(self, addr: str) -> Remote:
        assert self._client is not None
        return Remote(self._client, addr, ASK_TIMEOUT_MS)
