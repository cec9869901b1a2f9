"""Batches that would hold up the loop are stored in steps; others are served between them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest
import trio

from skylark.broker.writing import send_handlers
from skylark.broker.writing.send_handlers import BATCH_AT_ONCE
from skylark.mqcommon.errors import DiskFull, RequestRefused
from skylark.mqcommon.message.batch import decode_offsets, encode_batch
from skylark.mqcommon.message.record import decode_record
from skylark.remoting.net.server import RunInTask
from skylark.remoting.protocol.codes import ResponseCode
from skylark.remoting.protocol.command import CBOR, Command
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2
from skylark.sdk.producer.batches import BATCH_COUNT
from skylark.sdk.producer.lane import MAX_BATCH_COUNT
from tests.broker.meta.support import MetadataDir
from tests.broker.running import send_request
from tests.broker.store.support import SMALL, open_store
from tests.broker.writing.support import make_sends
from tests.support.caller import Caller

# In these tests: the most messages of a batch that is stored at once, and of any batch.
AT_ONCE, MOST = 100, 400


class Broker:
    """The send handlers of a broker, and its store."""

    def __init__(self) -> None:
        meta = MetadataDir()
        self.store = open_store(meta.fs, meta.clock, replace(SMALL, commitlog_segment_bytes=1024 * 1024))
        self.channel = Caller().channel
        self.turns = 0
        sends = make_sends(self.store, meta.topics, meta.options, meta.clock, turned=self.turned)
        self.handlers = sends.handlers.handlers()

    def turned(self) -> None:
        self.turns += 1

    def send(self, body: bytes) -> Command | None:
        return self.handlers[SEND_MESSAGE_V2.code](self.channel, send_request("t", body))

    async def send_batch(self, rows: list[tuple[int, bytes, bytes]], **ext: Any) -> Command:
        request = send_request("t", encode_batch(rows), **ext)
        request.code, request.codec = SEND_BATCH_MESSAGE.code, CBOR
        with pytest.raises(RunInTask) as long:
            self.handlers[request.code](self.channel, request)
        return cast(Command, await long.value.handler(self.channel, request))

    def bodies(self, offsets: tuple[int, ...]) -> list[bytes]:
        log = self.store.log
        sizes = [int.from_bytes(log.read(offset, 4), "big") for offset in offsets]
        return [decode_record(log.read(*span)).body for span in zip(offsets, sizes, strict=True)]


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(send_handlers, "BATCH_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(send_handlers, "MAX_MESSAGES", MOST)
    broker = Broker()
    yield broker
    broker.store.close()


def rows_of(count: int) -> list[tuple[int, bytes, bytes]]:
    return [(0, b"%d" % number, b"") for number in range(count)]


async def test_others_are_served_while_a_large_batch_is_stored(broker: Broker) -> None:
    rows = rows_of(3 * AT_ONCE + 1)
    ends: list[int] = []

    async def send_others() -> None:
        while True:
            broker.send(b"other")
            ends.append(broker.store.log.end)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_others)
        answer = await broker.send_batch(rows)
        nursery.cancel_scope.cancel()
    offsets = decode_offsets(answer.body)
    assert answer.code == 0 and answer.ext is not None
    assert broker.bodies(offsets) == [body for _, body, _ in rows]
    assert any(offsets[0] < end < offsets[-1] for end in ends), "no send came between"
    # Consumers, flusher and slaves hear of each part.
    assert broker.turns == 4


@pytest.mark.parametrize(
    ("rows", "ext", "code"),
    [
        ([*rows_of(AT_ONCE), (0, b"late", b"DELAY\x013\x02")], {}, ResponseCode.MESSAGE_ILLEGAL),
        (rows_of(MOST + 1), {}, ResponseCode.MESSAGE_ILLEGAL),
        (rows_of(AT_ONCE + 1), {"g": 1 << 64}, ResponseCode.SYSTEM_ERROR),
    ],
    ids=["its last message is delayed", "too many messages", "a number is too large"],
)
async def test_nothing_is_stored_of_a_large_batch_that_cannot_be_taken(
    broker: Broker, rows: list[tuple[int, bytes, bytes]], ext: dict[str, Any], code: int
) -> None:
    with pytest.raises(RequestRefused) as refusal:
        await broker.send_batch(rows, **ext)
    assert refusal.value.code == code and broker.store.log.end == 0


async def test_the_largest_batch_is_taken(broker: Broker) -> None:
    answer = await broker.send_batch(rows_of(MOST))
    assert len(decode_offsets(answer.body)) == MOST


def test_batches_of_our_producers_are_stored_at_once() -> None:
    # They count queue offsets up from the first one.
    assert max(MAX_BATCH_COUNT, BATCH_COUNT) <= BATCH_AT_ONCE


async def test_a_disk_that_fills_up_meanwhile_is_told(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    put_batch = broker.store.put_batch

    def full_later(*args: Any, **kwargs: Any) -> Any:
        if broker.turns:
            raise DiskFull("no space left")
        return put_batch(*args, **kwargs)

    monkeypatch.setattr(broker.store, "put_batch", full_later)
    with pytest.raises(RequestRefused, match="disk is full"):
        await broker.send_batch(rows_of(2 * AT_ONCE))
