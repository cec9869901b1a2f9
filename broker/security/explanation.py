"""Why a request is served or refused, for administrators. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple

YES: Final = "yes"
NO: Final = "no"


class Step(NamedTuple):
    """One question, its answer, and the rule that gave it."""

    step: str
    outcome: str
    rule: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All questions up to the one that decided."""

    is_allowed: bool
    #: The refusal as the client gets it, or why the request is served.
    text: str
    steps: list[Step]
