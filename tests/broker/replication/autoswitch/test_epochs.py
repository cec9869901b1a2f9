"""Epochs of a log: whatever masters wrote, the lists alone tell where two logs part."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.replication.autoswitch.epochs import Epoch, Epochs, common_end, decode_file, encode_file
from skylark.mqcommon.errors import ProtocolError

lists = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 1000)), max_size=8).map(
    lambda steps: Epochs(
        Epoch(sum(s[0] for s in steps[: n + 1]), sum(s[1] for s in steps[:n])) for n in range(len(steps))
    )
)


class Copy:
    """A log, each byte as the number of the epoch that wrote it, with its epochs."""

    def __init__(self) -> None:
        self.data: list[int] = []
        self.epochs = Epochs()

    def lead(self, epoch: int, size: int) -> None:
        """Write as the master."""
        self.epochs.begin(epoch, len(self.data))
        self.data += [epoch] * size

    def follow(self, master: "Copy", size: int) -> None:
        """Cut what the master does not have, then copy up to ``size`` bytes as the link sends them."""
        end = common_end(self.epochs, len(self.data), master.epochs, len(master.data))
        if end is None:
            assert not self.data or not master.data or not len(self.epochs)
            end = 0
        assert self.data[:end] == master.data[:end]
        del self.data[end:]
        self.epochs.cut_to(end)
        for at in range(end, min(end + size, len(master.data))):
            self.epochs.begin(*master.epochs.at(at))
            self.data.append(master.data[at])


steps = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4), st.integers(0, 9)), max_size=12)


@given(steps)
def test_logs_are_the_same_up_to_their_common_end_and_no_further_in_it(
    history: list[tuple[int, int, int, int]],
) -> None:
    copies = [Copy(), Copy(), Copy()]
    copies[0].lead(1, 3)
    for copy in copies[1:]:
        copy.follow(copies[0], 1)
    for number, (leader, written, slave, copied) in enumerate(history):
        copies[leader].lead(number + 2, written)
        if slave % 3 != leader:
            copies[slave % 3].follow(copies[leader], copied)
    for one in copies:
        for other in copies:
            end = common_end(one.epochs, len(one.data), other.epochs, len(other.data))
            assert end is not None
            assert one.data[:end] == other.data[:end]
            longer = min(len(one.data), len(other.data))
            assert end == longer or one.data[end] != other.data[end]


@given(lists, lists, st.integers(0, 10_000), st.integers(0, 10_000))
def test_the_common_end_is_the_same_from_both_sides(one: Epochs, other: Epochs, one_end: int, other_end: int) -> None:
    assert common_end(one, one_end, other, other_end) == common_end(other, other_end, one, one_end)


def test_the_recorded_old_master_is_cut_where_the_new_one_began() -> None:
    old, new = Epochs([Epoch(1, 0)]), Epochs([Epoch(1, 0), Epoch(2, 886840)])
    assert common_end(old, 975536, new, 1019410) == 886840


@given(lists)
def test_the_file_is_read_as_it_was_written(epochs: Epochs) -> None:
    assert list(decode_file(encode_file(epochs))) == list(epochs)


@given(lists.filter(len), st.data())
def test_a_damaged_file_is_refused_or_means_the_same(epochs: Epochs, data: st.DataObject) -> None:
    whole = bytearray(encode_file(epochs))
    at = data.draw(st.integers(whole.index(b"\n", whole.index(b"\n") + 1), len(whole) - 2))
    whole[at] ^= 1
    with suppress(ProtocolError):
        assert list(decode_file(bytes(whole))) == list(epochs)


@pytest.mark.parametrize(
    "text", [b"", b"1\n", b"x\n0\n", b"2\n0\n1-0\n", b"1\n7\n1-0\n", b"2\n0\n2-0\n1-5\n", b"1\n0\n1-0-3\n"]
)
def test_other_files_are_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_file(text)


def test_rocketmq_writes_the_crc_in_31_bits_and_0_for_none() -> None:
    assert list(decode_file(b"1\n0\n3-17\n")) == [(3, 17)]
    assert encode_file(Epochs([Epoch(1, 0), Epoch(2, 886840)])).splitlines()[0] == b"2"


@given(lists, st.integers(0, 10_000))
def test_after_a_cut_all_epochs_have_a_byte(epochs: Epochs, end: int) -> None:
    before = list(epochs)
    epochs.cut_to(end)
    assert list(epochs) == [entry for entry in before if entry.start < end]


@given(lists.filter(len), st.integers(0, 10_000))
def test_deleted_files_leave_the_epochs_of_the_rest(epochs: Epochs, start: int) -> None:
    kept = epochs.at(start)
    epochs.forget_before(start)
    assert next(iter(epochs)) == kept


def test_an_epoch_without_a_byte_is_replaced_and_an_older_one_refused() -> None:
    epochs = Epochs([Epoch(1, 0)])
    epochs.begin(2, 10)
    epochs.begin(4, 10)
    epochs.begin(4, 10)
    assert list(epochs) == [(1, 0), (4, 10)]
    for epoch, start in ((3, 20), (5, 5), (4, 11)):
        with pytest.raises(ProtocolError, match="cannot follow"):
            epochs.begin(epoch, start)
    with pytest.raises(ProtocolError, match="no epoch is known"):
        Epochs().at(3)


def test_epochs_of_one_number_that_began_elsewhere_are_not_the_same() -> None:
    one, other = Epochs([Epoch(1, 0), Epoch(3, 40)]), Epochs([Epoch(1, 0), Epoch(3, 50)])
    assert common_end(one, 60, other, 60) == 40
    assert common_end(Epochs([Epoch(3, 40)]), 60, Epochs([Epoch(3, 50)]), 60) is None
