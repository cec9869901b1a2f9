"""Changes at several servers, one after another: what became of the change at each."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.failures import explain


class Change(Protocol):
    """What became of a change at one server; ``error`` is None when it was made."""

    @property
    def ok(self) -> bool: ...

    @property
    def error(self) -> str | None: ...


@lazy_dataclass(frozen=True, slots=True)
class BrokerChange:
    """What became of a change at one broker."""

    broker_addr: str
    ok: bool
    error: str | None


@lazy_dataclass(frozen=True, slots=True)
class NameServerChange:
    """What became of a change at one NameServer."""

    namesrv_addr: str
    ok: bool
    error: str | None


@lazy_dataclass(frozen=True, slots=True)
class ControllerChange:
    """What became of a change at one Controller."""

    controller_addr: str
    ok: bool
    error: str | None


C = TypeVar("C", bound=Change)
#: Hears what became of the change at an address as soon as that is known: None when it was made.
Heard = Callable[[str, SkylarkError | None], object]


async def change_each(
    addrs: Iterable[str],
    act: Callable[[str], Awaitable[object]],
    made: Callable[[str, bool, str | None], C],
    heard: Heard | None = None,
) -> list[C]:
    """Run ``act`` for each address in turn. A failure at one server does not stop the others.

    ``made`` is the kind of server: `BrokerChange`, `NameServerChange` or `ControllerChange`.
    """
    results: list[C] = []
    for addr in addrs:
        failure: SkylarkError | None = None
        try:
            await act(addr)
        except SkylarkError as error:
            failure = error
        if heard is not None:
            heard(addr, failure)
        results.append(made(addr, failure is None, None if failure is None else explain(failure)))
    return results


def all_ok(results: Iterable[Change]) -> bool:
    """Whether the change was made at all servers."""
    return all(result.ok for result in results)
