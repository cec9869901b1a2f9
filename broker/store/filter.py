"""Which messages of a queue a reader wants. Pure.

RocketMQ stores a hash of each message's tag in the entry of its queue, so that a broker filters by tag without reading
messages. Hashes collide: consumers compare the tags themselves. A filter by properties (SQL92) is a function of the
message's stored properties.
Neighbours: reader.py (applies it), delivery/filters.py (makes it from subscriptions), delivery/held_pulls.py (which
message wakes which held pull).
"""

from collections.abc import Callable

from skylark.mqcommon.lazy_dataclass import lazy_dataclass

#: Whether a message with these stored properties matches; they have a PAIR_END before and after them.
Matches = Callable[[bytes], bool]


@lazy_dataclass(frozen=True, slots=True)
class Filter:
    """``tag_codes``: the hashes of the tags wanted; None lets all entries pass.

    Loops over entries test the set itself: a method call for each entry would cost more than the test.
    ``matches``: the test of properties, for at most ``max_messages`` in one read; None lets all messages pass.
    """

    tag_codes: frozenset[int] | None = None
    matches: Matches | None = None
    max_messages: int = 0


ALL = Filter()
