"""A message whose unique key its sender chose, so that a message sent again can be recognised."""

import re
from collections.abc import Sequence
from typing import Any

from mqcommon.arguments import check_text, shown
from mqcommon.errors import InvalidArgument
from mqcommon.message.message import Message

_KEY = re.compile(r"[!-~]{1,255}")


class OwnKeyMessage(Message):
    """A message to send with ``unique_key``, instead of one that the producer makes up.

    Brokers do not compare unique keys. `Admin.query_by_unique_key` finds the message; consumers see it as ``msg_id``.
    """

    __slots__ = ("unique_key",)

    def __init__(self, topic: str, body: bytes = b"", *, unique_key: str, **others: Any) -> None:
        super().__init__(topic, body, **others)
        check_text("unique_key", unique_key)
        if not _KEY.fullmatch(unique_key):
            raise InvalidArgument(f"unique_key must be 1 to 255 visible ASCII characters, not {shown(unique_key)}")
        self.unique_key = unique_key

    @property
    def encoded_key(self) -> bytes:
        """The unique key as an encoded property."""
        return b"UNIQ_KEY\x01%s\x02" % self.unique_key.encode()


def with_own_keys(messages: Sequence[object], made: list[bytes]) -> list[bytes]:
    """``made``, the encoded unique keys of ``messages``, with those that their senders chose."""
    return [
        message.encoded_key if isinstance(message, OwnKeyMessage) else key
        for message, key in zip(messages, made, strict=True)
    ]
