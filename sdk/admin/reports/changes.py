"""Changes at several servers, one after another: the result at each server."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from skylark.mqcommon.errors import SkylarkError
from skylark.mqcommon.lazy_dataclass import lazy_dataclass
from skylark.sdk.admin.failures import explain


class Change(Protocol):
    """The result of a change at one server; ``error`` is None on success."""

    @property
    def ok(self) -> bool: ...

    @property
    def error(self) -> str | None: ...


@lazy_dataclass(frozen=True, slots=True)
class BrokerChange:
    """The result of a change at one broker."""

    broker_addr: str
    ok: bool
    error: str | None


@lazy_dataclass(frozen=True, slots=True)
class NameServerChange:
    """The result of a change at one NameServer."""

    namesrv_addr: str
    ok: bool
    error: str | None


@lazy_dataclass(frozen=True, slots=True)
class ControllerChange:
    """The result of a change at one Controller."""

    controller_addr: str
    ok: bool
    error: str | None


C = TypeVar("C", bound=Change)
#: Called with an address and the error there, or None on success, as soon as the result is known.
OnResult = Callable[[str, SkylarkError | None], object]


async def change_each(
    addrs: Iterable[str],
    act: Callable[[str], Awaitable[object]],
    made: Callable[[str, bool, str | None], C],
    on_result: OnResult | None = None,
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
        if on_result is not None:
            on_result(addr, failure)
        results.append(made(addr, failure is None, None if failure is None else explain(failure)))
    return results


def all_ok(results: Iterable[Change]) -> bool:
    """Whether the change was made at all servers."""
    return all(result.ok for result in results)
