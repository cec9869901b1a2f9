"""Torn copies of records are told from whole ones, whatever bytes the properties hold."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.log.log_files import stored_ms
from skylark.broker.store.log.valid_record import SECTOR_BYTES, sealed, torn_reason, valid_record
from skylark.mqcommon.message.flags import BORN_HOST_V6
from skylark.mqcommon.message.record import Record, decode_record
from tests.broker.store.support import new_store, open_store, put, read_all
from tests.support.memory_files import MemoryFiles

LOG = "/store/commitlog/00000000000000000000"
END = b"CLUSTER\x01DefaultCluster\x02"
# As the send handlers make them: they end in \x02, and many zeros in a row are sealed.
PROPERTIES = [
    b"k\x01value\x02" + END,
    b"k\x01a\0b\0\x02" + END,
    b"k\x01" + b"0123456789" * 150 + b"\x02" + END,
    b"\0\x01\0\x02" * 100 + END,
    sealed(b"k\x01" + b"x" * 500 + bytes(1700) + b"\x02") + END,
]


def stored(properties: bytes, body: bytes) -> tuple[MemoryFiles, int, int]:
    """A disk with two messages in the page cache, and where the second begins and ends."""
    fs = MemoryFiles()
    store = open_store(fs)
    put(store, "t", 0, b"first")
    start = store.log.end
    put(store, "t", 0, body, properties)
    return fs, start, store.log.end


def is_cut(fs: MemoryFiles, log: bytes, *, killed: bool) -> bool:
    """Whether a start on ``log``, with the rest as it is, cuts the second message."""
    after = fs.killed()
    after.boots += not killed
    after.overwrite(LOG, log)
    for path in after.paths():
        if "/consumequeue/" in path:
            after.remove(path)  # entries are written after their record
    store = new_store(after)
    report = store.open()
    messages = len(read_all(store, "t", 0))
    assert messages == 1 or not report.torn_reason
    return messages == 1


@pytest.mark.parametrize("number", range(len(PROPERTIES)))
def test_what_a_kill_cut_short_is_cut_off(number: int) -> None:
    properties = PROPERTIES[number]
    fs, start, end = stored(properties, b"body")
    log = fs.read(LOG)
    cuts = {*range(start + 1, start + 120, 7), *range(end - len(END) - 5, end)}
    for cut in cuts:
        assert is_cut(fs, log[:cut].ljust(len(log), b"\0"), killed=True), cut
    assert not is_cut(fs, log, killed=True)


@pytest.mark.parametrize("number", range(len(PROPERTIES)))
def test_a_message_that_lost_a_sector_is_cut_off(number: int) -> None:
    for body_bytes in (0, 3, 300):
        fs, start, end = stored(PROPERTIES[number], bytes(body_bytes))
        log = fs.read(LOG)
        for sector in range(start // SECTOR_BYTES * SECTOR_BYTES, end, SECTOR_BYTES):
            torn = log[:sector] + bytes(SECTOR_BYTES) + log[sector + SECTOR_BYTES :]
            if torn != log and sector > start - SECTOR_BYTES and sector >= start:
                assert is_cut(fs, torn, killed=False), sector
        assert not is_cut(fs, log, killed=False)


@given(st.integers(0, 2**32))
def test_only_what_can_be_torn_is_called_torn(seed: int) -> None:
    """Zeros among other bytes are no sign of it, nor are zeros at the end when something follows."""
    random = Random(seed)
    zeros = bytes(random.randrange(1, SECTOR_BYTES - 1))
    properties = b"k\x01a" + zeros + random.choice([b"b\x02", b""])
    fs, start, end = stored(properties, bytes(random.randrange(600)))
    log = fs.read(LOG)
    record, _ = valid_record(log[start:end], start)
    assert isinstance(record, Record)
    followed = log[:end] + b"\0\0\0\x70\xda\xa3\x20\xa7" + log[end + 8 :]
    assert torn_reason(followed, start, record, lost_sectors=True) == ""
    assert bool(torn_reason(log, start, record, lost_sectors=False)) == (properties[-1] == 0)


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
