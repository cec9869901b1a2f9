"""Tables in pages, between Skylark and Skylark: fields of 21, 43 and 201, and of their answers.

A page is asked for by the number of entries before it. Entries are in the order of their creation, so those that are
created meanwhile come last. A removal moves all later entries one place forward. So the request also has the count of
removals at the time of the previous page, and the page begins earlier by the number of removals since: no entry is
missed, some may come twice.
"""

from dataclasses import dataclass

from remoting.protocol.headers.header import Header, optional
from remoting.protocol.scalars import read_long


@dataclass(slots=True)
class PageRequestHeader(Header):
    """Asks for one page; a request without these fields asks for the whole table."""

    page_from: int | None = optional(read_long)
    page_removals: int | None = optional(read_long)


@dataclass(slots=True)
class PageResponseHeader(Header):
    """The fields for the request of the next page; without ``next_from`` this was the last page."""

    next_from: int | None = optional(read_long)
    removals: int | None = optional(read_long)

    @property
    def next(self) -> PageRequestHeader | None:
        """The request for the next page."""
        return None if self.next_from is None else PageRequestHeader(self.next_from, self.removals or 0)


FIRST_PAGE = PageRequestHeader(0, 0)
