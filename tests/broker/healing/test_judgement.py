"""Whose bytes are right: damage on a minority is always repaired, and no sound byte is ever overwritten."""

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.healing.judgement import Copy, EntrySum, Verdict, judge, sound_records
from skylark.broker.store.sums.block_sums import Block, BlockSum
from skylark.mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC
from skylark.mqcommon.message.record import encode_record, topic_field

FILE = 4096
BLOCK = Block(FILE + 1024, 1024)
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def record(at: int, body: bytes, properties: bytes = b"KEYS\x01a\x02") -> bytes:
    return encode_record(*topic_field("topic"), 1, at, at, body, properties, 0, 0, 1, HOST, 2, HOST, 0, 0)


def whole_file(bodies: list[int], base: int = FILE) -> bytes:
    """A file of the log with bodies of these sizes, and its filler."""
    data = b""
    for number, size in enumerate(bodies):
        made = record(base + len(data), bytes([65 + number % 26]) * size)
        if len(data) + len(made) + 8 > FILE:
            break
        data += made
    return (data + SIZE_MAGIC.pack(FILE - len(data), BLANK_MAGIC)).ljust(FILE, b"\0")


files = st.lists(st.integers(1, 700), min_size=20, max_size=40).map(whole_file)


@st.composite
def damages(draw: st.DrawFn) -> tuple[int, bytes]:
    """Where in the file, and what is there then: a flip, zeros, or bytes of another place."""
    at = draw(st.integers(BLOCK.start - FILE, BLOCK.end - FILE - 1))
    kind = draw(st.sampled_from(["flip", "zeros", "misdirected"]))
    if kind == "flip":
        return at, bytes([draw(st.integers(1, 255))])
    at = at // 512 * 512
    return (at, bytes(512)) if kind == "zeros" else (at, whole_file([30] * 60, 7 * FILE)[:512])


def damaged(data: bytes, damage: tuple[int, bytes]) -> bytes:
    at, new = damage
    new = bytes([data[at] ^ new[0]]) if len(new) == 1 else new
    return data[:at] + new + data[at + len(new) :]


def of_block(data: bytes) -> bytes:
    return data[BLOCK.start - FILE : BLOCK.end - FILE]


def verdict(own: bytes, *others: bytes, own_sum: BlockSum | None = None, votes: bool = True) -> Verdict:
    copies = [Copy("own", FILE, own, own_sum, is_own=True)]
    copies += [Copy(f"peer {number}", FILE, data, has_vote=votes) for number, data in enumerate(others)]
    return judge(BLOCK, own_sum, copies, FILE)


@given(files, st.lists(damages(), min_size=1, max_size=5), st.integers(0, 2), st.booleans())
def test_with_an_attested_sum_one_whole_copy_is_enough(
    data: bytes, damage: list[tuple[int, bytes]], whole: int, is_own: bool
) -> None:
    copies = [data] * 3
    for number in range(3):
        if number != whole:
            for each in damage:
                copies[number] = damaged(copies[number], each)
    attested = BlockSum(crc32(of_block(data)), True)
    if is_own:
        found = verdict(*copies, own_sum=attested)
    else:  # this replica has no sum, or one of its own that is not attested
        others = [Copy("own", FILE, copies[0], is_own=True)]
        others += [Copy(f"peer {number}", FILE, copies[number], attested) for number in (1, 2)]
        found = judge(BLOCK, None, others, FILE)
    assert found.right == of_block(data) and found.is_whole


@given(files, damages(), damages())
def test_a_sum_tells_when_all_copies_are_bad_and_mends_them_if_they_are_bad_at_different_records(
    data: bytes, one: tuple[int, bytes], other: tuple[int, bytes]
) -> None:
    own, peer = damaged(data, one), damaged(data, other)
    found = verdict(own, peer, own_sum=BlockSum(crc32(of_block(data)), True))
    assert found.right in (None, of_block(data))


@given(files, damages(), st.integers(0, 2))
def test_without_a_sum_two_of_three_decide(data: bytes, damage: tuple[int, bytes], bad: int) -> None:
    copies = [data] * 3
    copies[bad] = damaged(data, damage)
    assert verdict(*copies).right == of_block(data)


