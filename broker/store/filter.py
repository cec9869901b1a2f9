"""Which messages of a queue a reader wants. Pure.

RocketMQ stores a hash of each message's tag in the entry of its queue, so that a broker filters by tag without reading
messages. Hashes collide: consumers compare the tags themselves. A filter by properties (SQL92) needs the message
itself: it will be a second step here, for entries that `tag_codes` let pass.
Neighbours: reader.py (applies it), delivery/tag_filters.py (makes it from subscriptions), delivery/hold.py (which
message wakes which held pull).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filter:
    """``tag_codes``: the hashes of the tags wanted; None lets all entries pass.

    Loops over entries test the set itself: a method call for each entry would cost more than the test.
    """

    tag_codes: frozenset[int] | None = None


ALL = Filter()
