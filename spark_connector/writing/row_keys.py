r"""The unique keys by which a row that was sent is recognised when its task or its epoch is run again. Pure.

A key is 32 hex digits: 16 for query, epoch, partition and topic (the scope), 16 for the row. A row is known by its
content, and equal rows of a partition by how many were before: a shuffle gives the rows of a partition in another order
when it is run again, and by numbers alone rows would be mistaken for others, and be lost.
Keys that end in a small number are claims: the first message that each attempt sends, see once.py.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import cast

from mqcommon.message.message import Message, own_properties

#: The property of a claim that has the row's name, and the attempt that sent it.
ROW = "SPARK_ROW"


class RowKeys:
    """Keys of the rows of one partition for one topic. It keeps about 100 bytes a row, to tell equal ones apart."""

    def __init__(self, query: str, epoch: str, partition: int, topic: str) -> None:
        parts = [text.encode("utf-8", "surrogatepass") for text in (query, epoch, str(partition), topic)]
        self.scope = _digest(b"".join([b"%d:%s" % (len(part), part) for part in parts]))
        self._seen: set[str] = set()
        self._repeats: dict[str, int] = {}

    def names(self, messages: Sequence[bytes | Message]) -> list[str]:
        """The names of the next rows, 16 hex digits each; a row's unique key is the scope and its name."""
        if set(map(type, messages)) == {bytes}:
            names = [blake2b(body, digest_size=8).hexdigest() for body in cast(Sequence[bytes], messages)]
        else:
            names = [_digest(_content(message)) for message in messages]
        fresh = set(names)
        if len(fresh) == len(names) and fresh.isdisjoint(self._seen):
            self._seen |= fresh
            return names
        return [self._fresh(name) for name in names]

    def claim(self, number: int) -> str:
        """The unique key of a claim; they are counted from 0."""
        return f"{self.scope}{number:016x}"

    def _fresh(self, name: str) -> str:
        if name in self._seen:
            count = self._repeats[name] = self._repeats.get(name, 0) + 1
            name = _digest(b"%s %d" % (name.encode(), count))
        self._seen.add(name)
        return name


def name_in(unique_key: str) -> str:
    """The row's name in a key of ours."""
    return unique_key[16:]


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _content(message: bytes | Message) -> bytes:
    if isinstance(message, bytes):
        return message
    properties = own_properties(message)
    return b"%d,%d,%s%s" % (message.flag, len(properties), properties, message.body)
