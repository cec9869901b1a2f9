"""What other replicas give of their logs: whole blocks with what is around them, or single records."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from zlib import crc32

import pytest
import trio

from skylark.broker.healing import peers as peers_module
from skylark.broker.healing.judgement import Copy, judge
from skylark.broker.healing.peers import PeerLogs
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.mqcommon.errors import RequestRefused
from skylark.remoting.net.channel import Channel
from skylark.remoting.net.client import open_client
from skylark.remoting.net.server import Server
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.healing import MAX_READ_BYTES, READ_LOG, ReadLogHeader
from skylark.remoting.protocol.requests.query import VIEW_MESSAGE_BY_ID
from tests.broker.healing.test_judgement import BLOCK, FILE, of_block, whole_file

LOG = whole_file([100] * 40)


@dataclass
class Replica:
    """A server with a log from ``FILE`` on. ``is_java``: it knows request 33 only."""

    log: bytes = LOG
    is_java: bool = False
    refuses: int = 0
    asked: list[int] = field(default_factory=list)
    sum: BlockSum | None = None
    is_current: bool = True
    silent: trio.Event | None = None

    async def read(self, channel: Channel, request: Command) -> Command:
        header = READ_LOG.header(request)
        self.asked.append(header.start)
        if self.silent is not None:
            await self.silent.wait()
        if self.refuses:
            self.refuses -= 1
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "later")
        assert header.size <= MAX_READ_BYTES
        data = self.log[header.start - FILE : header.start - FILE + header.size]
        if not data:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "not there")
        fields = self.sum if self.sum is not None and header.summed == BLOCK.start else (None, None)
        return READ_LOG.answer(request, ReadLogHeader(FILE + len(self.log), self.is_current, *fields), body=data)

    def view(self, channel: Channel, request: Command) -> Command:
        at = VIEW_MESSAGE_BY_ID.header(request).offset
        self.asked.append(at)
        size = int.from_bytes(self.log[at - FILE : at - FILE + 4], "big")
        if not size or self.log[at - FILE + 4 : at - FILE + 8] != b"\xda\xa3\x20\xa7":
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "no message")
        return request.respond(body=self.log[at - FILE : at - FILE + size])

    @property
    def server(self) -> Server:
        slow = {} if self.is_java else {READ_LOG.code: self.read}
        return Server({VIEW_MESSAGE_BY_ID.code: self.view}, slow)


@asynccontextmanager
async def asking(*replicas: Replica, is_current: bool = True) -> AsyncIterator[PeerLogs]:
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        addrs = [await nursery.start(each.server.serve, "127.0.0.1", 0) for each in replicas]

        async def members() -> list[str]:
            return [str(addr) for addr in addrs]

        peers = PeerLogs(open_client, members, FILE, lambda: is_current)
        await nursery.start(peers.run)
        yield peers
        nursery.cancel_scope.cancel()


def own(data: bytes = LOG, start: int = FILE, end: int = 2 * FILE) -> Copy:
    return Copy("this disk", start, data[start - FILE : end - FILE], is_own=True)


async def test_replicas_give_the_block_its_sum_and_what_is_around_it() -> None:
    sum_ = BlockSum(1, True)
    async with asking(Replica(sum=sum_), Replica(LOG[: BLOCK.end - FILE + 100]), Replica(LOG[:500])) as peers:
        found = await peers.copies(BLOCK, own(start=FILE + 1000, end=FILE + 3000), None)
    assert sorted((copy.start - FILE, len(copy.data)) for copy in found) == [(1000, 1148), (1000, 2000)]
    assert all(copy.of(BLOCK) == of_block(LOG) for copy in found), "the third one has not all of the block"
    assert {copy.sum for copy in found} == {sum_, None}


@pytest.mark.parametrize(("theirs", "ours"), [(True, True), (False, True), (True, False)])
async def test_copies_are_current_if_both_logs_are_known_to_be_the_one_of_the_set(theirs: bool, ours: bool) -> None:
    async with asking(Replica(is_current=theirs), Replica(is_java=True), is_current=ours) as peers:
        found = await peers.copies(BLOCK, own(), None)
    assert {(copy.has_vote, copy.is_current) for copy in found} == {(True, theirs and ours), (False, ours)}


async def test_more_than_a_request_may_ask_for_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_READ_BYTES", 1100)
    replica = Replica()
    async with asking(replica) as peers:
        found = await peers.copies(BLOCK, own(), None)
    assert [(copy.start, copy.data) for copy in found] == [(FILE, LOG)]
    # The block first.
    assert replica.asked == [FILE + 948, FILE + 2048, FILE + 3148, FILE]


async def test_a_replica_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BUSY_S", 0.01)
    replica = Replica(refuses=3)
    async with asking(replica) as peers:
        assert len(await peers.copies(BLOCK, own(), None)) == 1
    assert len(replica.asked) == 4


async def test_a_silent_replica_holds_nobody_up_once_a_copy_matches_the_sum() -> None:
    silent = Replica(silent=trio.Event())
    async with asking(silent, Replica()) as peers:
        found = await peers.copies(BLOCK, own(), BlockSum(crc32(of_block(LOG)), False))
    assert len(found) == 1


async def test_a_replica_that_stays_busy_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers_module, "BUSY_S", 0.001)
    monkeypatch.setattr(peers_module, "PEER_TIMEOUT_S", 0.1)
    async with asking(Replica(refuses=1 << 30)) as peers:
        for _ in range(2):
            assert await peers.copies(BLOCK, own(), None) == []
    assert len([r for r in caplog.records if "gives no bytes of the block" in r.getMessage()]) == 1


async def test_a_replica_that_is_away_is_left_out() -> None:
    async def members() -> list[str]:
        return ["127.0.0.1:1"]

    async with trio.open_nursery() as nursery:
        peers = PeerLogs(open_client, members, FILE, lambda: True)
        await nursery.start(peers.run)
        assert await peers.copies(BLOCK, own(), None) == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("first", [FILE, FILE + 500])
@pytest.mark.parametrize("damage", [slice(1300, 1310), slice(900, 1900), slice(1500, 2900)])
async def test_a_broker_of_rocketmq_gives_the_records_that_are_damaged_here(first: int, damage: slice) -> None:
    bad = LOG[: damage.start] + bytes(damage.stop - damage.start) + LOG[damage.stop :]
    java = Replica(is_java=True)
    async with asking(java) as peers:
        (copy,) = await peers.copies(BLOCK, own(bad, first), None)
    assert copy.of(BLOCK) == of_block(LOG) and not copy.has_vote
    assert len(java.asked) < 20
    assert judge(BLOCK, None, [own(bad, first), copy], FILE).right == of_block(LOG)


async def test_all_records_are_asked_for_when_those_here_are_sound_and_yet_wrong() -> None:
    at = LOG.index(b"KEYS", 1300) + 5
    bad = LOG[:at] + b"\x07" + LOG[at + 1 :]
    async with asking(Replica(is_java=True)) as peers:
        (copy,) = await peers.copies(BLOCK, own(bad), None)
    # RocketMQ has no sum of properties: only the one that was sealed here decides.
    assert judge(BLOCK, None, [own(bad), copy], FILE).right is None
    sealed = BlockSum(crc32(of_block(LOG)), False)
    assert judge(BLOCK, sealed, [own(bad), copy], FILE).right == of_block(LOG)


async def test_what_a_broker_of_rocketmq_does_not_have_stays_as_it_is() -> None:
    bad = LOG[:1300] + bytes(10) + LOG[1310:]
    async with asking(Replica(LOG[:1000], is_java=True)) as peers:
        (copy,) = await peers.copies(BLOCK, own(bad), None)
    assert copy.data == bad and Block(copy.start, len(copy.data)) == Block(FILE, FILE)
