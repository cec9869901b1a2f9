"""The offset to commit is the offset of the first unconsumed message, in whatever order handlers finish."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.sdk.consumer.window import Again, Batch, Window
from tests.sdk.fakes import queue, record


def messages(*offsets: int) -> list[MessageExt]:
    return decode_messages(b"".join(record("t", 0, offset, b"x") for offset in offsets), "broker-a")


def pulled(sizes: list[int], gaps: list[bool]) -> tuple[Window, list[Batch], list[int]]:
    """A window of batches; a gap is an offset that did not match the tags. Also all offsets, in order."""
    window, batches, offsets, at = Window(queue(), 5), [], [], 5
    for size, gap in zip(sizes, gaps, strict=False):
        mine = list(range(at, at + size))
        at += size + gap
        batches.append(window.add(messages(*mine), at, 10))
        offsets += mine
    return window, batches, offsets


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6), st.data())
def test_the_lowest_unconsumed_offset_is_committed(sizes: list[int], gaps: list[bool], data: st.DataObject) -> None:
    window, batches, offsets = pulled(sizes, gaps)
    left = dict.fromkeys(offsets)
    end = window.next_offset
    places = [(batch, number) for batch in batches for number in range(len(batch.done))]
    named = dict(zip(places, offsets, strict=True))
    for batch, number in data.draw(st.permutations(places)):
        batch.finish(number, number + 1)
        del left[named[batch, number]]
        assert window.offset == (min(left) if left else end)
        alive = [each for each in batches if each.left]
        assert window.messages == sum(len(each.done) for each in alive)
        assert window.size_bytes == 10 * len(alive)


@given(st.data())
def test_ranges_may_overlap(data: st.DataObject) -> None:
    window, (batch,), _ = pulled([8], [False])
    left = dict.fromkeys(range(8))
    for _ in range(4):
        start = data.draw(st.integers(0, 7))
        end = data.draw(st.integers(start + 1, 8))
        batch.finish(start, end)
        for number in range(start, end):
            left.pop(number, None)
        assert batch.left == len(left)
        assert window.offset == (5 + min(left) if left else window.next_offset)
        if not left:
            break


def test_a_message_that_is_handled_again_finishes_in_its_batch() -> None:
    emptied: list[Batch] = []
    window = Window(queue(), 0, emptied.append)
    batch = window.add(messages(0, 1), 2, 10)
    batch.finish(0, 1)
    again = Again(batch, 1)
    assert [message.queue_offset for message in again.messages] == [1]
    twice = Again(again, 0)
    assert window.offset == 1
    twice.finish(0, 1)
    assert (window.offset, window.messages, emptied) == (2, 0, [batch])


def test_a_message_that_was_taken_again_thousands_of_times_can_be_consumed() -> None:
    window = Window(queue(), 5)
    tried: Batch | Again = window.add(messages(5, 6), 7, 10)
    tried.finish(0, 1)
    for number in [1] + [0] * 5_000:
        tried = Again(tried, number)
    assert tried.messages[0].queue_offset == 6
    tried.finish(0, 1)
    assert window.offset == 7
