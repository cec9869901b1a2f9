"""Which member of a group consumes which queues of a topic. Pure."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def averagely(queues: Sequence[T], clients: Sequence[str], client: str) -> list[T]:
    """A run of consecutive queues for each client; the first ones have one more when the queues do not divide."""
    if client not in clients:
        return []
    share, rest = divmod(len(queues), len(clients))
    number = clients.index(client)
    start = number * share + min(number, rest)
    return list(queues[start : start + share + (number < rest)])
