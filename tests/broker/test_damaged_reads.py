"""A running broker whose log is damaged: who reads a message gets it as it was sent, or is told to wait."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import pytest
import trio

from skylark.broker import cold_reads
from skylark.broker.store.sums.block_sums import Block
from skylark.broker.wiring.core import Core, make_core
from skylark.remoting.net.client import RemotingClient
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import Command
from skylark.remoting.protocol.requests.brokers import GET_BROKER_RUNTIME_INFO
from skylark.remoting.protocol.requests.consuming import CONSUMER_SEND_MSG_BACK
from skylark.remoting.protocol.requests.pops import PEEK_MESSAGE, POP_MESSAGE
from skylark.remoting.protocol.requests.query import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID
from tests.broker.running import pull_request, running, send_request
from tests.broker.test_send_pull import messages
from tests.support.memory_files import MemoryFiles
from tests.support.waiting import until

# More than a file of the log, which is a block here.
COUNT = 80
BODY = b"x" * 900
POP = {
    "consumerGroup": "group", "topic": "t", "queueId": "0", "maxMsgNums": "32", "invisibleTime": "60000",
    "pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
}  # fmt: skip
QUERY = {"topic": "t", "key": "k17", "maxNum": 4, "beginTimestamp": 0, "endTimestamp": 1 << 60}


class Mender:
    """Flips the bit back when a replica would do: at once, or when it `can_mend`."""

    def __init__(self, fs: MemoryFiles, core: Core) -> None:
        self._fs = fs
        self._core = core
        self._flipped: tuple[str, int] | None = None
        self.can_mend = trio.Event()
        self.asked: list[Block] = []

    def damage(self, what: bytes) -> None:
        """Flip a bit of these bytes in the log."""
        for path in self._fs.paths():
            if "/commitlog/" in path and (at := self._fs.read(path).find(what)) >= 0:
                self._fs.flip(path, at)
                self._flipped = path, at
                return
        raise AssertionError("it is not there")

    async def heal(self, blocks: Sequence[Block]) -> bool:
        self.asked += blocks
        await self.can_mend.wait()
        if self._flipped is not None:
            self._fs.flip(*self._flipped)
            self._flipped = None
        return True


def seal(core: Core) -> None:
    log = core.store.log
    for block in log.sums.blocks(log.start, log.end):
        if block.end <= log.end:
            log.sums.seal(block, crc32(log.copy(block.start, block.size)))


@asynccontextmanager
async def damaged(
    monkeypatch: pytest.MonkeyPatch, what: bytes, **options: Any
) -> AsyncIterator[tuple[RemotingClient, str, Core, Mender]]:
    """A broker with messages in sealed blocks, whose log is then damaged."""
    made: list[Core] = []

    def make(*args: Any, **more: Any) -> Core:
        made.append(make_core(*args, **more))
        return made[-1]

    monkeypatch.setattr("skylark.broker.broker.make_core", make)
    fs = MemoryFiles()
    async with running(fs, **options) as (client, addr):
        for number in range(COUNT):
            properties = f"KEYS\x01k{number}\x02SAVE\x01p{number}\x02"
            sent = await client.invoke(addr, send_request("t", b"%03d" % number + BODY, properties=properties))
            assert sent.code == 0
        core = made[0]
        await until(lambda: core.store.index.position == core.store.log.end, "the index has all")
        seal(core)
        mender = core.cold.healer = Mender(fs, core)
        mender.damage(what)
        yield client, addr, core, mender


REQUESTS = {
    "pull": pull_request("t", 0),
    "pull by properties": pull_request("t", 0, subscription="SAVE IS NOT NULL", expressionType="SQL92"),
    "pop": Command(POP_MESSAGE.code, POP),
    "peek": Command(PEEK_MESSAGE.code, POP),
    "query": Command(QUERY_MESSAGE.code, QUERY),
}


@pytest.mark.parametrize("what", [b"017" + BODY, b"p17"], ids=["body", "property"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_reader_gets_a_damaged_message_whole_in_its_first_answer(
    name: str, what: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MEND_TIMEOUT_S", 1_000.0)
    async with damaged(monkeypatch, what, enable_property_filter=True) as (client, addr, core, mender):
        mender.can_mend.set()
        answer = await client.invoke(addr, REQUESTS[name])
        assert answer.code == 0, answer.remark
        found = {message.body[:3]: message.properties for message in messages(answer)}
        assert found[b"017"]["SAVE"] == "p17"
        assert mender.asked == [core.store.log.sums.block_at(0)]
        core.store.log.blocks.repaired(mender.asked)  # read it once more
        assert (await client.invoke(addr, REQUESTS[name])).code in (0, ResponseCode.POLLING_TIMEOUT)


async def test_a_record_by_its_place_is_whole_also_for_who_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "MEND_TIMEOUT_S", 1_000.0)
    async with damaged(monkeypatch, b"p17") as (client, addr, core, mender):
        mender.can_mend.set()
        queue = core.store.queues.find("t", 0)
        assert queue is not None
        offset = queue.entry(17)[0]
        (message,) = messages(await client.invoke(addr, Command(VIEW_MESSAGE_BY_ID.code, {"offset": offset})))
        assert message.properties["SAVE"] == "p17"
        mender.damage(b"p17")
        core.store.log.blocks.repaired(mender.asked)
        fields = {"offset": offset, "group": "group", "delayLevel": 0}
        await client.invoke(addr, pull_request("t", 0))  # makes the group
        assert (await client.invoke(addr, Command(CONSUMER_SEND_MSG_BACK.code, fields))).code == 0
        assert len(mender.asked) == 2


async def test_a_reader_is_told_to_wait_while_nobody_can_mend_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_reads, "MEND_TIMEOUT_S", 0.01)
    async with damaged(monkeypatch, b"017" + BODY) as (client, addr, core, mender):
        for _ in range(2):
            busy = await client.invoke(addr, pull_request("t", 0))
            assert busy.code == ResponseCode.SYSTEM_BUSY and "damaged" in str(busy.remark)
        after = await client.invoke(addr, pull_request("t", COUNT - 1))
        assert after.code == 0 and messages(after)[0].body.startswith(b"%03d" % (COUNT - 1))
        assert (await client.invoke(addr, send_request("t", b"more"))).code == 0
        # Figures are there all the same, also of messages of the damaged block.
        assert (await client.invoke(addr, Command(GET_BROKER_RUNTIME_INFO.code))).code == 0
        assert core.store.first_store_time("t", 0) > 0
        mender.can_mend.set()
        await until(lambda: not core.cold.hold or not core.cold.hold.blocks, "it is mended")
        assert messages(await client.invoke(addr, pull_request("t", 17)))[0].body.startswith(b"017")
        assert len(mender.asked) == 1


async def test_a_damaged_message_is_skipped_after_the_hold_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.broker.damage_hold.LATER_S", 0.01)
    monkeypatch.setattr(cold_reads, "MEND_TIMEOUT_S", 1_000.0)
    options = {"damaged_hold_ms": 0, "max_transfer_bytes_on_message_in_memory": 1 << 20}
    async with damaged(monkeypatch, b"p17", **options) as (client, addr, core, mender):
        core.cold.healer = None
        found = [message.body[:3] for message in messages(await client.invoke(addr, pull_request("t", 10)))]
        assert found[:10] == [b"%03d" % number for number in range(10, 21) if number != 17]
        view = {"offset": core.store.queues.get("t", 0).entry(17)[0]}
        assert (await client.invoke(addr, Command(VIEW_MESSAGE_BY_ID.code, view))).code == ResponseCode.SYSTEM_ERROR
        mender.can_mend.set()
        core.cold.healer = mender
        await until(lambda: not core.store.log.blocks.given_up, "it is mended")
        found = [message.body[:3] for message in messages(await client.invoke(addr, pull_request("t", 10)))]
        assert found[:10] == [b"%03d" % number for number in range(10, 20)]
