"""Batches of messages of one size: stored row by row until numpy is loaded, then by columns, with the same bytes."""

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from skylark.broker.store.queue.batch_columns import UniformBatch
from skylark.broker.store.queue.batch_records import Batch
from skylark.broker.store.store import BatchPutResult
from skylark.broker.writing import send_handlers
from skylark.broker.writing.stored_properties import Row
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.batch import decode_offsets, encode_batch
from skylark.mqcommon.message.record import decode_record
from skylark.remoting.protocol.command import CBOR
from skylark.remoting.protocol.requests.sends import SEND_BATCH_MESSAGE
from tests.broker.meta.support import MetadataDir
from tests.broker.running import send_request
from tests.broker.store.support import SMALL, open_store
from tests.broker.writing.support import make_sends
from tests.support.caller import Caller

ROWS: list[Row] = [(number, b"body %04d" % number, b"UNIQ_KEY\x01%032d\x02" % number) for number in range(100)]


class Broker:
    """The send handlers of a broker, and its store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        meta = MetadataDir()
        self.store = open_store(meta.fs, meta.clock, replace(SMALL, commitlog_segment_bytes=1024 * 1024))
        self.sends = make_sends(self.store, meta.topics, meta.options, meta.clock).handlers
        self._channel = Caller().channel
        self.by_columns = 0
        put_batch = self.store.put_batch

        def counted(topic: str, queue_id: int, batch: Batch, **named: Any) -> BatchPutResult:
            self.by_columns += isinstance(batch, UniformBatch)
            return put_batch(topic, queue_id, batch, **named)

        monkeypatch.setattr(self.store, "put_batch", counted)

    def stored(self, rows: list[Row] = ROWS) -> list[Any]:
        """Send the batch; its records, without what differs from batch to batch."""
        request = send_request("t", encode_batch(rows))
        request.code, request.codec = SEND_BATCH_MESSAGE.code, CBOR
        answer = self.sends.handlers()[request.code](self._channel, request)
        assert answer is not None and answer.ext is not None
        found = []
        first: int = answer.ext["queueOffset"]
        for number, offset in enumerate(decode_offsets(answer.body)):
            size = int.from_bytes(self.store.log.read(offset, 4), "big")
            record = decode_record(self.store.log.read(offset, size))
            assert (record.physical_offset, record.queue_offset) == (offset, first + number)
            found.append(record._replace(physical_offset=0, queue_offset=0, store_timestamp=0))
        return found


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    broker = Broker(monkeypatch)
    yield broker
    broker.store.close()


def rows_with(properties: bytes) -> list[Row]:
    return [(flag, body, key + properties.replace(b"%", b"%04d" % flag)) for flag, body, key in ROWS]


@pytest.mark.parametrize("more", [b"", b"KEYS\x01order-%\x02WAIT\x01true\x02TAGS\x01paid\x02", b"TAGS\x01%\x02"])
async def test_columns_come_after_the_first_batch_and_give_the_same_records(broker: Broker, more: bytes) -> None:
    rows = broker.stored(rows_with(more))
    assert [record.body for record in rows] == [body for _, body, _ in ROWS]
    pytest.importorskip("numpy")
    # It returns when numpy is loaded.
    await broker.sends.run()
    assert broker.stored(rows_with(more)) == rows and broker.by_columns == 1
    result = broker.store.get("t", 0, 0, 1000, 1 << 20)
    assert result.next_offset == 2 * len(ROWS)


@pytest.mark.parametrize(
    "special", [b"DELAY\x013\x02", b"TIMER_DELIVER_MS\x0199999999999999\x02", b"TRAN_MSG\x01true\x02"]
)
async def test_a_message_that_no_batch_may_have_is_refused_by_columns_too(broker: Broker, special: bytes) -> None:
    broker.stored()
    await broker.sends.run()
    with pytest.raises(RequestRefused, match="delayed or in a transaction"):
        broker.stored(rows_with(special))
    assert not broker.by_columns


@pytest.mark.parametrize("special", [b"CLUSTER\x01other\x02", b"INNER_MULTI_DISPATCH\x01a,b\x02"])
async def test_properties_that_must_be_looked_at_are_seen_row_by_row(broker: Broker, special: bytes) -> None:
    """The broker's own are set anew; light queues are refused where there are some."""
    expected = broker.stored(rows_with(special))
    await broker.sends.run()
    assert broker.stored(rows_with(special)) == expected and not broker.by_columns
    assert b"other" not in expected[0].properties


async def test_a_numpy_that_cannot_be_loaded_is_told_and_hurts_nobody(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("built for another processor")

    monkeypatch.setattr(send_handlers, "Columns", broken)
    rows = broker.stored()
    await broker.sends.run()
    assert broker.stored() == rows and not broker.by_columns
    assert [record.message for record in caplog.records if record.name == send_handlers.__name__] == [
        "numpy cannot be loaded, so batches are stored row by row, which is slower: built for another processor"
    ]


async def test_without_numpy_batches_are_stored_all_the_same(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    rows = broker.stored()
    await broker.sends.run()
    assert broker.stored() == rows and not broker.by_columns
