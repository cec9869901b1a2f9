"""Keys read in runs are those that records hold, whatever stands beside them in the log."""

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.index.log_keys import LogKeys
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.flags import BORN_HOST_V6, TRANSACTION_ROLLBACK, WRAPPED
from skylark.mqcommon.message.javahash import KeyHasher, java_hash
from skylark.mqcommon.message.record import decode_record, encode_record, topic_field
from skylark.mqcommon.message.record_keys import index_keys, record_keys

BASE = 1 << 33
STORE_HOST = bytes(8)


def keys(prefix: str) -> list[bytes]:
    return [f"{prefix}{number:04X}".encode() for number in range(9)]


PROPERTIES = [
    *(b"UNIQ_KEY\x01%s\x02CLUSTER\x01c\x02" % key for key in [*keys("7F00"), *keys("7F01"), *keys("")]),
    *(b"TAGS\x01t\x02UNIQ_KEY\x01%s\x02W\x01%s\x02" % (key, b"v" * 150) for key in keys("A")),
    *(b"UNIQ_KEY\x01%s\x02KEYS\x01a %s\x02" % (key, key) for key in keys("B")),
    *(b"KEYS\x01%s\x02UNIQ_KEY\x01%s\x02" % (key, key) for key in keys("C")),
    # Of one size, in both orders, with one word and with several.
    *(b"UNIQ_KEY\x017F00%s\x02KEYS\x01order7F0%s\x02W\x01t\x02" % (key[-4:], key) for key in keys("G")),
    *(b"KEYS\x01%s\x02W\x01t\x02UNIQ_KEY\x017F00%s\x02" % (key, key[-4:]) for key in keys("order7F0G")),
    *(b"KEYS\x01%s\x02W\x01t\x02UNIQ_KEY\x017F00AAAA\x02" % word for word in (b"order7F0 0000", b"order7F0G00 0")),
    b"KEYS\x01order7F0\x0200\x02W\x01t\x02UNIQ_KEY\x017F00AAAA\x02",
    b"KEYS\x01order7F0G000\t\x02W\x01t\x02UNIQ_KEY\x017F00AAAA\x02",
    *(b"xUNIQ_KEY\x01%s\x02UNIQ_KEY\x01%s\x02" % (key, key[::-1]) for key in keys("D")),
    *(b"UNIQ_KEY\x01\xc3\xbc%s\x02" % key for key in keys("E")),
    *(b"UNIQ_KEY\x01E%s\xc3\xbc\x02" % key for key in keys("")),
    *(b"UNIQ_KEY\x01%s" % key for key in keys("F")),
    # A Java client of 5.x puts a batch's own unique key after the unique key of each message: the last one counts.
    *(b"UNIQ_KEY\x01%s\x02W\x01t\x02UNIQ_KEY\x017F00BBBB\x02" % key for key in keys("7F00")),
    b"UNIQ_KEY\x01ab\x02",
    b"UNIQ_KEY\x01\x02",
    b"UNIQ_KEY\x017FKEYS\x01A\x02",
    b"CLUSTER\x01c\x02",
    b"",
]
TOPICS = ["t", "u", "tt", "\xfcber", "long" * 40]
rows = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from([0, 5, 100]),
    st.sampled_from(PROPERTIES),
    st.sampled_from([0, 0, 0, 0, BORN_HOST_V6, TRANSACTION_ROLLBACK]),
)
# Many records of nearly one layout, and any others between them.
groups = st.lists(st.tuples(rows, st.integers(1, 30), st.sampled_from(["same", "keys", "times"])), max_size=12)
Row = tuple[str, int, bytes, int]


def written(groups: list[tuple[Row, int, str]]) -> list[bytes]:
    """The records, as the log holds them."""
    raw: list[bytes] = []
    at, now_ms = BASE, 1_700_000_000_000
    for (topic, body_bytes, properties, sys_flag), count, change in groups:
        for number in range(count):
            if change == "keys":
                properties = properties.replace(b"7F0", b"7E0").replace(b"00", b"%02X" % number, 1)
            elif change == "times":
                now_ms += number
            magic, tail = topic_field(topic)
            born_host = bytes(20 if sys_flag & BORN_HOST_V6 else 8)
            record = encode_record(
                magic, tail, 0, len(raw), at, bytes([number]) * body_bytes, properties, 0, sys_flag, 0, born_host,
                now_ms, STORE_HOST, 0, 0,
            )  # fmt: skip
            raw.append(record)
            at += len(record)
    return raw


def expected(records: list[bytes]) -> list[tuple[int, int, int]]:
    """The entries, made as RocketMQ makes them."""
    found = []
    for raw in records:
        record = decode_record(raw)
        if record.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
            continue
        for key in index_keys(record.properties):
            code = abs(java_hash(f"{record.topic}#{key.decode('utf-8', 'replace')}"))
            found.append((code & 0x7FFFFFFF, record.physical_offset, record.store_timestamp))
    return found