@given(files, damages(), st.booleans())
def test_of_two_replicas_without_a_sum_nothing_sound_is_overwritten(
    data: bytes, damage: tuple[int, bytes], is_own_bad: bool
) -> None:
    own, peer = (damaged(data, damage), data) if is_own_bad else (data, damaged(data, damage))
    found = verdict(own, peer)
    if is_own_bad:
        # Record by record: mended, or left as it is.
        of_both = zip(of_block(own), of_block(data), strict=True)
        assert found.right is None or all(byte in pair for byte, pair in zip(found.right, of_both, strict=True))
    else:
        assert found.right in (None, of_block(data))


def test_two_replicas_with_other_properties_cannot_say_who_is_right() -> None:
    data = whole_file([100] * 40)
    at = data.index(b"KEYS", BLOCK.start - FILE + 300) + 5
    bad = damaged(data, (at, b"\x07"))
    for own, peer in ((data, bad), (bad, data)):
        found = verdict(own, peer)
        assert (found.right, found.is_whole) == (None, False)
        assert (
            found.why == f"bytes differ at {FILE + at}, 2 versions are sound and there is no majority, of own, peer 0"
        )
    # A sum that only this replica has made helps: the peer's bytes match it.
    assert verdict(bad, data, own_sum=BlockSum(crc32(of_block(data)), False)).right == of_block(data)


def test_a_body_that_does_not_match_its_crc_is_replaced_whoever_has_it() -> None:
    data = whole_file([100] * 40)
    bad = damaged(data, (data.index(b"AAAA" if b"AAAA" in of_block(data) else b"FFFF", 1024), b"\x01"))
    assert verdict(bad, data).right == of_block(data)
    assert verdict(data, bad).right == of_block(data)
    assert verdict(bad, bad).is_whole is False, "all copies are bad, and equal"


def test_what_cannot_be_decided_does_not_keep_the_rest_from_being_mended() -> None:
    data = whole_file([100] * 40)
    keys = data.index(b"KEYS", BLOCK.start - FILE + 300)
    disputed = damaged(data, (keys + 5, b"\x07"))
    own = damaged(disputed, (data.index(b"KEYS", keys + 1) - 50, b"\x01"))
    found = verdict(own, data)
    assert found.right == of_block(disputed) and found.undecided and not found.is_whole


def test_where_disk_and_memory_differ_and_nobody_can_say_which_is_right_nothing_is_written() -> None:
    data = whole_file([100] * 40)
    keys = data.index(b"KEYS", BLOCK.start - FILE + 300)
    on_disk = damaged(data, (keys + 5, b"\x07"))
    in_memory = damaged(data, (data.index(b"KEYS", keys + 1) - 50, b"\x01"))
    own = [Copy(holder, FILE, made, is_own=True) for holder, made in (("disk", on_disk), ("memory", in_memory))]
    found = judge(BLOCK, None, [own[0], own[1]._replace(has_vote=False)], FILE)
    assert found.right is None and found.undecided
    peers = [Copy(f"peer {number}", FILE, data) for number in range(2)]
    assert judge(BLOCK, None, [*own, *peers], FILE).right == of_block(data)


def test_a_block_that_was_sealed_when_it_was_damaged_is_decided_by_the_others() -> None:
    data = whole_file([100] * 40)
    own = damaged(data, (data.index(b"KEYS", BLOCK.start - FILE + 300) + 5, b"\x07"))
    sealed_so = BlockSum(crc32(of_block(own)), False)
    assert verdict(own, data, own_sum=sealed_so).right is None
    assert verdict(own, data, data, own_sum=sealed_so).right == of_block(data)


def test_a_sum_chooses_among_sound_records_that_differ() -> None:
    data = whole_file([100] * 40)
    keys = data.index(b"KEYS", BLOCK.start - FILE + 300) + 5
    own = damaged(data, (keys, b"\x07"))
    peer = damaged(damaged(data, (data.index(b"KEYS", keys) + 5, b"\x07")), (keys + 50, b"\x01"))
    for is_attested in (True, False):
        found = verdict(own, peer, own_sum=BlockSum(crc32(of_block(data)), is_attested))
        assert found.right == of_block(data) and found.is_whole
    assert verdict(own, peer).undecided
    # A replica that knows that its bytes are damaged still helps; without a sum of this broker it does not.
    copies = [Copy("own", FILE, own, is_own=True), Copy("peer", FILE, peer, is_current=False)]
    assert judge(BLOCK, BlockSum(crc32(of_block(data)), True), copies, FILE).right == of_block(data)
    assert judge(BLOCK, None, copies, FILE).right == of_block(own)


