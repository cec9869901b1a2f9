"""When a file of the log begins, read from its first bytes."""

from broker.store.log.log_files import stored_ms
from mqcommon.message.flags import BORN_HOST_V6
from mqcommon.message.record import decode_record
from tests.broker.store.support import open_store, put
from tests.support.memory_files import MemoryFiles


def test_the_store_time_of_a_file_is_that_of_the_record_it_begins_with() -> None:
    store = open_store(MemoryFiles())
    put(store, "t", 0, b"v4")
    end = store.put("t", 0, b"v6", b"", sys_flag=BORN_HOST_V6, born_timestamp=1, born_host=bytes(20)).physical_offset
    for offset in (0, end):
        raw = store.record_at(offset)
        assert raw is not None
        assert stored_ms(raw) == decode_record(raw).store_timestamp
    assert stored_ms(bytes(100)) is None
    assert stored_ms(b"") is None
