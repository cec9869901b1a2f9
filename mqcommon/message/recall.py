"""The recall handle of a timed message, as RocketMQ 5 makes it: base64 of ``v1 topic broker time uniqueKey``."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Names a timed message. ``slot_ms`` is in the slot in which it waits, not exactly when it is delivered."""

    topic: str
    broker_name: str
    slot_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.slot_ms} {self.unique_key}"
        return urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """ValueError when ``text`` is not a handle."""
        try:
            version, topic, broker_name, slot, unique_key = urlsafe_b64decode(text.encode()).decode().split(" ")
            if version == _VERSION and slot.isascii() and slot.isdigit() and len(slot) <= 18 and unique_key:
                return cls(topic, broker_name, int(slot), unique_key)
        except ValueError:
            pass
        raise ValueError("recall handle is invalid")
