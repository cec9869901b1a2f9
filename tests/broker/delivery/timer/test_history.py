"""Checkpoints, and the search of the log for copies."""

from array import array

import pytest

from broker.delivery.timer.history import History, TimerCheckpoint, read_origins
from mqcommon.errors import ProtocolError
from mqcommon.message.layout import BLANK_MAGIC, SIZE_MAGIC


def test_a_checkpoint_is_read_back() -> None:
    checkpoint = TimerCheckpoint(1, 2, 1_700_000_000_000, 4)
    assert TimerCheckpoint.decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize("body", [b"", b"2 1 2 3 4", b"1 2 3", b"1 a b c d"])
def test_what_is_no_checkpoint(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="checkpoint of timers"):
        TimerCheckpoint.decode(body)


def test_rocketmqs_file() -> None:
    data = b"".join(value.to_bytes(8, "big") for value in (9_000, 77, 5, 6, 0, 1, 2))
    assert TimerCheckpoint.of_rocketmq(data) == TimerCheckpoint(0, 5, 8_999, 0)
    with pytest.raises(ProtocolError, match="at least 32"):
        TimerCheckpoint.of_rocketmq(data[:31])


def test_which_messages_wait() -> None:
    history = History(TimerCheckpoint(0, read_to=10, done_slot=5_000, position=0), {101})
    assert not history.waits(3, 5_000, 50)
    assert history.waits(3, 6_000, 50)
    assert not history.waits(3, 7_000, 100), "its copy is in the log"
    assert history.done_slot == 7_000
    assert history.waits(10, 4_000, 60), "it came after the checkpoint"


def test_a_filler_is_skipped_and_junk_is_an_error() -> None:
    assert read_origins(SIZE_MAGIC.pack(500, BLANK_MAGIC) + bytes(50), 0, array("q")) == 500
    with pytest.raises(ProtocolError, match="no record begins at byte 0"):
        read_origins(b"junk" * 50, 0, array("q"))
