"""Tables in pages, between Skylark and Skylark: fields of 21, 43 and 201, and of their answers.

A page is asked for by the number of entries before it. Entries are in the order of their making, so that those made
meanwhile come last. One that is removed moves those after it; so a page is asked for with the count of removals that
the page before was made at, and begins so much earlier: no entry is missed, some may come twice.
"""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional
from remoting.protocol.scalars import read_long


@dataclass(slots=True)
class PageRequestHeader(Header):
    """Without these fields the whole table is asked for."""

    page_from: int | None = optional(read_long)
    page_removals: int | None = optional(read_long)


@dataclass(slots=True)
class PageResponseHeader(Header):
    """What to ask for the next page with; without ``next_from`` this was the last."""

    next_from: int | None = optional(read_long)
    removals: int | None = optional(read_long)

    @property
    def next(self) -> PageRequestHeader | None:
        """The request for the next page."""
        return None if self.next_from is None else PageRequestHeader(self.next_from, self.removals or 0)


FIRST_PAGE = PageRequestHeader(0, 0)
