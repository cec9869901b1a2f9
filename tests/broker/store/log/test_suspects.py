"""What a damaged block shows about its damage: one changed byte is found, and unsound records show themselves."""

from random import Random
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.store.log.suspects import changed_bytes, suspects
from tests.broker.store.support import SMALL, open_store, put
from tests.support.memory_files import MemoryFiles


@given(st.binary(min_size=1, max_size=300), st.data())
def test_one_changed_byte_is_found(sound: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(sound) - 1))
    changed = bytearray(sound)
    changed[place] ^= data.draw(st.integers(1, 255))
    assert changed_bytes(crc32(changed), crc32(sound), len(sound)) == [place]


def test_random_damage_is_hardly_ever_taken_for_one_byte() -> None:
    random = Random(58)
    sound = random.randbytes(4096)
    assert sum(bool(changed_bytes(random.getrandbits(32), crc32(sound), 4096)) for _ in range(50)) <= 1


def block_of_records() -> bytes:
    fs = MemoryFiles()
    store = open_store(fs)
    for number in range(60):
        put(store, "t", 0, b"body-%03d" % number, b"KEYS\x01key-%03d\x02" % number)
    store.close()
    return fs.read(f"/store/commitlog/{0:020d}")


@pytest.mark.parametrize(
    ("what", "are_suspect"),
    [(b"key-010", True), (b"body-010", False)],
    ids=["properties", "a body"],
)
def test_more_changed_bytes_make_all_suspect_unless_a_record_shows_them(what: bytes, are_suspect: bool) -> None:
    sound = block_of_records()
    at = sound.index(what)
    wrong = sound[:at] + b"KEY" + sound[at + 3 :]
    size = SMALL.commitlog_segment_bytes
    assert suspects(wrong, 0, 0, crc32(sound)) == ([(0, size)] if are_suspect else [])
    # The block begins within the record, whose head is before it.
    found = suspects(wrong, 0, at, crc32(sound[at:]))
    assert found == ([(at, size)] if are_suspect else [])


def test_a_changed_byte_in_a_block_is_a_place_in_the_log() -> None:
    sound = block_of_records()
    wrong = bytearray(sound)
    wrong[2_000] ^= 7
    assert suspects(bytes(wrong), 40_960, 40_960, crc32(sound)) == [(42_960, 42_961)]
    assert suspects(bytes(wrong), 40_960, 41_960, crc32(sound[1_000:])) == [(42_960, 42_961)]