def test_half_of_the_replicas_are_no_majority_and_attested_sums_that_differ_prove_nothing() -> None:
    data = whole_file([100] * 40)
    bad = damaged(data, (data.index(b"KEYS", BLOCK.start - FILE + 300) + 5, b"\x07"))
    assert verdict(bad, bad, data, data).right is None
    copies = [Copy("own", FILE, bad, is_own=True)]
    copies += [Copy("peer", FILE, log, BlockSum(crc32(of_block(log)), True)) for log in (data, bad)]
    assert judge(BLOCK, None, copies, FILE).right == of_block(bad), "two of three have it so"
    assert judge(BLOCK, None, [*copies, Copy("fourth", FILE, data)], FILE).right is None


@given(files, st.lists(damages(), min_size=1, max_size=3), st.lists(damages(), max_size=2), st.booleans())
def test_bytes_that_differ_from_the_only_sum_are_not_called_right(
    data: bytes, own: list[tuple[int, bytes]], peer: list[tuple[int, bytes]], has_peer: bool
) -> None:
    copies = [data] * 2
    for number, each in ((0, own), (1, peer)):
        for damage in each:
            copies[number] = damaged(copies[number], damage)
    found = verdict(copies[0], *copies[1:] * has_peer, own_sum=BlockSum(crc32(of_block(data)), False))
    assert found.right in (None, of_block(data))


@given(files, st.lists(st.integers(1, 700), min_size=20, max_size=40).map(whole_file), st.lists(damages(), max_size=3))
def test_bytes_that_were_cut_from_the_log_of_the_set_do_not_come_back(
    data: bytes, old: bytes, damage: list[tuple[int, bytes]]
) -> None:
    # Two slaves have what their master lost in a power loss, and do not follow it yet.
    own = data
    for each in damage:
        own = damaged(own, each)
    stale = [Copy(f"slave {n}", FILE, old, BlockSum(crc32(of_block(old)), True), is_current=False) for n in (1, 2)]
    for own_sum in (None, BlockSum(crc32(of_block(data)), False)):
        found = judge(BLOCK, own_sum, [Copy("own", FILE, own, own_sum, is_own=True), *stale], FILE)
        assert found.right in (None, of_block(own), of_block(data))
    # A sum of this replica proves their bytes nevertheless.
    found = judge(BLOCK, BlockSum(crc32(of_block(old)), False), [Copy("own", FILE, own, is_own=True), *stale], FILE)
    assert found.right == of_block(old)


def test_copies_of_single_records_have_no_vote() -> None:
    data = whole_file([100] * 40)
    own = damaged(data, (data.index(b"KEYS", BLOCK.start - FILE + 300) + 5, b"\x07"))
    assert verdict(own, data, data, votes=False).right is None


def test_entries_of_a_group_decide_without_a_sum() -> None:
    data = whole_file([100] * 40)
    bad = damaged(data, (data.index(b"KEYS", BLOCK.start - FILE + 300) + 5, b"\x07"))
    copies = [Copy("own", FILE, bad, is_own=True), Copy("peer", FILE, data)]
    entries = [EntrySum(FILE + at, 512, crc32(data[at : at + 512])) for at in range(512, 2560, 512)]
    twice = [entries[1], entries[1]]
    for given_, right in (
        *((entries[1:3], of_block(data)), (entries[1:2], None), (entries[2:], None), (twice, None), ([], None)),
    ):
        assert judge(BLOCK, None, copies, FILE, given_).right == right
    across = [EntrySum(FILE + 700, 700, crc32(data[700:1400])), EntrySum(FILE + 1400, 900, crc32(data[1400:2300]))]
    assert judge(BLOCK, None, copies, FILE, across).right == of_block(data)
    wrong = [across[0], EntrySum(FILE + 1400, 900, 1)]
    assert judge(BLOCK, None, copies, FILE, wrong).right is None


def test_sound_records_are_found_after_damage_and_a_filler_ends_a_file() -> None:
    data = whole_file([100] * 40)
    found = list(sound_records(FILE, data, FILE))
    assert b"".join(each.data for each in found) == data
    cut = list(sound_records(FILE + 7, data[7:], FILE))
    assert cut == found[1:]
    java = data[: found[-1].start - FILE + 8].ljust(FILE, b"x")
    assert list(sound_records(FILE, java, FILE))[-1].data == found[-1].data[:8]
