r"""The unique keys by which a row that was sent is recognised when its task or its epoch is run again. Pure.

A key is 32 hex digits: 16 for query, epoch, partition and topic (the scope), 16 for the row. A row is known by its
content, and equal rows of a partition by how many were before: a shuffle gives the rows of a partition in another order
when it is run again, and by numbers alone rows would be mistaken for others, and be lost.
Keys with small numbers are claims: the first message that each attempt sends, see once.py.
"""

from collections.abc import Iterable
from hashlib import blake2b

from mqcommon.message.message import Message, own_properties

#: The property of a claim that has the row's number, and the attempt that sent it.
ROW = "SPARK_ROW"
_ROWS_FROM = 1 << 63


class RowKeys:
    """Keys of the rows of one partition for one topic. It keeps about 70 bytes a row, to tell equal ones apart."""

    def __init__(self, query: str, epoch: str, partition: int, topic: str) -> None:
        parts = [text.encode("utf-8", "surrogatepass") for text in (query, epoch, str(partition), topic)]
        text = b"".join([b"%d:%s" % (len(part), part) for part in parts])
        self.scope = blake2b(text, digest_size=8).hexdigest().upper()
        self._seen: set[int] = set()
        self._repeats: dict[int, int] = {}

    def numbers(self, messages: Iterable[bytes | Message]) -> list[int]:
        """The numbers of the next rows."""
        seen = self._seen
        found = []
        for message in messages:
            number = _digest(message if type(message) is bytes else _content(message))
            if number in seen:
                number = self._repeated(number)
            seen.add(number)
            found.append(number)
        return found

    def key(self, number: int) -> str:
        """The unique key of the row with this number; or of a claim, which are counted from 0."""
        return f"{self.scope}{number:016X}"

    def _repeated(self, number: int) -> int:
        count = self._repeats[number] = self._repeats.get(number, 0) + 1
        return _digest(b"%d,%d" % (number, count))


def number_in(unique_key: str) -> int:
    """The number in a key of ours."""
    return int(unique_key[16:], 16)


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest()) | _ROWS_FROM


def _content(message: bytes | Message) -> bytes:
    if isinstance(message, bytes):
        return message
    properties = own_properties(message)
    return b"%d,%d,%s%s" % (message.flag, len(properties), properties, message.body)