@given(groups, st.integers(1, 60))
def test_runs_give_what_records_read_one_by_one_give(groups: list[tuple[Row, int, str]], limit: int) -> None:
    records = written(groups)
    size = sum(map(len, records))
    view = mmap.mmap(-1, size + 100)
    view[:size] = b"".join(records)
    reader = LogKeys(KeyHasher())
    found: list[tuple[int, int, int]] = []
    at = read = 0
    while at < size:
        entries, at, done = reader.read(view, at, size, BASE, limit)
        assert 0 < done <= limit
        read += done
        found += zip(*entries, strict=True)
        assert at == sum(map(len, records[:read]))
    assert read == len(records) and found == expected(records)


TWO_KEYS = b"KEYS\x01order7F0G0000\x02W\x01t\x02UNIQ_KEY\x017F00AAAA\x02"


@pytest.mark.parametrize("value", [b"order7F0G0000", b"7F00AAAA"])
@pytest.mark.parametrize("mark", [b" ", b"\t", b"\x02", b"\x01", b"x"])
def test_a_record_that_differs_from_its_neighbours_in_one_byte_has_its_own_keys(value: bytes, mark: bytes) -> None:
    for at in range(len(value)):
        odd = TWO_KEYS.replace(value, value[:at] + mark + value[at + 1 :])
        rows: list[Row] = [("t", 5, properties, 0) for properties in (TWO_KEYS, odd, TWO_KEYS)]
        records = written([(rows[0], 20, "same"), (rows[1], 1, "same"), (rows[2], 20, "same")])
        view = mmap.mmap(-1, sum(map(len, records)))
        view[:] = b"".join(records)
        entries, _, done = LogKeys(KeyHasher()).read(view, 0, len(view), BASE, 1000)
        assert done == 41 and list(zip(*entries, strict=True)) == expected(records)


@pytest.mark.parametrize("keys", [b"KEYS\x01ab\x02", b"MONKEYS\x01ABCD\x02", b"KEYS\x01ABCD\x02KEYS\x01EFGH\x02"])
def test_records_with_unusual_keys_have_their_keys(keys: bytes) -> None:
    records = written([(("t", 5, b"UNIQ_KEY\x017F00AAAA\x02" + keys, 0), 20, "same")])
    view = mmap.mmap(-1, sum(map(len, records)))
    view[:] = b"".join(records)
    entries, _, _ = LogKeys(KeyHasher()).read(view, 0, len(view), BASE, 1000)
    assert list(zip(*entries, strict=True)) == expected(records)


def test_reading_keys_ends_where_no_record_is() -> None:
    records = written([(("t", 5, b"UNIQ_KEY\x01ABCD1234\x02", 0), 40, "same")])
    data = b"".join(records)
    view = mmap.mmap(-1, len(data) + 1000)
    view[: len(data)] = data
    entries, at, done = LogKeys(KeyHasher()).read(view, 0, len(view), BASE, 1000)
    assert (at, done, len(entries.hashes)) == (len(data), 40, 40)


def test_a_record_that_cannot_be_read_has_no_keys() -> None:
    records = written([(("t", 5, b"UNIQ_KEY\x01ABCD1234\x02", 0), 3, "same")])
    # The body's length points behind the record.
    records[1] = records[1][:84] + b"\x00\x00\xff\xff" + records[1][88:]
    data = b"".join(records)
    view = mmap.mmap(-1, len(data))
    view[:] = data
    entries, at, done = LogKeys(KeyHasher()).read(view, 0, len(data), BASE, 1000)
    assert (at, done) == (len(data), 3)
    assert entries.physicals == [BASE, BASE + 2 * len(records[0])]


@pytest.mark.parametrize("own", [b"", b"UNIQ_KEY\x01AAAA0003\x02", b"UNIQ_KEY\x01other\x02KEYS\x01a b\x02"])
@pytest.mark.parametrize(
    "last",
    [
        b"UNIQ_KEY\x01AAAA9999\x02",
        b"UNIQ_KEY\x01AAAA0001\x02",  # the key of another one
        b"UNIQ_KEY\x01AB\x02KEYS\x01",  # of the same size, with another property
        "UNIQ_KEY\x01AAAA00ä\x02".encode(),
        b"UNIQ_KEY\x01AAAA99999\x02",  # of another size
    ],
)
@pytest.mark.parametrize("by_columns", [False, True])
def test_the_keys_of_an_inner_batch_are_found_whatever_their_form(own: bytes, last: bytes, by_columns: bool) -> None:
    # Of their hashes half are negative.
    rows = [(0, b"body", b"UNIQ_KEY\x01%cAAA%04d\x02" % (65 + number, number)) for number in range(20)]
    magic, tail = topic_field("t")
    batch = encode_batch([*rows, (0, b"body", last)])
    record = encode_record(magic, tail, 0, 0, BASE, batch, own, 0, WRAPPED, 0, bytes(8), 7, STORE_HOST, 0, 0)
    view = mmap.mmap(-1, len(record))
    view[:] = record
    reader = LogKeys(KeyHasher())
    reader.np = pytest.importorskip("numpy") if by_columns else None
    entries, _, _ = reader.read(view, 0, len(record), BASE, 100)
    keys = record_keys(decode_record(record))
    assert set(entries.hashes) == {KeyHasher().index_hash(b"t#" + key) for key in keys} and len(keys) >= 20
    assert len(entries.hashes) == len(set(entries.hashes))
    assert set(entries.physicals) == {BASE} and set(entries.times_ms) == {7}
