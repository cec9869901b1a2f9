"""What a check says about one thing. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sdk.admin.doctor.facts import Facts

OK, INFO, WARN, FAIL = "OK", "INFO", "WARN", "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """``where`` is the server, group or topic; ``remedy`` is what to do, empty when there is nothing to do."""

    state: str
    where: str
    text: str
    remedy: str = ""


Check = Callable[[Facts], Iterable[Finding]]


def few(names: Iterable[str], most: int = 5) -> str:
    """Some of the names, and how many there are more."""
    every = sorted(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
