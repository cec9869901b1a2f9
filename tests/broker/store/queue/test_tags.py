"""What stands in a queue beside a message's place."""

import pytest

from skylark.broker.commands.verify_store import verify
from skylark.broker.store.queue.delay_levels import DEFAULT
from skylark.broker.store.queue.tags import TagCodes
from skylark.mqcommon.message.javahash import java_hash
from skylark.mqcommon.message.record import Record, decode_record, encode_record, topic_field
from skylark.mqcommon.names import SCHEDULE_TOPIC
from tests.broker.store.support import BORN_HOST, SMALL, open_store
from tests.support.clock import ManualClock
from tests.support.memory_files import MemoryFiles

STORED_MS = 1_700_000_000_000


def record(topic: str, properties: bytes) -> Record:
    host = bytes(8)
    return decode_record(
        encode_record(*topic_field(topic), 0, 0, 0, b"", properties, 0, 0, 0, host, STORED_MS, host, 0, 0)
    )


def test_the_hash_of_the_tag() -> None:
    codes = TagCodes()
    for _ in range(2):
        assert codes.of_record(record("t", b"DELAY\x013\x02TAGS\x01TagA\x02")) == java_hash("TagA")
        assert codes.of_record(record("t", b"KEYS\x01TAGS\x02")) == 0


@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (3, 10), (5, 60), (18, 7200), (99, 7200)])
def test_of_a_message_that_waits_it_is_when_it_is_due(level: int, seconds: int) -> None:
    found = TagCodes().of_record(record(SCHEDULE_TOPIC, b"TAGS\x01TagA\x02DELAY\x01%d\x02" % level))
    assert found == STORED_MS + seconds * 1000


@pytest.mark.parametrize(
    "properties", [b"TAGS\x01a\x02", b"TAGS\x01a\x02DELAY\x010\x02", b"TAGS\x01a\x02DELAY\x01x\x02"]
)
def test_without_a_level_it_is_the_tag(properties: bytes) -> None:
    assert TagCodes().of_record(record(SCHEDULE_TOPIC, properties)) == java_hash("a")


def test_a_java_brokers_delay_queues_are_made_anew_and_are_no_damage() -> None:
    fs = MemoryFiles()
    store = open_store(fs, ManualClock(STORED_MS))
    for level in range(1, 19):
        properties = b"DELAY\x01%d\x02" % level
        store.put(SCHEDULE_TOPIC, level - 1, b"body", properties, born_timestamp=1, born_host=BORN_HOST)
    # Such a broker notes times, after levels that its conf may name.
    for queue in store.queues:
        raw = store.record_at(queue.entry(0)[0])
        assert raw is not None
        queue.put_record(decode_record(raw), STORED_MS + 77)
    store.close()
    lines: list[str] = []
    assert verify(fs, SMALL, repair=False, say=lines.append), lines
    for path in fs.paths():
        if path.startswith("/store/consumequeue"):
            fs.remove(path)
    store = open_store(fs, ManualClock(STORED_MS))
    found = [store.queues.get(SCHEDULE_TOPIC, number).entry(0)[2] for number in range(18)]
    assert found == [STORED_MS + delay_ms for delay_ms in DEFAULT.delays_ms]
