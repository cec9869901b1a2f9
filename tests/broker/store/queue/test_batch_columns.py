"""Records that are made by columns are those that are made row by row."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.log.valid_record import SECTOR_BYTES
from skylark.broker.store.queue.batch_columns import LEAST, MOST, Columns
from skylark.broker.store.queue.batch_records import RecordPlace, Row, RowBatch
from skylark.broker.store.queue.tags import TagCodes
from skylark.mqcommon.message.batch import encode_batch
from skylark.mqcommon.message.flags import BORN_HOST_V6, STORE_HOST_V6
from skylark.mqcommon.message.layout import HEADS, PROPERTIES_LENGTH
from skylark.mqcommon.message.record import BatchHead, decode_record, topic_field

pytest.importorskip("numpy")
COLUMNS = Columns()
SUFFIX = b"MSG_REGION\x01DefaultRegion\x02CLUSTER\x01c\x02"
HOSTS = st.sampled_from([bytes(range(8)), bytes(range(20))])


def batch_of(bodies: list[bytes], flags: list[int], key_bytes: int = 32) -> list[tuple[int, bytes, bytes]]:
    return [
        (flag, body, b"UNIQ_KEY\x01%s\x02" % (b"%x" % number).rjust(key_bytes, b"0"))
        for number, (flag, body) in enumerate(zip(flags, bodies, strict=True))
    ]


@given(
    st.integers(LEAST, 3 * LEAST),
    st.integers(0, 300),
    st.integers(),
    HOSTS,
    HOSTS,
    st.text("ab%/", min_size=1, max_size=200),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 62),
)
def test_the_bytes_are_the_same(
    count: int, body_bytes: int, seed: int, born: bytes, stored: bytes, topic: str, start: int, number: int
) -> None:
    random = Random(seed)
    bodies = [random.randbytes(body_bytes) for _ in range(count)]
    rows = batch_of(bodies, [random.randrange(-(1 << 31), 1 << 31) for _ in range(count)])
    magic, tail = topic_field(topic)
    hosts = (BORN_HOST_V6 if len(born) > 8 else 0) | (STORE_HOST_V6 if len(stored) > 8 else 0)
    head = BatchHead(magic, 3, 5 | hosts, 1_700_000_000_000, born, 1_700_000_000_001, stored, 2)
    uniform = COLUMNS.of(encode_batch(rows))
    assert uniform is not None
    overhead = HEADS[hosts].size + len(tail) + PROPERTIES_LENGTH.size + len(SUFFIX)
    place = RecordPlace(head, tail, SUFFIX, overhead, start, number)
    one_by_one = RowBatch(rows)
    assert len(uniform) == len(one_by_one) == count and uniform.most_properties == one_by_one.most_properties
    made, wanted = [each.make(place, lambda _: 0) for each in (uniform, one_by_one)]
    assert made[:2] == wanted[:2] and list(made.physical_offsets) == wanted.physical_offsets
    assert len(made.records) == uniform.total_bytes(overhead) == one_by_one.total_bytes(overhead)
    last = decode_record(made.records, made.physical_offsets[-1] - start)
    assert (last.topic, last.body, last.queue_offset) == (topic, rows[-1][1], number + count - 1)


@given(
    st.lists(st.sampled_from([b"ab", b"cd", b"\x02=", b"\x01="]), min_size=LEAST, max_size=2 * LEAST),
    st.sampled_from([b"%s", b"TAGS\x01%s", b"TAGS\x01ab\x02a\x01%s", b"XTAGS\x01%s", b"TAGS\x01ab\x02TAGS\x01%s"]),
    st.booleans(),
)
def test_entries_have_the_codes_of_tags(values: list[bytes], properties: bytes, is_first: bool) -> None:
    rows: list[Row] = []
    for number, value in enumerate(values):
        pairs = [b"UNIQ_KEY\x01%04x" % number, properties.replace(b"%s", value)]
        rows.append((0, b"body", b"\x02".join(reversed(pairs) if is_first else pairs) + b"\x02"))
    uniform = COLUMNS.of(encode_batch(rows))
    assert uniform is not None and uniform.properties == b"".join([properties for _, _, properties in rows])
    magic, tail = topic_field("t")
    head = BatchHead(magic, 3, 0, 1, bytes(8), 2, bytes(8), 0)
    overhead = HEADS[0].size + len(tail) + PROPERTIES_LENGTH.size
    place = RecordPlace(head, tail, b"", overhead, 0, 0)
    made, wanted = [each.make(place, TagCodes().of) for each in (uniform, RowBatch(rows))]
    assert made[:2] == wanted[:2]


KEYS = [b"UNIQ_KEY\x01%032x\x02" % number for number in range(LEAST)]


@pytest.mark.parametrize(
    "properties",
    [
        KEYS[1:],
        [key[:-2] + b"\x02" for key in KEYS[:1]] + KEYS[1:],
        [b"OTHER_KE\x01%032x\x02" % number for number in range(LEAST)],
        # Of one size, but one message has another property, or its key at another place, or no end.
        [*KEYS[1:], b"OTHER_KE\x01%032x\x02" % 1],
        [*KEYS[1:], b"A\x01b\x02UNIQ_KEY\x01%028x\x02" % 1],
        [*KEYS[1:], KEYS[0][:-1] + b"0"],
        [key[:-1] + b"0" for key in KEYS],
        [b"UNIQ_KEY\x01%s\x02" % bytes([65 + number] * SECTOR_BYTES) for number in range(LEAST)],
    ],
)
def test_other_batches_are_left_to_the_rows(properties: list[bytes]) -> None:
    assert COLUMNS.of(encode_batch([(0, b"body", each) for each in properties])) is None


def test_a_batch_that_would_hold_up_the_loop_is_left_to_the_rows() -> None:
    rows = [(0, b"", b"UNIQ_KEY\x01%08d\x02" % number) for number in range(MOST + 1)]
    assert COLUMNS.of(encode_batch(rows)) is None
    assert COLUMNS.of(encode_batch(rows[:MOST])) is not None


@given(st.binary(max_size=200))
def test_junk_is_left_to_the_rows(junk: bytes) -> None:
    assert COLUMNS.of(junk) is None
