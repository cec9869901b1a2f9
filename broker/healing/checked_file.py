"""What a check of one file of the store found. Pure."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class CheckedFile(NamedTuple):
    """A file, or a part of a large one, was checked, at the cost of reading ``size`` bytes.

    ``problem``: what is wrong, "" if nothing is; ``is_mended``: whether the file is right again.
    """

    path: str
    size: int
    problem: str = ""
    is_mended: bool = False


#: Checks a file, and mends it.
Job = Callable[[], Awaitable[CheckedFile]]
