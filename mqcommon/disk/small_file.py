"""A small file whose contents the process that owns it has in memory, so that damage on the disk can be undone."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class SmallFile(NamedTuple):
    """``is_whole`` judges the bytes of the file ``path``; ``restore`` writes what is in memory.

    ``is_whole`` is called in a thread, ``restore`` in the event loop; it raises OSError or SkylarkError.
    """

    path: str
    is_whole: Callable[[bytes], bool]
    restore: Callable[[], Awaitable[None]]
