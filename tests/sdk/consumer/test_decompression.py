"""Bodies are decompressed in a thread before they are read; what is kept is bounded, and damage hurts one message."""

import random
import threading
from collections.abc import Iterator

import pytest

from skylark.mqcommon.errors import ProtocolError
from skylark.mqcommon.message import compression, message
from skylark.mqcommon.message.compression import COMPRESSIONS, compressed, decompressed
from skylark.mqcommon.message.message import MessageExt, decode_messages
from skylark.mqcommon.message.record import encode_record, topic_field
from skylark.sdk.consumer.decompression import INLINE_BYTES, drop_contents, keep_contents

FLAG = COMPRESSIONS["zlib"]
NOISE = random.Random(5).randbytes(3_000)


def record(body: bytes, sys_flag: int = 0) -> bytes:
    return encode_record(*topic_field("t"), 0, 0, 0, body, b"", 0, sys_flag, 0, bytes(8), 0, bytes(8), 0, 0)


def packed(body: bytes) -> bytes:
    return record(compressed(body, FLAG), FLAG)


def large(number: int) -> bytes:
    """A body that is large even when it is compressed."""
    return bytes([number]) + NOISE + b"x" * INLINE_BYTES


class Threads:
    """The thread in which each body was decompressed."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def __call__(self, body: bytes, sys_flag: int, most: int | None = None) -> bytes:
        self.seen.append(threading.current_thread() is threading.main_thread())
        return decompressed(body, sys_flag, most)


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    made = Threads()
    monkeypatch.setattr(message, "decompressed", made)
    yield made.seen


async def test_large_bodies_of_a_pull_are_decompressed_in_a_thread(in_loop: list[bool]) -> None:
    bodies = [large(1), NOISE, large(2)]
    messages = decode_messages(packed(bodies[0]) + record(NOISE) + packed(bodies[2]))
    await keep_contents(messages)
    assert [message.body for message in messages] == bodies
    assert in_loop == [False, False]
    assert [message.has_content for message in messages] == [True, False, True]
    drop_contents(messages)
    assert not any(message.has_content for message in messages)
    assert [message.body for message in messages] == bodies
    assert in_loop == [False, False, True, True]


async def test_one_small_body_is_not_worth_a_thread_and_a_bomb_is(in_loop: list[bool]) -> None:
    (small,) = decode_messages(packed(NOISE * 5))
    await keep_contents([small])
    assert (small.body, in_loop) == (NOISE * 5, [True])
    in_loop.clear()
    (bomb,) = decode_messages(packed(NOISE + bytes(1_000_000)))
    await keep_contents([bomb])
    # The loop has tried INLINE_BYTES of it.
    assert (bomb.body, in_loop) == (NOISE + bytes(1_000_000), [True, False])


async def test_a_pull_of_small_messages_is_not_looked_at(in_loop: list[bool]) -> None:
    messages = decode_messages(record(b"") * 100 + packed(b"a" * 5_000))
    await keep_contents(messages)
    await keep_contents([])
    assert in_loop == []
    assert messages[-1].body == b"a" * 5_000


async def test_what_is_kept_is_bounded(in_loop: list[bool]) -> None:
    messages = decode_messages(b"".join([packed(large(number)) for number in range(5)]))
    await keep_contents(messages, len(large(0)) * 2)
    assert [message.has_content for message in messages] == [True, True, False, False, False]
    assert [message.body for message in messages] == [large(number) for number in range(5)]


async def test_damaged_and_hostile_bodies_hurt_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_CONTENT_BYTES", 100_000)
    junk, bomb = record(NOISE, FLAG), packed(NOISE + bytes(200_000))
    messages = decode_messages(packed(large(1)) + junk + bomb + packed(large(2)))
    await keep_contents(messages)
    assert [messages[0].body, messages[3].body] == [large(1), large(2)]
    for bad, text in ((messages[1], "damaged"), (messages[2], "holds more than 100000 bytes")):
        for _ in range(2):
            with pytest.raises(ProtocolError, match=text):
                bad.body  # noqa: B018  reading it raises
        assert bad.has_content  # why there is none, so that it is not tried again


async def test_a_record_that_cannot_be_read_hurts_no_other() -> None:
    """The record, with a wrong CRC for example, is alone, or among others."""
    bad = bytearray(packed(large(2)))
    bad[100] ^= 1
    for first in (record(NOISE), packed(large(1))):
        messages = decode_messages(first + bytes(bad))
        await keep_contents(messages)
        assert messages[0].body in (NOISE, large(1))
        with pytest.raises(ProtocolError, match="CRC"):
            messages[1].body  # noqa: B018  reading it raises
        assert messages[1].has_content


def test_flags_are_read_without_the_record() -> None:
    plain, small = decode_messages(record(b"x") + packed(b"x"))
    assert isinstance(plain, MessageExt)
    assert (plain.is_compressed, small.is_compressed) == (False, True)
