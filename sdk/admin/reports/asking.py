"""What functions that ask for reports share: how several servers are asked, and what is not answered."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.failures import explain
from skylark.sdk.endpoint import Answers

R = TypeVar("R")
T = TypeVar("T")


class AskEach(Protocol):
    """Awaits a function for each address, several at a time, as `skylark.sdk.endpoint.ask_all`."""

    async def __call__(self, keys: Iterable[str], ask: Callable[[str], Awaitable[T]], /) -> Answers[T]: ...


@lazy_dataclass(frozen=True, slots=True)
class Unanswered:
    """A question that was not answered; ``where`` says about what, as in ``broker 10.0.0.1:10911``.

    ``where`` is empty when the error says so itself.
    """

    where: str
    error: SkylarkError

    def __str__(self) -> str:
        return f"{self.where}: {explain(self.error)}" if self.where else explain(self.error)


@lazy_dataclass(frozen=True, slots=True)
class Reports(Generic[R]):
    """One report of each server that has answered, and the servers that have not."""

    rows: tuple[R, ...]
    unanswered: tuple[Unanswered, ...] = ()


def unanswered_of(kind: str, answers: Answers[T]) -> tuple[Unanswered, ...]:
    """The errors in ``answers``; ``kind`` says what the addresses are of, as in ``broker``."""
    return tuple(Unanswered(f"{kind} {addr}", error) for addr, error in answers.errors.items())
