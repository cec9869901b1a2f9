import threading
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from mqcommon.errors import SendFailed
from mqcommon.message.message import Message, OwnKeyMessage, WithOwnKeys
from mqcommon.message.queue import MessageQueue
from spark_connector.writing.rows import Place
from spark_connector.writing.sending import send_all

QUEUES = [MessageQueue("t", "b", number) for number in range(3)]


class MemoryProducer:
    """Keeps what it is sent, one after the other; ``refused`` cannot be sent."""

    def __init__(self, refused: bytes = b"none") -> None:
        self.refused = refused
        self.lock = threading.Lock()
        self.alone: list[tuple[MessageQueue | None, str | None, bytes]] = []
        self.together: list[Sequence[Any]] = []
        self.keys: list[bytes] = []

    def send(self, message: Message, *, queue: MessageQueue | None = None, deliver_at: datetime | None = None) -> None:
        if message.body == self.refused:
            raise SendFailed("refused")
        with self.lock:
            self.alone.append((queue, message.sharding_key, message.body))
            self.keys += [message.encoded_key] if isinstance(message, OwnKeyMessage) else []

    def send_many(self, topic: str, messages: Sequence[bytes | Message]) -> None:
        self.together.append(messages)


def test_plain_messages_go_together() -> None:
    producer = MemoryProducer()
    messages = [b"a", Message("t", b"b", sharding_key="k"), b"c"]
    send_all(producer, "t", messages, {1: Place()})
    assert producer.together == [[b"a", b"c"]]
    assert producer.alone == [(None, "k", b"b")]
    send_all(producer, "t", [b"d"], {})
    send_all(producer, "t", [], {})
    assert producer.together[1:] == [[b"d"]]


def test_queues_and_keys_keep_their_order() -> None:
    producer = MemoryProducer()
    messages = [Message("t", b"%d" % n, sharding_key=None if n % 2 else f"k{n % 10}") for n in range(300)]
    places = {n: Place(QUEUES[n % 3] if n % 2 else None) for n in range(300)}
    send_all(producer, "t", messages, places)
    assert len(producer.alone) == 300
    for lane in {one[:2] for one in producer.alone}:
        bodies = [int(body) for *found, body in producer.alone if tuple(found) == lane]
        assert bodies == sorted(bodies)


def test_a_failure_is_raised_when_the_others_have_ended() -> None:
    producer = MemoryProducer(b"7")
    with pytest.raises(SendFailed, match="refused"):
        send_all(
            producer,
            "t",
            [Message("t", b"%d" % n, sharding_key="k" * n) for n in range(20)],
            dict.fromkeys(range(20), Place()),
        )
    assert len(producer.alone) > 7


def test_keys_go_with_their_messages() -> None:
    producer = MemoryProducer()
    messages = [b"a", Message("t", b"b", sharding_key="k"), b"c"]
    send_all(producer, "t", messages, {1: Place()}, ["KA", "KB", "KC"])
    (many,) = producer.together
    assert isinstance(many, WithOwnKeys)
    assert (list(many), many.encoded_keys) == ([b"a", b"c"], [b"UNIQ_KEY\x01KA\x02", b"UNIQ_KEY\x01KC\x02"])
    (key,) = producer.keys
    assert key == b"UNIQ_KEY\x01KB\x02"
