"""Answers other replicas of the set: which sums the blocks of this log have (7160), and its bytes (7161).

A replica only gives bytes that are confirmed, and says whether they match its own sums: a block that turns out to be
damaged here is healed. Each host that asks has a limit of requests, and few read from the disk at once.
"""

from collections.abc import Callable, Sequence

import trio

from skylark.broker.part import Part
from skylark.broker.replication.attesting import attest
from skylark.broker.store.log.commitlog import CommitLog
from skylark.broker.store.log.segment import Segment
from skylark.broker.store.sums.block_sums import Block
from skylark.broker.store.sums.sum_rows import decode_rows, encode_rows
from skylark.mqcommon.addresses import split_address
from skylark.mqcommon.errors import FileClosed, ProtocolError, RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.limits import RateLimit
from skylark.remoting.net.server import Handler, SlowHandler
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.healing import (
    LOG_SUMS,
    MAX_READ_BYTES,
    MAX_SUMS,
    READ_LOG,
    LogLimitHeader,
    ReadLogHeader,
)

# Up to 64 MiB a second for each host.
REQUESTS_A_SECOND = 64
READERS = 2


class LogServing(Part):
    """Serves one log. ``limit`` is where its confirmed bytes end; ``suspect`` has blocks compared and healed.

    ``is_current``: whether this log is known to be the one of the set, as far as it reaches.
    """

    def __init__(
        self,
        log: CommitLog,
        limit: Callable[[], int],
        suspect: Callable[[Sequence[Block]], None],
        is_current: Callable[[], bool],
    ) -> None:
        self._log = log
        self._limit = limit
        self._suspect = suspect
        self._is_current = is_current
        self._rate = RateLimit(REQUESTS_A_SECOND)
        self._readers = trio.CapacityLimiter(READERS)

    def handlers(self) -> dict[int, Handler]:
        return {LOG_SUMS.code: self.sums}

    def slow_handlers(self) -> dict[int, SlowHandler]:
        return {READ_LOG.code: self.read}

    def sums(self, channel: Channel, request: Command) -> Command:
        """7160: take the asker's sums, where there are any, and answer with this log's."""
        self._take_turn(channel)
        header = LOG_SUMS.header(request)
        log, limit = self._log, self._limit()
        sums = log.sums
        if not 0 <= header.start < header.end <= header.start + MAX_SUMS * log.chain.segment_bytes:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{header.start} to {header.end} is no part of a log")
        blocks: list[Block] = []
        for block in sums.blocks(header.start, header.end):
            if len(blocks) == MAX_SUMS:
                raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"ask for at most {MAX_SUMS} blocks at once")
            blocks.append(block)
        try:
            asked = decode_rows(LOG_SUMS.body(request))
        except ProtocolError as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if asked and len(asked) != len(blocks):
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{len(asked)} sums for {len(blocks)} blocks")
        if differing := attest(sums, blocks, asked):
            self._suspect(differing)
        rows = encode_rows(sums.sum_of(block) for block in blocks)
        return LOG_SUMS.answer(request, LogLimitHeader(limit), body=rows)

    async def read(self, channel: Channel, request: Command) -> Command:
        """7161: bytes of this log."""
        self._take_turn(channel)
        header = READ_LOG.header(request)
        limit = self._limit()
        segment = self._log.chain.at(header.start)
        if not 0 < header.size <= MAX_READ_BYTES or header.start < 0:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"{header.size} bytes at {header.start} are not read")
        if segment is None or header.start >= limit:
            where = f"{self._log.start} to {limit}"
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{header.start} is not in the confirmed log, {where}")
        end = min(header.start + header.size, limit, segment.end)
        try:
            data, bad = await trio.to_thread.run_sync(self._read, segment, header.start, end, limiter=self._readers)
        except (FileClosed, FileNotFoundError):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{header.start} was removed from the log") from None
        self._suspect(bad)
        if not data:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{header.start} cannot be read here, too")
        sums = self._log.sums
        found = sums.sum_of(sums.block_at(header.summed)) if header.summed >= 0 else None
        crc, is_attested = (None, None) if found is None else found
        return READ_LOG.answer(
            request, ReadLogHeader(limit, self._is_current() and not bad, crc, is_attested), body=data
        )

    def _read(self, segment: Segment, start: int, end: int) -> tuple[bytes, list[Block]]:
        """The bytes, which end before a block that cannot be read, and the damaged blocks. For a thread."""
        sums, parts, bad = self._log.sums, list[bytes](), list[Block]()
        for block in sums.blocks(start, end):
            # Only whole blocks can be compared.
            whole = block if sums.sum_of(block) is not None else Block(block.start, min(block.end, end) - block.start)
            try:
                data = segment.file.pread(whole.start - segment.base, whole.size)
            except OSError:
                bad.append(block)
                break
            if len(data) == block.size and not sums.is_right(block, data):
                bad.append(block)
            parts.append(data[max(start - block.start, 0) : end - block.start])
        return b"".join(parts), bad

    def _take_turn(self, channel: Channel) -> None:
        host = split_address(channel.remote)[0]
        if not self._rate.take(host, trio.current_time()):
            text = f"[OVERLOAD]{host} asks for the log more than {REQUESTS_A_SECOND} times a second; try again later"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, text)
