"""Messages whose entries a start could not make of damaged bytes get them when the block is right again."""

from skylark.broker.healing.repaired_entries import fill_blanks, records_in
from skylark.broker.store.queue.entry import BLANK_SIZE, ENTRY
from skylark.broker.store.reader import GetStatus
from skylark.broker.store.store import MessageStore
from skylark.mqcommon.message.record import decode_record
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles

BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
COUNT, MISSING = 9, 4


def filled_store() -> MessageStore:
    store = open_store(MemoryFiles())
    for number in range(COUNT):
        put(store, "t", 0, b"message %d" % number, b"TAGS\x01a\x02")
    store.checkpoint(with_ends=True)
    return store


def replace(store: MessageStore, offset: int, new: bytes) -> None:
    queue = store.queues.get("t", 0)
    assert queue.replace_entries(offset, ENTRY.pack(*queue.entry(offset)), new) == [offset]


def test_a_blank_entry_is_filled_with_the_record_that_belongs_there() -> None:
    store = filled_store()
    before = store.queues.get("t", 0).entry(MISSING)
    replace(store, MISSING, BLANK)
    assert store.get("t", 0, MISSING, 1, 1000).status is GetStatus.NO_MATCHED_MESSAGE
    (block,) = store.log.sums.blocks(0, store.log.end)
    assert fill_blanks(store, records_in(store.log, block)) == 1
    assert store.queues.get("t", 0).entry(MISSING) == before
    assert decode_record(store.get("t", 0, MISSING, 1, 1000).records).body == b"message %d" % MISSING
    assert fill_blanks(store, records_in(store.log, block)) == 0


def test_a_record_of_an_earlier_topic_of_the_name_fills_no_blank() -> None:
    store = filled_store()
    (block,) = store.log.sums.blocks(0, store.log.end)
    of_earlier_topic = records_in(store.log, block)
    store.delete_topic("t")
    for number in range(COUNT):
        put(store, "t", 0, b"new %d" % number)
    store.checkpoint(with_ends=True)
    replace(store, MISSING, BLANK)
    assert fill_blanks(store, of_earlier_topic) == 0
