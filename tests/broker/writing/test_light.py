"""Light queues of messages that wait for something before they are delivered."""

import logging

import pytest

from skylark.broker.observe.stats import BrokerStats
from skylark.broker.store.store import PutResult
from skylark.broker.writing.deferred import from_level
from skylark.mqcommon.errors import RequestRefused
from skylark.mqcommon.message.light import light_places
from skylark.mqcommon.message.properties import LIGHT_QUEUES, find_property
from skylark.mqcommon.message.record import decode_record
from skylark.remoting.protocol.codes import ResponseCode
from tests.broker.meta.support import MetadataDir, options
from tests.broker.store.support import HOST, bodies, open_store
from tests.broker.writing.support import make_sends

LEVEL, TIMED, HALF = b"DELAY\x011\x02", b"TIMER_DELAY_MS\x015000\x02", b"TRAN_MSG\x01true\x02PGROUP\x01p\x02"


class Desk:
    """A Writer with room for two light queues."""

    def __init__(self) -> None:
        meta = MetadataDir(options(enable_multi_dispatch=True, max_lmq_consume_queue_num=2))
        self.store = open_store(meta.fs, meta.clock)
        stats = BrokerStats(meta.clock, now=lambda: 0.0)
        self.writer = make_sends(self.store, meta.topics, meta.options, meta.clock, stats=stats).writer

    def put(self, body: bytes, names: str, properties: bytes = b"") -> PutResult:
        light = f"{LIGHT_QUEUES}\x01{names}\x02".encode()
        return self.writer.put("t", 0, body, properties + light, 0, 0, 1, HOST)

    def deliver(self, put: PutResult) -> bytes:
        """Deliver a message with a delay level; returns its properties."""
        waiting, now = self.store.record_at(put.physical_offset), self.store.log.end
        assert waiting is not None
        self.writer.put_again(from_level(decode_record(waiting)))
        raw = self.store.record_at(now)
        assert raw is not None
        return decode_record(raw).properties


@pytest.mark.parametrize("asks", [LEVEL, TIMED, HALF])
@pytest.mark.parametrize(
    ("names", "code"),
    [
        ("%LMQ%bad name!", ResponseCode.INVALID_PARAMETER),
        ("light", ResponseCode.MESSAGE_ILLEGAL),
        ("%LMQ%a,%LMQ%b,%LMQ%c", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_deferred_message_with_light_queues_that_it_cannot_have_is_refused(
    asks: bytes, names: str, code: int
) -> None:
    desk = Desk()
    with pytest.raises(RequestRefused) as refused:
        desk.put(b"x", names, asks)
    assert refused.value.code == code
    assert desk.store.log.end == 0


def test_a_delivered_message_that_cannot_have_its_light_queues_is_in_its_topic_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    late = [desk.put(body, "%LMQ%c", LEVEL + b"INNER_MULTI_QUEUE_OFFSET\x017\x02") for body in (b"late", b"later")]
    early = desk.put(b"early", "%LMQ%a", LEVEL)
    desk.put(b"plain", "%LMQ%a,%LMQ%b")
    with caplog.at_level(logging.ERROR):
        for put in late:
            properties = desk.deliver(put)
            assert find_property(properties, LIGHT_QUEUES.encode()) == b"%LMQ%c"
            assert light_places(properties) == []
        assert light_places(desk.deliver(early)) == [("%LMQ%a", 1)]
        desk.deliver(late[0])
    assert bodies(desk.store, "t", 0) == [b"plain", b"late", b"later", b"early", b"late"]
    assert caplog.text.count("are not put into their light queues: code 1") == 2, "once until one is put there again"
    assert desk.store.max_offset("%LMQ%c", 0) == 0
